"""One hostile case, and what cases are made of: copies of good files, good command lines."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

OK, BAD, EITHER = (0,), (2,), (0, 2)


@dataclass
class Case:
    """One trial. Paths are relative to its own directory, which has ``in``, ``out`` and ``tmp`` (the ``$TMPDIR``).

    Attributes
    ----------
    kind : str
    argv : list of str
        Of ``dgl-gt``; empty where ``call`` is given.
    call : str
        A Python expression instead, see ``calls.NAMES``.
    env : dict
        Variables to set; None removes one.
    streams : str
        As a shell would write it: ``>&-``, ``2>/dev/full``, ``| true``.
    codes : tuple of int
        Exit codes that are right; for a call 0 is a result and 2 a deliberate exception.
    fresh : bool
        Needs a new interpreter.
    room : tuple of (str, int), optional
        ``out`` or ``tmp`` lies on a file system of so many bytes; or ``file``: no file may be larger.
    """

    kind: str = ""
    argv: list = field(default_factory=list)
    call: str = ""
    env: dict = field(default_factory=dict)
    streams: str = ""
    codes: tuple = EITHER
    fresh: bool = False
    room: tuple | None = None


# A group of one without a launcher: what torchrun tells its ranks.
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
RANK |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
PARTITION = ["--parts", "2", "--out", "out/shards"]
TRAIN = ["train", "in/shards1", "--epochs", "1", "--hidden", "16", "--heads", "2"]
COMMANDS = {
    "partition": ("graph.npz", ["partition", "in/graph.npz", *PARTITION]),
    "dry-run": ("graph.npz", ["partition", "in/graph.npz", *PARTITION, "--dry-run"]),
    "inspect": ("shards2", ["inspect", "in/shards2"]),
    "report": ("shards2", ["report", "in/shards2", "-o", "out/page.html"]),
    "export": ("shards2", ["export", "in/shards2", "out/dgl"]),
    "import": ("dgl", ["import", "in/dgl/dgl.json", "--out", "out/shards"]),
    "train": ("shards1", [*TRAIN, "--out", "out/model"]),
    "predict": ("shards1", ["predict", "in/shards1", "--model", "in/model", "--out", "out/p.npz"]),
    "calibrate": ("profile.yaml", ["calibrate", "--out", "out/p.yaml", "--nproc", "0"]),
    "plan": ("shards2", ["plan", "in/shards2", "--profile", "in/profile.yaml"]),
}


def take(material: Path, name: str, to: str | None = None) -> Path:
    """Copy a good file or directory into ``in``."""
    source, target = material / name, Path("in") / (to or name)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    return target


def command(name: str, material: Path) -> tuple[list[str], dict]:
    """A good command line with its files in place, and its environment."""
    good, argv = COMMANDS[name]
    also = {"predict": "model", "plan": "profile.yaml"}.get(name)
    for each in filter(None, (good, also)):
        if not Path("in", each).exists():
            take(material, each)
    return list(argv), dict(RANK) if name in ("train", "predict", "calibrate") else {}
