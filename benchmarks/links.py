"""Ranks of one thread each on this machine, over the loopback interface or each behind a link of its own."""

from __future__ import annotations

import itertools
import os
import subprocess
from contextlib import ExitStack, contextmanager

from dgl_gt.train.launch import KEEP_MEMORY

_NUMBERS = itertools.count()
_LIMIT_S = 3600


def run_ranks(command: list[str], ranks: int, link_mbit: float | None = None) -> str:
    """Start a command once for each rank, and return what rank 0 prints.

    With ``link_mbit``, each rank is in its own network namespace behind a token bucket of such a rate (Linux, root,
    iproute2); otherwise ranks talk over the loopback interface.
    """
    with ExitStack() as stack:
        names = stack.enter_context(_namespaces(ranks, link_mbit)) if link_mbit and ranks > 1 else None
        address = {"MASTER_ADDR": "127.0.0.1"}
        if names:
            address = {"MASTER_ADDR": "10.99.0.1", "GLOO_SOCKET_IFNAME": "eth0"}
        started = []
        for rank in range(ranks):
            within = ["ip", "netns", "exec", names[rank]] if names else []
            env = {**os.environ, **KEEP_MEMORY, **address, "OMP_NUM_THREADS": "1", "RANK": str(rank)}
            env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            env["MASTER_PORT"] = str(29500 + os.getpid() % 1000)
            started.append(subprocess.Popen([*within, *command], env=env, stdout=subprocess.PIPE, text=True))
        output, _ = started[0].communicate(timeout=_LIMIT_S)
        if any(rank.wait() for rank in started):
            raise RuntimeError(f"{ranks} ranks ended with {[rank.returncode for rank in started]}")
    return output


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def _namespaces(ranks: int, link_mbit: float):
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
            shape = ["root", "tbf", "rate", f"{link_mbit}mbit", "burst", "128kb", "latency", "200ms"]
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)
            subprocess.run(["tc", "qdisc", "add", "dev", f"{name}h", *shape], check=True)
        yield names
