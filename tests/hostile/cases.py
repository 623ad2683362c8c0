"""Hostile inputs, each reproducible from (seed, number): what to run, and which exit codes are right for it."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import socket
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from calls import python_call
from damage import Dice, altered, damaged, damaged_text, json_text, npy, npz, hostile_array, safetensors, sign_files, signed
from options import option_names, option_values
from yaml_texts import yaml_text

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


def make(seed: int, number: int, material: Path) -> Case:
    """Make the case's files in the working directory, and return it."""
    name = kind_of(number)
    dice = Dice(seed, number)
    for folder in ("in", "out", "tmp"):
        Path(folder).mkdir()
    return dataclasses.replace(KINDS[name][0](dice, material), kind=name)


def kind_of(number: int) -> str:
    return WHEEL[number % len(WHEEL)]


def take(material: Path, name: str, to: str | None = None) -> Path:
    """Copy a good file or directory into ``in``."""
    source, target = material / name, Path("in") / (to or name)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    return target


def read_graph(dice: Dice, path, *options: str) -> Case:
    """Something that reads a graph from ``path``."""
    how = dice.below(20)
    if how < 9 and not options:
        return Case(call=f"partition.load_graph({str(path)!r})")
    if how < 14:
        return Case(argv=["partition", str(path), "--parts", "2", "--dry-run", *options])
    if how < 15:
        return Case(argv=["plan", str(path), "--world-size", "2", "--random-features", "4"])
    extra = dice.pick(([], [], ["--cut", "vertex"], ["--memory", "1GiB"], ["--undirected"], ["--self-loops"], ["--json"]))
    return Case(argv=["partition", str(path), *PARTITION, *extra, *options])


# ---- sources


def npz_source(dice, material):
    name = dice.pick(("graph.npz", "graph.npz", "sparse.npz", "bare.npz"))
    with zipfile.ZipFile(material / name) as archive:
        arrays = {m.removesuffix(".npy"): np.lib.format.read_array(archive.open(m)) for m in archive.namelist()}
    Path("in/graph.npz").write_bytes(npz(arrays, dice))
    if dice.chance(0.15):
        take(material, "edges.csv")
        return read_graph(dice, "in/edges.csv", "--node-data", "in/graph.npz")
    return read_graph(dice, "in/graph.npz")


def npy_source(dice, material):
    good = np.load(material / dice.pick(("edges.npy", "feat.npy")))
    lie = dice.chance(0.6)
    data = npy(good if lie else hostile_array(good, dice), dice, lie)
    name = dice.pick(("edges.npy", "feat.npy", "label.npy", "train_mask.npy"))
    Path("in", name).write_bytes(damaged(data, dice) if dice.chance(0.2) else data)
    if name == "edges.npy":
        return read_graph(dice, "in/edges.npy")
    return read_graph(dice, take(material, "edges.npy"), "--node-data", f"in/{name}")


def text_source(dice, material):
    if dice.chance(0.03):
        name = dice.pick(("zeros", "ones", "cells")) + ".csv.gz"
        Path("in", name).symlink_to(material / name)
        return read_graph(dice, f"in/{name}")
    name = dice.pick(("edges.csv", "edges.csv", "edges.txt", "edges.tsv"))
    data = damaged_text((material / name).read_text(), dice)
    if dice.chance(0.2):
        data = gzip.compress(data, 1, mtime=0)
        name += ".gz"
        data = damaged(data, dice) if dice.chance(0.6) else data
    Path("in", name).write_bytes(data)
    return read_graph(dice, f"in/{name}")


def node_table(dice, material):
    Path("in/nodes.csv").write_bytes(damaged_text((material / "nodes.csv").read_text(), dice))
    return read_graph(dice, take(material, "edges.txt"), "--node-data", "in/nodes.csv")


def metis_source(dice, material):
    lines = (material / "metis.graph").read_text().split("\n")
    if dice.chance(0.5):
        numbers = ("0", "-1", "1", "61", str(10**9), str(10**30), "x", "1.5", "", "nan", "011", "111", "1 2 3", "\0")
        words = lines[0].split() + dice.pick(([], ["0"], ["1"], ["011"], ["111", "3"], ["11", str(10**9)]))
        words[dice.below(len(words))] = dice.pick(numbers)
        lines[0] = " ".join(words)
        data = "\n".join(lines).encode()
    else:
        data = damaged_text("\n".join(lines), dice)
    Path("in/m.graph").write_bytes(data)
    return read_graph(dice, "in/m.graph")


def dgl_file(dice, material):
    Path("in/g.bin").write_bytes(damaged((material / "graph.bin").read_bytes(), dice))
    return read_graph(dice, "in/g.bin")


def named_source(dice, material):
    names = ("communities", "", "x", "communities\x1b[31m", "communities" * 30)
    keys = ("nodes", "degree", "classes", "features", "signal", "seed", "x", "", "nodes")
    values = ("-1", "0", "1", "2", "60", "1e9", "nan", "inf", "", "x", str(2**31), str(2**63), "10000000000", "0.5", "%00")
    query = "&".join(f"{dice.pick(keys)}={dice.pick(values)}" for _ in range(dice.below(4)))
    prefixes = ("sample:communities?nodes=60&", f"sample:{dice.pick(names)}?", "dgl:", "ogb:", "dgl:x?", "ogb:x?root=in&")
    return read_graph(dice, dice.pick(prefixes) + query)


# ---- options and paths

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
_QUICK = ("partition", "dry-run", "dry-run", "inspect", "plan", "plan", "train", "predict", "calibrate")


def command(name: str, material: Path) -> tuple[list[str], dict]:
    """A good command line with its files in place, and its environment."""
    good, argv = COMMANDS[name]
    also = {"predict": "model", "plan": "profile.yaml"}.get(name)
    for each in filter(None, (good, also)):
        if not Path("in", each).exists():
            take(material, each)
    return list(argv), dict(RANK) if name in ("train", "predict", "calibrate") else {}


def options(dice, material):
    name = dice.pick((*_QUICK, *_QUICK, "report", "export", "import"))
    argv, env = command(name, material)
    for option in dice.some(option_names(argv[0]), 2):
        argv += [option, *option_values(argv[0], option, dice)]
    if dice.chance(0.05):
        argv = dice.pick(([], ["x"], argv[:1], argv + ["extra"], ["--json"], argv[:1] + ["--x"], [*argv, "\udcff"]))
    return Case(argv=argv, env=env)


def odd_path(dice: Dice, suffix: str) -> str:
    """A path that is no ordinary file, called ``in/odd`` plus the suffix where the name can be chosen."""
    odd = Path(f"in/odd{suffix}")
    how = dice.below(16)
    match how:
        case 0:
            odd.mkdir()
        case 1:
            os.mkfifo(odd)
        case 2:
            odd.symlink_to(odd.name)
        case 3:
            odd.symlink_to("nowhere")
        case 4:
            odd.symlink_to(dice.pick(("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/dev/random", "/proc")))
        case 5:
            socket.socket(socket.AF_UNIX).bind(str(odd))
        case 6:
            odd.touch()
        case 7:
            odd.write_bytes(dice.rng.bytes(100))
        case 8:
            odd.touch(mode=0)  # without effect for the superuser
        case 9:
            return f"in/{'n' * dice.pick((245, 250, 255, 5000))}{suffix}"
        case 10:
            return dice.pick(("", " ", "in", ".", "/", "in/missing/x", "~nobody/x", "-", "in/\udcff", "in/\x1b[31m")) + suffix
        case 11:
            odd = Path(f"in/line\nline\x1b[31m{suffix}")
            odd.touch()
        case 12:
            (odd.parent / "file").touch()
            return f"in/file/odd{suffix}"
        case 13:
            return f"in/odd{suffix}/"
        case 14:
            odd.symlink_to(".")
        case 15:
            return f"../../odd{suffix}"
    return str(odd)


def paths(dice, material):
    """An odd path where a command reads."""
    name, option, suffix = dice.pick(
        (
            *(("partition", 1, s) for s in (".npz", ".npy", ".csv", ".csv.gz", ".graph", ".bin", "")),
            *(("dry-run", "--node-data", s) for s in (".npz", ".npy", ".csv", "")),
            ("dry-run", "--target-weights", ""),
            ("inspect", 1, ""),
            ("report", 1, ""),
            ("export", 1, ""),
            ("import", 1, ".json"),
            ("train", 1, ""),
            ("train", "--config", ".yaml"),
            ("train", "--profile", ".yaml"),
            ("predict", "--model", ""),
            ("plan", 1, ""),
            ("plan", "--profile", ".yaml"),
            ("plan", "--config", ".yaml"),
            ("plan", "--check", ""),
            ("plan", 1, ".npz"),
        )
    )
    argv, env = command(name, material)
    path = odd_path(dice, suffix)
    if option == 1:
        argv[1] = path
        return Case(argv=argv + (["--world-size", "2"] if suffix == ".npz" else []), env=env)
    return Case(argv=[*argv, option, path, *(["--strategy", "auto"] if option == "--profile" and name == "train" else [])], env=env)


def outputs(dice, material):
    """Something in the way at the output."""
    name, option, suffix = dice.pick(
        (
            ("partition", "--out", ""),
            ("partition", "--out", ""),
            ("import", "--out", ""),
            ("export", 2, ""),
            ("report", "-o", ".html"),
            ("train", "--out", ""),
            ("train", "--out", ""),
            ("predict", "--out", dice.pick((".npz", ".csv"))),
            ("plan", "--plot", ".png"),
            ("calibrate", "--out", ".yaml"),
        )
    )
    argv, env = command(name, material)
    out, codes = Path(f"out/there{suffix}"), BAD
    match dice.below(9):
        case 0:  # another program's directory, with a file of the name that marks ours
            out.mkdir()
            for marker in ("manifest.json", "model.safetensors", "dgl.json", "there.json"):
                (out / marker).write_text('{"name": "app", "start_url": "/"}')
            (out / "src").mkdir()
            (out / "src/app.js").write_text("main()")
        case 1:  # ours, and something of another's in it
            shutil.copytree(material / {"train": "model", "export": "dgl"}.get(name, "shards1"), out)
            (out / ".git").mkdir()
            (out / ".git/HEAD").write_text("ref")
        case 2:
            out.symlink_to("nowhere")
            codes = EITHER
        case 3:
            out.symlink_to(out.name)
        case 4:
            shutil.copytree(material / "shards1", "out/real")
            out.symlink_to("real")
            codes = EITHER
        case 5:
            out.mkdir()
            codes = EITHER
        case 6:
            out.write_text("mine")
            codes = EITHER if suffix else BAD
        case 7:
            Path("out/file").write_text("mine")
            out = Path(f"out/file/there{suffix}")
        case 8:
            parts = ("n" * 256, "n" * 250, "line\nline", "\x1b[31m", "\udcff", "é", "-", "a/b/c", "..", ".", "x\u202ey")
            out, codes = Path("out", dice.pick(parts) + suffix), EITHER
    if option == 2:
        argv[2] = str(out)
    else:
        argv += [option, str(out)]
    if name == "calibrate":
        codes = BAD  # it has --nproc 0, so that nothing is measured
    return Case(argv=[*argv, "--force"] if dice.chance(0.7) else argv, env=env, codes=codes)


# ---- what this program wrote itself

def _on_shards(dice, material, name: str) -> Case:
    """A command that reads ``in/NAME``."""
    shards = f"in/{name}"
    names = ("inspect", "inspect", "plan", "plan", "load", "load", "report", "export", "train", "train")
    match dice.pick(names[:-2] if name != "shards1" else names):
        case "inspect":
            return Case(argv=["inspect", shards])
        case "plan":
            return Case(argv=["plan", shards, *dice.pick(([], ["--max-depth", "2"], ["--rank-memory", "1GiB"]))])
        case "report":
            return Case(argv=["report", shards, "-o", "out/r.html"])
        case "export":
            return Case(argv=["export", shards, "out/dgl"])
        case "load":
            call = "dgl_gt.load" if name == "shards1" else "partition.read_manifest"
            return Case(call=f"{call}({shards!r})")
        case _:
            take(material, "model")
            predict = ["predict", shards, "--model", "in/model", "--out", "out/p.csv"]
            return Case(argv=dice.pick((predict, [*TRAIN, *dice.pick(([], ["--out", "out/m"]))])), env=RANK)


def manifests(dice, material):
    name = dice.pick(("shards1", "shards1", "shards2", "vertex2"))
    path = take(material, name) / "manifest.json"
    manifest = json.loads(path.read_text())
    if dice.chance(0.85):
        manifest = altered(manifest, dice)
        try:
            text = signed(manifest)
        except (ValueError, RecursionError):  # a number that JSON cannot write
            text = "{" * 1000
        if "@deep@" in text:
            text = json_text(manifest, dice)
        path.write_text(text, errors="surrogatepass")
    else:
        path.write_bytes(damaged(path.read_bytes(), dice))
    return _on_shards(dice, material, name)


def shard_files(dice, material):
    name = dice.pick(("shards1", "shards1", "shards2", "vertex2"))
    shards = take(material, name)
    part = shards / f"part{dice.below(2 if name != 'shards1' else 1)}"
    path = part / dice.pick(("structure", "structure", "node_data", "edge_data"))
    path = path.with_suffix(".safetensors")
    how = dice.below(12)
    if how == 0:
        path.unlink()
    elif how == 1:
        path.unlink()
        path.symlink_to("/dev/zero")
    elif how == 2:
        path.unlink()
        os.mkfifo(path)
    elif how < 6:
        _hostile_tensor(path, dice)
    else:
        path.write_bytes(safetensors(path.read_bytes(), dice))
    if how > 2 and dice.chance(0.8):
        sign_files(shards)
    return _on_shards(dice, material, name)


def _hostile_tensor(path: Path, dice: Dice) -> None:
    """One array of a safetensors file, changed in a way that the format allows."""
    from safetensors.numpy import load_file, save_file

    arrays = load_file(path)
    key = dice.pick(list(arrays) or ["extra"])
    hostile = hostile_array(arrays.get(key, np.arange(3)), dice)
    if hostile.dtype.kind in "biuf" and hostile.dtype.itemsize <= 8 and hostile.dtype.isnative:
        arrays[key] = np.ascontiguousarray(hostile)
    else:
        del arrays[key]
    save_file(arrays, path)


def model_files(dice, material):
    model = take(material, "model")
    match dice.below(5):
        case 0:
            path = model / dice.pick([each.name for each in sorted(model.iterdir())])
            path.unlink()
            if dice.chance(0.5):
                path.symlink_to(dice.pick(("/dev/zero", path.name, ".")))
        case 1 | 2:
            path = model / "model.safetensors"
            path.write_bytes(safetensors(path.read_bytes(), dice))
        case 3:
            path = model / "config.yaml"
            path.write_bytes(yaml_text(yaml.safe_load(path.read_text()), dice))
        case 4:
            path = model / "record.json"
            path.write_text(json_text(altered(json.loads(path.read_text()), dice), dice), errors="surrogatepass")
            return Case(argv=["plan", "--check", "in/model"])
    take(material, "shards1")
    return Case(argv=["predict", "in/shards1", "--model", "in/model", "--out", dice.pick(("out/p.npz", "out/p.csv"))], env=RANK)


def config_files(dice, material):
    tree = yaml.safe_load((material / "config.yaml").read_text())
    Path("in/config.yaml").write_bytes(yaml_text(tree, dice))
    if dice.chance(0.6):
        take(material, "shards1")
        return Case(argv=["train", "in/shards1", "--epochs", "1", "--config", "in/config.yaml"], env=RANK)
    take(material, "shards2")
    return Case(argv=["plan", "in/shards2", "--config", "in/config.yaml"])


def profiles(dice, material):
    two = dice.chance(0.5)
    tree = yaml.safe_load((material / ("profile2.yaml" if two else "profile.yaml")).read_text())
    Path("in/p.yaml").write_bytes(yaml_text(tree, dice))
    if dice.chance(0.3):
        return Case(call="dgl_gt.selector.read_profile('in/p.yaml')")
    shards = take(material, dice.pick(("shards1", "shards2", "vertex2")))
    if dice.chance(0.1) and shards.name == "shards1":
        return Case(argv=[*TRAIN, "--strategy", "auto", "--profile", "in/p.yaml"], env=RANK)
    return Case(argv=["plan", str(shards), "--profile", "in/p.yaml"])


def dgl_directories(dice, material):
    folder = take(material, "dgl")
    path = folder / "dgl.json"
    if dice.chance(0.8):
        path.write_text(json_text(altered(json.loads(path.read_text()), dice), dice), errors="surrogatepass")
    else:
        files = sorted(each for each in folder.rglob("*") if each.is_file())
        path = dice.pick(files)
        path.write_bytes(damaged(path.read_bytes(), dice))
    return Case(argv=["import", "in/dgl/dgl.json", "--out", "out/shards"])


# ---- surroundings


def environment(dice, material):
    name = dice.pick(("partition", "dry-run", "dry-run", "inspect", "plan"))
    numbers = ("", "0", "-1", "x", "1", "999999999", "1.5", "nan", "2,1", "\x1b[31m")
    key, values = dice.pick(
        (
            ("RANK", numbers),
            ("WORLD_SIZE", numbers),
            ("LOCAL_RANK", numbers),
            ("OMP_NUM_THREADS", numbers),
            ("COLUMNS", numbers),
            ("TMPDIR", ("in/missing", "/dev/null", "", "in/graph.npz", "n" * 300)),
            ("LC_ALL", ("C", "POSIX", "xx_YY", "", "C.UTF-8", "en_US.ISO-8859-1")),
            ("PYTHONIOENCODING", ("ascii", "utf-16", "latin-1")),
            ("HOME", (None, "", "/nowhere")),
            ("PATH", (None, "", "/nowhere")),
            ("DGLBACKEND", ("mxnet", "", "x")),
            ("MPLBACKEND", ("x", "qtagg")),
            ("PYTHONWARNINGS", ("error", "x", "always")),
        )
    )
    env = {key: dice.pick(values)}
    if key in ("RANK", "WORLD_SIZE", "LOCAL_RANK") and dice.chance(0.5):
        name = dice.pick(("train", "predict", "calibrate"))
        env |= dice.pick(({}, {"WORLD_SIZE": "1"}, {"RANK": "0"}, {"MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "x"}))
        env |= {"MASTER_PORT": dice.pick(("x", "", "-1", "99999999"))}
    argv, _ = command(name, material)
    if name != "calibrate" and dice.chance(0.3):
        Path("in", argv[1].split("/")[1]).rename("in/é名.npz" if "graph" in argv[1] else "in/é名")
        argv[1] = "in/é名.npz" if "graph" in argv[1] else "in/é名"
    return Case(argv=argv, env=env, fresh=True)


STREAMS = (">&-", "2>&-", "<&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1", "| true", "2>&1 | true", ">&- 2>&-")


def streams(dice, material):
    name = dice.pick(("partition", "dry-run", "inspect", "inspect", "plan", "train", "predict", "import", "calibrate"))
    argv, env = command(name, material)
    if dice.chance(0.3):
        argv += dice.pick((["--json"], ["--help"], ["--x"], ["--force", "--json"]))
    return Case(argv=argv, env=env, streams=dice.pick(STREAMS), fresh=True)


def full_disks(dice, material):
    name = dice.pick(("partition", "partition", "import", "export", "report", "train", "train", "predict", "plan"))
    argv, env = command(name, material)
    if name == "plan":
        argv += ["--plot", "out/p.png"]
    where = dice.pick(("out", "out", "tmp", "file"))
    return Case(argv=argv, env=env, room=(where, dice.pick((0, 4096, 8192, 16384, 32768))))


def ranks(dice, material):
    """Ranks that are really started: seconds a case."""
    argv, _ = command(dice.pick(("train", "predict")), material)
    argv += dice.pick(([], ["--json"], ["--port", "1"], ["--port", "99999"], ["--nproc", "2"], ["--nproc", "-1"]))
    if dice.chance(0.5):
        path = Path("in/shards1/part0/structure.safetensors")
        path.write_bytes(safetensors(path.read_bytes(), dice))
        sign_files(Path("in/shards1"))
    return Case(argv=argv, fresh=True)


def calls(dice, material):
    expression, files = python_call(dice)
    for each in files:
        take(material, each)
    return Case(call=expression)


def controls(dice, material):
    """Nothing hostile: what the trial itself relies on."""
    name = dice.pick(("partition", "dry-run", "inspect", "plan", "train", "predict", "export", "import"))
    argv, env = command(name, material)
    if name == "inspect":
        sign_files(Path("in/shards2"))  # a right checksum of ours is right for them
    return Case(argv=[*argv, *dice.pick(([], ["--json"]))], env=env, codes=OK)


# A kind, and how many of a hundred cases it gets.
KINDS = {
    "npz": (npz_source, 10),
    "npy": (npy_source, 4),
    "text": (text_source, 9),
    "node_table": (node_table, 4),
    "metis": (metis_source, 4),
    "dgl_file": (dgl_file, 2),
    "named": (named_source, 2),
    "options": (options, 11),
    "paths": (paths, 6),
    "outputs": (outputs, 4),
    "manifest": (manifests, 11),
    "shard_file": (shard_files, 6),
    "model": (model_files, 4),
    "config": (config_files, 4),
    "profile": (profiles, 4),
    "dgl_directory": (dgl_directories, 2),
    "environment": (environment, 2),
    "streams": (streams, 2),
    "full_disk": (full_disks, 2),
    "call": (calls, 5),
    "control": (controls, 1),
    "ranks": (ranks, 1),
}
_SHARES = [name for name, (_, share) in KINDS.items() for _ in range(share)]
WHEEL = [_SHARES[37 * i % len(_SHARES)] for i in range(len(_SHARES))]  # kinds in turn, so that any span has most of them
assert len(WHEEL) == 100
