"""The training loop: a step per epoch, the same on one process and on many."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.nn.dropout import set_dropout_step
from dgl_gt.partition.errors import InputError
from dgl_gt.run_files.run_record import PolicyOfRun

from .config import TrainConfig
from .model import logits_of
from .module_places import at_place, find_not_finite, first_not_finite, named_places
from .optimizer import Schedule, make_optimizer
from .run_state import EpochFigures, RunState, TrainHistory, TrainResult, peak_memory_on
from .store import RunStore
from .sufficient_factors import SufficientFactors
from .summary import progress_in_notebook
from .task import Batch, Task

_MAX_SKIPPED = 10  # steps in a row


def take_step(
    model: nn.Module,
    task: Task,
    comm: Comm,
    optimizer: torch.optim.Optimizer,
    step: int,
    seed: int = 0,
    *,
    factors: SufficientFactors | None = None,
    checks_gradients: bool = False,
) -> float:
    """Take a training step, counted from 0; returns its loss, that of the rows of all ranks.

    If the loss is not finite, the optimiser does nothing. With ``checks_gradients`` the same holds for the gradients, batch
    statistics stay as they were, and NaN is returned, also where a step has several batches and one of them was skipped. ``factors`` sums some of the gradients in another way.
    """
    losses = []
    for batch in task.batches(step):
        buffers = [each.clone() for each in model.buffers()] if checks_gradients else []  # batch statistics
        optimizer.zero_grad()
        with factors.summing() if factors else nullcontext(), comm.summing_gradients(model.parameters()):
            with batch.inputs.graph.view.training_step(step if batch.number is None else batch.number):
                loss = task.loss(forward(model, task, batch, step, seed), batch)
                loss.backward()
        total = float(comm.all_reduce(loss.detach().double().reshape(1).cpu())[0])
        trained = (each for each in model.parameters() if each.requires_grad)
        if checks_gradients:  # those of rows of nodes differ between ranks
            is_wrong = not all(torch.isfinite(each.grad).all() for each in trained)
            total = math.nan if comm.all_reduce(torch.tensor([int(is_wrong)]), "max")[0] else total
        if math.isfinite(total):
            with at_place("the optimiser", comm):
                optimizer.step()
        elif checks_gradients:
            for each, before in zip(model.buffers(), buffers):
                each.copy_(before)
        losses.append(total)
    return statistics.fmean(losses)


def forward(model: nn.Module, task: Task, batch: Batch, step: int, seed: int) -> torch.Tensor:
    """The result of a model on a batch of a training step, with its dropout."""
    model.train()
    for each in model.modules():  # statistics of what is not trained stay, too
        if isinstance(each, nn.BatchNorm1d) and each.affine and not each.weight.requires_grad:
            each.eval()
    set_dropout_step(model, seed, step if batch.number is None else batch.number)
    return logits_of(model, batch.inputs, task.sizes["out_dim"])


def fit(
    model: nn.Module,
    task: Task,
    comm: Comm,
    config: TrainConfig,
    *,
    store: RunStore | None = None,
    on_start=None,
    on_epoch=None,
    graphs: TrainingGraphs | None = None,
    factors: SufficientFactors | None = None,
) -> TrainResult:
    """Train a model on a task; every rank calls it.

    The model is called as ``model(graph, feat, **edges)`` with the inputs of a batch, and has the same weights on all
    ranks. ``store`` keeps the run in a directory. ``graphs`` are those of the task's steps, where these follow a
    transmission policy, and ``factors`` sums some of the gradients. See :func:`dgl_gt.train.train` for the rest.
    """
    loop = _Loop(model, task, comm, config, store, graphs, factors)
    measured, is_shown = [], comm.rank == 0 and not (on_start or on_epoch)
    with graphs or nullcontext(), named_places(model, comm), progress_in_notebook(config.epochs, is_shown) as shown:
        if shown:
            on_start, on_epoch = shown.start, shown.after_epoch
        if store:
            store.start(loop.state, task)
            loop.check_not_over()
            store.begin(loop.state)
        if on_start:
            on_start(loop.state.history)
        while not loop.is_over():
            figures = loop.epoch()
            measured.append(figures)
            if on_epoch:
                validations = loop.state.history.validations
                latest = validations[-1] if validations else math.nan
                loop.is_stopped = bool(on_epoch(loop.state.epoch - 1, figures.loss, latest, figures.seconds))
            if store:
                store.after_epoch(loop.state, figures, loop.is_over())
    model.load_state_dict(loop.state.best)
    policy = None
    if graphs and not graphs.is_exact:
        evaluations = [each.evaluation_bytes for each in measured]
        exact_bytes = graphs.exact_bytes([each.sent_bytes for each in measured], evaluations)
        policy = PolicyOfRun(graphs.policy.described(), exact_bytes)
    return TrainResult(**vars(loop.state.history), model=model, policy=policy, **_measurements(model, comm, measured))


class _Loop:
    """A run, and what happens in each of its epochs."""

    def __init__(self, model, task: Task, comm: Comm, config: TrainConfig, store, graphs, factors):
        self._model, self._task, self._comm, self._config = model, task, comm, config
        self._store, self._graphs, self._factors = store, graphs, factors
        optimizer, metric = make_optimizer(model, config), task.metric
        history = TrainHistory(metric.name, metric.lower_is_better, [], [], -1, -1.0, -1.0)
        self.state = RunState(model, optimizer, Schedule(optimizer, config), history)
        self.is_stopped = False  # by on_epoch
        if config.local_epochs:
            model.uses_global = False

    def epoch(self) -> EpochFigures:
        """Take a step, and evaluate where that is due; what was measured."""
        state, config, comm = self.state, self._config, self._comm
        epoch, history = state.epoch, state.history
        if config.local_epochs and epoch == config.local_epochs:
            state.start_second_phase()
        lr, before = state.optimizer.param_groups[0]["lr"], (comm.sent_bytes, comm.exchange_s)
        with self._store.recording(epoch) if self._store else nullcontext():
            started, computed = time.perf_counter(), time.thread_time()
            loss = self._guarded_step()
            if self._graphs:
                self._graphs.after_step(loss)
            seconds, exchange_s = time.perf_counter() - started, comm.exchange_s - before[1]
            compute_s = time.thread_time() - computed  # a thread that waits for other ranks takes none
        step_bytes, before_evaluation = comm.sent_bytes - before[0], comm.sent_bytes
        history.losses.append(loss if math.isfinite(loss) else None)
        found: Mapping[str, float | None] = {"val": None, "test": None}
        if self._is_evaluated(epoch):
            found = self._task.evaluate(state.model)
            self._check_finite("validation metric", found["val"])
            self._check_finite("test metric", found["test"])
            history.validations.append(found["val"])
        validation, test = found["val"], found["test"]
        metric = self._task.metric
        state.schedule.step(validation if validation is None or not metric.lower_is_better else -validation)
        if validation is not None and (history.best_epoch < 0 or metric.is_better(validation, history.validation)):
            if name := first_not_finite(self._model.state_dict()):  # the accuracy is finite even if the logits are not
                raise self._not_finite(f"{name} holds NaN or infinity after")
            state.keep_best(validation, test, with_optimizer=epoch < config.local_epochs)
        state.epoch += 1
        evaluation_bytes = comm.sent_bytes - before_evaluation
        return EpochFigures(loss, validation, test, lr, seconds, exchange_s, compute_s, step_bytes, evaluation_bytes)

    def _guarded_step(self) -> float:
        """Take a step; returns the loss, which is not finite where the step was skipped."""
        state, model, epoch = self.state, self._model, self.state.epoch
        step = (model, self._task, self._comm, state.optimizer, epoch, self._config.seed)
        if self._config.on_nan == "stop":
            loss = take_step(*step, factors=self._factors)
            if not math.isfinite(loss):
                self._check_finite("loss", loss, f". {self._find_not_finite()}")
            return loss
        loss = take_step(*step, factors=self._factors, checks_gradients=True)
        if not math.isfinite(loss):
            if self._graphs:
                self._graphs.forget_exchanges()
            latest = state.history.losses[-(_MAX_SKIPPED - 1) :]
            if epoch + 1 >= _MAX_SKIPPED and all(each is None for each in latest):
                self._check_finite("loss or its gradient", loss, f". {_MAX_SKIPPED} epochs in a row were skipped")
        return loss

    def _find_not_finite(self) -> str:
        """The first place of this epoch's step that holds NaN or infinity, in words."""
        model, task, epoch = self._model, self._task, self.state.epoch
        for batch in task.batches(epoch):
            again = partial(forward, model, task, batch, epoch, self._config.seed)
            if text := find_not_finite(model, again, batch.inputs.feat, self._comm):
                return text
        return "In a repeated forward pass, all outputs of modules are finite, so the loss or its gradient is not"

    def check_not_over(self) -> None:
        """Raise :class:`InputError` if a run that goes on has nothing left to do with its settings."""
        state, patience = self.state, self._config.patience
        if state.epoch and self.is_over():
            raise InputError(
                f"patience is {patience}, and the checkpoint after epoch {state.epoch} has used it up, because its best model "
                f"is that of epoch {state.history.best_epoch + 1}; raise patience, or set it to 0"
            )

    def is_over(self) -> bool:
        """Whether the run has had all its epochs, was stopped, or has waited for a better model as long as patience allows."""
        state, config = self.state, self._config
        epoch = state.epoch - 1
        if self.is_stopped or state.epoch >= config.epochs:
            return True
        is_due = config.patience and state.epoch and self._is_evaluated(epoch)
        return bool(is_due) and epoch - max(state.history.best_epoch, config.local_epochs - 1) >= config.patience

    def _is_evaluated(self, epoch: int) -> bool:
        """Whether the model is evaluated after an epoch: every few epochs, and at the end of both phases."""
        config = self._config
        return (epoch + 1) % config.evaluate_every == 0 or epoch + 1 in (config.local_epochs, config.epochs)

    def _check_finite(self, name: str, value: float, more: str = "") -> None:
        if not math.isfinite(value):
            raise self._not_finite(f"the {name} is {value} in", more)

    def _not_finite(self, what: str, more: str = "") -> InputError:
        advice = f"lower lr ({self._config.optimizer.lr}) or scale the features"
        return InputError(f"{what} epoch {self.state.epoch + 1}; {advice}{more}")


def _measurements(model: nn.Module, comm: Comm, measured: list[EpochFigures]) -> dict:
    """The measurements of a :class:`TrainResult`, over all ranks."""
    seconds = [each.seconds for each in measured]
    slowest = comm.all_reduce(torch.tensor([statistics.median(seconds)], dtype=torch.float64), "max")
    share = comm.all_reduce(
        torch.tensor([sum(each.exchange_s for each in measured) / sum(seconds)], dtype=torch.float64)
    )
    sent = comm.all_reduce(torch.tensor([sum(each.sent_bytes for each in measured)]))
    peaks = torch.zeros(comm.world_size, dtype=torch.int64)
    device = next(model.parameters()).device
    peaks[comm.rank] = peak_memory_on(device)
    computing = torch.zeros(comm.world_size, dtype=torch.float64)
    computing[comm.rank] = statistics.median(each.compute_s for each in measured)
    return {
        "seconds_per_epoch": float(slowest[0]),
        "exchange_share": float(share[0]) / comm.world_size,
        "compute_seconds": None if device.type == "cuda" else comm.all_reduce(computing).tolist(),
        "exchanged_bytes_per_epoch": round(int(sent[0]) / len(measured)),
        "peak_memory_bytes": comm.all_reduce(peaks).tolist(),
    }
