"""``dgl-gt train --timeline``: one training step in detail, as a trace of each rank and as a timeline of all."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from dgl_gt.comm.step_recorder import StepRecorder
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.run_files.run_directory import STEP_TIMELINE, TRACE, RunDirectory
from dgl_gt.run_files.run_record import RankStep, Span, StepTimeline

_EARLIER_EPOCHS = 2  # before the one that is recorded: the first ones allocate memory and make caches
_MAX_TRACE_BYTES = 64 << 20  # of a rank, packed
_MAX_BYTES = 512 << 20  # of all ranks: rank 0 gathers them
_SHORTEST_S = 1e-7  # of a span


@dataclass(frozen=True)
class RankRecording:
    """What one rank recorded of a step; see :class:`dgl_gt.comm.step_recorder.StepRecorder` for the attributes.

    All ranks leave a barrier when their times begin, so their times can be compared.
    """

    places: list[tuple[float, str]]
    collectives: list[dict]
    copies: list[tuple[float, float, str]]
    seconds: float


class StepProfiler:
    """Records the third training step after the ranks have started, or the last one if there are fewer.

    Every rank has one. Rank 0 writes what all ranks recorded into the directory of the run: ``profile-rankN.json.gz``,
    traces of ``torch.profiler``, and ``timeline.json``.
    """

    def __init__(self, sg: ShardedGraph, epochs: int):
        self._sg, self._epochs = sg, epochs
        self._epoch = -1  # the one to record, counted from 0
        self._trace: profile | None = None
        self._recording: RankRecording | None = None

    def start(self, epoch: int) -> None:
        """Choose the step to record of a run that has had ``epoch`` epochs."""
        self._epoch = min(epoch + _EARLIER_EPOCHS, self._epochs - 1)

    @contextmanager
    def recording(self, epoch: int) -> Iterator[None]:
        """Inside the block, a rank takes the step of an epoch, counted from 0, which is recorded if it is the one."""
        if epoch != self._epoch:
            yield
            return
        comm = self._sg.comm
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._sg.device.type == "cuda")
        with profile(activities=activities) as trace:
            comm.all_reduce(torch.zeros(1))  # a barrier: all ranks leave it at about the same moment
            comm.recorder = recorder = StepRecorder(self._sg.strategy.name, self._sg.device)
            try:
                yield
                seconds = recorder.now()
            finally:
                comm.recorder = None
        self._trace, self._recording = (
            trace,
            RankRecording(recorder.places, recorder.collectives, recorder.copies, seconds),
        )

    @property
    def has_recorded(self) -> bool:
        """Whether :meth:`write` has a step to write."""
        return self._recording is not None

    def write(self, directory: RunDirectory | None, epoch: int, is_last: bool) -> None:
        """Write what the step recorded after ``epoch`` epochs, if it was the one; every rank calls it, rank 0 with the
        directory.
        """
        if self._recording is None:
            if is_last and directory and self._epoch >= epoch:
                print(f"dgl-gt: no step was profiled: the run ended before epoch {self._epoch + 1}", file=sys.stderr)
            return
        recorded = json.dumps(asdict(self._recording)).encode()
        limit = min(_MAX_TRACE_BYTES, _MAX_BYTES // self._sg.comm.world_size)
        recordings, traces = (self._gathered(each) for each in (recorded, _packed(self._trace, limit)))
        self._trace = self._recording = None
        if directory is None:
            return
        ranks = steps_of_ranks([RankRecording(**json.loads(each)) for each in recordings])
        step = StepTimeline(self._epoch + 1, self._sg.strategy.name, ranks)
        files = {f"profile-rank{rank}.json.gz": trace for rank, trace in enumerate(traces) if trace}
        files[STEP_TIMELINE] = msgspec.json.encode(step) + b"\n"
        try:
            directory.write(files)
            for each in directory.out.iterdir():  # of an earlier profile, on more ranks
                if TRACE.fullmatch(each.name) and each.name not in files:
                    with suppress(OSError, InputError):
                        each.unlink()
        except (InputError, OSError) as error:
            print(f"dgl-gt: warning: the profile of epoch {self._epoch + 1} was not written: {error}", file=sys.stderr)

    def _gathered(self, content: bytes) -> list[bytes]:
        """The content of every rank, on rank 0."""
        rows = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        return [each.numpy().tobytes() for each in self._sg.comm.gather_rows(rows, to=0) or []]


def _packed(trace: profile, limit: int) -> bytes:
    """A trace in the format of Chrome, packed by gzip; nothing where it cannot be written or has more bytes than allowed."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            trace.export_chrome_trace(str(path))
            packed = path.read_bytes()
    except (OSError, RuntimeError) as error:
        print(f"dgl-gt: warning: the trace of a step was not written: {error}", file=sys.stderr)
        return b""
    if len(packed) > limit:
        text = f"is {format_bytes(len(packed))} long and was left out; the limit is {format_bytes(limit)}"
        print(f"dgl-gt: warning: the trace of a step {text}", file=sys.stderr)
        return b""
    return packed


def steps_of_ranks(recordings: list[RankRecording]) -> list[RankStep]:
    """Split the step of each rank into spans.

    A rank waits from the moment at which it can only wait for a collective until the last of the ranks that it needs
    has started the same collective. From then to the end of the collective it exchanges. With layers part by part, it also
    copies rows from files and to them. All other time is computing, also while an exchange runs in the background.
    """
    found = []
    for mine in recordings:
        copies = [Span("file", name, start, end) for start, end, name in mine.copies]
        spans = _spans(mine, _in_order(_blocked_spans(mine, recordings) + copies))
        of_kind = {"compute": 0.0, "exchange": 0.0, "wait": 0.0, "file": 0.0}
        for each in spans:
            of_kind[each.kind] += each.end - each.start
        seconds = {f"{kind}_s": value for kind, value in of_kind.items()}
        found.append(RankStep(seconds=mine.seconds, spans=spans, **seconds))
    return found


def _blocked_spans(mine: RankRecording, recordings: list[RankRecording]) -> list[Span]:
    """The spans in which a rank waits or exchanges. Collective i of a rank is collective i of every other rank."""
    spans = []
    for number, each in enumerate(mine.collectives):
        if each["blocked"] is None:
            continue
        start, end = each["blocked"]
        others = [recordings[rank].collectives[number]["started"] for rank in each["senders"]]
        arrived = min(max([start, *others]), end)
        spans += [Span("wait", each["name"], start, arrived), Span("exchange", each["name"], arrived, end)]
    return spans


def _spans(mine: RankRecording, blocked: list[Span]) -> list[Span]:
    """All spans of a rank: the blocked ones, and computing between them, by the part of the step."""
    ends = [*mine.places[1:], (mine.seconds, "")]
    parts = [(start, min(end, mine.seconds), name) for (start, name), (end, _) in zip(mine.places, ends)]
    edges = [0.0, *(time for each in blocked for time in (each.start, each.end)), mine.seconds]
    spans, first = list(blocked), 0
    for start, end in list(pairwise(edges))[::2]:
        while first < len(parts) - 1 and parts[first][1] <= start:
            first += 1
        number = first
        while number < len(parts) and parts[number][0] < end:
            part_start, part_end, name = parts[number]
            spans.append(Span("compute", name, max(start, part_start), min(end, part_end)))
            number += 1
    return _in_order(spans)


def _in_order(spans: list[Span]) -> list[Span]:
    """The spans that are not empty, by their start."""
    return sorted((each for each in spans if each.end - each.start >= _SHORTEST_S), key=lambda each: each.start)
