"""Pretraining: a model learns to predict the features of hidden nodes, and which pairs are edges, without labels.

Features are compared by the scaled cosine error of GraphMAE (Hou et al. 2022, arXiv:2205.10803), edges by a logistic
loss as in GAE (Kipf and Welling 2016, arXiv:1611.07308).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs, is_drawn
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.pair_scorer import PairScorer
from dgl_gt.ops.dropout import dropout_seed
from dgl_gt.ops.reference import random_lanes
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import user_node_count

from ..config import TrainConfig
from ..inputs import ModelInputs, Pairs, read_inputs
from ..links import Negatives, RankLinks, StepsOfLinks
from ..metric_kinds import METRICS, MetricKind
from ..model import logits_of
from ..task import Batch
from ..task_config import PretrainConfig

_SPLITS = "train", "val", "test"
_HELD_OUT = _SPLITS[1:]
_SHARE_HELD_OUT = 0.05  # of the nodes, and of the edges, for validation, and as many for the test
_POWER = 2  # of the error of features
_LANES = 2**16  # that random bits number
_OF_MASKS, _OF_NODES, _OF_EDGES = -6, -7, -8  # in place of a layer, in the seeds of what is hidden and held out


@dataclass(frozen=True)
class Guesses(Batch):
    """What a step predicts: the features of some nodes, and of some pairs whether they are edges.

    ``targets`` has the ``rows`` of these nodes, int64, and ``counts``, float (2,), how many nodes, and how many edges,
    there are on all ranks. Of ``pairs`` the first half are edges.
    """

    pairs: Pairs | None = None


@dataclass(frozen=True)
class Pretrain:
    """A task: the error of hidden features, and that of telling edges from drawn pairs.

    A result has ``width`` numbers, the features of the node, and then those whose scaled dot product scores a pair. The
    loss is a sum over ranks. Nodes and edges that are held out are never in it, and make the metric.
    """

    inputs: ModelInputs
    centred: Tensor  # (N_owned, F): features less their mean over all nodes; what they share would be most of a cosine
    out_dim: int
    links: RankLinks  # edges by split
    steps: StepsOfLinks
    negatives: Negatives
    config: PretrainConfig
    seed: int
    comm: Comm
    graph_of_step: Any = None

    metric: MetricKind = field(default=METRICS["reconstruction"], init=False)
    learned: Mapping[str, Any] = field(default_factory=dict, init=False)
    rows_of_loss: Tensor | None = field(default=None, init=False)

    @classmethod
    def read(cls, sg: ShardedGraph, config: TrainConfig, graphs: TrainingGraphs | None = None) -> Pretrain:
        """Read features with encodings, and edges; ``InputError`` says what is missing."""
        if graphs is not None and graphs.base is not sg:
            raise InputError(
                f"task is pretrain, and the policy {config.exchange.policy} exchanges no rows; choose a policy that does"
            )
        task = cls._of_edges(sg, config, None if graphs is None or graphs.is_exact else graphs.of_step)
        settings = task.config
        if not (task.width and settings.mask_share or settings.edge_weight and task.links.counts["train"]):
            raise InputError(
                f"task is pretrain, and there is nothing to learn: features of width {task.width} with mask_share {settings.mask_share}, "
                f"and {task.links.counts['train']:,} edges with edge_weight {settings.edge_weight}; change one of them"
            )
        held_out = torch.tensor([len(task.rows(name)) for name in _HELD_OUT])
        if not sg.comm.all_reduce(held_out).all():
            raise InputError(
                f"task is pretrain, and of the {user_node_count(sg.manifest):,} nodes of {sg.manifest['source']} none is held out "
                f"({_SHARE_HELD_OUT:.0%}); take a larger graph, or another seed"
            )
        return task

    @classmethod
    def assume(cls, sg: ShardedGraph, config: TrainConfig, out_dim: int) -> Pretrain:
        """Take all edges of the part, and all its nodes as hidden."""
        return _StepOfAll._of_edges(sg, config)

    @classmethod
    def _of_edges(cls, sg: ShardedGraph, config: TrainConfig, graph_of_step: Any = None) -> Pretrain:
        """Make the task; a collective."""
        settings = config.task
        assert isinstance(settings, PretrainConfig)
        inputs = read_inputs(sg, settings.inputs)
        if isinstance(inputs.feat, dict):
            raise InputError(f"task is pretrain, and {sg.manifest['source']} is a typed graph; choose another task")
        if sg.depth > 1:  # owned rows are hidden, and travel
            inputs = replace(inputs, graph=sg, feat=inputs.feat[: sg.num_nodes()])
        links = RankLinks.of_edges(sg, partial(_split_of, seed=config.seed, what=_OF_EDGES), _SPLITS)
        width = sg.ndata["feat"].shape[1] if "feat" in sg.ndata else 0
        assert not isinstance(inputs.feat, dict)
        features = inputs.feat[:, :width]
        total = sg.comm.all_reduce(features.sum(0, dtype=torch.float64).cpu())
        return cls(
            inputs,
            features - (total / user_node_count(sg.manifest)).to(features),
            width + config.model.hidden,
            links,
            StepsOfLinks(links, settings.pairs_per_step, config.seed),
            Negatives(links, "uniform", 1, True, config.seed),
            settings,
            config.seed,
            sg.comm,
            graph_of_step,
        )

    @property
    def width(self) -> int:
        """Columns of features."""
        return self.centred.shape[1]

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the model."""
        return {**self.inputs.sizes, "out_dim": self.out_dim}

    def rows(self, split: str) -> Tensor:
        """The owned nodes of a split, int64 rows; virtual nodes are in none."""
        ids, manifest = self.inputs.graph.node_ids, self.inputs.graph.manifest
        is_of_split = _split_of(ids, self.seed, _OF_NODES) == _SPLITS.index(split)
        return (is_of_split & (ids < user_node_count(manifest))).nonzero().squeeze(1)

    def batches(self, step: int) -> Iterator[Batch]:
        """Make the batch of a step."""
        rows = self.rows("train")
        ids = self.inputs.graph.node_ids[rows]
        hidden = rows[is_drawn(ids, self.config.mask_share, dropout_seed(self.seed, step, _OF_MASKS))]
        graph = self.inputs.graph if self.graph_of_step is None else self.graph_of_step(step)
        edges = self.steps.links(step, 0)
        inputs = self._hiding(hidden, graph).in_step(self.seed, step)
        yield self._guesses(inputs, hidden, edges, self.negatives.draw(edges, step))

    def _hiding(self, rows: Tensor, graph: ShardedGraph) -> ModelInputs:
        """The inputs on a graph without the features of some owned nodes."""
        inputs = self.inputs if graph is self.inputs.graph else self.inputs.on(graph)
        feat = inputs.feat.clone()
        feat[rows, : self.width] = 0
        return replace(inputs, feat=feat)

    def _guesses(self, inputs: ModelInputs, hidden: Tensor, edges: Tensor, drawn: Tensor) -> Guesses:
        """A batch of some owned nodes, of edges (2, n), and of as many drawn pairs; a collective."""
        counts = torch.tensor([len(hidden) * bool(self.width), edges.shape[1]])
        targets = {"rows": hidden, "counts": self.comm.all_reduce(counts).clamp(min=1).to(hidden.device)}
        return Guesses(inputs, targets, pairs=self.links.ends(torch.cat([edges, drawn], 1)))

    @cached_property
    def _held_out(self) -> dict[str, Guesses]:
        """What is asked of the nodes and edges of validation and test; a collective."""
        negatives, found = Negatives(self.links, "uniform", 1, False, self.seed), {}
        for name in _HELD_OUT:
            edges = self.links.pairs[name]
            found[name] = self._guesses(self.inputs, self.rows(name), edges, negatives.draw(edges, 0))
        return found

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), of a result (N_owned, width + hidden)."""
        assert isinstance(batch, Guesses)
        assert batch.pairs is not None
        out = out.to(self.inputs.feat.dtype)  # of bfloat16
        guessed, rows = out.split([self.width, self.out_dim - self.width], 1)
        hidden, (nodes, edges) = batch.targets["rows"], batch.targets["counts"]
        loss = out.new_zeros(())
        if self.width:
            error = 1 - functional.cosine_similarity(guessed[hidden], self.centred[hidden])
            loss = error.pow(_POWER).sum() / nodes
        if self.config.edge_weight:
            pairs = batch.pairs
            scorer = PairScorer("dot", rows.shape[1], 1)
            are_edges, are_none = scorer(pairs.rows(rows), pairs.source, pairs.destination).chunk(2)
            of_edges = functional.softplus(-are_edges).sum() + functional.softplus(are_none).sum()
            loss = loss + self.config.edge_weight * of_edges / edges
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss of the nodes and edges that are held out; the features of these nodes are hidden at once."""
        model.eval()
        hidden = torch.cat([each.targets["rows"] for each in self._held_out.values()])
        out = logits_of(model, self._hiding(hidden, self.inputs.graph))
        losses = torch.stack([self.loss(out, each).double() for each in self._held_out.values()])
        return dict(zip(_HELD_OUT, self.comm.all_reduce(losses.cpu()).tolist()))

    @classmethod
    def answer(cls, model: nn.Module, inputs: ModelInputs) -> None:
        """Raise :class:`InputError`: there is no answer."""
        raise InputError(
            "the model was trained for pretrain, which predicts nothing of use; write rows of nodes with --embeddings, or start "
            "another task from it with --init"
        )


class _StepOfAll(Pretrain):
    """The task with a step whose operations do not depend on what is drawn, for traces."""

    def batches(self, step: int) -> Iterator[Batch]:
        """Make a batch that hides all nodes of the part, and has all its edges."""
        graph = self.inputs.graph
        source, destination = (ends.repeat(2) for ends in graph.edges())
        targets = {"rows": torch.arange(graph.num_nodes(), device=graph.device), "counts": torch.ones(2)}
        yield Guesses(self.inputs, targets, pairs=Pairs(graph.pull, source, destination))


def _split_of(ids: Tensor, seed: int, what: int) -> Tensor:
    """The number of the split of each id, by a key, int64 (n,)."""
    share = random_lanes(ids, 1, dropout_seed(seed, 0, what))[:, 0] / _LANES
    return (share < 2 * _SHARE_HELD_OUT).long() + (share < _SHARE_HELD_OUT)
