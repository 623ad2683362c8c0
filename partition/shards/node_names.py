"""The user's ids of nodes beside the shards, as text: line i is the id of node i."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import reading, text_array

from .counts import user_node_count
from .manifest import NODE_NAMES, check_unchanged, read_manifest

_SLICE = 1 << 16  # names that are written at a time


def write_node_names(folder: Path, names: np.ndarray | None) -> str | None:
    """Write the ids, if nodes have any, and return what they are: ``"integers"`` or ``"text"``."""
    if names is None:
        return None
    is_text = names.dtype.kind == "U"
    with open(folder / NODE_NAMES, "wb") as file:
        for start in range(0, len(names), _SLICE):
            file.write("".join(f"{name}\n" for name in names[start : start + _SLICE].tolist()).encode())
    return "text" if is_text else "integers"


def read_node_names(directory, manifest: dict | None = None) -> np.ndarray | None:
    """Read the user's ids of the nodes of a shard directory, without virtual nodes.

    Parameters
    ----------
    directory : path
        Shard directory.
    manifest : dict, optional
        What :func:`dgl_gt.partition.read_manifest` returned for it.

    Returns
    -------
    ndarray of int64, uint64 or str, (N,), or None
        The id of each node; without virtual nodes, ``names[sg.node_ids]`` are those of the owned rows of a rank. None
        where it is the node's number.

    Raises
    ------
    InputError
        The file is missing or damaged, or the directory holds no shards.
    """
    manifest = read_manifest(directory) if manifest is None else manifest
    if manifest["node_names"] is None:
        return None
    path = Path(directory) / NODE_NAMES
    with reading(path):
        check_unchanged(path, manifest["files"][NODE_NAMES])
        names = path.read_bytes().decode().split("\n")[:-1]
    if len(names) != user_node_count(manifest):
        raise InputError(
            f"{path} has {len(names)} lines for {user_node_count(manifest)} nodes; partition the graph again"
        )
    if manifest["node_names"] == "text":
        return text_array(names, f"{path}: names")
    ids = list(map(int, names))
    return np.array(ids, np.uint64 if max(ids) >= 2**63 else np.int64)
