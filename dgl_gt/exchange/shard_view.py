"""What the views of a shard have in common."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from itertools import pairwise

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.comm.transfer import Begin, tracked
from dgl_gt.exchange.policy.policy import Policy
from dgl_gt.exchange.policy.transmission import Transmission
from dgl_gt.ops.split_attention import split
from dgl_gt.partition.figures.strategies import StrategyRules
from dgl_gt.structure import CSC

from .local import add_ends, check_weights, sum_of_weighted_rows
from .relations import Relations, RowGroups, relations_of, rows_by_relation
from .shard import SendPlan, Shard, pull
from .view import View


class ShardView(View):
    """Base class of the views of a shard, one for each strategy. It is part ``comm.rank``; there is one part for each rank.

    ``overlap`` says whether to compute while rows travel, where the strategy can.
    """

    def __init__(self, shard: Shard, comm: Comm, rules: StrategyRules, overlap: bool = True):
        self.rules = rules
        self.shard, self.comm, self.overlap = shard, comm, overlap
        self.num_owned = self.num_dst = shard.num_owned
        self.node_ids = shard.node_ids[: shard.num_owned]
        self.schema = shard.schema
        self.ptr = shard.manifest["ptr"]
        self.score_offset = 0.0  # added to an edge's score for each copy among its ends, see policy/training_graphs.py
        self.transmission: Transmission | None = None

    def input_rows(self, x: torch.Tensor) -> torch.Tensor:
        self.shard.check(x)
        return x

    def in_degrees(self) -> torch.Tensor:
        return self.shard.degrees[: self.num_dst, 0]

    def out_degrees(self) -> torch.Tensor:
        return self.shard.degrees[: len(self.node_ids), 1]

    def add_ends(self, of_dst: torch.Tensor, of_src: torch.Tensor) -> torch.Tensor:
        if self.shard.has_mirrors:
            of_dst, of_src = self._held(torch.cat([of_dst, of_src], 1)).chunk(2, 1)
        else:
            of_src = self._held(of_src)
        return add_ends(self.shard.csc(), of_dst, of_src)

    def sum_of_weighted_rows(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the sums of the owned rows, whatever the strategy: rows of the sources are fetched, and never weights."""
        self.check_weights(weights)
        return sum_of_weighted_rows(self.shard.csc(), weights, self._held(rows))

    def check_weights(self, weights: torch.Tensor) -> None:
        """Raise ``ValueError`` if the weights are not one for each edge, or edges are only sampled."""
        check_weights(weights, self.shard.edges[0])
        if self.score_offset:
            raise ValueError("edge_weight is not available with the transmission policy sampled; choose another policy")

    def _held(self, rows: torch.Tensor) -> torch.Tensor:
        return pull(self.shard, self.comm, tracked(rows))

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        return self.comm.all_reduce_sum(values) if self.comm.world_size > 1 else values

    def stack_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        stacked = values.new_zeros((self.comm.world_size, *values.shape))
        stacked[self.comm.rank] = values.detach()  # in a sum, each rank fills its own row
        return self.comm.all_reduce(stacked) if self.comm.world_size > 1 else stacked

    def broadcast(self, seeds: torch.Tensor) -> torch.Tensor:
        return self.comm.broadcast(seeds)

    def before_pass(self, module: torch.nn.Module) -> None:
        if self.comm.parameter_check is not None:
            self.comm.parameter_check.at_pass(module)

    def kept_exchanges(self):
        return self.comm.kept_exchanges()

    def follow(self, policy: Policy, seed: int) -> Transmission:
        """Follow a policy in training steps until :meth:`exchange_exactly`; return what carries out its exchanges."""
        assert self.rules.sends_copies
        self.transmission = Transmission(policy, self.comm, seed)
        return self.transmission

    def exchange_exactly(self) -> None:
        """Follow no policy any more."""
        self.transmission = None

    def training_step(self, step: int):
        return nullcontext() if self.transmission is None else self.transmission.step(step)

    def forget_exchanges(self) -> None:
        if self.transmission is not None:
            self.transmission.forget()

    def begin(self, rows: torch.Tensor, plan: SendPlan, *, begins_layer: bool = False):
        """Start to send rows as the plan says, and by the policy in training steps; see ``Comm.begin``.

        ``begins_layer`` says that it is the layer's first exchange, which sends rows of owned nodes. Where backward
        computes a layer again, the rows that arrived before are on the tape, whatever the policy is.
        """
        tape = self.comm.tape
        is_replaying = tape is not None and tape.is_replaying
        if self.transmission is None or not self.transmission.is_active or is_replaying:
            return self.comm.begin(rows, plan.send_counts, plan.recv_counts)
        keys = self.node_ids.index_select(0, plan.send_rows) if begins_layer else None
        transfer = self.transmission.transfer(plan.send_counts, plan.recv_counts, keys, begins_layer=begins_layer)
        return Begin.apply(rows, transfer), transfer

    def relations_of(self, csc: CSC, ranges: list[tuple[int, int]]) -> Relations:
        """Return the relations of edges of the part; see :func:`.relations.relations_of`."""
        return relations_of(csc, self.checked_schema, self.shard.edge_ids[: csc.num_edges], ranges)

    @cached_property
    def edges_by_relation(self) -> RowGroups:
        return rows_by_relation(self.checked_schema, self.shard.edge_ids[: self.shard.edges[0]])

    def begin_pull(self, x: torch.Tensor):
        """Start to send a layer's rows of owned nodes to the ranks that hold copies; see :func:`.shard.begin_pull`."""
        plan = self.shard.send_plan()
        begun = self.begin(x.index_select(0, plan.send_rows), plan, begins_layer=True)
        return self.comm.finisher(begun, self.overlap)

    @property
    def counts(self) -> list[int]:
        """Number of owned rows of each rank."""
        return [end - begin for begin, end in pairwise(self.ptr)]

    def check_inputs(self, h: torch.Tensor, bias: torch.Tensor | None = None, edge: torch.Tensor | None = None):
        """Return ``h``, tracked by autograd on every rank; raise ``ValueError`` if it or what edges have does not fit."""
        self.shard.check(h, bias, edge=edge)
        return tracked(h) if self.comm.world_size > 1 else h

    @cached_property
    @torch.inference_mode(False)
    def pieces(self) -> list[CSC]:
        """In-edges of owned rows in two pieces: from owned rows, and from copies."""
        owned = self.num_owned
        indices = self.shard.indices[: int(self.shard.indptr[owned])]
        return self.split_owned(indices, indices >= owned, [(0, owned), (owned, self.shard.num_held)])

    def split_owned(self, sources: torch.Tensor, piece_of: torch.Tensor, ranges: list[tuple[int, int]]) -> list[CSC]:
        """Return in-edges of owned rows in pieces, with sources by other numbers; see :func:`.split`."""
        keys = self.shard.edge_ids[: len(sources)]
        return split(self.shard.indptr[: self.num_owned + 1], sources, keys, piece_of, ranges)

    def sources_in_rank_order(self) -> torch.Tensor:
        """Return each edge's source by its number among the owned rows of all ranks."""
        return self.shard.rank_order[self.shard.indices[: self.shard.edges[0]].long()]
