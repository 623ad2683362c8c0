"""Where the time of one step goes on one rank: its collectives, and the parts of the model between them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_NO_PLACE = "the rest of the step"


@dataclass(frozen=True)
class Collective:
    """A collective that has started."""

    kind: str  # such as "exchange of rows"
    place: str = ""  # part of the model that started it; empty where that is not known
    number: int = -1  # in the timeline; -1 where none is recorded

    def __str__(self) -> str:
        """Return its name in a message: "an exchange of rows in layers.1"."""
        return f"an {self.kind}{f' in {self.place}' if self.place else ''}"

    def name(self, strategy: str) -> str:
        """Return its name in a profile: "layers.1 / halo_h / exchange of rows"."""
        return f"{self.place or _NO_PLACE} / {strategy} / {self.kind}"


class StepRecorder:
    """Records one step on this rank, while it is ``comm.recorder``. Times are seconds since it was made.

    Ranges of torch's profiler get the same names. Where tensors are on a GPU, the process waits for the GPU before each
    time that is taken. ``places`` has the time at which each part of the step began, and its name. ``collectives`` has, for
    each in the order in which they started, its ``name``; ``started``; ``senders``, the ranks that it needs; and
    ``blocked``, the times from which and until which this rank did nothing but wait for it, or None. ``copies`` has, for
    each time that rows were copied from files or to them, its beginning, its end and its name.
    """

    def __init__(self, strategy: str, device: torch.device):
        self._strategy, self._device = strategy, device
        self._range: torch.profiler.record_function | None = None
        self.places: list[tuple[float, str]] = [(0.0, _NO_PLACE)]
        self.collectives: list[dict] = []
        self.copies: list[tuple[float, float, str]] = []
        self._zero = time.perf_counter()

    def now(self) -> float:
        """Return the time, after the work of the GPU so far."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - self._zero

    def enter(self, place: str) -> None:
        """Note that a part of the step begins."""
        self.places.append((self.now(), place))
        self._range = torch.profiler.record_function(f"{place} / {self._strategy}")
        self._range.__enter__()

    def leave(self, output=None) -> None:
        """Note that this part ends, with this output; the gradient of the output is where its backward pass begins."""
        if self._range is None:
            return
        self._range.__exit__(None, None, None)
        self._range, place = None, self.places[-1][1]
        self.places.append((self.now(), _NO_PLACE))
        outputs = output if isinstance(output, (tuple, list)) else [output]
        tensor = next((x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad), None)
        if tensor is not None and tensor.grad_fn is not None:
            tensor.register_hook(lambda _: self._begin_backward(place))

    def _begin_backward(self, place: str) -> None:
        self.places.append((self.now(), f"{place}, backward"))
        _mark(f"{place}, backward / {self._strategy}")

    def start(self, kind: str, place: str, senders: list[int]) -> Collective:
        """Note that a collective starts and needs these ranks; without a place, it belongs to the latest place."""
        found = Collective(kind, place or self.places[-1][1], len(self.collectives))
        name = found.name(self._strategy)
        self.collectives.append({"name": name, "started": self.now(), "senders": senders, "blocked": None})
        _mark(f"{name}, start")
        return found

    @contextmanager
    def waiting(self, collective: Collective) -> Iterator[None]:
        """Inside the block, this rank waits for a collective."""
        begun = self.now()
        with torch.profiler.record_function(collective.name(self._strategy)):
            yield
            ended = self.now()
        if collective.number >= 0:
            self.collectives[collective.number]["blocked"] = (begun, ended)

    @contextmanager
    def copying(self, verb: str) -> Iterator[None]:
        """Inside the block, rows are copied from files ("read") or to them ("write")."""
        begun = self.now()
        yield
        self.copies.append((begun, self.now(), f"{self.places[-1][1]} / {verb} rows of files"))


def _mark(name: str) -> None:
    """Record an empty range as a mark: a range with a length might not nest with others in the backward pass."""
    with torch.profiler.record_function(name):
        pass
