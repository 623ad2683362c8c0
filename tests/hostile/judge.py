"""Says what is wrong with how a case ended, and gives failures of one cause one name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
from pathlib import Path

OWN = Path(__file__).resolve().parents[2]
HALF_WRITTEN = "left on a full disk"  # said on stderr by the trial itself
DEVICE = tuple(f"type {mode >> 12}" for mode in (stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK))
LINES, LINE_LENGTH = 3, 1200  # of a message


def snapshot(folder: Path) -> dict[str, str]:
    """Return what lies below a directory."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where, name)
            if path.is_symlink():
                found[str(path)] = f"link to {os.readlink(path)}"
            elif path.is_file():
                found[str(path)] = hashlib.md5(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = f"type {path.lstat().st_mode >> 12}"
    return {repr(name): value for name, value in found.items()}


def judged(case: dict, code: int, stderr: str, stdout: bytes) -> str | None:
    """Return what is wrong with how a case ended, or None."""
    if "Traceback" in stderr or "Exception ignored" in stderr:
        return cause(stderr)
    if HALF_WRITTEN in stderr:
        return HALF_WRITTEN
    if code < 0 or code > 128:
        return f"ends by signal {-code if code < 0 else code - 128}"
    if code not in case["codes"]:
        last = plain(stderr.strip().rpartition("\n")[2]) if code else case["kind"]
        return f"exit code {code} instead of {' or '.join(map(str, case['codes']))}: {last}"
    if "2>" in case["streams"] or case["call"]:
        return None
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", stderr):
        return f"control characters on stderr: {plain(stderr)}"
    if re.search(r"\.py:\d+: \w*Warning", stderr):
        return f"a warning of a library: {plain(stderr)}"
    lines = [
        line for line in re.sub(r"(?s)usage:.*\n(?=dgl-gt)", "", stderr).splitlines() if not re.search(r"\d s$", line)
    ]
    if code == 2 and not (lines and re.match(r"dgl-gt.*error: .", lines[-1])):
        return f"exit code 2 without a message: {plain(stderr)}"
    longest = LINE_LENGTH + max(map(len, case["argv"]), default=0)  # a message may quote an argument
    lines = [line for line in lines if not line.startswith("dgl-gt: warning: ")]
    if code == 2 and (len(lines) > LINES or len(lines[-1]) > longest):
        return f"a message of {len(lines)} lines, {len(lines[-1])} characters: {plain(lines[-1])}"
    if code == 0 and "--json" in case["argv"] and not case["streams"] and "--help" not in case["argv"]:
        try:
            json.loads(stdout, parse_constant=lambda word: 1 / 0)
        except (ValueError, ZeroDivisionError):
            return "--json prints no JSON"
    return None


def left(folder: Path, case: dict, before: dict, code: int) -> str | None:
    """Return what a case left that should not be there, or what is missing, or None."""
    failed = code and "/dev/full" not in case["streams"]  # there the work is done, and cannot be told
    os.chdir(folder / "cwd")
    after = snapshot(Path("."))
    os.chdir(folder.parent)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    for name in changed:
        if "torchinductor_" in name:  # the cache of a library
            continue
        if failed or name.strip("'\"").startswith(("in", "tmp")):
            return f"{'failed, but changed' if failed else 'changed'} {re.sub(r'[0-9]+', 'N', name)}"
        if before.get(name, "").startswith(DEVICE):
            return f"a device or pipe was replaced: {name}"
        if ".partial" in name or ".replaced" in name:
            return f"left behind {re.sub(r'[0-9]+', 'N', name)}"
    return None


def cause(text: str) -> str:
    """Return the exception of a traceback on stderr, and its innermost frame in our code."""
    raised = re.findall(r"^(?:Exception ignored.*|[A-Za-z_][\w.]*(?=:|$))", text, re.M)
    frames = re.findall(r'File "([^"]+)", line (\d+), in (.+)', text)
    own = [(path, line, name) for path, line, name in frames if is_own(path)]
    where = f"{Path(own[-1][0]).relative_to(OWN)}:{own[-1][1]} {own[-1][2]}" if own else "no frame of ours"
    return f"{raised[-1] if raised else 'a traceback'} in {where}"


def is_own(path: str) -> bool:
    return path.startswith((f"{OWN}/partition/", f"{OWN}/dgl_gt/"))


def plain(message: str) -> str:
    """Return a message without the parts that differ between cases of one cause."""
    message = re.sub(r"(['\"]).*?\1|(\S*/\S+)", "'..'", message.strip()[-500:], flags=re.S)
    return ascii(re.sub(r"[-+]?\d[\d.e+]*", "N", message))[1:110]


def shell(case: dict) -> str:
    """Return the case as a command that can be copied and run in its directory."""
    room = f"  # {case['room'][0]} has room for {case['room'][1]} bytes" if case["room"] else ""
    if case["call"]:
        return f"python -c {shlex.quote(case['call'])}  # names: tests/hostile/calls.py"
    env = " ".join(
        f"{key}={shlex.quote(value)}" if value is not None else f"-u {key}" for key, value in case["env"].items()
    )
    words = " ".join(
        shlex.quote(word) if word.isprintable() and word.isascii() else f"$'{ascii(word)[1:-1]}'"
        for word in case["argv"]
    )
    return f"{'env ' + env + ' ' if env else ''}dgl-gt {words} {case['streams']}{room}"
