"""Ranks that stop or are late: what ranks tell each other, through the store of torch.distributed that started them."""

from __future__ import annotations

import json
import sys
import time
import zlib
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from partition.errors import InputError

_GLANCE_S = 0.01
_FAREWELL_S = 10.0  # how long a rank that stops waits for the others to have read why: the store may end with it

_MARGIN_S = 5.0  # by how much gloo's own timeout is longer than ours, whose message says more


class RankError(RuntimeError):
    """Another rank has stopped or does not answer; the message says which, and why."""


class RankInputError(InputError, RankError):
    """Another rank has stopped over bad input."""


class Watch:
    """Waits for collectives of one group, and knows of ranks that stop or are late.

    A rank that stops leaves a note, which stays in the store. The notes of a group are numbered, and each rank marks
    those that it has written or read: the first without its mark is the one that it looks for, however late it comes.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup or None
        None is all ranks.
    timeout_s : float or None
        How long to wait for other ranks in one collective; by default as long as the group itself allows.

    Attributes
    ----------
    poll_s : float
        How often a rank that waits looks whether another has stopped (s).
    warn_after_s : float
        How long a rank waits before it says for whom (s); it says so again whenever that time has doubled.
    """

    poll_s = 1.0
    warn_after_s = 60.0

    def __init__(self, group, timeout_s: float | None = None):
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._rank, self._world_size = dist.get_rank(group), len(members)
        self._prefix = f"dgl_gt/{members[0]}-{len(members)}-{zlib.crc32(repr(members).encode()):x}"
        self._store = dist.distributed_c10d._get_default_store()
        self._timeout_s, self._started, self._note = timeout_s, 0, 0
        if timeout_s is not None:  # so that gloo's threads give up, too, and this process can end
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s + _MARGIN_S), group)

    def started(self) -> None:
        """Count a collective that this rank starts."""
        self._started += 1

    def wait(self, work) -> None:
        """Wait for a collective, or raise :class:`RankError`."""
        begun, warn_at, has_told = time.monotonic(), self.warn_after_s, False
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=self.poll_s))
                break
            except RuntimeError as error:
                self._raise_stopped()
                if has_ended or "Operation timed out" not in str(error):  # which is how waiting for so long ends
                    raise RankError(self._lost(str(error).splitlines()[0])) from error
            waited, has_told = time.monotonic() - begun, True
            self._tell_where()
            if self._timeout_s is not None and waited >= self._timeout_s:
                raise RankError(
                    f"rank {self._rank} has waited {waited:.0f} s for {self._awaited()}, and the timeout is "
                    f"{self._timeout_s:g} s; look at the output of that rank, or allow more time"
                )
            if waited >= warn_at:
                warn_at = 2 * waited
                print(f"dgl-gt: rank {self._rank} has waited {waited:.0f} s for {self._awaited()}", file=sys.stderr)
        if has_told:
            with suppress(RuntimeError):
                self._store.delete_key(self._place(self._rank))

    def announce(self, error: BaseException) -> None:
        """Say why this rank stops, and wait until the others have read it, for a while."""
        kind = "input" if isinstance(error, InputError) else "error"
        text = str(error) if kind == "input" else f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):  # no store any more: then the others' connections break, too
            self._store.compare_set(self._next_note(), "", json.dumps([self._rank, kind, text]))  # the first one stays
            self._mark()

    def _raise_stopped(self) -> None:
        """Raise what stopped another rank, if one has left a note that this rank has not read."""
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
        """Key of the first note without this rank's mark."""
        while self._store.check([self._marks()[self._rank]]):
            self._note += 1
        return f"{self._prefix}/note/{self._note}"

    def _marks(self) -> list[str]:
        return [f"{self._prefix}/note/{self._note}/read/{rank}" for rank in range(self._world_size)]

    def _mark(self) -> None:
        """Mark the note as read, and leave when all have, or after a while: the store may end with this process."""
        marks, deadline = self._marks(), time.monotonic() + _FAREWELL_S
        self._store.set(marks[self._rank], "")
        while not self._store.check(marks) and time.monotonic() < deadline:
            time.sleep(_GLANCE_S)

    def _tell_where(self) -> None:
        """Write which collective this rank waits in."""
        with suppress(RuntimeError):
            self._store.set(self._place(self._rank), str(self._started))

    def _place(self, rank: int) -> str:
        return f"{self._prefix}/waits/{rank}"

    def _awaited(self) -> str:
        """The ranks that do not wait in this collective or a later one, in words."""
        behind = []
        with suppress(RuntimeError):
            for rank in range(self._world_size):
                key = self._place(rank)
                if rank != self._rank and not (self._store.check([key]) and int(self._store.get(key)) >= self._started):
                    behind.append(str(rank))
        if not behind:
            return "the network: all other ranks wait, too"
        return f"rank{'s'[: len(behind) > 1]} {', '.join(behind)}"

    def _lost(self, reason: str) -> str:
        if "imed out" in reason:
            return (
                f"rank {self._rank} has waited for {self._awaited()} as long as the process group allows, see timeout "
                f"of init_process_group ({reason})"
            )
        return f"rank {self._rank} lost its connection: another rank has ended, and its own output says why ({reason})"
