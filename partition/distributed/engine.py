"""Dask as the engine: it gives tasks to workers and repeats those of workers that die. Data goes through files alone.

Dask unpickles what a connection sends, so a connection is on the loopback, or encrypted with certificates of both ends.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from secrets import token_hex
from tempfile import TemporaryDirectory

from dgl_gt.partition.errors import InputError, first_line, import_optional, whole_number
from dgl_gt.partition.shards.manifest import FORMAT_VERSION
from dgl_gt.partition.system.units import format_bytes

MEMORY_BYTES = 4 << 30  # of a task, by default
_WAIT_S = 30
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

    def check(self, folder: str, memory_bytes: int) -> None:
        """Raise :class:`InputError` unless every worker can run tasks that exchange files in a folder that exists."""
        try:
            self.client.wait_for_workers(1, timeout=_WAIT_S)
        except TimeoutError:
            raise InputError(
                f"the scheduler {self._address} has no workers; start some: dask worker {self._address}"
            ) from None
        answers = self.client.run(_look, folder, on_error="return")
        for address, answer in answers.items():
            if isinstance(answer, BaseException):
                raise InputError(
                    f"worker {address} cannot run dgl-gt ({first_line(answer)}); install version {version()}"
                )
            other, sees_folder = answer
            if other != version():
                raise InputError(
                    f"worker {address} has dgl-gt {other}, and this is {version()}; install the same version"
                )
            if not sees_folder:
                raise InputError(
                    f"worker {address} does not see {folder}; choose a folder on a file system that all workers share"
                )
        for address, worker in self.client.scheduler_info(n_workers=-1)["workers"].items():
            room, tasks = worker["memory_limit"], worker["nthreads"]
            if room and room < memory_bytes * tasks:
                at_once = f" for {tasks} tasks at once" if tasks > 1 else ""
                raise InputError(
                    f"worker {address} has {format_bytes(room)}{at_once}, and a task may take {format_bytes(memory_bytes)}; what "
                    f"would fit is worker_memory (--worker-memory) {room // tasks >> 20}MiB, or give workers more memory or one thread"
                )

    def run(self, stage: str, task: Callable[[int], int], items: list[int]) -> Iterator[int]:
        """Call ``task`` with each item on some worker, again if that worker dies; yield what it returns as it ends."""
        from distributed import KilledWorker, as_completed
        from distributed.client import FutureCancelledError
        from distributed.comm import CommClosedError

        name = token_hex(4)  # a repeated stage is not answered from the scheduler's memory
        keys = [f"{stage}-{item}-{name}" for item in items]
        futures = self.client.map(task, items, key=keys, pure=False) if items else []
        try:
            for future in as_completed(futures, loop=self.client.loop):
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
        finally:
            self.client.cancel(futures)

    @property
    def _address(self) -> str:
        return self.client.scheduler.address if self.client.scheduler else "of the client"


def version() -> str:
    """The version of dgl-gt, and that of the shards it writes."""
    try:
        return f"{metadata.version('dgl-gt')} (format {FORMAT_VERSION})"
    except metadata.PackageNotFoundError:
        return f"unknown (format {FORMAT_VERSION})"


def _look(folder: str) -> tuple[str, bool]:
    """What a worker says of itself: its version, and whether it sees a folder."""
    return version(), os.path.isdir(folder)


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
    try:
        client = distributed.Client(scheduler, set_as_default=False, timeout=_WAIT_S)
    except (OSError, TimeoutError, TypeError, ValueError) as error:  # a missing certificate is a TypeError
        raise InputError(
            f"there is no scheduler at {scheduler} ({first_line(error)}); start one, or correct the address"
        ) from error
    with client:
        yield DaskEngine(client)


@contextmanager
def local(workers: int | None, memory_bytes: int) -> Iterator[DaskEngine]:
    """Give an engine on worker processes of this machine, which listen on the loopback alone."""
    distributed = import_optional("distributed", "engine (--engine) local", _INSTALL)
    workers = whole_number("workers", os.cpu_count() if workers is None else workers, 1, 1024)
    of_workers = {"n_workers": workers, "threads_per_worker": 1, "memory_limit": memory_bytes}
    on_loopback = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with TemporaryDirectory(prefix="dgl-gt-workers-") as folder:
        cluster = distributed.LocalCluster(
            **of_workers, **on_loopback, silence_logs=logging.CRITICAL, local_directory=folder
        )
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield DaskEngine(client)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
