"""Folders that hold one graph in files of known names."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .coo import COOGraph
from .dgl_chunks import METADATA, read_dgl_chunks
from .ogb_folder import raw_folder, read_ogb_folder


def folder_reader(path) -> Callable[[], COOGraph] | None:
    """What reads a folder of DGL's chunked format, or the metadata of one, or a folder of OGB's raw form; None for others."""
    folder = Path(os.path.expanduser(path))
    if folder.name.endswith(METADATA):  # GraphStorm's names begin with other words
        return partial(read_dgl_chunks, folder)
    if os.path.isfile(folder / METADATA):
        return partial(read_dgl_chunks, folder / METADATA)
    raw = raw_folder(folder)
    return None if raw is None else partial(read_ogb_folder, raw)
