"""All that a run writes, so that it survives: its best model, its record, the numbers of each epoch, and checkpoints."""

from __future__ import annotations

import math
import os
import signal
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec
import numpy as np
import torch

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import check_room, check_target
from dgl_gt.partition.system.signals import STOPPING, StopRequest, received_signals
from dgl_gt.partition.system.storage import Url, located
from dgl_gt.ranks.launcher_link import find_launcher, starter_name
from dgl_gt.run_files.run_directory import (
    MODEL,
    WEIGHTS,
    MetricsLog,
    RunDirectory,
    checkpoints_in,
    no_checkpoint,
    starter_of,
)
from dgl_gt.run_files.run_record import EpochNumbers, PlanOfRun, RunRecord, values_of
from dgl_gt.run_files.tensor_file import CHECKPOINT_FILE, MODEL_FILE, read_bytes

from .config import TrainConfig
from .model import ModelFactory
from .module_places import first_not_finite
from .run_state import (
    FREE_SETTINGS,
    EpochFigures,
    RunState,
    TrainResult,
    check_identity,
    identity_of,
    peak_memory_on,
    random_states,
    set_random_states,
)
from .saved_model import model_files
from .step_profile import StepProfiler
from .summary import finished_record, unfinished_record
from .task import Task

_MIN_PAUSE_S = 5.0  # between two writes of the best model while it trains
_MAX_WRITING_SHARE = 0.02  # of the time
_OTHER_BYTES = 1 << 20  # room for the record, the config and directories


class RunStore:
    """Keeps a run in the directory ``out``; every rank has one, and rank 0 writes. :func:`dgl_gt.train.train_and_save`
    describes the options.

    Use it as a context around the training and :meth:`finish`. From :meth:`start` on, a first signal lets the epoch end
    with a checkpoint. If the block ends by an error or a second signal, the best model is written unless it is on disk.

    The best model is that of ``state.history``, and ``_saved_epoch`` says which one is on disk.
    """

    def __init__(
        self,
        sg: ShardedGraph,
        config: TrainConfig,
        out,
        *,
        force: bool = False,
        resume: bool | str = False,
        tensorboard: bool = False,
        timeline: bool = False,
        factory: ModelFactory | None = None,
        plan: PlanOfRun | None = None,
        also: Sequence[ShardedGraph] = (),
    ):
        self._sg, self._graphs, self._config, self._plan = sg, (sg, *also), config, plan
        self._factory_name = factory.name if factory else None
        self._state: RunState | None = None
        self._directory: RunDirectory | None = None
        self._stop, self._handlers = StopRequest(), ExitStack()
        self._saved_epoch = 0  # that of the model in the directory, counted from 1; 0 without a model
        self._next_write_s = self._checkpoint_s = 0.0
        beginning = ""
        with sg.comm.together():  # what is wrong here may be wrong on rank 0 alone
            if sg.comm.rank == 0:
                self._started_by = f"{starter_name()} {self._fingerprint()}"
                beginning = _beginning(out, resume, self._started_by)
                is_own = beginning != "new"
                check_target(out, MODEL, force=force or is_own, foreign=is_own)
                self._directory = RunDirectory(out, force=force, is_ours=is_own)
                self._log = MetricsLog(located(out), tensorboard)
        self._beginning, timeline = sg.comm.broadcast_object([beginning, bool(timeline)])
        self.goes_on = self._beginning == "resumed"  # from a checkpoint
        self._profiler = StepProfiler(sg, config.epochs) if timeline else None

    def _fingerprint(self) -> str:
        """A checksum of what ranks that start again have in common; they may choose another cut, and memory for time."""
        graph = [sg.manifest[key] for sg in self._graphs for key in ("source", "nodes", "edges")]
        settings = {name: value for name, value in self._config.flat().items() if name not in FREE_SETTINGS}
        return f"{zlib.crc32(repr((settings, self._factory_name, graph)).encode()):08x}"

    def start(self, state: RunState, task: Task) -> None:
        """Take the state of a new run, or put that of the latest checkpoint into it; every rank calls it."""
        self._handlers.enter_context(self._stop.noting())
        shape = {"model_factory": self._factory_name, **task.sizes, "learned": dict(task.learned)}
        if self._config.task.has_class_names:
            shape["class_names"] = self._sg.manifest["class_names"]
        self._shape = {name: value for name, value in shape.items() if value}
        model_bytes = sum(value.nbytes for value in state.model.state_dict().values())
        if self._directory:
            check_room(self._directory.out, 2 * model_bytes + _OTHER_BYTES)
        self._identity = identity_of(self._config, self._factory_name, self._graphs, state.model)
        if self.goes_on:
            self._resume(state)

    def begin(self, state: RunState) -> None:
        """Write what the first epoch begins with; every rank calls it after :meth:`start`."""
        self._state, self._checkpoint_s = state, time.monotonic()
        if self._directory and self._beginning == "new":
            self._directory.forget_checkpoints()
        elif self._directory:
            self._log.resume(state.epoch)
        if self._directory and self.goes_on:
            self._saved_epoch = _epoch_of_model(self._directory.out)
            self._save_best(state)
            print(f"dgl-gt: resuming after epoch {state.epoch} of {self._config.epochs}", file=sys.stderr)
        if self._profiler:
            self._profiler.start(state.epoch)

    def _resume(self, state: RunState) -> None:
        """Go on from the latest checkpoint that is whole; ``InputError`` if there is none of this run."""
        comm, found = self._sg.comm, (b"", "")
        with comm.raising_together():
            if self._directory:
                found = _latest_checkpoint(self._directory.out)
        content, path = _from_rank_0(found[0], comm), located(comm.broadcast_object(found[1]))
        values, tensors = CHECKPOINT_FILE.unpack(content)
        try:
            check_identity(path, self._identity, values["identity"])
            set_random_states(tensors, comm, self._sg.device)
            state.restore(values, tensors)
        except InputError:
            raise
        except (LookupError, TypeError, AttributeError, RuntimeError, ValueError, msgspec.MsgspecError) as error:
            raise InputError(f"{path} does not fit this run ({error}); remove it to use an earlier one") from error
        if state.epoch >= self._config.epochs:
            raise InputError(
                f"epochs is {self._config.epochs}, but {path} was written after epoch {state.epoch}; raise epochs"
            )
        if self._directory:
            later = checkpoints_in(self._directory.out)
            for each in later[: later.index(path)]:  # damaged, so that they do not count as kept ones
                with suppress(OSError, InputError):
                    each.rename(each.with_name(f"{each.name}.damaged"))

    def recording(self, epoch: int) -> AbstractContextManager[None]:
        """A context for the training step of an epoch, counted from 0, which is recorded if that is asked for."""
        return self._profiler.recording(epoch) if self._profiler else nullcontext()

    def after_epoch(self, state: RunState, figures: EpochFigures, is_last: bool) -> None:
        """Write what is due, and raise if a signal has asked any rank to stop; every rank calls it."""
        stop, is_due, numbers = self._agree(state.epoch, figures)
        if self._directory:
            is_model_due = self._has_unsaved(state) and time.monotonic() >= self._next_write_s
            is_other_due = bool(stop) or is_due or bool(self._profiler and self._profiler.has_recorded)
            if is_model_due or (is_other_due and not self._directory.is_ours):
                self._save_best(state)
            self._log.add(numbers, self._directory.is_ours, is_other_due)
        if self._profiler:
            self._profiler.write(self._directory, state.epoch, is_last)
        if is_last:
            self._stop.note_that_of_another(stop)  # acts at the end of the block
            return
        if stop:
            self._stop.epoch_ended()
        path = self._write_checkpoint(state) if stop or is_due else None
        if stop:
            self._sg.comm.all_reduce(torch.zeros(1))  # no rank leaves before rank 0 has written
            if path:
                print(f"dgl-gt: stopped after epoch {state.epoch}; --resume goes on from {path}", file=sys.stderr)
            self._stop.leave(stop)

    def _agree(self, epoch: int, figures: EpochFigures) -> tuple[int | None, bool, EpochNumbers]:
        """The signal that asked any rank to stop, whether a checkpoint is due, and the numbers of the epoch."""
        comm, seconds = self._sg.comm, figures.seconds
        mine = [self._stop.number or 0, self._is_checkpoint_due(epoch), figures.exchange_s, figures.sent_bytes]
        rows = torch.zeros(comm.world_size, len(mine) + 1, dtype=torch.float64)
        rows[comm.rank] = torch.tensor([*mine, peak_memory_on(self._sg.device)], dtype=torch.float64)
        stops, dues, exchange_s, sent_bytes, peaks = comm.all_reduce(rows).T.tolist()
        numbers = EpochNumbers(
            epoch=epoch,
            loss=figures.loss if math.isfinite(figures.loss) else None,
            validation=figures.validation,
            test=figures.test,
            lr=figures.lr,
            seconds=seconds,
            nodes_per_s=sum(sg.manifest["nodes"] for sg in self._graphs) / seconds,
            edges_per_s=sum(sg.manifest["edges"] for sg in self._graphs) / seconds,
            exchange_share=min(1.0, statistics.fmean(exchange_s) / seconds),
            exchanged_bytes=int(sum(sent_bytes)),
            peak_memory_bytes=[int(each) for each in peaks],
        )
        return next((each for each in STOPPING if each in stops), None), bool(dues[0]), numbers

    def _is_checkpoint_due(self, epoch: int) -> bool:
        if not self._directory:
            return False
        epochs, seconds = self._config.checkpoints.interval
        return epoch % epochs == 0 if epochs else time.monotonic() - self._checkpoint_s >= (seconds or math.inf)

    def _write_checkpoint(self, state: RunState) -> Path | Url | None:
        """Write a checkpoint; every rank calls it, and rank 0 gets its path.

        If it cannot be written, a warning says so, training goes on, and earlier checkpoints stay.
        """
        tensors = state.tensors() | random_states(self._sg.comm, self._sg.device)
        self._checkpoint_s = time.monotonic()
        if not self._directory:
            return None
        try:
            if damaged := first_not_finite({name: each for name, each in tensors.items() if name.startswith("model/")}):
                raise InputError(f"{damaged} is not finite")
            values = state.values() | {"identity": self._identity, "ranks": self._sg.comm.world_size}
            with _writing():
                content = CHECKPOINT_FILE.pack(values, tensors)
                return self._directory.write_checkpoint(state.epoch, content)
        except (InputError, OSError) as error:
            earlier = []
            with suppress(OSError, InputError):
                earlier = checkpoints_in(self._directory.out)
            kept = f"the last one is {earlier[0].name}" if earlier else "there is none yet"
            print(f"dgl-gt: warning: no checkpoint after epoch {state.epoch}: {error}; {kept}", file=sys.stderr)
            return None

    def _has_unsaved(self, state: RunState) -> bool:
        return state.history.best_epoch + 1 > self._saved_epoch

    def _save_best(self, state: RunState) -> None:
        """Write the best model, unless it is on disk, and the record so far.

        If the first model cannot be written, that is an ``InputError``; if a later one cannot, training goes on.
        """
        started, is_better = time.monotonic(), self._has_unsaved(state)
        try:
            self._write(state.best if is_better else None, self._record(state))
            self._saved_epoch = max(self._saved_epoch, state.history.best_epoch + 1)
        except InputError as error:
            if not self._saved_epoch:
                self._state = None  # so that the end of the block does not write it elsewhere
                raise
            print(f"dgl-gt: warning: {error}. Training goes on, and the model is written later", file=sys.stderr)
        ended = time.monotonic()
        if is_better:
            self._next_write_s = ended + max(_MIN_PAUSE_S, (ended - started) / _MAX_WRITING_SHARE)

    def _record(self, state: RunState) -> RunRecord | dict:
        if self._saved_epoch > state.history.best_epoch + 1:  # of a run that was killed after its latest checkpoint
            return self._directory.record() | {"finished": False}
        return unfinished_record(state.history, self._graphs, self._plan)

    def _write(self, best: dict | None, record: RunRecord | dict, elsewhere: RunDirectory | None = None) -> None:
        values = (record if isinstance(record, dict) else values_of(record)) | {"started_by": self._started_by}
        with _writing():
            (elsewhere or self._directory).write(model_files(best, self._config, self._shape, values))

    def _write_somewhere(self, state: RunState, record: RunRecord | dict) -> str | None:
        """Write to ``out``, or else to the directory for temporary files; None, or a message that says where it is."""
        self._stop.epoch_ended()
        try:
            self._write(state.best, record)
            self._saved_epoch = state.history.best_epoch + 1
            return None
        except InputError as error:
            failure, other = str(error), Path(tempfile.gettempdir()) / f"dgl-gt-model-{os.getpid()}"
        try:
            self._write(state.best, record, RunDirectory(other))
            return f"{failure}. The model is in {other} instead"
        except InputError as error:
            earlier = "no model was written"
            if self._saved_epoch:
                earlier = f"{self._directory.out} holds the model of epoch {self._saved_epoch}"
            return f"{failure}. The model could not be written to another place either ({error}); {earlier}"

    def finish(self, result: TrainResult) -> RunRecord:
        """Write the best model with the record of the finished run, and return the record; every rank calls it.

        ``InputError`` if it could not be written to ``out``; the message says where it is.
        """
        record, state, failure = finished_record(result, self._graphs, self._plan), self._state, None
        with received_signals() as signals:
            if self._directory:
                failure = self._write_somewhere(state, record)
            self._state = None  # so that the end of the block writes nothing
        is_asked_to_stop = bool(signals or self._stop.number)
        if failure and not is_asked_to_stop:
            raise InputError(failure)
        if failure:
            print(f"dgl-gt: {failure}", file=sys.stderr)
        if signals:
            signal.raise_signal(signals[0])
        return record

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        """Write the best model if an error ends the run before it is on disk; else do what a signal asked for."""
        kept = None
        with self._handlers:
            if self._directory and error:
                with received_signals():  # one in the last moment changes nothing: the run ends
                    kept = self._kept_after_error()
            if self._directory:
                self._log.close()
        if error is None and self._stop.number:
            self._stop.leave(self._stop.number)
        if kept and isinstance(error, InputError):
            raise InputError(f"{error}; {kept}") from error
        if kept:
            print(f"dgl-gt: {kept}", file=sys.stderr)

    def _kept_after_error(self) -> str | None:
        """Write the best model unless it is on disk; says where it is, if there is one."""
        state = self._state
        if state is None:
            return None
        kept = self._write_somewhere(state, self._record(state)) if self._has_unsaved(state) else None
        if kept is None and self._saved_epoch:
            return f"the best model so far, of epoch {self._saved_epoch}, is in {self._directory.out}"
        return kept


def _beginning(out, resume: bool | str, started_by: str) -> str:
    """How a run begins: "new", "resumed", or "again" in the directory that it made before its ranks failed."""
    if resume == "if_possible":
        left_by = starter_of(out)
        if left_by.rpartition(" ")[0] != started_by.rpartition(" ")[0]:
            return "new"
        if checkpoints_in(located(out)):
            return "resumed"
        return "again" if left_by == started_by else "new"  # a notebook may start many runs
    if not isinstance(resume, (bool, np.bool_)):
        raise InputError(f"resume is {resume!r}; it must be True, False or 'if_possible'")
    return "resumed" if resume else "new"


def _latest_checkpoint(folder: Path | Url) -> tuple[bytes, str]:
    """The content of the latest whole checkpoint, and its path; damaged ones are named on stderr."""
    found = checkpoints_in(folder)
    for path in found:
        try:
            content = read_bytes(path)
            CHECKPOINT_FILE.unpack(content)
            return content, str(path)
        except InputError as error:
            text = str(error) if str(error).startswith(str(path)) else f"{path} {error}"
            print(f"dgl-gt: warning: {text}; looking for an earlier checkpoint", file=sys.stderr)
    raise no_checkpoint(folder, "no whole checkpoint" if found else "no checkpoint")


def _from_rank_0(content: bytes, comm: Comm) -> bytes:
    if comm.world_size == 1:
        return content  # a checkpoint may be large
    length = comm.broadcast_object(len(content))
    rows = torch.frombuffer(bytearray(content or length), dtype=torch.uint8)
    return comm.broadcast(rows).numpy().tobytes()


def _epoch_of_model(folder: Path | Url) -> int:
    """The epoch of the model in a directory, counted from 1; 0 if there is none that can be read."""
    try:
        return int(MODEL_FILE.unpack(read_bytes(folder / WEIGHTS))[0]["best_epoch"])
    except (InputError, ValueError, KeyError, TypeError):
        return 0


@contextmanager
def _writing() -> Iterator[None]:
    """Inside the block, the launcher knows that this rank writes, and gives it time to finish."""
    launcher = find_launcher()
    if launcher:
        launcher.report(state="writing")
    try:
        yield
    finally:
        if launcher:
            launcher.report(state="joined")
