"""Full-graph training: one step per epoch, the same on one process and on many."""

from __future__ import annotations

import copy
import math
import statistics
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.run_files.run_record import PolicyOfRun

from .config import ON_NAN, TrainConfig
from .edge_rows import with_stated_meanings
from .followed_policy import FollowedPolicy, follow_policy
from .keeper import RunKeeper, peak_memory_on
from .metrics import METRIC_FUNCTIONS, choose_metric
from .model import ModelFactory, logits_of
from .module_places import find_not_finite, first_not_finite, named_places
from .objective import Objective
from .optimizer import Schedule
from .run_state import EpochFigures, RunState, TrainHistory
from .saved_model import BestModelWriter
from .step import prepare_step, train_step, training_logits, with_factors
from .task import Task

_MAX_SKIPPED = 10  # steps in a row


@dataclass
class TrainResult(TrainHistory):
    """The model and the measurements of a finished run; the same on every rank.

    Attributes
    ----------
    model : Module
        Model with the parameters of the best epoch.
    seconds_per_epoch : float
        Median time of a training step (forward, backward, gradient sum, optimiser) on the slowest rank, without
        evaluation (s).
    exchange_share : float
        Share of that time in the boundary exchange, waiting included; mean over ranks.
    exchanged_bytes_per_epoch : int
        Bytes that all ranks together send in the boundary exchanges of one training step, forward and backward; the
        mean over the steps.
    policy : PolicyOfRun or None
        The ``rules`` of the transmission policy, and ``exact_bytes_per_epoch``, what ranks would have sent without it;
        None where all is exact.
    peak_memory_bytes : list of int, (P,)
        Peak resident memory of each rank's process, or of the CUDA allocator on a GPU (bytes).
    """

    model: torch.nn.Module
    seconds_per_epoch: float
    exchange_share: float
    exchanged_bytes_per_epoch: int
    policy: PolicyOfRun | None
    peak_memory_bytes: list[int]


@torch.no_grad()
def evaluate(model: torch.nn.Module, sg: ShardedGraph, task: Task, metric: str) -> tuple[float, float]:
    """The validation metric and the test metric."""
    model.eval()
    logits = logits_of(model, sg, task.feat, edges=task.edges)
    return tuple(
        METRIC_FUNCTIONS[metric](logits[task.rows[name]], task.label[task.rows[name]], sg.comm)
        for name in ("val", "test")
    )


def train(
    sg: ShardedGraph,
    config: TrainConfig,
    on_epoch=None,
    writer: BestModelWriter | None = None,
    factory: ModelFactory | None = None,
    keeper: RunKeeper | None = None,
    on_nan: str = "stop",
) -> TrainResult:
    """Train a model for node classification; every rank calls it with the same config.

    Parameters
    ----------
    sg : ShardedGraph
        Graph with node data ``feat``, ``label``, ``train_mask``, ``val_mask`` and ``test_mask``.
    config : TrainConfig
    on_epoch : callable, optional
        Function that is called after each epoch as ``on_epoch(epoch, loss, validation, seconds)``.
    writer : BestModelWriter, optional
        Writer that gets each new best model; on one rank.
    factory : ModelFactory, optional
        What makes the model; by default it is the graph transformer of the config.
    keeper : RunKeeper, optional
        What writes checkpoints and goes on from one; on every rank. :func:`dgl_gt.train.train_and_save` makes it.
    on_nan : str
        What happens where the loss is not finite: ``stop`` with an error that names the epoch and the module, or
        ``skip`` the step, also where gradients are not finite; then the weights and the batch statistics stay as they
        were. Ten such steps in a row are an error.

    Raises
    ------
    InputError
        Data are missing or wrong, the metric does not suit the number of classes, the loss or the weights are not
        finite, or the factory's models do not fit.
    """
    if on_nan not in ON_NAN:
        raise InputError(f"on_nan is {on_nan!r}; it must be {' or '.join(ON_NAN)}")
    sg.comm.check_agreement(asdict(config) | {"--model-factory": factory and factory.name, "on_nan": on_nan})
    with sg.comm.together():
        config = with_stated_meanings(sg, config)
        return _train(sg, config, on_epoch, writer, factory, keeper, on_nan)


def _train(sg: ShardedGraph, config: TrainConfig, on_epoch, writer, factory, keeper, on_nan) -> TrainResult:
    step = prepare_step(sg, config, factory)
    model, task = step.model, step.task
    if writer:
        writer.start(model, task.feat.shape[1], task.classes, sg.manifest["class_names"], **task.edges.widths)
    history = TrainHistory(choose_metric(config.metric, task.classes), [], [], -1, -1.0, -1.0)
    state = RunState(model, step.optimizer, Schedule(step.optimizer, config), history)
    if config.local_epochs:
        model.uses_global = False
    measured = []
    policy = follow_policy(sg, task, config, model)
    if factory is None:  # a model of the user's may compute rows together
        policy.task = with_factors(policy.task, model, sg, config)
    with keeper or nullcontext(), policy, named_places(model, sg.comm):
        if keeper:
            keeper.start(state)
            _check_not_over(state, config)
        while not _is_over(state, config):
            figures = _train_epoch(state, sg, task, policy, step.objective, config, writer, on_nan, keeper)
            measured.append(figures)
            if on_epoch:
                latest = state.history.validations[-1] if state.history.validations else math.nan
                on_epoch(state.epoch - 1, figures.loss, latest, figures.seconds)
            if keeper:
                keeper.after_epoch(state, figures, _is_over(state, config))
    model.load_state_dict(state.best)
    measurements = _measurements(sg, measured)
    return TrainResult(**vars(state.history), model=model, policy=policy.record(measured), **measurements)


def _train_epoch(
    state: RunState,
    sg: ShardedGraph,
    task: Task,
    policy: FollowedPolicy,
    objective: Objective,
    config: TrainConfig,
    writer: BestModelWriter | None,
    on_nan: str,
    keeper: RunKeeper | None,
) -> EpochFigures:
    """Take a step and evaluate it where that is due; what was measured."""
    epoch, history, comm = state.epoch, state.history, sg.comm
    if config.local_epochs and epoch == config.local_epochs:
        state.start_second_phase()
    lr, before = state.optimizer.param_groups[0]["lr"], (comm.sent_bytes, comm.exchange_s)
    with keeper.recording(epoch) if keeper else nullcontext():
        started = time.perf_counter()
        loss = _guarded_step(state, *policy.step_on(epoch), objective, config, on_nan)
        policy.after_step(loss)
        seconds, exchange_s = time.perf_counter() - started, comm.exchange_s - before[1]
    step_bytes, before_evaluation = comm.sent_bytes - before[0], comm.sent_bytes
    history.losses.append(loss if math.isfinite(loss) else None)
    validation = test = None
    if _is_evaluated(epoch, config):
        validation, test = evaluate(state.model, sg, task, history.metric_name)
        _check_finite("validation metric", validation, epoch, config)
        _check_finite("test metric", test, epoch, config)
        history.validations.append(validation)
    state.schedule.step(validation)
    if validation is not None and validation > history.validation:
        _check_weights(state.model, epoch, config)
        state.keep_best(validation, test, with_optimizer=epoch < config.local_epochs)
        if writer:
            writer.update(state.best, copy.deepcopy(history))
    state.epoch += 1
    evaluation_bytes = comm.sent_bytes - before_evaluation
    return EpochFigures(loss, validation, test, lr, seconds, exchange_s, step_bytes, evaluation_bytes)


def _guarded_step(
    state: RunState, sg: ShardedGraph, task: Task, objective: Objective, config: TrainConfig, on_nan: str
) -> float:
    """Take a step; returns the loss, which is not finite where the step was skipped."""
    model, epoch = state.model, state.epoch
    step = sg, task, state.optimizer, epoch, config.seed, objective
    if on_nan == "stop":
        loss = train_step(model, *step)
        if not math.isfinite(loss):
            place = find_not_finite(
                model, lambda: training_logits(model, sg, task, epoch, config.seed), task.feat, sg.comm
            )
            _check_finite("loss", loss, epoch, config, f". {place}")
        return loss
    buffers = [each.clone() for each in model.buffers()]
    loss = train_step(model, *step, checks_gradients=True)
    if not math.isfinite(loss):
        for each, before in zip(model.buffers(), buffers):  # batch statistics
            each.copy_(before)
        sg.view.forget_exchanges()
        if epoch + 1 >= _MAX_SKIPPED and not any(map(_is_number, state.history.losses[-(_MAX_SKIPPED - 1) :])):
            _check_finite("loss or its gradient", loss, epoch, config, f". {_MAX_SKIPPED} epochs in a row were skipped")
    return loss


def _is_number(loss: float | None) -> bool:
    return loss is not None


def _check_not_over(state: RunState, config: TrainConfig) -> None:
    """Raise :class:`InputError` if a run that goes on has nothing left to do with its settings."""
    if state.epoch and _is_over(state, config):
        raise InputError(
            f"patience is {config.patience}, and the checkpoint after epoch {state.epoch} has used it up, because its best model "
            f"is that of epoch {state.history.best_epoch + 1}; raise patience, or set it to 0"
        )


def _is_over(state: RunState, config: TrainConfig) -> bool:
    """Whether the run has had all its epochs, or has waited for a better model as long as its patience allows."""
    epoch = state.epoch - 1
    if state.epoch >= config.epochs:
        return True
    is_due = config.patience and state.epoch and _is_evaluated(epoch, config)
    return bool(is_due) and epoch - max(state.history.best_epoch, config.local_epochs - 1) >= config.patience


def _is_evaluated(epoch: int, config: TrainConfig) -> bool:
    """Whether the model is evaluated after an epoch: every few epochs, and at the end of both phases."""
    return (epoch + 1) % config.evaluate_every == 0 or epoch + 1 in (config.local_epochs, config.epochs)


def _check_finite(name: str, value: float, epoch: int, config: TrainConfig, more: str = "") -> None:
    if not math.isfinite(value):
        advice = f"lower lr ({config.lr}) or scale the features"
        raise InputError(f"the {name} is {value} in epoch {epoch + 1}; {advice}{more}")


def _check_weights(model: torch.nn.Module, epoch: int, config: TrainConfig) -> None:
    """Refuse weights that are not finite; the accuracy is finite even if the logits are not."""
    name = first_not_finite(model.state_dict())
    if name is not None:
        raise InputError(
            f"{name} holds NaN or infinity after epoch {epoch + 1}; lower lr ({config.lr}) or scale the features"
        )


def _measurements(sg: ShardedGraph, measured: list[EpochFigures]) -> dict:
    """The measurements of a :class:`TrainResult`, over all ranks."""
    comm, seconds = sg.comm, [each.seconds for each in measured]
    slowest = comm.all_reduce(torch.tensor([statistics.median(seconds)], dtype=torch.float64), "max")
    share = comm.all_reduce(
        torch.tensor([sum(each.exchange_s for each in measured) / sum(seconds)], dtype=torch.float64)
    )
    sent = comm.all_reduce(torch.tensor([sum(each.sent_bytes for each in measured)]))
    peaks = torch.zeros(comm.world_size, dtype=torch.int64)
    peaks[comm.rank] = peak_memory_on(sg.device)
    return {
        "seconds_per_epoch": float(slowest[0]),
        "exchange_share": float(share[0]) / comm.world_size,
        "exchanged_bytes_per_epoch": round(int(sent[0]) / len(measured)),
        "peak_memory_bytes": comm.all_reduce(peaks).tolist(),
    }
