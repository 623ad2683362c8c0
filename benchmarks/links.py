"""Ranks of one thread each on this machine, over the loopback interface or each behind a link of its own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from dgl_gt.partition.system.allocator import environment_of_ranks

_NUMBERS = itertools.count()
_LIMIT_S = 3600
_PERIOD_S = 0.02  # of the turns in which a slowed rank runs and stands still


class SlowPair(NamedTuple):
    """Two ranks whose link to each other is slower than all others."""

    ranks: tuple[int, int]
    mbit: float


def run_ranks(
    command: list[str],
    ranks: int,
    link_mbit: float | None = None,
    *,
    slow_pair: SlowPair | None = None,
    speeds: dict[int, float] | None = None,
    limit_s: float = _LIMIT_S,
) -> str:
    """Start a command once for each rank, and return what rank 0 prints.

    With ``link_mbit``, each rank is in its own network namespace behind a token bucket of such a rate (Linux, root,
    iproute2); otherwise ranks talk over the loopback interface. ``slow_pair`` slows one of these links, and ``speeds``
    gives ranks a share of a core, by stopping them for the rest of every 20 ms. Ranks end after ``limit_s`` seconds.
    """
    with ExitStack() as stack:
        names = stack.enter_context(_namespaces(ranks, link_mbit, slow_pair)) if link_mbit and ranks > 1 else None
        address = {"MASTER_ADDR": "127.0.0.1"}
        if names:
            address = {"MASTER_ADDR": "10.99.0.1", "GLOO_SOCKET_IFNAME": "eth0"}
        started = []
        for rank in range(ranks):
            within = ["ip", "netns", "exec", names[rank]] if names else []
            env = {**os.environ, **environment_of_ranks(), **address, "OMP_NUM_THREADS": "1", "RANK": str(rank)}
            env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            env["MASTER_PORT"] = str(29500 + os.getpid() % 1000)
            started.append(subprocess.Popen([*within, *command], env=env, stdout=subprocess.PIPE, text=True))
            stack.callback(started[-1].kill)
        for rank, speed in (speeds or {}).items():
            stack.enter_context(_slowed(started[rank], speed))
        output, _ = started[0].communicate(timeout=limit_s)
        if any(rank.wait(timeout=60) for rank in started):
            raise RuntimeError(f"{ranks} ranks ended with {[rank.returncode for rank in started]}")
    return output


@contextmanager
def _slowed(process: subprocess.Popen, speed: float):
    """Let a process run for such a share of the time, until it has ended."""
    done = threading.Event()

    def take_turns() -> None:
        while process.poll() is None and not done.is_set():
            for number, share in ((signal.SIGCONT, speed), (signal.SIGSTOP, 1 - speed)):
                process.send_signal(number)
                time.sleep(share * _PERIOD_S)
        process.send_signal(signal.SIGCONT)

    turns = threading.Thread(target=take_turns, daemon=True)
    turns.start()
    try:
        yield
    finally:
        done.set()
        turns.join()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def _namespaces(ranks: int, link_mbit: float, slow_pair: SlowPair | None):
    """A bridge with a network namespace a rank, each behind a veth pair that carries so much in each direction."""
    with ExitStack() as stack:

        def made(undo: list[str], *arguments: str) -> None:
            _ip(*arguments)
            stack.callback(subprocess.run, ["ip", *undo], stderr=subprocess.DEVNULL)

        tag = f"{os.getpid() % 1000}n{next(_NUMBERS)}"  # a deleted namespace's links go a while later
        bridge = f"gt{tag}"
        made(["link", "del", bridge], "link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        names = [f"gt{tag}-{rank}" for rank in range(ranks)]
        for rank, name in enumerate(names):
            made(["netns", "del", name], "netns", "add", name)
            _ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"{name}h", "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"10.99.0.{rank + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            shape = ["tbf", "rate", f"{link_mbit}mbit", "burst", "128kb", "latency", "200ms"]
            subprocess.run(["tc", "qdisc", "add", "dev", f"{name}h", "root", *shape], check=True)
            if slow_pair is None or rank not in slow_pair.ranks:
                _tc(name, "qdisc", "add", "dev", "eth0", "root", *shape)
            else:
                other = slow_pair.ranks[1 - slow_pair.ranks.index(rank)]
                _shape_pair(name, f"10.99.0.{other + 1}", link_mbit, slow_pair.mbit)
        yield names


def _tc(namespace: str, *arguments: str) -> None:
    subprocess.run(["ip", "netns", "exec", namespace, "tc", *arguments], check=True)


def _shape_pair(namespace: str, address: str, mbit: float, slow_mbit: float) -> None:
    """What a namespace sends goes at one rate, and what it sends to an address at another, slower one."""
    on, rates = ["dev", "eth0"], {"1:1": mbit, "1:2": slow_mbit}
    _tc(namespace, "qdisc", "add", *on, "root", "handle", "1:", "htb", "default", "1", "r2q", "1000")
    for number, rate in rates.items():
        burst = ["burst", "128kb", "cburst", "128kb"]
        _tc(namespace, "class", "add", *on, "parent", "1:", "classid", number, "htb", "rate", f"{rate}mbit", *burst)
    match = ["protocol", "ip", "prio", "1", "u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:2"]
    _tc(namespace, "filter", "add", *on, "parent", "1:", *match)
