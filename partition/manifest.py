"""The manifest of a shard directory, format 1: written last, read first, and what checks every other file."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from importlib import metadata
from pathlib import Path

from .atomic import Kind
from .errors import InputError

FORMAT = "dgl-gt shards"
FORMAT_VERSION = 1
PART_FILES = ("structure.safetensors", "node_data.safetensors", "edge_data.safetensors")
SHARDS = Kind(
    "shards",
    "manifest.json",
    lambda manifest: manifest.get("format") == FORMAT,
    rf"part\d+/({'|'.join(map(re.escape, PART_FILES))})",
)
_HASH_BLOCK_BYTES = 1 << 20


def write_manifest(directory: Path, contents: dict) -> dict:
    """Write ``manifest.json`` with the format, the versions of what made it and a checksum of itself; return it."""
    text = _render({"format": FORMAT, "format_version": FORMAT_VERSION, **contents, "versions": _versions()})
    (Path(directory) / "manifest.json").write_text(text)
    return json.loads(text)


def file_entry(path: Path) -> dict:
    """What the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def read_manifest(directory) -> dict:
    """Read and check a shard directory's manifest.

    Raises
    ------
    InputError
        No such directory, not shards, another format version, or a damaged manifest.
    """
    path = Path(directory) / "manifest.json"
    try:
        text = path.read_text()
        manifest = json.loads(text)
    except FileNotFoundError:
        raise InputError(f"{directory} holds no shards (no manifest.json); make them with `dgl-gt partition`") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise InputError(f"{path} is damaged: not valid JSON; partition the graph again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path} is not a dgl-gt manifest; give a directory made by `dgl-gt partition`")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{directory} has format version {manifest.get('format_version')}; "
            f"this dgl-gt reads version {FORMAT_VERSION}: "
            "partition the graph again, or use the dgl-gt that wrote it"
        )
    if text != _render(manifest):
        raise InputError(f"{path} is damaged or was edited: its checksum does not match; partition the graph again")
    if "shares" not in manifest:
        raise InputError(f"{directory} was made before dgl-gt knew shares and halo depths: partition the graph again")
    return manifest


def verify(directory, manifest: dict, parts=None) -> None:
    """Compare the files of the given parts (default: all) with the manifest's sizes and checksums.

    Raises
    ------
    InputError
        A file is missing, truncated or altered; the message names it.
    """
    for part in range(manifest["parts"]) if parts is None else parts:
        for name in PART_FILES:
            path = Path(directory) / f"part{part}" / name
            expected = manifest["files"][f"part{part}/{name}"]
            if not path.is_file():
                raise InputError(f"{path} is missing; partition the graph again")
            if path.stat().st_size != expected["bytes"]:
                raise InputError(
                    f"{path} is truncated or altered: {path.stat().st_size} bytes instead of {expected['bytes']}; "
                    "partition the graph again"
                )
            if _sha256(path) != expected["sha256"]:
                raise InputError(f"{path} is damaged: its checksum does not match; partition the graph again")


def _versions() -> dict:
    versions = {"python": platform.python_version()}
    for distribution in ("dgl-gt", "numpy", "scipy", "pymetis", "safetensors"):
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            versions[distribution] = None
    return versions


def _render(manifest: dict) -> str:
    """The manifest's text, with a checksum of itself."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum}, indent=1) + "\n"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
