"""The manifest of shards (docs/format.md), which is written last and read first; it has the checksum of every other file."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import LINK_SETS
from dgl_gt.partition.system.output_checks import Kind
from dgl_gt.partition.system.storage import Url, file_checksum, is_file, located

from .counts import check_counts
from .manifest_fields import EdgeManifest, VertexManifest

FORMAT = "dgl-gt shards"
MANIFEST = "manifest.json"
FORMAT_VERSION = 12
NODE_NAMES = "node_names.txt"  # where nodes have names
ID_MAP = "node_ids.parquet"  # the same names, where the source was tables
LINKS = "links.safetensors"  # of a graph whose links were split
PART_FILES = ("structure.safetensors", "node_data.safetensors", "edge_data.safetensors")
SHARDS = Kind(
    "shards",
    MANIFEST,
    lambda manifest: manifest.get("format") == FORMAT,
    rf"{re.escape(NODE_NAMES)}|{re.escape(ID_MAP)}|{re.escape(LINKS)}|part\d+/({'|'.join(map(re.escape, PART_FILES))})",
)


def is_shards(source) -> bool:
    """Whether a source is a shard directory, or a URL of one."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    place = located(source, is_source=True)
    return not (isinstance(place, Url) and "?" in place) and is_file(place / MANIFEST)


def write_manifest(directory: Path, contents: dict) -> dict:
    """Write ``manifest.json`` with the format, the versions of what made it and a checksum of itself; return it."""
    text = _render({"format": FORMAT, "format_version": FORMAT_VERSION, **contents, "versions": _versions()})
    (Path(directory) / MANIFEST).write_text(text)
    return json.loads(text)


def file_entry(path: Path) -> dict:
    """What the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": file_checksum(path)}


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
    path = located(directory) / MANIFEST
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


def _check_version(directory, path: Path | Url, manifest) -> None:
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
    more = {NODE_NAMES} | ({ID_MAP} & typed.files.keys()) if typed.node_names else set()
    if typed.files.keys() != files | more | ({LINKS} if typed.links else set()):
        raise InputError("files does not name the files of all parts")
    if typed.links is not None and typed.links.pairs.keys() != {*LINK_SETS}:
        raise InputError(f"links does not count {', '.join(LINK_SETS)}")
    relations = {None} if typed.schema is None else {each[:3] for each in typed.schema.edges}
    if typed.links is not None and typed.links.relation not in relations:
        raise InputError(f"links are of the relation {typed.links.relation}, and schema has {relations}")
    if typed.links is not None and typed.links.own_negatives:
        pairs = typed.links.pairs
        if pairs["val_neg"] % max(1, pairs["val"]) or pairs["test_neg"] % max(1, pairs["test"]):
            raise InputError("links does not count as many pairs that are none for each link of val, or of test")
    choice = typed.choice
    if choice is not None and not choice.cut == manifest["cut"] in {each.cut for each in choice.candidates}:
        raise InputError(f"choice chose {choice.cut!r}, but the cut is {manifest['cut']!r}, or is no candidate")
    check_counts(manifest, PART_FILES)


def check_joined(directory, manifest: dict, ranks: int) -> None:
    """Raise :class:`InputError` where the parts of shards cannot be joined for fewer ranks."""
    if manifest["schema"]:
        raise InputError(
            f"{directory} has several types, whose parts cannot share a rank, and the number of ranks is {ranks}; start "
            f"{manifest['parts']}, one for each part, or partition again"
        )


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
