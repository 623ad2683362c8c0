"""Reads the files of shards (docs/format.md), after checks: the arrays of the parts, the links and the names of nodes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.storage import Url, cache_folder, cached, file_checksum, located, short_name
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.user_files import reading, text_array

from .counts import user_node_count
from .manifest import LINKS, NODE_NAMES, PART_FILES, read_manifest

_SLICE = 1 << 20  # numbers of an index tensor that are checked at a time


def files_of(directory, manifest: dict) -> Path:
    """The folder on this machine where the files of shards lie: the directory, or that of its URL in the cache.

    In the cache are those files that :func:`verified` was asked for.
    """
    place = located(directory)
    if isinstance(place, Url):
        return cache_folder("shards", f"{short_name(place)}-{manifest['checksum'][:16]}")
    return place


def verified(directory, manifest: dict, name: str) -> Path:
    """The path of a file of shards that has the manifest's size and checksum; one at a URL is fetched into the cache."""
    path, expected = files_of(directory, manifest) / name, manifest["files"][name]
    with reading(path):
        if isinstance(place := located(directory), Url):
            return cached(place / name, path, expected["bytes"], expected["sha256"])
        check_unchanged(path, expected)
    return path


def verify(directory, manifest: dict, parts=None) -> None:
    """Compare the files of the given parts (default: all) with the manifest's sizes, checksums and counts.

    Parameters
    ----------
    directory : path
        Shard directory.
    manifest : dict
        What :func:`dgl_gt.partition.read_manifest` returned for it.
    parts : iterable of int, optional
        The parts whose files are read; all by default.

    Raises
    ------
    InputError
        A file is missing, unreadable, truncated or altered, or does not hold what the manifest counts; the message
        names it.
    """
    if parts is None and manifest["node_names"]:
        verified(directory, manifest, NODE_NAMES)
    if parts is None and manifest["links"]:
        read_links(directory, manifest)
    for part in range(manifest["parts"]) if parts is None else parts:
        for name in PART_FILES:
            path = verified(directory, manifest, f"part{part}/{name}")
            with reading(path):
                _check_contents(path, manifest, part)


def check_unchanged(path: Path, expected: dict) -> None:
    """Raise :class:`InputError` unless a file has the size and the checksum that the manifest says."""
    if not path.is_file():
        raise InputError(f"{path} is missing; partition the graph again")
    if path.stat().st_size != expected["bytes"]:
        raise InputError(
            f"{path} is truncated or altered: {path.stat().st_size} bytes instead of {expected['bytes']}; "
            "partition the graph again"
        )
    if file_checksum(path) != expected["sha256"]:
        raise InputError(f"{path} is damaged: its checksum does not match; partition the graph again")


def _held_rows(manifest: dict, part: int, depth: int) -> list[int]:
    """The number of owned rows, then of held rows with the copies of 1, 2, ..., ``depth`` hops; or with the mirrors."""
    counts = manifest["per_part"][part]
    rows = [counts["owned"]]
    for copies in [counts["mirrors"]] if manifest["cut"] == "vertex" else counts["halo_by_hop"][:depth]:
        rows.append(rows[-1] + copies)
    return rows


def _lengths(manifest: dict, part: int, depth: int) -> dict[str, int]:
    """The length of each array of a part's structure in shards whose halo is ``depth`` hops deep."""
    counts, rows = manifest["per_part"][part], _held_rows(manifest, part, depth)
    if manifest["cut"] == "vertex":
        depth, edges, sent, with_edges = 1, counts["edges"], counts["sent"], rows[-1]
    else:
        edges, sent = (sum(counts[key][:depth]) for key in ("edges_by_hop", "sent_by_hop"))
        with_edges = rows[depth - 1]
    lengths = {"indptr": with_edges + 1, "indices": edges, "edge_ids": edges, "node_ids": rows[-1], "send_rows": sent}
    lengths |= dict.fromkeys(("recv_ptr", "send_ptr"), depth * manifest["parts"] + 1)
    return lengths | ({"send_returns": sent} if manifest["cut"] == "vertex" else {})


def _rows_of_column(manifest: dict, part: int, kind: str, name: str, rows: int) -> int:
    """How many of the part's first held rows, or edges, a column has rows of: those of its type."""
    prefix, slash, _ = name.partition("/")
    if manifest["schema"] is None or not slash:
        return rows
    of_kind, counts = manifest["schema"][kind.split("_")[0] + "s"], manifest["typed"][kind.split("_")[0] + "s"][part]
    types = [*of_kind] if isinstance(of_kind, dict) else [",".join(names) for *names, _ in of_kind]
    number, total, of_type = types.index(prefix), 0, 0
    for by_type in counts:
        if total == rows:
            break
        total, of_type = total + sum(by_type), of_type + by_type[number]
    return of_type


def _ends(lengths: dict[str, int], owned: int) -> dict[str, int]:
    """The last number of each array of pointers."""
    return {
        "indptr": lengths["indices"],
        "send_ptr": lengths["send_rows"],
        "recv_ptr": lengths["node_ids"] - owned,
    }


def _tensors(manifest: dict, part: int, name: str) -> dict[str, tuple]:
    """Of each tensor in a file of a part: its shape, by the manifest's counts, and its types in safetensors' words."""
    lengths = _lengths(manifest, part, manifest["halo_depth"])
    if name == "structure.safetensors":
        types = dict.fromkeys(lengths, ("I32", "I64")) | {"send_returns": ("BOOL",)}
        return {key: ((length,), types[key]) for key, length in lengths.items()}
    kind, rows = name.removesuffix(".safetensors"), lengths["node_ids" if name.startswith("node") else "edge_ids"]
    columns = {
        key: (each["dtype"], (_rows_of_column(manifest, part, kind, key, rows), *each["shape"]))
        for key, each in manifest[kind].items()
    }
    return {
        key: (shape, ("BOOL" if dtype == "bool" else re.sub("[a-z]+", dtype[0].upper(), dtype),))
        for key, (dtype, shape) in columns.items()
    }


def _check_contents(path: Path, manifest: dict, part: int) -> None:
    """Raise :class:`InputError` where a file of a part has other shapes or types, or numbers out of range."""
    expected = _tensors(manifest, part, path.name)
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (it is not a mapping)
            for key in sorted({*expected, *tensors}):
                shape, types = expected.get(key, (None, ()))
                found = tuple(tensors[key].get_shape()) if key in tensors else None
                _check_same(path, key, "shape", found, [shape])
                _check_same(path, key, "type", tensors[key].get_dtype(), types)
            if path.name == "structure.safetensors":
                _check_numbers(path, tensors, {key: shape[0] for key, (shape, _) in expected.items()}, manifest, part)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read ({error}); partition the graph again") from error


def _check_same(path: Path, key: str, what: str, found, allowed) -> None:
    if found not in allowed:
        raise InputError(
            f"{path} does not fit the manifest: {key!r} has {what} {found} instead of {' or '.join(map(str, allowed))}; "
            "partition the graph again"
        )


def _check_numbers(path: Path, tensors: dict, lengths: dict[str, int], manifest: dict, part: int) -> None:
    """Raise :class:`InputError` unless ids are in their range, and pointers rise from 0 to their end.

    Compiled loops trust them.
    """

    def slices(key: str):
        for start in range(0, lengths[key], _SLICE):
            yield tensors[key][start : min(start + _SLICE, lengths[key])]

    held, owned = lengths["node_ids"], manifest["per_part"][part]["owned"]
    limits = {"indices": held, "node_ids": manifest["nodes"], "edge_ids": manifest["edges"], "send_rows": owned}
    for key, limit in limits.items():
        if not all(0 <= values.min() <= values.max() < limit for values in slices(key)):
            raise InputError(
                f"{path} is damaged: {key!r} holds a value that is not a number from 0 to {limit - 1}; partition the "
                "graph again"
            )
    for key, end in _ends(lengths, owned).items():
        last, rises = 0, tensors[key][:1][0] == 0
        for values in slices(key):
            rises &= values[0] >= last and not (values[1:] < values[:-1]).any()
            last = values[-1]
        if not rises or last != end:
            raise InputError(f"{path} is damaged: {key!r} does not rise from 0 to {end}; partition the graph again")


# ---- the arrays of the parts


class ShardReader:
    """Gives the arrays of each part, as numpy arrays in memory or as torch tensors ("pt") mapped to the file.

    Only what is asked for is read. The files hold no pickle. Whether they are undamaged is checked by
    :func:`verify`, which callers run first.
    """

    def __init__(self, directory, manifest: dict, framework: str = "numpy"):
        self.directory, self.manifest, self.framework = directory, manifest, framework
        self.parts, self.is_vertex_cut = manifest["parts"], manifest["cut"] == "vertex"

    def rows(self, part: int, depth: int = 1) -> list[int]:
        """Return the number of owned rows, then the number of held rows with the copies of 1, 2, ..., ``depth`` hops.

        A vertex cut has copies of one hop: its mirrors.
        """
        return _held_rows(self.manifest, part, depth)

    def structure(self, part: int, *names: str, depth: int = 1) -> dict:
        """Return arrays of a part's structure (all, or those named), as in shards whose halo is ``depth`` hops deep.

        Shards of a deeper halo begin with those of a smaller depth, so that the arrays are only cut off. ``indptr`` and
        ``indices`` hold the in-edges of the owned rows and of the copies of ``depth - 1`` hops; of a vertex cut, those
        of all held rows.
        """
        lengths = _lengths(self.manifest, part, depth)
        arrays = self._read(part, "structure.safetensors", names, lengths)
        for key, end in _ends(lengths, self.rows(part)[0]).items():
            if key in arrays and arrays[key][-1] != end:  # compiled loops trust that pointers fit
                raise InputError(
                    f"{self.directory} is damaged: {key!r} of part {part} ends at {int(arrays[key][-1])} after "
                    f"{format_count(depth, 'hop')}, but the manifest says {end}; partition the graph again"
                )
        return arrays

    def data(self, part: int, kind: str, *names: str, rows: int) -> dict:
        """Return ``"node_data"`` or ``"edge_data"`` (all, or those named) of a part's first held nodes or edges."""
        names = names or tuple(self.manifest[kind])
        lengths = {name: _rows_of_column(self.manifest, part, kind, name, rows) for name in names}
        return self._read(part, f"{kind}.safetensors", names, lengths)

    def links(self) -> dict:
        """Return the links, see :func:`read_links`."""
        return read_links(self.directory, self.manifest, self.framework)

    def _read(self, part: int, file_name: str, names, lengths: dict[str, int]) -> dict:
        """Read arrays of a file, or the first ``lengths[name]`` rows of each."""
        path = files_of(self.directory, self.manifest) / f"part{part}" / file_name
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


def read_links(directory, manifest: dict, framework: str = "numpy") -> dict:
    """The links of a shard directory, integers (2, n) by the name of the set, and ``new_ids``, (N,), after checks.

    ``new_ids`` has the place of each node in the order of parts: those of part ``p`` are from ``ptr[p]`` on.
    :class:`InputError` says that the shards have no links, or that the file is missing or damaged.
    """
    if manifest["links"] is None:
        raise InputError(
            f"the shards of {manifest['source']} have no links to learn; partition the graph with --link-split 0.8,0.1,0.1"
        )
    path = verified(directory, manifest, LINKS)
    counts, nodes = manifest["links"]["pairs"], manifest["nodes"]
    shapes = {name: (2, count) for name, count in counts.items()} | {"new_ids": (nodes,)}
    with reading(path):
        try:
            with safe_open(path, framework=framework) as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a mapping)
        except SafetensorError as error:
            raise InputError(f"{path} cannot be read ({error}); partition the graph again") from error
    for name in sorted({*shapes, *arrays}):
        _check_same(path, name, "shape", tuple(arrays[name].shape) if name in arrays else None, [shapes.get(name)])
        values = arrays[name]
        if values.size if framework == "numpy" else values.numel():
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= nodes:
                raise InputError(
                    f"{path} is damaged: {name!r} holds {low if low < 0 else high}, which is not a number from 0 to {nodes - 1}; "
                    "partition the graph again"
                )
    return arrays


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
    path = verified(directory, manifest, NODE_NAMES)
    with reading(path):
        names = path.read_bytes().decode().split("\n")[:-1]
    if len(names) != user_node_count(manifest):
        raise InputError(
            f"{path} has {len(names)} lines for {user_node_count(manifest)} nodes; partition the graph again"
        )
    if manifest["node_names"] == "text":
        return text_array(names, f"{path}: names")
    ids = list(map(int, names))
    return np.array(ids, np.uint64 if max(ids) >= 2**63 else np.int64)
