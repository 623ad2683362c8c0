"""Runs a Python function on ranks that are started for it. :mod:`.function_rank` is the other side.

A rank is a fresh interpreter: a fork of a process that has used OpenMP hangs at its first parallel loop, and one that has
used a GPU cannot use it. The function is pickled by value where no rank could import it, as one of a notebook's cell, of
a script or of an interactive session. It travels, and so does the result, in a file without a name, which ranks inherit.
"""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import reprlib
import signal
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from types import CodeType
from typing import TypeVar

import cloudpickle

from dgl_gt.partition.errors import InputError, whole_number
from dgl_gt.partition.notebook import Bar, in_notebook
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.signals import received_signals

from .launch import explained
from .launcher_link import Failure, warn_of_too_many_threads
from .started_ranks import first_failure, started_ranks, watch

Result = TypeVar("Result")


def launch(function: Callable[[], Result], ranks: int) -> Result:
    """Run a function on several ranks of this machine, and return what it returns on rank 0.

    It works in a notebook, in a script and in an interactive session, and the function may be defined there. Each rank
    is a new process that has joined the others, so that :func:`dgl_gt.load` and ``torch.distributed`` work at once. The
    function and the values that it names are copied to the ranks; what it changes there does not come back, only its
    result does.

    Parameters
    ----------
    function : callable
        Called without arguments on every rank.
    ranks : int
        Number of ranks P; for shards, their number of parts.

    Returns
    -------
    object
        The result of rank 0; those of other ranks are dropped.

    Raises
    ------
    InputError
        The function cannot be called without arguments or copied, this process is a rank itself, or a rank raised an
        InputError or ran out of memory.
    RankError
        The function raised another exception on a rank, whose number and traceback the message has, or a rank died. The
        other ranks are ended.
    KeyboardInterrupt
        After Ctrl-C, or "interrupt" in a notebook, which stops all ranks.

    Examples
    --------
    >>> import dgl_gt
    >>> dgl_gt.launch(lambda: dgl_gt.Comm().world_size, ranks=2)  # doctest: +SKIP
    2
    """
    ranks = whole_number("ranks", ranks, 1)
    with _unnamed_file() as sent, _unnamed_file() as returned:
        _send(function, sent)
        _run(ranks, sent.fileno(), returned.fileno())
        returned.seek(0)  # ranks share its position
        try:
            return pickle.load(returned)
        except EOFError:
            raise _error(0, Failure("exit", "0", 0.0)) from None


def _unnamed_file():
    return os.fdopen(os.memfd_create("dgl-gt-launch"), "w+b")


def _send(function: Callable, file) -> None:
    """Write what ranks need: where modules are found, the lines of code that are in no file, and the function."""
    if "RANK" in os.environ:
        raise InputError("RANK is set in the environment, so this process is a rank already; call the function itself")
    try:
        with suppress(ValueError):  # of a builtin that does not say what it takes
            inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(
            f"function is {reprlib.repr(function)}, which cannot be called without arguments ({error}); give a function such "
            "as lambda: work(3)"
        ) from None
    lines = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and not os.path.exists(name)}
    try:
        pickle.dump((sys.path, lines), file)
        _KeepingFileNames(file).dump(function)
    except Exception as error:  # whatever the objects that it names raise
        raise InputError(
            f"function is {reprlib.repr(function)}, and what it names cannot be copied to the ranks "
            f"({type(error).__name__}: {error}); make open files, locks and sharded graphs inside of it"
        ) from error
    file.flush()


def _run(ranks: int, *files: int) -> None:
    """Run the function that is in the first of these files on ranks; raise what ended them early."""
    warn_of_too_many_threads(ranks)
    command = child_process.command("dgl_gt.ranks.function_rank", *map(str, files))
    kills, bar = child_process.memory_kills(), Bar()
    show = bar if in_notebook() else lambda *_: None
    with received_signals() as signals, closing(bar):
        with started_ranks(command, ranks, environment_of_ranks(), inherited=files, show=show) as started:
            watch(started, signals)
    if signals:
        signal.raise_signal(signals[0])  # which has its usual effect now
    if found := first_failure(started, kills):
        raise _error(*found)


class _KeepingFileNames(cloudpickle.Pickler):
    """Pickles code with the name of its file, by which a traceback shows its lines; cloudpickle drops it."""

    def reducer_override(self, obj):
        if isinstance(obj, CodeType):
            return _code_of_file, (*self.dispatch_table[CodeType](obj), obj.co_filename)
        return super().reducer_override(obj)


def _code_of_file(make: type[CodeType], arguments: tuple, name: str) -> CodeType:
    return make(*arguments).replace(co_filename=name)


def _error(rank: int, failure: Failure) -> Exception:
    """The exception for what made a rank fail."""
    from dgl_gt.comm.failure import RankError  # imports torch

    if failure.kind == "error":
        return RankError(f"rank {rank} failed:\n{failure.text}")
    text = explained(rank, failure, None) or f"rank {rank} ended with exit code {failure.text}"
    is_input = failure.exit_code == 2 and failure.kind != "exit"
    error = (InputError if is_input else RankError)(text)
    error.__cause__ = RankError(f"rank {rank}:\n{failure.trace}") if failure.trace else None
    return error
