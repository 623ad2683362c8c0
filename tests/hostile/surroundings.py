"""Hostile command lines and surroundings: options, paths, what is in the way, variables, streams, full disks."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

from calls import python_call
from case import BAD, EITHER, OK, Case, command, take
from damage import Dice, safetensors, sign_files
from options import option_names, option_values

QUICK = ("partition", "dry-run", "dry-run", "inspect", "plan", "plan", "train", "predict", "calibrate")
STREAMS = (">&-", "2>&-", "<&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1", "| true", "2>&1 | true", ">&- 2>&-")


def options(dice, material):
    name = dice.pick((*QUICK, *QUICK, "report", "export", "import"))
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
            return (
                dice.pick(("", " ", "in", ".", "/", "in/missing/x", "~nobody/x", "-", "in/\udcff", "in/\x1b[31m"))
                + suffix
            )
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
    """Commands that are given an odd path to read."""
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
    return Case(
        argv=[*argv, option, path, *(["--strategy", "auto"] if option == "--profile" and name == "train" else [])],
        env=env,
    )


def outputs(dice, material):
    """Commands whose output path is taken or cannot be written."""
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
    match dice.below(10):
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
        case 9:  # a device (null, zero, full) must not become a file
            try:
                os.mknod(out, 0o600 | stat.S_IFCHR, os.makedev(1, dice.pick((3, 5, 7))))
            except PermissionError:
                os.mkfifo(out)
            codes = EITHER
    if option == 2:
        argv[2] = str(out)
    else:
        argv += [option, str(out)]
    if name == "calibrate":
        codes = BAD  # it has --nproc 0, so that nothing is measured
    return Case(argv=[*argv, "--force"] if dice.chance(0.7) else argv, env=env, codes=codes)


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
            ("PYTHONIOENCODING", ("ascii", "latin-1")),
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
        env |= dice.pick(
            ({}, {"WORLD_SIZE": "1"}, {"RANK": "0"}, {"MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "x"})
        )
        env |= {"MASTER_PORT": dice.pick(("x", "", "-1", "99999999"))}
    argv, _ = command(name, material)
    if name != "calibrate" and (key == "LC_ALL" or dice.chance(0.3)):
        Path("in", argv[1].split("/")[1]).rename("in/é名.npz" if "graph" in argv[1] else "in/é名")
        argv[1] = "in/é名.npz" if "graph" in argv[1] else "in/é名"
    return Case(argv=argv, env=env, fresh=True)


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
    """Commands that start real ranks, which takes seconds per case."""
    argv, _ = command(dice.pick(("train", "predict")), material)
    argv += dice.pick(([], ["--json"], ["--timeout", "0"], ["--timeout", "nan"], ["--nproc", "2"], ["--nproc", "-1"]))
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
    """Good commands, on which the trial itself relies."""
    name = dice.pick(("partition", "dry-run", "inspect", "plan", "train", "predict", "export", "import"))
    argv, env = command(name, material)
    if name == "inspect":
        sign_files(Path("in/shards2"))  # a right checksum of ours is right for them
    return Case(argv=[*argv, *dice.pick(([], ["--json"]))], env=env, codes=OK)
