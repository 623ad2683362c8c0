"""The manifest of a shard directory.

It is written last and read first, and it has the checksum of every other file.
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
from safetensors import SafetensorError, safe_open

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import Kind
from dgl_gt.partition.system.user_files import reading

from .counts import check_counts
from .schema import EdgeManifest, VertexManifest

FORMAT = "dgl-gt shards"
MANIFEST = "manifest.json"
FORMAT_VERSION = 9
NODE_NAMES = "node_names.txt"  # where nodes have names
PART_FILES = ("structure.safetensors", "node_data.safetensors", "edge_data.safetensors")
SHARDS = Kind(
    "shards",
    MANIFEST,
    lambda manifest: manifest.get("format") == FORMAT,
    rf"{re.escape(NODE_NAMES)}|part\d+/({'|'.join(map(re.escape, PART_FILES))})",
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
    if typed.files.keys() != files | ({NODE_NAMES} if typed.node_names else set()):
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


def _tensors(manifest: dict, part: int, name: str) -> dict[str, tuple]:
    """Of each tensor in a file of a part: its shape, by the manifest's counts, and its types in safetensors' words."""
    counts, is_vertex = manifest["per_part"][part], manifest["cut"] == "vertex"
    held = counts["owned"] + counts["mirrors" if is_vertex else "halo"]
    edges = counts["edges"] if is_vertex else sum(counts["edges_by_hop"])
    if name != "structure.safetensors":
        kind, rows = ("node_data", held) if name == "node_data.safetensors" else ("edge_data", edges)
        columns = {key: (each["dtype"], (rows, *each["shape"])) for key, each in manifest[kind].items()}
        return {
            key: (shape, ("BOOL" if dtype == "bool" else re.sub("[a-z]+", dtype[0].upper(), dtype),))
            for key, (dtype, shape) in columns.items()
        }
    pointers = manifest["parts"] * max(manifest["halo_depth"], 1) + 1
    lengths = {
        "indptr": (held if is_vertex else held - counts["halo_by_hop"][-1]) + 1,
        **dict.fromkeys(("indices", "edge_ids"), edges),
        "node_ids": held,
        **dict.fromkeys(("recv_ptr", "send_ptr"), pointers),
        "send_rows": counts["sent"],
    }
    returns = {"send_returns": ((counts["sent"],), ("BOOL",))} if is_vertex else {}
    return {key: ((length,), ("I32", "I64")) for key, length in lengths.items()} | returns


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
    ends = {"indptr": lengths["indices"], "send_ptr": lengths["send_rows"], "recv_ptr": held - owned}
    for key, end in ends.items():
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
