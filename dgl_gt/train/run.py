"""A run on a sharded graph, alone or kept in a directory with its best model, its record and its checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError, check_type
from dgl_gt.partition.figures.strategies import AUTO, CHOICES, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.run_files.run_record import PlanOfRun, RunRecord

from .config import TrainConfig, policy_of, with_typed_defaults
from .edge_inputs import with_stated_meanings
from .initial_weights import start_from
from .loop import fit
from .model import ModelFactory, build_model, share_weights, with_earlier_precision, with_measured_precision
from .run_state import TrainResult
from .saved_model import read_model
from .several_graphs import task_on
from .store import RunStore
from .sufficient_factors import factors_of
from .task import Task


def train(
    sg: ShardedGraph,
    config: TrainConfig,
    *,
    on_start=None,
    on_epoch=None,
    factory: ModelFactory | None = None,
    store: RunStore | None = None,
    also: Sequence[ShardedGraph] = (),
) -> TrainResult:
    """Train a model on the task of a config; every rank calls it with the same config.

    Parameters
    ----------
    sg : ShardedGraph
        Graph with node data ``feat``, and those that the task reads: for classes of nodes ``label``, ``train_mask``,
        ``val_mask`` and ``test_mask``.
    config : TrainConfig
        With ``on_nan`` "skip", a step is skipped where the loss or a gradient is not finite; then the weights and the batch
        statistics stay as they were. Ten such epochs in a row are an error.
    on_start : callable, optional
        Function that is called before the first epoch as ``on_start(history)``, with the losses and metrics of the run
        so far, which are empty unless it goes on from a checkpoint.
    on_epoch : callable, optional
        Function that is called after each epoch as ``on_epoch(epoch, loss, validation, seconds)``. Where it returns True,
        on all ranks and after an evaluation, the run ends. Without it and ``on_start``, a notebook shows a bar.
    factory : ModelFactory, optional
        What makes the model; by default it is the model of the config.
    store : RunStore, optional
        What keeps the run in a directory; on every rank. :func:`dgl_gt.train.train_and_save` makes it.
    also : sequence of ShardedGraph
        More graphs, loaded with ``group=sg.comm``, with as many features and classes: an epoch takes the steps of each
        graph in turn, and metrics are means over the graphs.

    Raises
    ------
    InputError
        Data are missing or wrong, the metric does not suit the number of classes, the loss or the weights are not
        finite, the factory's models do not fit, or the graph was loaded with another strategy or depth than those of the
        config.
    """
    sg.comm.check_agreement(
        config.flat() | {"given": sorted(config.given), "--model-factory": factory and factory.name}
    )
    with sg.comm.together():
        config = completed(sg, config, is_ours=not (factory or also))
        for each in (sg, *also):
            _check_exchange(each, config)
            if each.stream is not None and config.activation_checkpoint != "none":
                raise InputError(
                    f"activation_checkpoint is {config.activation_checkpoint}, and with spill (--spill) each part of a layer is "
                    "computed again; leave one of them out"
                )
            if each.comm is not sg.comm:
                raise InputError(
                    f"{each.manifest['source']} was loaded for ranks of its own; load it with group=sg.comm"
                )
        graphs = _training_graphs(sg, config)
        task, model = prepare(sg, config, factory, graphs, is_new=store is None or not store.goes_on, also=also)
        graphs.policy.check(traits_of(model).num_views, sg.comm.world_size)
        # A model of a user's may compute rows together after its last attention, one derived from ours, too.
        # A stream runs the linear layers part by part, whose rows they would not tell apart.
        is_plain = not (factory or also) and sg.stream is None
        factors = factors_of(model, task, sg, config) if is_plain else None
        return fit(
            *(model, task, sg.comm, config),
            store=store,
            on_start=on_start,
            on_epoch=on_epoch,
            graphs=graphs,
            factors=factors,
        )


def completed(sg: ShardedGraph, config: TrainConfig, is_ours: bool = True) -> TrainConfig:
    """The config with what only the graph and this machine tell: what edge data mean, and the precision for ``auto``.

    Where one graph trains a model of ours, also the defaults of typed graphs.
    """
    config = with_stated_meanings(sg, config)
    config = with_typed_defaults(config, read_figures(sg.manifest).features) if is_ours else config
    return with_measured_precision(sg, config) if config.precision == "auto" else config


def _check_exchange(sg: ShardedGraph, config: TrainConfig) -> None:
    """Raise :class:`InputError` if the config names a strategy or a depth, and the graph has another one."""
    strategy, depth = config.exchange.choice
    if strategy == AUTO:
        raise InputError(
            "strategy is auto, which `dgl-gt train` chooses before it loads the graph; in a script, load what "
            "dgl_gt.plan.choose chooses, and leave it out of the config"
        )
    if strategy is not None and strategy_of(strategy, CHOICES) != sg.strategy:
        raise InputError(
            f"strategy is {strategy}, but the graph was loaded with {sg.strategy}; load it with {strategy}, or leave that out "
            "of the config"
        )
    if depth not in (1, sg.depth):
        raise InputError(
            f"depth is {depth}, but the graph was loaded with depth {sg.depth}; load it with that depth, or leave it out of the "
            "config"
        )


def prepare(
    sg: ShardedGraph,
    config: TrainConfig,
    factory: ModelFactory | None = None,
    graphs: TrainingGraphs | None = None,
    is_new: bool = True,
    also: Sequence[ShardedGraph] = (),
) -> tuple[Task, torch.nn.Module]:
    """The task of a graph, and a new model for it with the same weights on all ranks; every rank calls it.

    It sets the seed of torch. ``graphs`` are those of training steps under a policy; by default steps are exact.
    Where the run is not new, nothing is said of ``config.init``. ``also`` are more graphs of the task.
    """
    task = task_on([sg, *also], config, graphs)
    torch.manual_seed(config.seed)
    model: Any = build_model(config, factory=factory, nodes_of=sg, **task.sizes).to(sg.device)
    model.dgl_gt_learned = dict(task.learned)  # for predictions
    if factory:
        share_weights(model, sg.comm)
    if config.init:
        with sg.comm.raising_together():
            saved = read_model(config.init)
        text = start_from(model, config, *saved[1:], factory is None)
        if is_new and sg.comm.rank == 0:
            print(f"dgl-gt: {text}", file=sys.stderr)
    return task, model


def _training_graphs(sg: ShardedGraph, config: TrainConfig) -> TrainingGraphs:
    """The graphs of training steps by the policy of a config; :class:`InputError` if it does not fit them."""
    policy = policy_of(config)
    if sg.stream is not None and not policy.is_exact:
        raise InputError(
            f"policy is {config.exchange.policy}, and with spill (--spill) ranks send all; leave one of them out"
        )
    sg.comm.check_agreement({"policy": policy.described()})
    if sg.schema is not None:
        policy.check_typed(sg.manifest["source"])
    if sg.comm.world_size > 1:
        policy.check_strategy(sg.strategy, sg.depth, sg.manifest["cut"])
        policy.check_model(config.activation_checkpoint, config.model.global_attention)
    if config.task.node_embedding and policy.exchanges_nothing and sg.comm.world_size > 1:
        raise InputError(
            f"node_embedding is {config.task.node_embedding}, and with the policy {config.exchange.policy} ranks train copies of nodes; "
            "leave one of them out"
        )
    return TrainingGraphs(sg, policy, config.seed)


def train_and_save(
    sg: ShardedGraph,
    config: TrainConfig,
    out,
    *,
    force: bool = False,
    resume: bool | str = False,
    tensorboard: bool = False,
    timeline: bool = False,
    factory: ModelFactory | None = None,
    on_epoch=None,
    on_start=None,
    plan: PlanOfRun | None = None,
    also: Sequence[ShardedGraph] = (),
) -> tuple[TrainResult, RunRecord]:
    """Train as :func:`dgl_gt.train.train` does, and keep the run in a directory; every rank calls it.

    After a first SIGINT (Ctrl-C), SIGTERM or SIGHUP, the epoch ends, a checkpoint and the best model are written, and
    then the signal has its usual effect. This works only in the main thread.

    Parameters
    ----------
    sg : ShardedGraph
    config : TrainConfig
    out : path
        Directory of the run. Rank 0 writes and reads it, and only its values of ``force``, ``resume`` and ``timeline`` are
        used.
    force : bool
        Whether to replace ``out`` if it holds another run.
    resume : bool or "if_possible"
        Whether to go on from the latest checkpoint in ``out``. The number of ranks, the cut and the strategy may differ
        from those of the run so far. "if_possible" is for ranks that are started again. If the same parent process
        started the run in ``out``, they go on from its latest checkpoint, or begin again in ``out`` if it has none and
        graph and settings are the same. Otherwise they begin a new run, and ``force`` decides whether it may replace
        ``out``.
    tensorboard : bool
        Whether to write the numbers of each epoch for TensorBoard, too; needs the package ``tensorboard``.
    timeline : bool
        Whether to record the third training step after the ranks have started, or the last one if there are fewer: a
        trace of ``torch.profiler`` for each rank, and a timeline of all ranks, which ``dgl-gt report`` draws.
    factory, on_start, on_epoch, also
        See :func:`dgl_gt.train.train`.
    plan : PlanOfRun, optional
        What ``--strategy auto`` chose, for the record.

    Returns
    -------
    result : TrainResult
    record : RunRecord
        The run as plain values, as ``record.json`` holds it along with ``started_by``.

    Raises
    ------
    InputError
        As :func:`dgl_gt.train.train`; or ``out`` cannot be written, or there is no checkpoint of this run to go on
        from.
    """

    if plan is not None:
        check_type("plan", plan, PlanOfRun)
    with sg.comm.together():
        if config.init and os.path.realpath(config.init) == os.path.realpath(out):
            raise InputError(
                f"init is {config.init}, which is also the directory of the run; choose another one (--out)"
            )
        config = with_earlier_precision(sg.comm, config, out) if resume else config
        config = completed(sg, config, is_ours=not (factory or also))
    store = RunStore(
        sg,
        config,
        out,
        force=force,
        resume=resume,
        tensorboard=tensorboard,
        timeline=timeline,
        factory=factory,
        plan=plan,
        also=also,
    )
    with store:
        result = train(sg, config, on_start=on_start, on_epoch=on_epoch, factory=factory, store=store, also=also)
        record = store.finish(result)
    return result, record
