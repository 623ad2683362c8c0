"""Ranks: start them here through torch's elastic launcher (each runs the same command again), join, leave."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from partition import child
from partition.errors import InputError

from ..comm import RankError

_LAUNCHER = "DGL_GT_LAUNCHER_PID"

# For glibc: keep freed memory for the next tensor. It would go back to the system after every large tensor and come
# back in pages of 4 KiB, which took 40 % of a training step on a CPU.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
# Or give it back at once, so that a process takes little more than its tensors.
GIVE_BACK_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}

_LAST_WORD_S = 3.0  # for rank 0 to say what went wrong: the launcher ends all ranks as soon as one has ended


def on_ranks(arguments: list[str], ranks, work, port: int = 0, keep_memory: bool = True):
    """Run ``work()`` where a launcher started this process as a rank; else start ranks and wait for them.

    Parameters
    ----------
    arguments : list of str
        Of ``dgl-gt``, for the ranks.
    ranks : callable
        Gives the number of ranks to start.
    work : callable
        Its result is rank 0's.
    port : int
        Where ranks meet; 0 takes a free one.
    keep_memory : bool
        Whether ranks keep freed memory for the next tensor, or give it back to the system.
    """
    if "RANK" not in os.environ:
        return launch(arguments, ranks(), port, keep_memory)
    rank = join()
    try:
        outcome = work()
    except (InputError, KeyboardInterrupt) as stopped:
        if rank == 0:
            raise
        time.sleep(_LAST_WORD_S)
        return 2 if isinstance(stopped, InputError) else 130  # rank 0 raises the same and says it
    except RankError as stopped:  # the one that failed has shown its own error
        if rank == 0:
            print(f"dgl-gt: {stopped}", file=sys.stderr)
        else:
            time.sleep(_LAST_WORD_S)
        return 1
    leave()
    return outcome if rank == 0 else 0


def join() -> int:
    """Join the group that the launcher announced, nccl with a GPU for each local rank, else gloo; return the rank."""
    if _LAUNCHER in os.environ:
        child.die_with_parent(int(os.environ[_LAUNCHER]))
    local = int(os.environ.get("LOCAL_RANK", 0))
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    else:
        dist.init_process_group("gloo")
    return dist.get_rank()


def leave() -> None:
    """Leave the group."""
    dist.destroy_process_group()


def launch(arguments: list[str], ranks: int, port: int = 0, keep_memory: bool = True) -> int:
    """Run ``dgl-gt ARGUMENTS`` as ``ranks`` processes; return the exit code.

    Raises
    ------
    InputError
        The port is taken.
    """
    if port:
        _check_port(port)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the rank itself has said what went wrong
    os.environ.update(child.environment(), **{_LAUNCHER: str(os.getpid())})
    for name, value in (KEEP_MEMORY if keep_memory else GIVE_BACK_MEMORY).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="dgl-gt",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        local_addr="localhost",  # by default the host's own name, which need not resolve
        monitor_interval=0.1,
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dgl_gt", *arguments)
    except ChildFailedError as failed:
        return _exit_code(failed)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def _check_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("localhost", port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "a port is at most 65535"
            raise InputError(
                f"port {port} cannot be used: {reason}; choose another, or leave --port out to take a free one"
            ) from error


def _exit_code(failed: ChildFailedError) -> int:
    for rank, failure in failed.failures.items():
        if failure.exitcode < 0 and -failure.exitcode != signal.SIGTERM:  # which is how the launcher stops the others
            hint = "; out of memory?" if -failure.exitcode == signal.SIGKILL else ""
            print(f"dgl-gt: rank {rank} was killed by signal {-failure.exitcode}{hint}", file=sys.stderr)
    return 2 if any(failure.exitcode == 2 for failure in failed.failures.values()) else 1
