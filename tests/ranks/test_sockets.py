"""The sockets of a run: it listens on the loopback interface alone."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dgl_gt.partition import partition

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
ENDLESS = ["--epochs", "100000", "--patience", "0", "--hidden", "16", "--heads", "2", "--layers", "1"]
LISTENING = "0A"  # in /proc/net/tcp


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards") / "shards"
    partition("sample:communities?nodes=400&features=8", 2, directory)
    return directory


@pytest.fixture
def own_network():
    """Words before a command that give it a network of its own: a loopback interface, and one to the outside."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a network namespace with a second interface needs root and the command ip")
    name = f"dglgt{secrets.token_hex(3)}"
    inside = ["ip", "netns", "exec", name]
    steps = [
        ["ip", "netns", "add", name],
        [*inside, "ip", "link", "add", "lan", "type", "veth", "peer", "name", "other"],
        *([*inside, "ip", "link", "set", each, "up"] for each in ("lo", "lan", "other")),
        [*inside, "ip", "address", "add", "10.98.0.1/24", "dev", "lan"],
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this machine gives no network namespace: {' '.join(step)}: {done.stderr.strip()}")
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def family(pid: int) -> list[Path]:
    """A process, its children, theirs, and so on."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parents[process] = Path("/proc", (process / "stat").read_text().rpartition(")")[2].split()[1])
    found = [Path("/proc", str(pid))]
    for process in found:
        found += [each for each, parent in parents.items() if parent == process]
    return found


def listening(tables: str, processes: list[Path] | None = None) -> list[str]:
    """Hexadecimal addresses of a network's tables on which somebody listens, or one of these processes does."""
    inodes = set()
    for process in processes or []:
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in tables.splitlines()]
    return [row[1] for row in rows if row[3] == LISTENING and (processes is None or row[9] in inodes)]


def tables(prefix=()) -> str:
    words = [*prefix, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def is_loopback(address: str) -> bool:
    host = address.partition(":")[0]  # each word of four bytes is in the order of this machine
    if len(host) == 8:
        return socket.inet_ntop(socket.AF_INET, bytes.fromhex(host)[::-1]).startswith("127.")
    return host in ("00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def sockets_of_a_run(shards, folder, prefix=()) -> list[str]:
    """Everywhere that a training run listens once both of its ranks do; with a prefix all that its network has."""
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    words = [*prefix, sys.executable, "-m", "dgl_gt", "train", str(shards), *ENDLESS]
    with open(folder.parent / "stderr", "w") as stderr:
        run = subprocess.Popen(words, stdout=stderr, stderr=stderr, env=environment)
    try:
        deadline, joined = time.monotonic() + LIMIT_S, []
        while len(joined) < 2:
            assert run.poll() is None and time.monotonic() < deadline, (folder.parent / "stderr").read_text()
            time.sleep(0.2)
            found = tables(prefix)
            joined = [each for each in family(run.pid)[1:] if listening(found, [each])]
        return listening(found, None if prefix else family(run.pid))
    finally:
        run.terminate()
        assert run.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert list(folder.iterdir()) == []  # nothing that torch or the launcher makes for itself


def test_a_run_listens_on_the_loopback_alone(shards, tmp_path):
    (tmp_path / "tmp").mkdir()
    found = sockets_of_a_run(shards, tmp_path / "tmp")
    assert found and all(is_loopback(address) for address in found), found


def test_a_run_listens_on_the_loopback_alone_where_there_is_a_second_interface(own_network, shards, tmp_path):
    (tmp_path / "tmp").mkdir()
    found = sockets_of_a_run(shards, tmp_path / "tmp", own_network)
    assert found and all(is_loopback(address) for address in found), found
