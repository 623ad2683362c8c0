"""Dask as the engine: it gives tasks to workers and repeats those of workers that die. Data goes through files alone.

Dask unpickles what a connection sends, so a connection is on the loopback, or encrypted with certificates of both ends.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import metadata
from queue import Empty, SimpleQueue
from secrets import token_hex
from tempfile import TemporaryDirectory

from dgl_gt.partition.cuts import native
from dgl_gt.partition.errors import InputError, first_line, import_optional, whole_number
from dgl_gt.partition.shards.manifest import FORMAT_VERSION
from dgl_gt.partition.system.allocator import keep_small_blocks
from dgl_gt.partition.system.units import format_bytes

MEMORY_BYTES = 4 << 30  # of a task, by default
MOST_WORKERS = 1024
_WAIT_S = 30
_LOOKS_EVERY_S, _WITHOUT_WORKERS_S = 5.0, 120.0
_NO_INTERRUPT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # Ctrl-C reaches workers, too
_INSTALL = "pip install 'dgl-gt[dask]'"
_RESUME = "run the same command with resume (--resume) to go on"


class DaskEngine:
    """Runs the tasks of :func:`dgl_gt.partition.partition` on the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        All its workers must have this version of dgl-gt, and must see the source and the folder of the shards under the
        same paths.

    Examples
    --------
    >>> from distributed import Client
    >>> from dgl_gt.partition import DaskEngine, partition
    >>> partition("edges.npz", 16, "shards", engine=DaskEngine(Client("tcp://127.0.0.1:8786")))  # doctest: +SKIP
    """

    def __init__(self, client):
        distributed = import_optional("distributed", "an engine (--engine)", _INSTALL)
        if not isinstance(client, distributed.Client):
            raise InputError(f"client is {client!r}; it must be a distributed.Client")
        self.client = client
        self._asked = ("", "", 0)  # what tasks need: the folder, version and memory of a run

    def check(self, folder: str, memory_bytes: int) -> None:
        """Raise :class:`InputError` unless every worker can run tasks that exchange files in a folder that exists."""
        import distributed

        self._asked = folder, _build(), memory_bytes
        try:
            self.client.wait_for_workers(1, timeout=_WAIT_S)
        except distributed.TimeoutError:  # not Python's own before 3.11
            raise InputError(
                f"the scheduler {self._address} has no workers; start some: dask worker {self._address}"
            ) from None
        self._ask_workers()

    def _ask_workers(self) -> None:
        from distributed.comm import CommClosedError

        answers = self.client.run(_unfit, *self._asked, on_error="return")
        for address, answer in answers.items():
            if isinstance(answer, CommClosedError):  # it has died; others ask again at each task
                continue
            if isinstance(answer, BaseException):
                raise InputError(
                    f"worker {address} cannot run dgl-gt ({first_line(answer)}); install version {version()}"
                )
            if answer is not None:
                raise InputError(answer)

    def run(self, stage: str, task: Callable[[int], int], items: list[int]) -> Iterator[int]:
        """Call ``task`` with each item on some worker, again if that worker dies; yield what it returns as it ends."""
        from distributed import KilledWorker, TimeoutError
        from distributed.client import FutureCancelledError
        from distributed.comm import CommClosedError

        name = token_hex(4)  # a repeated stage is not answered from the scheduler's memory
        keys = [f"{stage}-{item}-{name}" for item in items]
        asked = partial(_run_if_fit, self._asked, task)
        futures = self.client.map(asked, items, key=keys, pure=False) if items else []
        ended: SimpleQueue = SimpleQueue()
        try:
            for future in futures:
                future.add_done_callback(ended.put)
            for _ in futures:
                future = self._next(ended, stage)
                yield future.result()
                future.release()
        except KilledWorker as error:
            raise InputError(
                f"workers died again and again in stage {stage} ({first_line(error)}), as they do without memory; {_RESUME}"
            ) from error
        except (FutureCancelledError, CommClosedError, TimeoutError) as error:
            raise InputError(
                f"the scheduler {self._address} is gone in stage {stage}; start one and {_RESUME}"
            ) from error
        except (InputError, GeneratorExit):
            raise
        except Exception:
            self._ask_workers()  # one that has joined since may have another version, and no task runs there
            raise
        finally:
            self.client.cancel(futures)

    def _next(self, ended: SimpleQueue, stage: str):
        """The next future that has ended; :class:`InputError` where no worker is left and none comes."""
        alone_since = None
        while True:
            try:
                return ended.get(timeout=_LOOKS_EVERY_S)
            except Empty:
                now = time.monotonic()
                alone_since = None if self.client.nthreads() else alone_since or now
            if alone_since is not None and now - alone_since >= _WITHOUT_WORKERS_S:
                raise InputError(
                    f"the scheduler {self._address} has had no worker for {_WITHOUT_WORKERS_S:.0f} s in stage {stage}; start some and "
                    f"{_RESUME}"
                )

    @property
    def _address(self) -> str:
        return self.client.scheduler.address if self.client.scheduler else "of the client"


@cache
def version() -> str:
    """The version of dgl-gt, and that of the shards it writes."""
    try:
        return f"{metadata.version('dgl-gt')} (format {FORMAT_VERSION})"
    except metadata.PackageNotFoundError:
        return f"unknown (format {FORMAT_VERSION})"


def _build() -> str:
    """The version, and whether the compiled extension is missing, without which shards differ."""
    return version() if native.is_available() else f"{version()} without its compiled extension"


def _unfit(folder: str, wanted: str, memory_bytes: int, dask_worker=None) -> str | None:
    """Why this worker cannot run tasks of a run; None if it can."""
    from distributed import get_worker

    worker = dask_worker or get_worker()
    if _build() != wanted:
        return f"worker {worker.address} has dgl-gt {_build()}, and this is {wanted}; install the same"
    if not os.path.isdir(folder):
        return f"worker {worker.address} does not see {folder}; choose an out (--out), or for a URL a DGL_GT_CACHE, on a file system that all workers share"
    room, tasks = worker.memory_manager.memory_limit, worker.state.nthreads
    if room and room < memory_bytes * tasks:
        at_once = f" for {tasks} tasks at once" if tasks > 1 else ""
        return (
            f"worker {worker.address} has {format_bytes(room)}{at_once}, and a task may take {format_bytes(memory_bytes)}; what "
            f"would fit is worker_memory (--worker-memory) {room // tasks >> 20}MiB, or give workers more memory or one thread"
        )
    return None


def _run_if_fit(asked: tuple[str, str, int], task: Callable[[int], int], item: int) -> int:
    """Run a task, also on a worker that joined after the others were asked."""
    problem = _unfit(*asked)
    if problem is not None:
        raise InputError(problem)
    keep_small_blocks()
    return task(item)


@contextmanager
def connected(scheduler: str | None, *, insecure: bool = False) -> Iterator[DaskEngine]:
    """Give an engine on the scheduler at an address; :class:`InputError` where it is not there, or not safe."""
    distributed = import_optional("distributed", "engine (--engine) dask", _INSTALL)
    if scheduler is None:
        raise InputError("scheduler (--scheduler) is missing: give its address, such as tcp://127.0.0.1:8786")
    kind, found, rest = scheduler.partition("://")
    if not found or kind not in ("tcp", "tls") or ":" not in rest:
        raise InputError(f"scheduler is {scheduler!r}; it must be tcp://HOST:PORT on this machine, or tls://HOST:PORT")
    host = rest.rpartition(":")[0].strip("[]")
    if kind == "tcp" and not insecure and not _is_loopback(host):
        raise InputError(
            f"scheduler is {scheduler!r}, and whoever can reach it can run code on all workers: use tls://, or add insecure "
            "(--insecure) on a network that you trust"
        )
    if kind == "tls" and distributed.Security().get_connection_args("client")["ssl_context"] is None:
        raise InputError(
            f"scheduler is {scheduler!r}, and Dask's settings name no certificate: set distributed.comm.tls.ca-file, "
            "client.cert and client.key there, or in the environment as DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on"
        )
    try:
        client = distributed.Client(scheduler, set_as_default=False, timeout=_WAIT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(
            f"there is no scheduler at {scheduler} ({first_line(error)}); start one, or correct the address"
        ) from error
    with distributed.utils.silence_logging_cmgr(logging.CRITICAL), client:  # else tracebacks of a scheduler that dies
        yield DaskEngine(client)


@contextmanager
def local(workers: int | None, memory_bytes: int) -> Iterator[DaskEngine]:
    """Give an engine on worker processes of this machine, which listen on the loopback alone."""
    distributed = import_optional("distributed", "engine (--engine) local", _INSTALL)
    workers = whole_number("workers", os.cpu_count() if workers is None else workers, 1, MOST_WORKERS)
    of_workers = {"n_workers": workers, "threads_per_worker": 1, "memory_limit": memory_bytes}
    on_loopback = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with TemporaryDirectory(prefix="dgl-gt-workers-") as folder:
        cluster = distributed.LocalCluster(
            **of_workers, **on_loopback, silence_logs=logging.CRITICAL, local_directory=folder, preload=[_NO_INTERRUPT]
        )
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield DaskEngine(client)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
