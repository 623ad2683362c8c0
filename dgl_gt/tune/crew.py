"""The processes that try settings: groups of ranks, each with its share of the processors; :mod:`.worker` is the other side."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import child_process
from dgl_gt.partition.system.allocator import environment_of_ranks
from dgl_gt.partition.system.memory import available_cpus
from dgl_gt.ranks.launch import explained
from dgl_gt.ranks.started_ranks import StartedRank, first_failure, started_ranks

from .jobs import Hello, Job, Outcome

_END_WAIT_S = 2.0


class WorkerFailed(Exception):
    """A defect ended a rank, which is not for the user to repair; ``code`` is the exit code of the command."""

    def __init__(self, text: str, code: int):
        super().__init__(text)
        self.code = code


class Worker:
    """A group of ranks with the shards loaded, which does one job at a time.

    Attributes
    ----------
    hello : Hello or None
        What the data say; None until the shards are loaded.
    job : Job or None
        What it does now.
    epoch, epochs : int
        Where the job is.
    value : float or None
        The best validation metric so far.
    """

    def __init__(self, directory: str, ranks: int, given: dict[str, Any], jobs: int):
        self._command_of = lambda fd: child_process.command(
            "dgl_gt.tune.worker", directory, str(fd), msgspec.json.encode(given).decode()
        )
        self._ranks_of, self._threads = ranks, max(1, available_cpus() // (jobs * ranks))
        self.hello: Hello | None = None
        self._start()

    def _start(self) -> None:
        self._stack, self._messages = ExitStack(), list[dict]()
        self.job: Job | None = None
        self.epoch = self.epochs = 0
        self.value: float | None = None
        self._kills = child_process.memory_kills()
        read_end, self._orders = os.pipe()
        try:
            environment = environment_of_ranks() | {"OMP_NUM_THREADS": str(self._threads)}
            started = started_ranks(
                self._command_of(read_end), self._ranks_of, environment, inherited=(read_end,), show=self._hear
            )
            self._ranks: list[StartedRank] = self._stack.enter_context(started)
        finally:
            os.close(read_end)

    def _hear(self, message: dict) -> None:
        self._messages.append(message)

    @property
    def is_free(self) -> bool:
        """Whether it waits for a job."""
        return self.hello is not None and self.job is None

    def give(self, job: Job) -> None:
        """Begin a job."""
        self.job, self.epoch, self.epochs, self.value = job, 0, 0, None
        with suppress(BrokenPipeError):  # the ranks have just ended, of which the next poll tells
            os.write(self._orders, msgspec.json.encode(job) + b"\n")

    def poll(self) -> tuple[Job, Outcome] | None:
        """The job that has ended since the last call, and what became of it, if one has.

        Where a job took more memory than there is, it failed, and the ranks start again. ``InputError`` if the ranks found a
        mistake of the user's, :class:`WorkerFailed` if a defect ended them.
        """
        for each in self._ranks:
            each.update()
        messages, self._messages = self._messages, []
        for message in messages:
            match message:
                case {"hello": found}:
                    self.hello = msgspec.convert(found, Hello)
                case {"started": _, "epochs": epochs}:
                    self.epochs = epochs
                case {"epoch": epoch, "value": value}:
                    self.epoch, self.value = epoch, value
                case {"ended": found}:
                    job, self.job = self.job, None
                    assert job is not None
                    return job, msgspec.convert(found, Outcome)
        return self._after_failure()

    def _after_failure(self) -> tuple[Job, Outcome] | None:
        found = first_failure(self._ranks, self._kills)
        if found is None:
            return None
        rank, failure = found
        text, job = explained(rank, failure, lambda: "leave out large models (--models)"), self.job
        if failure.kind == "memory" and job is not None:
            self.close()
            self._start()
            return job, Outcome("failed", why=text)
        if failure.kind == "signal" and int(failure.text) == signal.SIGINT:
            raise KeyboardInterrupt
        if failure.exit_code == 2:
            raise InputError(text)
        raise WorkerFailed(text, failure.exit_code)

    def close(self) -> None:
        """End the ranks; those that wait for a job end by themselves."""
        os.close(self._orders)
        until = time.monotonic() + _END_WAIT_S
        while self.job is None and time.monotonic() < until and not all(each.has_ended for each in self._ranks):
            for each in self._ranks:
                each.update()
            time.sleep(0.02)
        self._stack.close()
