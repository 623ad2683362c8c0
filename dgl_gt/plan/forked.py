"""Work in a child process, so that what it loads and leaves in memory ends with it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable

import torch

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.child_process import die_with_parent, killed_for_memory, memory_kills, signal_text
from dgl_gt.partition.system.signals import STOPPING


def run_forked(work: Callable):
    """Return ``work()``, which a forked child of this process runs on one thread; raise what it raises.

    The result must be picklable. The child has no ranks to talk to. Where there is a GPU, the work runs in this
    process, because a forked process cannot use it, and the memory of the GPU is what counts; a run on the processor of
    such a machine keeps what the work leaves.

    Raises
    ------
    InputError
        The work raises it, or the system kills the child for lack of memory.
    RuntimeError
        The child ends in another way.
    """
    if torch.cuda.is_available():
        return work()
    context, kills = multiprocessing.get_context("fork"), memory_kills()
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(work, sender, os.getpid()))
    child.start()
    sender.close()
    try:
        result, error, frames = receiver.recv()
    except EOFError:
        child.join()
        raise _unexpected_end(child.exitcode, kills) from None
    finally:
        child.kill()  # where this process is told to stop while it waits
        child.join()
        receiver.close()
    if error is not None:
        raise error from (None if isinstance(error, InputError) else RuntimeError(frames))
    return result


def _unexpected_end(code: int, kills: int | None) -> Exception:
    if killed_for_memory(code, kills):
        return InputError(
            "the process that plans ran out of memory; use a smaller model, or a machine with more memory"
        )
    how = f"was {signal_text(code)}" if code < 0 else f"ended with exit code {code}"
    return RuntimeError(f"the process that plans {how}")


def _run(work: Callable, sender, parent: int) -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # the parent acts on them, and ends this process
    die_with_parent(parent)
    torch.set_num_threads(1)  # libgomp's threads do not survive a fork, and work on them would wait forever
    try:
        outcome = work(), None, ""
        pickle.dumps(outcome)
    except Exception as error:
        outcome = None, _sendable(error), traceback.format_exc()
    sender.send(outcome)


def _sendable(error: Exception) -> Exception:
    """The error, or one in words where the other process could not read it."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
