"""Folders that hold one graph in files of known names, as opposed to folders of tables."""

from __future__ import annotations

import os
from pathlib import Path

from dgl_gt.partition.system.user_files import reading

META = "meta.yaml"  # of DGL's CSVDataset
METADATA = "metadata.json"  # of DGL's chunked format; GraphStorm's names begin with other words


def metadata_of_chunks(path) -> Path | None:
    """The metadata of DGL's chunked format that a path names, or that lie in the folder that it names; None for others."""
    path = Path(os.path.expanduser(path))
    if path.name.endswith(METADATA):
        return path
    inner = path / METADATA
    if not os.path.isfile(inner):
        return None
    with reading(inner):
        return inner if b'"node_type"' in inner.read_bytes() else None


def meta_of_types(path) -> Path | None:
    """The YAML file that names the types of a folder of tables, itself or in the folder, as DGL's CSVDataset has; else None."""
    path = Path(os.path.expanduser(path))
    inner = path if path.name == META else path / META
    if not os.path.isfile(inner):
        return None
    with reading(inner):
        return inner if b"edge_data" in inner.read_bytes() else None


def raw_folder(path) -> Path | None:
    """The folder of a data set in OGB's raw form, itself or its ``raw``; None for others."""
    path = Path(os.path.expanduser(path))
    return next((each for each in (path, path / "raw") if {"edge", "num-node-list"} <= number_files(each).keys()), None)


def number_files(folder: Path) -> dict[str, Path]:
    """Text files of numbers by their names without an ending; of a packed one and a plain one, the packed one."""
    with reading(folder):
        paths = list(folder.iterdir()) if os.path.isdir(folder) else []
    return {
        path.name.removesuffix(end): path for end in (".csv", ".csv.gz") for path in paths if path.name.endswith(end)
    }
