"""The links of a rank, which of them a step takes, and pairs that are no links, drawn by keys: the same on any ranks.

The key of a link is made of the user's numbers of its ends. With the seed of the run and the number of the step it
decides what is drawn for the link, so nothing depends on who draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dgl_gt.exchange.policy.training_graphs import with_edges
from dgl_gt.exchange.route import EdgeSet, RowFetch, own_places
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.dropout import dropout_seed
from dgl_gt.ops.reference import mix64, splitmix64
from dgl_gt.partition.shards.counts import user_edge_count, user_node_count

from .inputs import Pairs
from .required_data import nodes_of_links

_OF_STEPS, _OF_NEGATIVES = -4, -5  # in place of a layer, in the seeds of what a step takes and draws
_UNIFORM, _MASK = 2.0**52, 2**52 - 1
_MAX_DRAWS = 50  # of a pair that is to be no link


@dataclass(frozen=True)
class RankLinks:
    """Links and other pairs of a graph, each on one rank.

    Attributes
    ----------
    sg : ShardedGraph
    pairs : dict of str to Tensor, int64, (2, n_i)
        By the name of the set, with the user's numbers of nodes.
    counts : dict of str to int
        Pairs of each set on all ranks together.
    new_ids : Tensor, integers, (N,)
        The place of each node in the order of parts.
    is_undirected : bool
    own_negatives : bool
        Whether each link of validation and test has negatives of its own, next to each other in the order of the links.
    """

    sg: ShardedGraph
    pairs: dict[str, Tensor]
    counts: dict[str, int]
    new_ids: Tensor
    is_undirected: bool
    own_negatives: bool = False

    @classmethod
    def read(cls, sg: ShardedGraph) -> RankLinks:
        """Read the links of the shards of a graph; ``InputError`` says that they have none, or are damaged."""
        arrays, record = sg.read_links(), sg.manifest["links"]
        new_ids, (begin, end) = arrays.pop("new_ids"), sg.manifest["ptr"][sg.comm.rank : sg.comm.rank + 2]
        own = {}
        for name, both in arrays.items():
            link, _, negative = name.partition("_")
            decides = both  # whose destination's rank has the pair
            if negative and record["own_negatives"]:
                each = both.shape[1] // max(1, arrays[link].shape[1])
                decides = arrays[link].repeat_interleave(each, 1)
            place = new_ids[decides[1].long()]
            own[name] = both[:, (place >= begin) & (place < end)].long().to(sg.device)
        return cls(sg, own, record["pairs"], new_ids.to(sg.device), record["is_undirected"], record["own_negatives"])

    @classmethod
    def of_edges(cls, sg: ShardedGraph, split_of: Callable[[Tensor], Tensor], names: Sequence[str]) -> RankLinks:
        """The edges of a graph without self-loops, and without those that transforms added; a collective.

        Those whose key ``split_of`` gives the number i are the set ``names[i]``. Each edge is on the rank that has it.
        """
        held, (src, dst) = sg.pull(sg.node_ids), sg.edges()
        is_taken = (sg.edge_ids < user_edge_count(sg.manifest)) & (src != dst)
        both = torch.stack([held[src[is_taken]], held[dst[is_taken]]])
        links = cls(sg, {}, {}, sg.gather(own_places(sg)), False)
        number = split_of(links.keys(*both))
        for each, name in enumerate(names):
            links.pairs[name] = both[:, number == each]
            links.counts[name] = int(sg.comm.all_reduce((number == each).sum().reshape(1).cpu())[0])
        return links

    def negatives(self, name: str) -> int:
        """The number of pairs that are no links among which a link of a set is ranked."""
        count = self.counts[f"{name}_neg"]
        return count // max(1, self.counts[name]) if self.own_negatives else count

    def keys(self, source: Tensor, destination: Tensor) -> Tensor:
        """The key of each pair, int64 (n,); that of the reverse pair is the same."""
        low, high = torch.minimum(source, destination), torch.maximum(source, destination)
        return low * self.sg.manifest["nodes"] + high

    def ends(self, pairs: Tensor) -> Pairs:
        """Pairs (2, n) as a model takes them; every rank calls it."""
        places = self.new_ids[pairs].long()
        fetch = RowFetch(self.sg, places.flatten())
        source, destination = fetch.rows.view(2, -1)
        return Pairs(fetch, source, destination, both_ways=self.is_undirected)


class StepsOfLinks:
    """Which links a step takes: in each epoch every link once, in one of ``count`` steps."""

    def __init__(self, links: RankLinks, pairs_per_step: int, seed: int):
        total = links.counts["train"]
        self.count = -(-total // pairs_per_step) if pairs_per_step else 1
        self._links, self._seed = links, seed
        self._keys = links.keys(*links.pairs["train"])

    def numbers(self, keys: Tensor, epoch: int) -> Tensor:
        """The number of the step of an epoch that takes the links with these keys, int64 (n,)."""
        seed = dropout_seed(self._seed, epoch, _OF_STEPS)
        return (mix64(mix64(keys) + seed) & _MASK) % self.count

    @cached_property
    def _of_edges(self) -> tuple[Tensor, Tensor]:
        """Of each edge of this rank the key, and whether it is between the ends of a training link; a collective."""
        links, held = self._links, self._links.sg.pull(self._links.sg.node_ids)
        source, destination = links.sg.edges()
        keys = links.keys(held[source], held[destination])
        every = links.sg.read_links()["train"].long().to(keys.device)
        return keys, torch.isin(keys, links.keys(*every))

    def graph(self, epoch: int, number: int) -> ShardedGraph:
        """The graph without the edges between the ends of the links of a step; a collective."""
        keys, is_link = self._of_edges
        return with_edges(self._links.sg, ~(is_link & (self.numbers(keys, epoch) == number)))

    def links(self, epoch: int, number: int) -> Tensor:
        """The training links on this rank that a step takes, (2, n)."""
        pairs = self._links.pairs["train"]
        return pairs if self.count == 1 else pairs[:, self.numbers(self._keys, epoch) == number]


class Negatives:
    """Draws pairs that are no links; every rank makes and uses it."""

    def __init__(self, links: RankLinks, kind: str, count: int, may_be_links: bool, seed: int):
        self._links, self._kind, self._count, self._seed = links, kind, count, seed
        sg = links.sg
        self._nodes, self._ranges = user_node_count(sg.manifest), nodes_of_links(sg.manifest)
        self._cumulated: list[Tensor] = []
        if kind == "degree":
            degrees: Any = sg.gather(sg.in_degrees() + sg.out_degrees())
            self._cumulated = [degrees[each.start : each.stop].double().cumsum(0) for each in self._ranges]
        self._edges = None if may_be_links else EdgeSet(sg)

    def draw(self, positives: Tensor, step: int) -> Tensor:
        """As many pairs as were asked for each link, (2, n * count), those of a link next to each other; a collective.

        A pair joins two different nodes. It is drawn again while it is an edge of the graph, unless that is allowed, at most
        50 times.
        """
        seed = dropout_seed(self._seed, step, _OF_NEGATIVES)
        keys = mix64(positives[0] * self._nodes + positives[1]).repeat_interleave(self._count)
        keys = mix64(keys + torch.arange(self._count, device=keys.device).repeat(positives.shape[1])) + seed
        sources = positives.repeat_interleave(self._count, 1)
        found = self._drawn(keys, sources, 0)
        wanted = torch.arange(len(keys), device=keys.device)
        for attempt in range(1, _MAX_DRAWS + 1):
            wanted = wanted[self._is_wrong(found[:, wanted])]
            if not self._links.sg.comm.all_reduce(torch.tensor([len(wanted)]), "max")[0]:
                break
            found[:, wanted] = self._drawn(keys[wanted], sources[:, wanted], attempt)
        return found

    def _drawn(self, keys: Tensor, links: Tensor, attempt: int) -> Tensor:
        """Pairs by their keys; with "swap", one end is that of a link."""
        if self._kind != "swap":
            return torch.stack([self._node(splitmix64(keys + 3 * attempt + end), end) for end in range(2)])
        is_source, bits = splitmix64(keys + 3 * attempt + 2) & 1 == 0, splitmix64(keys + 3 * attempt)
        source, destination = (self._node(bits, end) for end in range(2))
        return torch.stack([torch.where(is_source, source, links[0]), torch.where(is_source, links[1], destination)])

    def _node(self, bits: Tensor, end: int) -> Tensor:
        """Nodes that a link can have as source (0), or as destination (1)."""
        share, nodes = (bits & _MASK).double() / _UNIFORM, self._ranges[end]
        if not self._cumulated:
            return (share * len(nodes)).long() + nodes.start
        sums = self._cumulated[end]
        return torch.searchsorted(sums, share * sums[-1], right=True).clamp(max=len(nodes) - 1) + nodes.start

    def _is_wrong(self, pairs: Tensor) -> Tensor:
        is_loop = pairs[0] == pairs[1]
        if self._edges is None:
            return is_loop
        return is_loop | self._edges.contains(*self._links.new_ids[pairs].long())
