"""The side of one rank: it joins the others, works, reports what went wrong, and leaves."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group as leave_group

from dgl_gt.comm.failure import RankError, RankInputError
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.signals import STOPPING, after_imports
from dgl_gt.partition.system.units import format_bytes

from .launcher_link import (
    LATE_AFTER_S,
    SETS_A_LIMIT,
    Failure,
    Launcher,
    out_of_memory_message,
    restarts,
    warn_of_too_many_threads,
)

REPORT_WAIT_S = 3.0  # time for another rank to read or say what went wrong, before this one ends
_POLL_S = 0.2
_CONNECTION_WAIT_S = 30.0
_NO_LIMIT = timedelta(days=365)
_HINT = (
    "on each machine, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface that reaches the other machines"
)
_NOTE = "dgl_gt/joining/stopped"  # the key of what keeps a rank from joining
_MAX_TRACEBACK = 20_000  # characters
_HERE = os.path.dirname(__file__)
_LOST = "gloo/transport"  # in torch's message where the connection to another rank is lost


def run(work, launcher: Launcher | None, timeout: float | None = None, memory_advice=None):
    """Join the other ranks, run ``work()``, and leave; returns its result on rank 0, and an exit code elsewhere."""
    if launcher is None:
        return _run_under_torchrun(work, timeout, memory_advice)
    _let_signals_end_us()  # an exception cannot interrupt joining, and there is nothing to clean up
    try:
        launcher.report(state="joining")
        rank = join_group(timeout, dist.FileStore(f"/proc/self/fd/{launcher.store}", int(os.environ["WORLD_SIZE"])))
        launcher.report(state="joined")
        _report_first_signal(launcher)
        outcome = work()
    except SystemExit as stopped:  # by a signal, which the launcher knows of
        _exit_at_once(stopped.code)
    except Exception as error:
        failure = _failure_of(error)
        launcher.report(**asdict(failure))
        _exit_at_once(failure.exit_code)
    else:
        leave_group()
        _let_signals_end_us()  # an exception while the interpreter ends would be printed
    return outcome if rank == 0 else 0


def _let_signals_end_us() -> None:
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _exit_at_once(code: int | str | None) -> None:
    """End this rank, with a code that ``SystemExit`` takes, without waiting for anything.

    The interpreter would wait for an exchange that other ranks never finish. Half-written files are removed by now.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads the stream any more, or it is closed
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run_under_torchrun(work, timeout: float | None, memory_advice):
    """Join the ranks that torchrun started, and work. The first rank of each machine says what ends them all."""
    if is_first_here():
        warn_of_too_many_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    try:
        rank = join_group(timeout)
        outcome = work()
    except InputError as error:
        if is_first_here() or isinstance(error, JoinError):
            raise
        time.sleep(REPORT_WAIT_S)  # torchrun ends all ranks as soon as one has ended
        return 2
    except RankError as stopped:  # the rank that failed has printed its own error
        if is_first_here():
            print(f"dgl-gt: {stopped}", file=sys.stderr)
        else:
            time.sleep(REPORT_WAIT_S)
        return 1
    except (MemoryError, RuntimeError) as error:
        problem = _allocation_problem(error)
        if problem is None:
            raise
        raise InputError(out_of_memory_message(int(os.environ["RANK"]), problem, memory_advice)) from error
    leave_group()
    return outcome if rank == 0 else 0


def _report_first_signal(launcher: Launcher) -> None:
    """Make the first signal report to the launcher and raise, so that half-written files are removed; ignore later ones."""
    rank = os.getpid()

    def stop(number, _):
        if os.getpid() != rank:  # the work has forked it, as a multiprocessing.Pool does, which ends it by SIGTERM
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        for each in STOPPING:
            signal.signal(each, lambda *_: None)  # with SIG_IGN, Python complains about a signal on its way
        launcher.report(**asdict(Failure("signal", str(int(number)), time.monotonic())))
        raise SystemExit(128 + number)

    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, after_imports(stop))


def _failure_of(error: Exception) -> Failure:
    text, problem, now = str(error), _allocation_problem(error), time.monotonic()
    frames = error.__traceback__
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename.startswith(_HERE):
        frames = frames.tb_next  # to where the work begins
    trace = "".join(traceback.format_exception(type(error), error, frames)).rstrip()[-_MAX_TRACEBACK:]
    if isinstance(error, RankError):
        return Failure("relayed", text, now, is_input=isinstance(error, InputError))
    if _LOST in text:  # in a loop of the user's that calls torch's collectives
        return Failure("relayed", f"a rank has ended: {text}", now, trace=trace)
    if isinstance(error, InputError):
        return Failure("input", text, now, trace=trace)
    if problem is not None:
        return Failure("memory", problem, now, trace=trace)
    return Failure("error", trace, now)


def _allocation_problem(error: BaseException) -> str | None:
    """What could not be allocated when memory ran out; None for any other error."""
    text = str(error)
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return text.split(". ")[1] if ". " in text else text
    found = re.search(r"(?:can't allocate memory|not enough memory): you tried to allocate (\d+) bytes", text)
    if found:
        return f"it asked for {format_bytes(int(found[1]))} at once"
    return (text or "an allocation failed") if isinstance(error, MemoryError) else None


class JoinError(InputError):
    """This rank cannot join the others, who learn why from its note."""


def is_first_here() -> bool:
    """Whether this rank speaks for those of its machine, which torchrun started."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def join_group(timeout: float | None = None, store=None) -> int:
    """Join the process group, nccl if each local rank has a GPU, otherwise gloo; returns the rank.

    Ranks meet in ``store``, which is a launcher's, or by default in the place that the environment names, as torchrun
    sets it. They wait for each other ``timeout`` seconds, by default without a limit. Without a launcher, an
    ``InputError`` says that this rank (:class:`JoinError`) or another one cannot join or has not come in time; with
    one, a ``RankError`` says that another has ended.
    """
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options: dict = {"rank": rank, "world_size": ranks}
    options["timeout"] = _NO_LIMIT if timeout is None else timedelta(seconds=timeout)
    backend = "gloo"
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        torch.cuda.set_device(local_rank)
        backend, options["device_id"] = "nccl", torch.device("cuda", local_rank)
    if store is None and ranks > 1:
        _meet_and_join(backend, options, timeout)
        return rank
    try:
        dist.init_process_group(backend, store=store, **options)
    except RuntimeError as error:
        kind = JoinError if store is None else RankError
        raise kind(f"rank {rank} could not join the others ({_reason(error)})") from error
    return rank


def _meet_and_join(backend: str, options: dict, timeout: float | None) -> None:
    """Wait until every rank is ready to join, and join; a rank that cannot tells the others why."""
    rank = options["rank"]
    store = _open_store(rank == 0, **options)
    try:
        _check_interface(rank, f"{backend.upper()}_SOCKET_IFNAME")
        _wait_for_all(store, rank, options["world_size"], timeout)
        with _ending_with_others(rank, _open_store(False, **options)):
            dist.init_process_group(backend, store=store, **options)
            _wait_for_connections(store, rank, options["world_size"], timeout)
    except (InputError, RuntimeError) as error:
        if not isinstance(error, InputError):
            error = JoinError(f"rank {rank} could not join the others ({_reason(error)}); {_HINT}")
        is_told = isinstance(error, RankError)
        with suppress(RuntimeError):  # the store is gone
            if not is_told:
                store.set(_NOTE, str(error))
            if not is_told or rank == 0:  # the store may end with this process
                time.sleep(REPORT_WAIT_S)
        raise error


def _open_store(is_first: bool, rank: int, world_size: int, timeout: timedelta, **_) -> dist.Store:
    """The place where the ranks meet; the first one to open it on rank 0 makes it, unless torchrun has."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        with _warning_when_late(lambda: f"rank {rank} has waited {LATE_AFTER_S:.0f} s for rank 0 at {host}:{port}"):
            store = dist.TCPStore(host, port, world_size, is_host, timeout, wait_for_workers=False)
    except RuntimeError as error:
        raise JoinError(
            f"rank {rank} could not reach {host}:{port}, where the ranks meet ({_reason(error)}); start rank 0, and give "
            "all ranks an address of its machine, and a free port that they can reach"
        ) from error
    return dist.PrefixStore(f"attempt/{restarts()}", store)  # torchrun keeps its store when it starts ranks again


def _check_interface(rank: int, variable: str) -> None:
    """Refuse an interface that this machine lacks: nobody else would learn why this rank does not join."""
    given, present = os.environ.get(variable, ""), [name for _, name in socket.if_nameindex()]
    if variable.startswith("GLOO"):
        absent = [name for name in given.split(",") if given and name not in present]
    else:  # beginnings of names, or with = whole ones; with ^ those to leave out
        names, is_exact = given.lstrip("=").split(","), given.startswith("=")
        fitting = [each for each in present for name in names if each == name or not is_exact and each.startswith(name)]
        absent = [] if fitting or not given or given.startswith("^") else names
    if absent:
        raise JoinError(
            f"{variable} is {given!r} in the environment of rank {rank}, and its machine has the interfaces "
            f"{', '.join(present)}; name the one that reaches the other machines"
        )


def _wait_for_all(store: dist.Store, rank: int, ranks: int, timeout: float | None) -> None:
    """Say in the store that this rank has come, and wait for the others."""
    came = [f"dgl_gt/joining/{each}" for each in range(ranks)]
    store.set(came[rank], "")
    missing, begun = list(range(ranks)), time.monotonic()

    def late() -> str:
        return f"rank{'s'[: len(missing) > 1]} {', '.join(map(str, missing))}"

    with _warning_when_late(lambda: f"{late()} did not join within {LATE_AFTER_S:.0f} s"):
        while missing := [each for each in missing if not store.check([came[each]])]:
            if store.check([_NOTE]):
                raise RankInputError(store.get(_NOTE).decode())
            if timeout is not None and time.monotonic() - begun > timeout:
                raise InputError(
                    f"{late()} did not join within {timeout:g} s, the limit that --timeout sets; look at the output there, "
                    "or raise the limit"
                )
            time.sleep(_POLL_S)


def _wait_for_connections(store: dist.Store, rank: int, ranks: int, timeout: float | None) -> None:
    """Wait until the others are connected, too: to them, a rank that ends earlier looks like one that cannot join."""
    connected = [f"dgl_gt/joining/connected/{each}" for each in range(ranks)]
    with suppress(RuntimeError):  # the store is gone, so its rank has seen all; or one died, as the first exchange says
        store.set(connected[rank], "")
        deadline = time.monotonic() + min(timeout or _CONNECTION_WAIT_S, _CONNECTION_WAIT_S)
        while not store.check(connected) and time.monotonic() < deadline:
            time.sleep(_POLL_S / 10)


@contextmanager
def _ending_with_others(rank: int, store: dist.Store):
    """Inside the block, this process ends when another rank cannot join; ``store`` is used for nothing else.

    The backend waits for that rank in C++, where nothing interrupts it.
    """
    has_joined = threading.Event()

    def watch():
        with suppress(RuntimeError):  # the store is gone
            while not has_joined.wait(_POLL_S):
                if store.check([_NOTE]) and not has_joined.is_set():
                    if is_first_here():
                        print(f"dgl-gt: error: {store.get(_NOTE).decode()}", file=sys.stderr, flush=True)
                    time.sleep(REPORT_WAIT_S if rank == 0 else 0)
                    os._exit(2)

    threading.Thread(target=watch, daemon=True).start()
    with _warning_when_late(
        lambda: f"rank {rank} has waited {LATE_AFTER_S:.0f} s for connections, although all ranks have come; {_HINT}"
    ):
        try:
            yield
        finally:
            has_joined.set()


@contextmanager
def _warning_when_late(text: Callable[[], str]):
    """Inside the block, the first rank of this machine prints ``text()`` once it has waited long."""

    def warn():
        print(f"dgl-gt: {text()}; still waiting{SETS_A_LIMIT}", file=sys.stderr)

    timer = threading.Timer(LATE_AFTER_S, warn)
    timer.daemon = True
    if is_first_here():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _reason(error: Exception) -> str:
    """The first line of a message, or what nccl puts last."""
    return str(error).strip().split("Last error:\n")[-1].splitlines()[0].strip().rstrip(".")
