"""Reads shards (docs/format.md): the manifest, which is written last and read first, and the arrays of the parts.

The manifest has the checksum of every other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import Kind
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.user_files import reading, text_array

from .counts import EdgeManifest, VertexManifest, check_counts, user_node_count

FORMAT = "dgl-gt shards"
MANIFEST = "manifest.json"
FORMAT_VERSION = 10
NODE_NAMES = "node_names.txt"  # where nodes have names
LINKS = "links.safetensors"  # of a graph whose links were split
PART_FILES = ("structure.safetensors", "node_data.safetensors", "edge_data.safetensors")
SHARDS = Kind(
    "shards",
    MANIFEST,
    lambda manifest: manifest.get("format") == FORMAT,
    rf"{re.escape(NODE_NAMES)}|{re.escape(LINKS)}|part\d+/({'|'.join(map(re.escape, PART_FILES))})",
)
_HASH_BLOCK_BYTES = 1 << 20
_SLICE = 1 << 20  # numbers of an index tensor that are checked at a time


def is_shards(source) -> bool:
    """Whether a source is a shard directory."""
    return os.path.isfile(os.path.join(source, MANIFEST))  # False, too, for a name that is too long


def write_manifest(directory: Path, contents: dict) -> dict:
    """Write ``manifest.json`` with the format, the versions of what made it and a checksum of itself; return it."""
    text = _render({"format": FORMAT, "format_version": FORMAT_VERSION, **contents, "versions": _versions()})
    (Path(directory) / MANIFEST).write_text(text)
    return json.loads(text)


def file_entry(path: Path) -> dict:
    """What the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def read_manifest(directory) -> dict:
    """Read and check a shard directory's manifest.

    Returns
    -------
    dict
        The fields that docs/format.md lists.

    Raises
    ------
    InputError
        No such directory, not shards, another format version, or a damaged manifest: one whose checksum does not
        match, or with a field that does not fit the format or the other fields.
    """
    path = Path(directory) / MANIFEST
    try:
        if not path.is_file():
            raise InputError(f"{directory} holds no shards (no manifest.json); make them with `dgl-gt partition`")
        written = path.read_text(encoding="utf-8")
        manifest = json.loads(written)
        _check_version(directory, path, manifest)
        unchanged = written == _render(manifest)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged: not valid JSON; partition the graph again") from None
    if not unchanged:
        raise InputError(f"{path} is damaged or was edited: its checksum does not match; partition the graph again")
    try:
        _check(manifest)
    except InputError as error:
        raise InputError(f"{path} does not fit the format: {error}; partition the graph again") from None
    return manifest


def _check_version(directory, path: Path, manifest) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path} is not a dgl-gt manifest; give a directory made by `dgl-gt partition`")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{directory} has format version {manifest.get('format_version')}; "
            f"this dgl-gt reads version {FORMAT_VERSION}: "
            "partition the graph again, or use the dgl-gt that wrote it"
        )


def _check(manifest: dict) -> None:
    """Raise :class:`InputError` unless every field fits the format, and the counts each other."""
    try:
        typed = msgspec.convert(manifest, EdgeManifest | VertexManifest)
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError) as error:
        raise InputError(str(error)) from None
    files = {f"part{index}/{name}" for index in range(len(typed.per_part)) for name in PART_FILES}
    more = {NODE_NAMES} if typed.node_names else set()
    if typed.files.keys() != files | more | ({LINKS} if typed.links else set()):
        raise InputError("files does not name the files of all parts")
    choice = typed.choice
    if choice is not None and not choice.cut == manifest["cut"] in {each.cut for each in choice.candidates}:
        raise InputError(f"choice chose {choice.cut!r}, but the cut is {manifest['cut']!r}, or is no candidate")
    check_counts(manifest, PART_FILES)


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
        with reading(Path(directory) / NODE_NAMES):
            check_unchanged(Path(directory) / NODE_NAMES, manifest["files"][NODE_NAMES])
    if parts is None and manifest["links"]:
        read_links(directory, manifest)
    for part in range(manifest["parts"]) if parts is None else parts:
        for name in PART_FILES:
            path = Path(directory) / f"part{part}" / name
            with reading(path):
                check_unchanged(path, manifest["files"][f"part{part}/{name}"])
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
    if _sha256(path) != expected["sha256"]:
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
    columns = {key: (each["dtype"], (rows, *each["shape"])) for key, each in manifest[kind].items()}
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


def _versions() -> dict:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for distribution in ("dgl-gt", "numpy", "scipy", "pymetis", "safetensors"):
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            versions[distribution] = None
    return versions


def _render(manifest: dict) -> str:
    """The manifest's text, with a checksum of itself."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum}, indent=1, allow_nan=False) + "\n"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


# ---- the arrays of the parts


class ShardReader:
    """Gives the arrays of each part, as numpy arrays in memory or as torch tensors ("pt") mapped to the file.

    Only what is asked for is read. The files hold no pickle. Whether they are undamaged is checked by
    :func:`verify`, which callers run first.
    """

    def __init__(self, directory, manifest: dict, framework: str = "numpy"):
        self.directory, self.manifest, self.framework = Path(directory), manifest, framework
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
        return self._read(part, f"{kind}.safetensors", names, dict.fromkeys(names, rows))

    def links(self) -> dict:
        """Return the links, see :func:`read_links`."""
        return read_links(self.directory, self.manifest, self.framework)

    def _read(self, part: int, file_name: str, names, lengths: dict[str, int]) -> dict:
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


def read_links(directory, manifest: dict, framework: str = "numpy") -> dict:
    """The links of a shard directory, integers (2, n) by the name of the set, and ``new_ids``, (N,), after checks.

    ``new_ids`` has the place of each node in the order of parts: those of part ``p`` are from ``ptr[p]`` on.
    :class:`InputError` says that the shards have no links, or that the file is missing or damaged.
    """
    if manifest["links"] is None:
        raise InputError(
            f"the shards of {manifest['source']} have no links to learn; partition the graph with --link-split 0.8,0.1,0.1"
        )
    path = Path(directory) / LINKS
    counts, nodes = manifest["links"]["pairs"], manifest["nodes"]
    shapes = {name: (2, count) for name, count in counts.items()} | {"new_ids": (nodes,)}
    with reading(path):
        check_unchanged(path, manifest["files"][LINKS])
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
