"""Links: pairs of nodes, which a model scores higher than pairs that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError

from ..around_nodes import PairModel
from ..config import TrainConfig
from ..inputs import ModelInputs, Pairs, read_inputs
from ..links import Negatives, RankLinks, StepsOfLinks
from ..metric_kinds import MetricKind, is_hits, is_ranking
from ..metrics import read_metric
from ..model import logits_of
from ..required_data import nodes_of_links
from ..task import Batch
from ..task_config import LinkPredictionConfig
from ..top_links import top_links

_EVALUATED = ("val", "val_neg", "test", "test_neg")


class LikelyLinks(NamedTuple):
    """The most likely new links of every node in the order of nodes, the best of each first."""

    source: np.ndarray  # int64 (n,)
    destination: np.ndarray  # int64 (n,)
    score: np.ndarray  # float32 (n,)


@dataclass(frozen=True)
class LinkPrediction:
    """A task: the mean loss of the links of a step and of pairs that are none.

    The loss is a sum over ranks: each returns its links' share of the mean over the links of all ranks.
    """

    inputs: ModelInputs
    links: RankLinks
    steps: StepsOfLinks
    negatives: Negatives
    evaluated: Pairs
    config: LinkPredictionConfig
    seed: int
    comm: Comm
    metric: MetricKind
    score: Callable[[Tensor, Tensor, Comm], float]
    graph_of_step: Callable[[int], ShardedGraph] | None = None

    rows_of_loss: Tensor | None = field(default=None, init=False)

    @classmethod
    def read(cls, sg: ShardedGraph, config: TrainConfig, graphs: TrainingGraphs | None = None) -> LinkPrediction:
        """Read features with encodings, and links; ``InputError`` says what is missing."""
        with sg.comm.raising_together():
            links = RankLinks.read(sg)
            _check_relation(sg, config.task.relation)
        return cls.of_links(sg, config, links, graphs)

    @classmethod
    def assume(cls, sg: ShardedGraph, config: TrainConfig, out_dim: int) -> LinkPrediction:
        """Take all edges of the part as the links of one step, and as the pairs that are none; the graph is whole."""
        return _StepOfEdges.of_links(sg, config.changed(metric="roc_auc"), RankLinks.read(sg))

    @classmethod
    def of_links(
        cls, sg: ShardedGraph, config: TrainConfig, links: RankLinks, graphs: TrainingGraphs | None = None
    ) -> LinkPrediction:
        """Make the task of links; a collective."""
        settings = config.task
        assert isinstance(settings, LinkPredictionConfig)
        if graphs is not None and graphs.base is not sg:
            raise InputError(
                f"task is {settings.kind}, and the policy {config.exchange.policy} exchanges no rows; choose a policy that does"
            )
        if settings.exclude == "target" and graphs is not None and not graphs.is_exact:
            raise InputError(
                f"exclude is target, and the policy {config.exchange.policy} is not exact; leave one of them out"
            )
        if settings.exclude == "target" and (sg.depth > 1 or sg.strategy.shares_heads):
            raise InputError(
                f"exclude is target, and the strategy {sg.strategy.name} with depth {sg.depth} cannot leave out edges in a step; choose "
                "another strategy, and depth 1"
            )
        metric = settings.metrics[0] if settings.metric == "auto" else settings.metric
        if is_hits(metric):
            fewest = min(links.negatives("val"), links.negatives("test"))
            if int(metric.partition("@")[2]) > fewest:
                raise InputError(
                    f"metric is {metric}, and a link is ranked among {fewest} pairs that are no links; choose a smaller number"
                )
        drawn = settings.negatives, settings.negatives_per_link, settings.negatives_may_be_links
        return cls(
            read_inputs(sg, settings.inputs),
            links,
            StepsOfLinks(links, settings.pairs_per_step, config.seed),
            Negatives(links, *drawn, config.seed),
            links.ends(torch.cat([links.pairs[name] for name in _EVALUATED], 1)),
            settings,
            config.seed,
            sg.comm,
            *read_metric(metric),
            None if graphs is None or graphs.is_exact else graphs.of_step,
        )

    @property
    def learned(self) -> Mapping[str, Any]:
        """What predictions need besides the model, as values that JSON can hold."""
        return {"is_undirected": self.links.is_undirected}

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the model."""
        return {**self.inputs.sizes, "out_dim": 1}

    def batches(self, step: int) -> Iterator[Batch]:
        """Make the batches of an epoch, each with some of the links."""
        for number in range(self.steps.count):
            links, of_run = self.steps.links(step, number), step * self.steps.count + number
            count = self.comm.all_reduce(torch.tensor([links.shape[1]]))
            if not count[0]:  # a step of few links may have none
                continue
            drawn = self.negatives.draw(links, of_run)
            inputs, graph = self.inputs, self._graph(step, number)
            inputs = inputs if graph is inputs.graph else inputs.on(graph)
            inputs = replace(inputs.in_step(self.seed, step), pairs=self.links.ends(torch.cat([links, drawn], 1)))
            yield Batch(inputs, {"count": count.to(drawn.device)}, of_run)

    def _graph(self, step: int, number: int) -> ShardedGraph:
        """The graph of a batch of an epoch."""
        if self.config.exclude == "target":
            return self.steps.graph(step, number)
        return self.inputs.graph if self.graph_of_step is None else self.graph_of_step(step)

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), for scores (n, 1) of links and then of other pairs."""
        each = self.config.negatives_per_link
        links = len(out) // (1 + each)
        positive, negative = out[:links], out[links:].view(links, each)
        match self.config.loss:
            case "bce":
                losses = functional.softplus(-positive) + functional.softplus(negative).mean(1, keepdim=True)
            case "bpr":
                losses = functional.softplus(negative - positive).mean(1)
            case "margin":
                losses = functional.relu(1 + negative - positive).mean(1)
            case _:
                losses = (1 + negative - positive).square().mean(1)
        return losses.sum() / batch.targets["count"][0]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of the links of validation and test, each among its pairs that are none."""
        model.eval()
        out = logits_of(model, replace(self.inputs, pairs=self.evaluated))
        counts = [self.links.pairs[name].shape[1] for name in _EVALUATED]
        parts = dict(zip(_EVALUATED, out.split(counts)))
        found = {}
        for name in ("val", "test"):
            positive, negative = parts[name], parts[f"{name}_neg"]
            if self.links.own_negatives and is_ranking(self.metric.name):
                pieces, axis = [positive, negative.view(len(positive), self.links.negatives(name))], 1
            else:
                pieces, axis = [positive, negative], 0
            labels = torch.cat([torch.ones_like(pieces[0]), torch.zeros_like(pieces[1])], axis).long()
            found[name] = self.score(torch.cat(pieces, axis), labels, self.comm)
        return found

    @classmethod
    def answer(cls, model: nn.Module, inputs: ModelInputs) -> LikelyLinks | None:
        """Predict the most likely new links of every node, its best one first; the edges of the graph are left out.

        Of a typed graph, nodes are numbered within the types of the links' ends.
        """
        assert isinstance(model, PairModel)
        graph, of_model = inputs.graph, cast(Any, model)
        own = logits_of(model, replace(inputs, pairs=None))
        both_ways = bool(of_model.dgl_gt_learned["is_undirected"])

        def score(rows: Tensor, source: Tensor, destination: Tensor) -> Tensor:
            return of_model.scores(rows, source, destination, None, both_ways)[:, 0]

        ends = nodes_of_links(graph.manifest)
        found = top_links(graph, own, score, of_model.dgl_gt_task.top, ends)
        gathered = [graph.comm.gather_rows(each, to=0) for each in found]
        if gathered[0] is None:
            return None
        links = LikelyLinks(*(torch.cat(each).cpu().numpy() for each in gathered))
        order = links.source.argsort(kind="stable")
        source, destination, scores = (each[order] for each in links)
        return LikelyLinks(source - ends[0].start, destination - ends[1].start, scores)


def _check_relation(sg: ShardedGraph, wanted: str) -> None:
    """Raise :class:`InputError` unless the links of the shards are of the relation that a user names, if any."""
    found = sg.manifest["links"]["relation"]
    if wanted and (sg.schema is None or list(sg.schema.relations[sg.schema.relation(wanted)]) != found):
        raise InputError(
            f"relation is {wanted!r}, and the links of {sg.manifest['source']} are of {','.join(found or ()) or 'its one relation'}; "
            "partition with --relation for others, or leave it out"
        )


class _StepOfEdges(LinkPrediction):
    """The task with a step whose operations do not depend on what is drawn, for traces."""

    def batches(self, step: int) -> Iterator[Batch]:
        """Make one batch of all edges of the part."""
        graph, each = self.inputs.graph, self.config.negatives_per_link
        src, dst = (ends.repeat(1 + each) for ends in graph.edges())
        pairs = Pairs(graph.pull, src, dst, both_ways=self.links.is_undirected)
        yield Batch(replace(self.inputs, pairs=pairs), {"count": torch.ones(1, device=graph.device)})
