"""``heads``: nodes are split outside attention, and heads inside; an all-to-all before attention and one after it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import torch

from dgl_gt.ops.attention import attend_rows
from dgl_gt.partition.errors import InputError
from dgl_gt.structure import CSC

from .base import ShardStrategy


class Heads(ShardStrategy):
    """Every rank computes attention over all edges for H / P of the heads.

    The method is that of DeepSpeed-Ulysses (Jacobs et al., arXiv 2309.14509), and on graphs of TorchGT (Zhang et al.,
    arXiv 2407.14106). A rank receives about 4C N / P^2 numbers from each other rank, whatever the cut; a bias adds
    E H / P numbers in all. Every rank holds the structure of all parts. There is nothing to compute while rows travel.
    """

    name = "heads"

    def attend(self, h, project, *, bias=None, dropout=None, negative_slope=None) -> torch.Tensor:
        """See :meth:`dgl_gt.exchange.protocol.Strategy.attend`."""
        h = self.check_inputs(h, bias)
        qkv = project(h, "qkv")
        ranks, num_heads = self.comm.world_size, qkv.shape[-2]
        _check_heads(num_heads, ranks)
        qkv = self._spread(qkv, self.counts)
        if bias is not None:
            bias = self._spread(
                self.comm.agree_on_grad(bias), [part["edges"] for part in self.shard.manifest["per_part"]]
            )
        structure = self._structure(self.comm.rank * (num_heads // ranks))
        out = attend_rows(structure, qkv, bias=bias, dropout=dropout, negative_slope=negative_slope)
        send_counts, recv_counts = self.counts, [self.num_owned] * ranks
        mine = self.comm.exchange(out, send_counts, recv_counts)
        return mine.view(ranks, self.num_owned, *mine.shape[1:]).transpose(0, 1).flatten(1, 2)

    def _spread(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Exchange this rank's rows of all heads, (n_i, ..., H[, D]), for all ranks' rows of this rank's heads."""
        ranks, axis = self.comm.world_size, max(1, rows.dim() - 2)
        shares = torch.cat(rows.chunk(ranks, axis))
        return self.comm.exchange(shares, [len(rows)] * ranks, counts)

    @torch.inference_mode(False)
    def _structure(self, head_offset: int) -> CSC:
        if self._whole.head_offset != head_offset:
            self._whole = replace(self._whole, head_offset=head_offset)
        return self._whole

    @cached_property
    @torch.inference_mode(False)
    def _whole(self) -> CSC:
        """In-edges of all rows, in rank order, from the structure of every part."""
        manifest = self.shard.manifest
        with torch.device("cpu"):  # whatever torch's default device is
            names = ("indptr", "indices", "node_ids", "edge_ids")
            parts = [self.shard.reader.structure(part, *names) for part in range(manifest["parts"])]
            rank_order = parts[0]["indices"].new_empty(manifest["nodes"])
            for part, (begin, end) in zip(parts, pairwise(self.ptr)):
                rank_order[part["node_ids"][: end - begin]] = torch.arange(begin, end, dtype=rank_order.dtype)
            degrees = torch.cat([part["indptr"].diff() for part in parts])
            whole = CSC.build(
                torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]),
                torch.cat([rank_order[part["node_ids"]][part["indices"].long()] for part in parts]),
                manifest["nodes"],
                global_edge_ids=torch.cat([part["edge_ids"] for part in parts]),
            )
        return whole.to(self.shard.node_ids.device)


def _check_heads(heads: int, ranks: int) -> None:
    """Raise :class:`InputError` unless ranks can share attention heads evenly."""
    if heads % ranks:
        raise InputError(
            f"heads is {heads}, which {ranks} ranks cannot share evenly; choose a multiple of {ranks}, or the "
            "strategy halo"
        )
