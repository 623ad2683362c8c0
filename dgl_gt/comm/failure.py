"""Ranks that stop or are late. Ranks tell each other about it through the key-value store of torch.distributed."""

from __future__ import annotations

import json
import re
import sys
import time
import zlib
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from dgl_gt.partition.errors import InputError
from dgl_gt.torch_internals import default_store, set_group_timeout

_POLL_S = 0.01
_MARGIN_S = 5.0  # gloo's own timeout is longer than ours by this much, because our message says more


class RankError(RuntimeError):
    """Another rank has stopped or does not answer; the message says which rank, and why."""


class RankInputError(InputError, RankError):
    """Another rank has stopped because of bad input."""


class FailureDetector:
    """Waits for the collectives of one group, and detects ranks that stop or are late.

    A rank that stops leaves a note, which stays in the store. The notes of a group are numbered, and each rank marks
    those that it has written or read. A rank looks for the first note without its mark, however late it comes. A rank
    waits in one collective for ``timeout_s`` seconds, by default as long as the group itself allows.
    """

    poll_s = 1.0  # time after which a waiting rank checks again whether another rank has stopped
    warn_after_s = 60.0  # time after which a waiting rank names the ranks for which it waits; then at each doubling
    # Time for which a stopping rank waits until others have read its note, because the store may end with this process.
    linger_s = 10.0

    def __init__(self, group, timeout_s: float | None = None):
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._rank, self._world_size = dist.get_rank(group), len(members)
        self._prefix = f"dgl_gt/{members[0]}-{len(members)}-{zlib.crc32(repr(members).encode()):x}"
        self._store = default_store()
        self._timeout_s, self._started, self._note = timeout_s, 0, 0
        self.watch(group)

    def watch(self, group) -> None:
        """Give the timeout, if there is one, to a process group of the same ranks: its threads must give up, too."""
        if self._timeout_s is not None:
            set_group_timeout(group, self._timeout_s + _MARGIN_S)

    def collective_started(self) -> None:
        """Count a collective that this rank starts."""
        self._started += 1

    def wait(self, work, what: str = "a collective") -> None:
        """Wait for a collective, which messages call ``what``, or raise :class:`RankError`."""
        begun, warn_at, has_published = time.monotonic(), self.warn_after_s, False
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=self.poll_s))
                break
            except RuntimeError as error:
                self._raise_stopped()
                if has_ended or "Operation timed out" not in str(error):  # this error ends a wait of poll_s
                    raise RankError(self._lost(str(error).splitlines()[0])) from error
            waited, has_published = time.monotonic() - begun, True
            self._publish_progress()
            if self._timeout_s is not None and waited >= self._timeout_s:
                raise RankError(
                    f"rank {self._rank} has waited {waited:.0f} s{self._cause()}. It waits in {what}; the timeout is "
                    f"{self._timeout_s:g} s: look at the output of the other ranks, or allow more time"
                )
            if waited >= warn_at:
                warn_at = 2 * waited
                print(f"dgl-gt: rank {self._rank} has waited {waited:.0f} s{self._cause()}", file=sys.stderr)
        if has_published:
            with suppress(RuntimeError):
                self._store.delete_key(self._progress_key(self._rank))

    def report(self, error: BaseException) -> None:
        """Tell the others, once, why this rank stops, and wait until they have read it, at most ``linger_s`` seconds."""
        told = vars(error).setdefault("_dgl_gt_told", set())
        if self._prefix in told:  # an inner context has reported it
            return
        told.add(self._prefix)
        kind = "input" if isinstance(error, InputError) else "error"
        text = str(error) if kind == "input" else f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):  # if the store is gone, the others' connections break, too
            self._store.compare_set(
                self._next_note(), "", json.dumps([self._rank, kind, text])
            )  # an earlier note stays
            self._mark()

    def _raise_stopped(self) -> None:
        """Raise the error that stopped another rank, if there is a note that this rank has not read."""
        found = None
        with suppress(RuntimeError):
            note = self._next_note()
            if self._store.check([note]):
                found = json.loads(self._store.get(note))
                self._mark()
        if found:
            rank, kind, text = found
            if kind == "input":
                raise RankInputError(f"rank {rank}: {text}")
            raise RankError(f"rank {rank} stopped: {text}")

    def _next_note(self) -> str:
        """Return the key of the first note without this rank's mark."""
        while self._store.check([self._marks()[self._rank]]):
            self._note += 1
        return f"{self._prefix}/note/{self._note}"

    def _marks(self) -> list[str]:
        return [f"{self._prefix}/note/{self._note}/read/{rank}" for rank in range(self._world_size)]

    def _mark(self) -> None:
        """Mark the note as read, and wait until all ranks have done so, at most ``linger_s`` seconds."""
        marks, deadline = self._marks(), time.monotonic() + self.linger_s
        self._store.set(marks[self._rank], "")
        while not self._store.check(marks) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _publish_progress(self) -> None:
        """Write which collective this rank waits in."""
        with suppress(RuntimeError):
            self._store.set(self._progress_key(self._rank), str(self._started))

    def _progress_key(self, rank: int) -> str:
        return f"{self._prefix}/waits/{rank}"

    def _cause(self) -> str:
        """The end of "rank 0 has waited 5 s": which ranks have not reached this collective, or the network."""
        behind = []
        with suppress(RuntimeError):
            for rank in range(self._world_size):
                key = self._progress_key(rank)
                if rank != self._rank and not (self._store.check([key]) and int(self._store.get(key)) >= self._started):
                    behind.append(str(rank))
        if not behind:
            return "; all other ranks wait, too, so the network may be the cause"
        return f" for rank{'s'[: len(behind) > 1]} {', '.join(behind)}"

    def _lost(self, reason: str) -> str:
        if "imed out" in reason:
            return (
                f"rank {self._rank} has waited as long as the process group allows{self._cause()}. Look at the output "
                f"of the other ranks, or raise the timeout of init_process_group ({reason})"
            )
        if re.search("connection|broken pipe|closed|remote process", reason, re.IGNORECASE):
            return f"rank {self._rank} lost its connection: another rank has ended; look at its output ({reason})"
        return (
            f"an exchange failed on rank {self._rank}: {reason}; make sure that all ranks do the same steps, with tensors "
            "of the same width and dtype"
        )
