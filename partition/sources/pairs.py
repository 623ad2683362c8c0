"""Pairs of nodes that a user names, as numbers of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import regular_file
from dgl_gt.partition.transforms.link_split import nodes_of, read_arrays

from .edge_list import read_edge_list


def read_pairs(path: str, names: np.ndarray | None, ranges: Sequence[range], source: str) -> np.ndarray:
    """The pairs of a file, int64 (2, n): the array ``pairs`` of an ``.npz``, or an edge list.

    ``names`` are the user's ids of the nodes of ``source``, None where they are numbers from 0; for ``ranges`` see
    :func:`.nodes_of`.
    """
    if Path(path).suffix == ".npz":
        arrays = read_arrays(path)
        if "pairs" not in arrays:
            raise InputError(f"{path} has no array pairs (it has {', '.join(arrays) or 'nothing'}); add it")
        pairs = arrays["pairs"]
    else:
        is_text = names is not None and names.dtype.kind == "U"
        listed = read_edge_list(regular_file(path), "names" if is_text else None)
        pairs = np.stack([listed.src, listed.dst])
        if listed.node_names is not None:
            pairs = listed.node_names[pairs]
    if not pairs.size:
        raise InputError(f"{path} has no pair of nodes; give at least one")
    return nodes_of(path, pairs, names, ranges, source)
