"""What tasks with labels have in common, of nodes or of edges: the rows of the splits, batches, and the metric of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.shards.counts import user_node_count
from dgl_gt.partition.system.units import format_count

from ..config import TrainConfig
from ..inputs import ModelInputs, edge_pairs, read_inputs
from ..label_rows import LabelledRows, at_least_float32
from ..metric_kinds import MetricKind
from ..metrics import read_metric
from ..model import logits_of
from ..required_data import learned_type, nodes_at_ends, required
from ..task import Batch
from ..task_config import LabelTaskConfig
from ..task_settings import TaskConfig

_Task = TypeVar("_Task", bound="LabelTask")
SPLITS = tuple(mask.removesuffix("_mask") for mask in SPLIT_MASKS)


@dataclass(frozen=True)
class LabelTask:
    """A :class:`dgl_gt.train.task.Task` on nodes, without its loss. Nodes without a label are left out.

    With :class:`OnEdges` before it among the bases of a class, its rows are edges.

    Attributes
    ----------
    evaluated, trained : LabelledRows
        The owned nodes, and the nodes of training steps.
    counts : dict of str to int
        Rows of each split on all ranks together.
    num_rows : int
        Rows of the whole graph, without virtual nodes.
    out_dim : int
        Numbers that the model gives each row.
    config : LabelTaskConfig
    seed : int
        Seed of the signs of eigenvectors.
    comm : Comm
    metric : MetricKind
    score : callable
        The metric of predictions and labels of some rows on each rank.
    graph_of_step : callable, optional
        Graph of each training step, with the nodes of ``trained``; by default that of its inputs.
    """

    evaluated: LabelledRows
    trained: LabelledRows
    counts: dict[str, int]
    num_rows: int
    out_dim: int
    config: Any  # the LabelTaskConfig of the class
    seed: int
    comm: Comm
    metric: MetricKind
    score: Callable[[Tensor, Tensor, Comm], float]
    graph_of_step: Callable[[int], ShardedGraph] | None = None

    missing: ClassVar[str]  # what a node without a label has

    @classmethod
    def read(cls: type[_Task], sg: ShardedGraph, config: TrainConfig, graphs: TrainingGraphs | None = None) -> _Task:
        """Read features with encodings, labels and masks of a sharded graph.

        ``InputError`` says that features, labels or masks are missing or have the wrong shape, that the split does not
        exist or has no labelled row, or that the labels or the metric do not suit the task.
        """
        evaluated = trained = cls._labelled_rows(sg, config)
        counts = {}
        for name, rows in evaluated.rows.items():
            counts[name] = int(sg.comm.all_reduce(torch.tensor([len(rows)]))[0])
            if not counts[name]:
                raise InputError(
                    f"{name}_mask of split {_settings(config).split} selects no labelled row; it must select at least one: fix "
                    f"the mask, or the labels, where {cls.missing} means none"
                )
        if graphs is not None and graphs.base is not sg:
            cls.check_part(config)
            trained = replace(cls._labelled_rows(graphs.base, config), weights=graphs.weights)
        num_rows = cls.rows_in(sg, config.task)
        out_dim = cls.width_of(evaluated.label, num_rows, sg.comm)
        graph_of_step = None if graphs is None or graphs.is_exact else graphs.of_step
        of_graph = evaluated, trained, counts, num_rows
        return cls.of_rows(*of_graph, out_dim, config, sg.comm, graph_of_step)

    @classmethod
    def assume(cls: type[_Task], sg: ShardedGraph, config: TrainConfig, out_dim: int) -> _Task:
        """All rows count as training rows where labels or masks are missing."""
        name, count = _settings(config).label, cls.rows_on(sg)
        if config.task.relation:
            learned_type(sg, config.task.relation, of_edges=True)
        mask, label = (cls.column_if_any(sg, each, config.task) for each in ("train_mask", name))
        label = cls.assumed_labels(count, out_dim) if label is None else cls.labels(label, name, sg.comm)
        if mask is None or mask.dim() > 1:  # masks of several splits are taken to select all rows
            mask = torch.ones(count, dtype=torch.bool)
            if sg.schema is not None and cls.rows_on is LabelTask.rows_on:
                mask = cls.user_rows(sg, config.task)
        rows = LabelledRows(read_inputs(sg, config.task.inputs), label, {"train": mask.nonzero().squeeze(1)})
        width = label.shape[1] if label.dim() == 2 else out_dim
        return cls.of_rows(rows, rows, {"train": count}, 2 * count, width, config, sg.comm)

    @classmethod
    def of_rows(
        cls: type[_Task],
        evaluated: LabelledRows,
        trained: LabelledRows,
        counts: dict[str, int],
        num_rows: int,
        out_dim: int,
        config: TrainConfig,
        comm: Comm,
        graph_of_step: Callable | None = None,
    ) -> _Task:
        """Make the task of rows; a collective."""
        settings = _settings(config)
        metric = cls.chosen_metric(settings, out_dim)
        more = cls.counted(evaluated, counts, out_dim, settings, comm)
        rows = evaluated, trained, counts, num_rows
        return cls(*rows, out_dim, settings, config.seed, comm, *read_metric(metric), graph_of_step, **more)

    # ---- what its rows are

    @staticmethod
    def rows_on(sg: ShardedGraph) -> int:
        """The rows on this rank."""
        return sg.num_nodes()

    @staticmethod
    def column(sg: ShardedGraph, name: str, settings: TaskConfig) -> Tensor:
        """Data of the rows by name; ``InputError`` if the shards have none."""
        return required(sg, name, of_type=settings.type)

    @classmethod
    def column_if_any(cls, sg: ShardedGraph, name: str, settings: TaskConfig) -> Tensor | None:
        """Data of the rows by name; None if the shards have none."""
        try:
            return cls.column(sg, name, settings)
        except InputError:
            return None

    @staticmethod
    def rows_in(sg: ShardedGraph, settings: TaskConfig) -> int:
        """The rows of the whole graph that can have labels."""
        if sg.schema is not None:
            return sg.schema.nodes[learned_type(sg, settings.type)]
        return user_node_count(sg.manifest)

    @staticmethod
    def user_rows(sg: ShardedGraph, settings: TaskConfig) -> Tensor | None:
        """Which rows are the user's and can have labels; None where all are."""
        if sg.schema is not None:
            rows = torch.zeros(sg.num_nodes(), dtype=torch.bool, device=sg.device)
            return rows.index_fill_(0, sg.rows(learned_type(sg, settings.type)), True)
        num_nodes = user_node_count(sg.manifest)
        return sg.node_ids < num_nodes if num_nodes < sg.manifest["nodes"] else None

    @staticmethod
    def check_part(config: TrainConfig) -> None:
        """Raise :class:`InputError` if steps may not run on the graph of a policy, with other edges and rows."""

    def of_loss(self, out: Tensor) -> Tensor:
        """The rows of a model's result in a training step that are training rows, in their order."""
        return out[self.trained.rows["train"]]

    # ---- what each task says of its labels

    @staticmethod
    def labels(column: Tensor, name: str, comm: Comm) -> Tensor:
        """The labels of a column of this name; ``InputError`` if the task cannot learn it; a collective."""
        raise NotImplementedError

    @staticmethod
    def known(label: Tensor) -> Tensor:
        """Whether labels are known, bool, of their shape."""
        raise NotImplementedError

    @staticmethod
    def assumed_labels(count: int, out_dim: int) -> Tensor:
        """Labels of rows that have none, to trace steps."""
        raise NotImplementedError

    @classmethod
    def width_of(cls, label: Tensor, most: int, comm: Comm) -> int:
        """Numbers that the model gives each row, for labels of at most ``most`` rows in all; a collective."""
        return label.shape[1]

    @classmethod
    def chosen_metric(cls, settings: LabelTaskConfig, out_dim: int) -> str:
        """The name of the metric; ``InputError`` if it does not suit the labels."""
        return settings.metrics[0] if settings.metric == "auto" else settings.metric

    @classmethod
    def counted(cls, rows: LabelledRows, counts: dict, out_dim: int, settings: Any, comm: Comm) -> dict[str, Any]:
        """More fields of the task, counted over the training rows of all ranks; a collective."""
        return {}

    def compared(self, out: Tensor) -> Tensor:
        """What the metric compares with labels, of the model's result."""
        return out

    @staticmethod
    def predictions(out: Tensor, learned: dict) -> Any:
        """What ``predict`` writes, of the model's result for all rows and of :attr:`learned`."""
        raise NotImplementedError

    # ---- what a Task does

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the model: ``in_dim``, ``edge_feats`` and ``edge_kinds``, and ``out_dim``."""
        return {**self.evaluated.inputs.sizes, "out_dim": self.out_dim}

    @property
    def learned(self) -> dict[str, Any]:
        """What predictions need besides the model, as values that JSON can hold."""
        return {}

    @property
    def rows_of_loss(self) -> Tensor | None:
        """Rows of the model's result that the loss reads, the training rows; None where it reads all of them."""
        return self.trained.rows["train"] if self.config.mask_of_loss else None

    def batches(self, step: int) -> Iterator[Batch]:
        """Make one batch of all nodes."""
        inputs = self.trained.inputs
        if self.graph_of_step is not None:
            graph = self.graph_of_step(step)
            inputs = inputs if graph is inputs.graph else inputs.on(graph)
        yield Batch(inputs.in_step(self.seed, step), {"label": self.trained.label})

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of the validation rows and of the test rows."""
        model.eval()
        rows = self.evaluated
        result = self.compared(logits_of(model, rows.inputs))
        chosen = {name: rows.rows[name] for name in ("val", "test")}
        return {name: self.score(result[each], rows.label[each], self.comm) for name, each in chosen.items()}

    @classmethod
    def answer(cls, model: nn.Module, inputs: ModelInputs) -> Any | None:
        """Predict for every node, in the original order, without virtual nodes; of a typed graph those of the type learned."""
        out = inputs.graph.gather(at_least_float32(logits_of(model, inputs)), to=0)
        if out is None:
            return None
        learned: Any = getattr(model, "dgl_gt_learned", {})
        graph, of_model = inputs.graph, cast(Any, model)
        rows = slice(0, user_node_count(graph.manifest))
        if graph.schema is not None:
            rows = graph.schema.rows_of("node", f"{learned_type(graph, of_model.dgl_gt_task.type)}/")
        return cls.predictions(out[rows].cpu(), learned)

    @classmethod
    def _labelled_rows(cls, sg: ShardedGraph, config: TrainConfig) -> LabelledRows:
        settings, rows = _settings(config), {}
        inputs = read_inputs(sg, settings.inputs)
        label = cls.labels(cls.column(sg, settings.label, settings), settings.label, sg.comm)
        known = cls.known(label)
        known = known.any(1) if known.dim() == 2 else known
        for name in SPLITS:
            mask = cls.column(sg, f"{name}_mask", settings)
            splits = mask.shape[1] if mask.dim() == 2 else 1
            if settings.split >= splits:
                raise InputError(
                    f"split is {settings.split}; the masks hold {format_count(splits, 'split')}, counted from 0"
                )
            chosen = mask[:, settings.split] if mask.dim() == 2 else mask
            rows[name] = (chosen & known).nonzero().squeeze(1)
        return LabelledRows(inputs, label, rows, cls.user_rows(sg, settings))


class OnEdges(LabelTask):
    """Makes the rows of a task edges: a model scores both ends of each, see :class:`dgl_gt.train.around_nodes.PairModel`."""

    answers: ClassVar[Callable]  # a named tuple: source, destination, and what the task predicts

    @staticmethod
    def rows_on(sg: ShardedGraph) -> int:
        return sg.num_edges()

    @staticmethod
    def column(sg: ShardedGraph, name: str, settings: TaskConfig) -> Tensor:
        return required(sg, name, of_edges=True, of_type=settings.relation)

    @staticmethod
    def rows_in(sg: ShardedGraph, settings: TaskConfig) -> int:
        return sg.manifest["edges"]

    @staticmethod
    def user_rows(sg: ShardedGraph, settings: TaskConfig) -> None:
        return None

    @property
    def rows_of_loss(self) -> None:
        """Rows of nodes that the loss reads: all, by the edges at them."""
        return None

    @staticmethod
    def check_part(config: TrainConfig) -> None:
        raise InputError(
            f"task is {config.task.kind}, and the policy {config.exchange.policy} leaves out edges; choose a policy that sends "
            "all"
        )

    def of_loss(self, out: Tensor) -> Tensor:
        return out

    def batches(self, step: int) -> Iterator[Batch]:
        """Make one batch of all training edges."""
        for batch in super().batches(step):
            if batch.inputs.graph.num_edges() != len(self.trained.label):
                raise InputError(
                    f"task is {self.config.kind}, and the policy samples edges; choose a policy that sends all"
                )
            pairs = edge_pairs(batch.inputs.graph, self.trained.rows["train"])
            yield replace(batch, inputs=replace(batch.inputs, pairs=pairs))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of the validation edges and of the test edges."""
        model.eval()
        rows, names = self.evaluated, ("val", "test")
        each = [rows.rows[name] for name in names]
        pairs = edge_pairs(rows.inputs.graph, torch.cat(each))
        out = self.compared(logits_of(model, replace(rows.inputs, pairs=pairs)))
        results = out.split([len(chosen) for chosen in each])
        return {
            name: self.score(result, rows.label[chosen], self.comm)
            for name, result, chosen in zip(names, results, each)
        }

    @classmethod
    def answer(cls, model: nn.Module, inputs: ModelInputs) -> Any | None:
        """Predict for every edge between the user's nodes, in the order of edge ids; those that were added come last.

        Of a typed graph, for the edges of the relation that was learned; nodes are numbered within their type.
        """
        graph, of_model = inputs.graph, cast(Any, model)
        relation = learned_type(graph, of_model.dgl_gt_task.relation, of_edges=True)
        pairs = edge_pairs(graph, graph.edge_rows(relation) if relation else None)
        held, out = graph.pull(graph.node_ids), logits_of(model, replace(inputs, pairs=pairs))
        columns = graph.edge_ids[pairs.edges], held[pairs.source], held[pairs.destination], at_least_float32(out)
        gathered = [graph.comm.gather_rows(each, to=0) for each in columns]
        if gathered[0] is None:
            return None
        ids, source, destination, out = (torch.cat(each).cpu() for each in gathered)
        order = ids.argsort()
        order = order[torch.maximum(source, destination)[order] < user_node_count(graph.manifest)]
        found = cls.predictions(out[order], getattr(model, "dgl_gt_learned", {}))
        of_type = [each.start for each in nodes_at_ends(graph.manifest, relation)]
        ends = [each[order].numpy() - start for each, start in zip((source, destination), of_type)]
        return cls.answers(*ends, *found)


def _settings(config: TrainConfig) -> LabelTaskConfig:
    assert isinstance(config.task, LabelTaskConfig)
    return config.task
