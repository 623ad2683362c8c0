"""``dgl-gt train --timeline``: one training step in detail, as a trace of each rank and as a timeline of all."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from dgl_gt.comm.step_recorder import StepRecorder
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.run_files.run_directory import STEP_TIMELINE, TRACE, RunDirectory
from dgl_gt.run_files.run_record import RankRecording, StepTimeline, steps_of_ranks

_EARLIER_EPOCHS = 2  # before the one that is recorded: the first ones allocate memory and make caches
_MAX_TRACE_BYTES = 64 << 20  # of a rank, packed
_MAX_BYTES = 512 << 20  # of all ranks: rank 0 gathers them


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
        self._trace, self._recording = trace, RankRecording(recorder.places, recorder.collectives, seconds)

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
