"""What a run does after each epoch so that it survives: it agrees on a stop, writes checkpoints, and keeps its numbers."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.system.memory import peak_memory_bytes
from dgl_gt.partition.system.signals import STOPPING
from dgl_gt.ranks.launcher_link import find_launcher
from dgl_gt.run_files.metrics_log import MetricsLog
from dgl_gt.run_files.run_record import EpochNumbers

from .checkpoints import Checkpoints, Identity
from .config import TrainConfig
from .data_digest import data_digest
from .interval import Interval
from .model import ModelFactory
from .run_state import EpochFigures, RunState, TrainHistory
from .saved_model import BestModelWriter
from .step_profile import StepProfiler
from .stopping import StopRequest
from .task import Task

Beginning = Literal["new", "again", "resumed"]  # again: in the directory that the run made before its ranks failed


class RunKeeper:
    """Keeps a run in its directory; every rank has one. ``writer`` writes the directory, on rank 0.

    Use it as a context around the training: inside, signals stop the run after an epoch.
    """

    def __init__(
        self,
        sg: ShardedGraph,
        config: TrainConfig,
        out,
        writer: BestModelWriter | None,
        every: str | int,
        beginning: Beginning,
        factory: ModelFactory | None = None,
        tensorboard: bool = False,
        timeline: bool = False,
        on_start: Callable[[TrainHistory], object] | None = None,
    ):
        self._sg, self._config, self._writer, self._beginning = sg, config, writer, beginning
        self._factory_name = factory.name if factory else None
        self._stop, self._late_stop = StopRequest(), None
        self._profiler = StepProfiler(sg, config.epochs) if timeline else None
        self._on_start = on_start
        self._log = MetricsLog(Path(out), tensorboard) if writer else None
        self._checkpoints = Checkpoints(Path(out), Interval.parse(every), sg.comm, sg.device, writer)

    def __enter__(self) -> RunKeeper:
        self._stop.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._stop.__exit__(*error)
        if self._log:
            self._log.close()

    def start(self, state: RunState, task: Task) -> None:
        """Take the state of a new run, or put that of the latest checkpoint into it; every rank calls it."""
        if self._writer:
            self._writer.start(state.model, task.sizes, self._sg.manifest["class_names"])
        data = data_digest(self._sg, task.node_data, self._config.task.inputs.edge_features)
        self._identity = Identity(self._config, self._factory_name, data, state.model)
        if self._beginning == "resumed":
            self._go_on(state)
        elif self._writer and self._beginning == "again":
            self._writer.directory.is_ours = True
            self._log.resume(0)
        elif self._writer:
            self._writer.directory.forget_earlier_run()
        if self._profiler:
            self._profiler.start(state.epoch)
        if self._on_start:
            self._on_start(state.history)

    def _go_on(self, state: RunState) -> None:
        self._checkpoints.resume(state, self._identity, self._config.epochs)
        if self._writer:
            self._writer.resume(state.best, copy.deepcopy(state.history))
            self._log.resume(state.epoch)
            print(f"dgl-gt: resuming after epoch {state.epoch} of {self._config.epochs}", file=sys.stderr)

    def keep_best(self, state: RunState) -> None:
        """Take the best model so far."""
        if self._writer:
            self._writer.update(state.best, copy.deepcopy(state.history))

    def recording(self, epoch: int) -> AbstractContextManager[None]:
        """A context for the training step of an epoch, counted from 0, which is recorded if that is asked for."""
        return self._profiler.recording(epoch) if self._profiler else nullcontext()

    def after_epoch(self, state: RunState, figures: EpochFigures, is_last: bool) -> None:
        """Write what is due, and raise if a signal has asked any rank to stop; every rank calls it."""
        agreed = self._agree(state.epoch, figures)
        if self._log:
            self._log.add(self._numbers(state.epoch, figures, agreed), self._writer.directory.is_ours)
        if self._profiler:
            self._profiler.write(self._writer, state.history, is_last)
        if is_last:
            self._late_stop = agreed.stop
            return
        if agreed.stop is not None:
            self._stop.epoch_ended()
        if agreed.stop is not None or agreed.is_checkpoint_due:
            path = self._write(state)
        if agreed.stop is not None:
            self._sg.comm.all_reduce(torch.zeros(1))  # no rank leaves before rank 0 has written
            if path:
                print(f"dgl-gt: stopped after epoch {state.epoch}; --resume goes on from {path}", file=sys.stderr)
            self._stop.leave(agreed.stop)

    def leave_if_asked(self) -> None:
        """Do what a signal in the last epoch asked for, now that the run is finished and written."""
        if self._late_stop is not None:
            self._stop.leave(self._late_stop)

    def _numbers(self, epoch: int, figures: EpochFigures, agreed: _Agreed) -> EpochNumbers:
        seconds, whole = figures.seconds, self._sg.manifest
        return EpochNumbers(
            epoch=epoch,
            loss=figures.loss if math.isfinite(figures.loss) else None,
            validation=figures.validation,
            test=figures.test,
            lr=figures.lr,
            seconds=seconds,
            nodes_per_s=whole["nodes"] / seconds,
            edges_per_s=whole["edges"] / seconds,
            exchange_share=min(1.0, agreed.exchange_s / seconds),
            exchanged_bytes=agreed.sent_bytes,
            peak_memory_bytes=agreed.peak_memory_bytes,
        )

    def _write(self, state: RunState) -> Path | None:
        launcher = find_launcher()
        if launcher and self._writer:
            launcher.report(state="writing")
        path = self._checkpoints.write(state, self._identity)
        if launcher and self._writer:
            launcher.report(state="joined")
        return path

    def _agree(self, epoch: int, figures: EpochFigures) -> _Agreed:
        """Sum what the ranks have to say after an epoch, in one exchange."""
        comm = self._sg.comm
        stop_requests = [float(self._stop.number == each) for each in STOPPING]
        due = float(comm.rank == 0 and self._checkpoints.is_due(epoch))
        peaks = [0.0] * comm.world_size
        peaks[comm.rank] = float(peak_memory_on(self._sg.device))
        mine = [*stop_requests, due, figures.exchange_s, float(figures.sent_bytes), *peaks]
        total = comm.all_reduce(torch.tensor(mine, dtype=torch.float64)).tolist()
        stop_requests, (due, exchange_s, sent_bytes, *peaks) = total[: len(STOPPING)], total[len(STOPPING) :]
        stop = next((number for number, count in zip(STOPPING, stop_requests) if count), None)
        return _Agreed(stop, bool(due), exchange_s / comm.world_size, int(sent_bytes), [int(each) for each in peaks])


@dataclass(frozen=True)
class _Agreed:
    """What all ranks know after an epoch."""

    stop: int | None  # the signal that asked one of them to stop
    is_checkpoint_due: bool
    exchange_s: float  # mean over ranks
    sent_bytes: int  # of all ranks
    peak_memory_bytes: list[int]  # of each rank


def peak_memory_on(device: torch.device) -> int:
    """Return the peak resident memory of this process, or on a GPU that of the CUDA allocator (bytes)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()
