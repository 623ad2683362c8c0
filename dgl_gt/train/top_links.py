"""The best links of every node among all nodes, in pieces: memory does not grow with the number of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dgl_gt.exchange.route import EdgeSet
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.shards.counts import user_node_count

_CANDIDATES = 4096  # destinations at a time
_PAIRS = 2**16  # that are scored at a time


def top_links(
    graph: ShardedGraph,
    own: Tensor,
    score: Callable[[Tensor, Tensor, Tensor], Tensor],
    top: int,
    ranges: tuple[range, range] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The best destinations of each owned node, other than itself and those to which it has an edge; every rank calls it.

    Parameters
    ----------
    graph : ShardedGraph
    own : Tensor, (N_owned, C)
        The rows of the owned nodes.
    score : callable
        ``score(rows, source, destination)`` returns the scores, (n,), of pairs of rows.
    top : int
        Most links of a node.
    ranges : pair of range, optional
        The user's numbers of the nodes that links can have as source, and as destination; by default all.

    Returns
    -------
    source, destination : Tensor, int64, (n,)
        The user's numbers of nodes, by source in the order of owned rows, and by falling score.
    score : Tensor, (n,)
    """
    sources, destinations = ranges or (range(user_node_count(graph.manifest)),) * 2
    best = own.new_full((len(own), top), -torch.inf)
    found = torch.zeros(len(own), top, dtype=torch.int64, device=own.device)
    each = max(1, _PAIRS // _CANDIDATES)
    first = graph.manifest["ptr"][graph.comm.rank]
    for candidates, numbers, begin, (source, destination) in _pieces(graph, own):
        by_number = numbers.argsort()  # equal scores are in the order of the user's numbers
        candidates, numbers, place = candidates[by_number], numbers[by_number], by_number.argsort()
        order = source.argsort()
        source, destination = source[order] - first, place[destination[order] - begin]
        for start in range(0, len(own), each):
            some = slice(start, start + each)
            rows = torch.cat([own[some], candidates])
            count = len(rows) - len(candidates)
            low, high = torch.searchsorted(source, source.new_tensor([start, start + count])).tolist()
            is_left_out = (numbers < destinations.start) | (numbers >= destinations.stop)
            is_left_out = is_left_out | (graph.node_ids[some, None] == numbers)
            is_left_out[source[low:high] - start, destination[low:high]] = True
            src = torch.arange(count, device=own.device).repeat_interleave(len(candidates))
            dst = torch.arange(count, len(rows), device=own.device).repeat(count)
            scores = score(rows, src, dst).view(count, -1).to(best.dtype).masked_fill(is_left_out, -torch.inf)
            scores, column = (each[:, :top] for each in scores.sort(dim=1, descending=True, stable=True))
            merged, known = torch.cat([best[some], scores], 1), torch.cat([found[some], numbers[column]], 1)
            known, column = known.sort(1)
            merged, column = merged.gather(1, column).sort(dim=1, descending=True, stable=True)
            best[some], found[some] = merged[:, :top], known.gather(1, column)[:, :top]
    is_source = (graph.node_ids >= sources.start) & (graph.node_ids < sources.stop)
    is_link = (best > -torch.inf) & is_source[:, None]
    return graph.node_ids[:, None].expand_as(found)[is_link], found[is_link], best[is_link]


def _pieces(graph: ShardedGraph, own: Tensor) -> Iterator[tuple[Tensor, Tensor, int, tuple[Tensor, Tensor]]]:
    """Some rows of all ranks after another: the rows, the user's numbers, the first place, and the edges to them by places."""
    comm, ptr, edges = graph.comm, graph.manifest["ptr"], EdgeSet(graph)
    for owner, (low, high) in enumerate(zip(ptr, ptr[1:])):
        is_mine = owner == comm.rank
        for begin in range(low, high, _CANDIDATES):
            end = min(begin + _CANDIDATES, high)
            rows = own[begin - low : end - low] if is_mine else own.new_zeros(end - begin, own.shape[1])
            ids = graph.node_ids[begin - low : end - low] if is_mine else graph.node_ids.new_zeros(end - begin)
            pairs = torch.stack(edges.to(begin, end)) if is_mine else ids.new_zeros(2, 0)
            count = int(comm.all_reduce(torch.tensor([pairs.shape[1]]))[0])
            pairs = pairs if is_mine else ids.new_zeros(2, count)
            rows, ids, pairs = (comm.all_reduce(each) for each in (rows, ids, pairs))  # zeros but on one rank
            yield rows, ids, begin, (pairs[0], pairs[1])
