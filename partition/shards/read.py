"""Reads the arrays of a shard directory (docs/format.md), one part at a time. Every reader of shards goes through here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.user_files import reading, text_array

from .counts import user_node_count
from .manifest import NODE_NAMES, check_unchanged, read_manifest


class ShardReader:
    """Gives the arrays of each part, as numpy arrays in memory or as torch tensors ("pt") mapped to the file.

    Only what is asked for is read. The files hold no pickle. Whether they are undamaged is checked by
    :func:`dgl_gt.partition.shards.manifest.verify`, which callers run first.
    """

    def __init__(self, directory, manifest: dict, framework: str = "numpy"):
        self.directory, self.manifest, self.framework = Path(directory), manifest, framework
        self.parts, self.is_vertex_cut = manifest["parts"], manifest["cut"] == "vertex"

    def rows(self, part: int, depth: int = 1) -> list[int]:
        """Return the number of owned rows, then the number of held rows with the copies of 1, 2, ..., ``depth`` hops.

        A vertex cut has copies of one hop: its mirrors.
        """
        counts = self.manifest["per_part"][part]
        rows = [counts["owned"]]
        for copies in [counts["mirrors"]] if self.is_vertex_cut else counts["halo_by_hop"][:depth]:
            rows.append(rows[-1] + copies)
        return rows

    def structure(self, part: int, *names: str, depth: int = 1) -> dict:
        """Return arrays of a part's structure (all, or those named), as in shards whose halo is ``depth`` hops deep.

        Shards of a deeper halo begin with those of a smaller depth, so that the arrays are only cut off. ``indptr`` and
        ``indices`` hold the in-edges of the owned rows and of the copies of ``depth - 1`` hops; of a vertex cut, those
        of all held rows.
        """
        if self.is_vertex_cut:
            return self._read(part, "structure.safetensors", names, {})
        counts, rows, pointers = self.manifest["per_part"][part], self.rows(part, depth), depth * self.parts + 1
        edges, sent = (sum(counts[key][:depth]) for key in ("edges_by_hop", "sent_by_hop"))
        lengths = {
            "indptr": rows[depth - 1] + 1,
            **dict.fromkeys(("indices", "edge_ids"), edges),
            "node_ids": rows[depth],
            **dict.fromkeys(("recv_ptr", "send_ptr"), pointers),
            "send_rows": sent,
        }
        arrays = self._read(part, "structure.safetensors", names, lengths)
        for key, end in {"indptr": edges, "recv_ptr": rows[depth] - rows[0], "send_ptr": sent}.items():
            if key in arrays and arrays[key][-1] != end:  # compiled loops trust that pointers fit
                raise InputError(
                    f"{self.directory} is damaged: {key!r} of part {part} ends at {int(arrays[key][-1])} after "
                    f"{format_count(depth, 'hop')}, but the manifest says {end}; partition the graph again"
                )
        return arrays

    def data(self, part: int, kind: str, *names: str, rows: int) -> dict:
        """Return ``"node_data"`` or ``"edge_data"`` (all, or those named) of a part's first held nodes or edges."""
        names = names or tuple(self.manifest[kind])
        return self._read(part, f"{kind}.safetensors", names, dict.fromkeys(names, rows))

    def _read(self, part: int, file_name: str, names, lengths: dict[str, int | None]) -> dict:
        """Read arrays of a file, or the first ``lengths[name]`` rows of each."""
        path = self.directory / f"part{part}" / file_name
        try:
            with safe_open(path, framework=self.framework) as file:
                return {key: _first_rows(file, key, lengths.get(key)) for key in names or file.keys()}
        except OSError as error:
            raise InputError(f"cannot read {path}: {error}; check the path and its permissions") from error
        except SafetensorError as error:
            raise InputError(f"cannot read {path}: {error}; partition the graph again") from error


def _first_rows(file, name: str, rows: int | None):
    stored = file.get_slice(name)
    if rows is None or rows >= stored.get_shape()[0]:  # safetensors cannot slice an array without rows
        return file.get_tensor(name)
    return stored[:rows]


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
