"""Work in a child process, so that what it loads and leaves in memory ends with it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

import torch

from partition.errors import InputError
from partition.system.child_process import die_with_parent, signal_text


def run_forked(work: Callable):
    """Return ``work()``, which a forked child of this process runs; raise the ``InputError`` that it raises.

    The result must be picklable. The child has no ranks to talk to, and must not use a GPU: where this process has
    begun to use one, the work runs here, because the memory of the GPU is what counts then.

    Raises
    ------
    InputError
        The work raises it, or a signal ends the child, for instance because memory runs out.
    RuntimeError
        The work fails in any other way; its traceback is on stderr.
    """
    if torch.cuda.is_initialized():
        return work()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(work, sender, os.getpid()))
    child.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        child.join()
        if child.exitcode >= 0:
            raise RuntimeError("the process that plans has failed; its traceback is above") from None
        raise InputError(
            f"the process that plans was {signal_text(child.exitcode)}; use a smaller model, or a machine with more memory"
        ) from None
    child.join()
    if error is not None:
        raise error
    return result


def _run(work: Callable, sender, parent: int) -> None:
    die_with_parent(parent)
    try:
        outcome = work(), None
    except InputError as error:
        outcome = None, error
    sender.send(outcome)
