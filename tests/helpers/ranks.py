"""Run a function as gloo ranks, each in a process of its own; the fork server imports torch and the package once."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

_TIMEOUT_S = 300
# What every rank would import for itself otherwise, which takes longer than many tests.
_PRELOAD = [
    "torch.distributed",
    "torch._dynamo",
    "ranks",
    "pytest",
    "partition",
    "dgl_gt.exchange.load",
    "dgl_gt.nn",
    "dgl_gt.train.run",
]


def run_ranks(world_size: int, function, *args) -> list:
    """Return ``[function(rank, *args) for rank in range(world_size)]``, run in parallel; raise what a rank raised.

    ``function`` must be importable, and its results must be plain values or numpy arrays.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(rank, world_size, folder, sender, function, args))
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return _collect(ranks)
        except EOFError:
            codes = [process.join(1) or process.exitcode for process, _ in ranks]
            raise RuntimeError(f"a rank died; exit codes of all: {codes}") from None
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()


def _collect(ranks) -> list:
    results = {}
    while len(results) < len(ranks):
        waiting = {receiver: rank for rank, (_, receiver) in enumerate(ranks) if rank not in results}
        ready = wait(list(waiting), timeout=_TIMEOUT_S)
        assert ready, f"ranks {sorted(waiting.values())} did not end within {_TIMEOUT_S} s"
        for receiver in ready:
            ok, value = receiver.recv()
            if not ok:
                raise RuntimeError(f"rank {waiting[receiver]}:\n{value}")
            results[waiting[receiver]] = value
    return [results[rank] for rank in range(len(ranks))]


def _rank(rank, world_size, folder, sender, function, args):
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=_TIMEOUT_S),
        )
        sender.send((True, function(rank, *args)))
        dist.destroy_process_group()
    except BaseException:
        sender.send((False, traceback.format_exc()))
