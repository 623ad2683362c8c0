"""Fewer ranks than parts: several parts that are neighbours in the order of parts, read as one part of an edge cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch

from dgl_gt.partition.cuts.permutation import count_near
from dgl_gt.partition.shards.files import ShardReader, verify
from dgl_gt.partition.shards.manifest import check_joined

from .owners_of_edges import OwnedEdges, owned_edges
from .shard import Reader


class MergedParts:
    """A :class:`.shard.Reader` of as many parts as there are bounds but one: part i has those from ``bounds[i]`` on.

    Rows and edges of a part are those of the parts in it, one after the other. Its halo are the rows of other parts that
    any of them needs, each once, in the order of parts. There is one hop. Of a vertex cut, an edge is in the part that owns
    its destination.

    ``manifest`` describes the new parts once :meth:`describe` has had the counts of each; before, the old ones. Its
    ``pieces`` then describe the parts in them, as parts of an edge cut, and ``bounds`` tells which they are.
    """

    is_vertex_cut = False

    def __init__(self, reader: Reader, bounds: list[int]):
        self._reader, self._bounds, self.parts = reader, bounds, len(bounds) - 1
        self._ptr = [reader.manifest["ptr"][each] for each in bounds]
        self.manifest, self.was_vertex_cut = reader.manifest, reader.is_vertex_cut

    def _within(self, part: int) -> range:
        return range(self._bounds[part], self._bounds[part + 1])

    @cached_property
    def _places(self) -> torch.Tensor:
        """The place of each node in the order of parts, by the user's ids."""
        ptr = self._reader.manifest["ptr"]
        places = torch.empty(ptr[-1], dtype=torch.int64)
        for part, (begin, end) in enumerate(pairwise(ptr)):
            node_ids = self._reader.structure(part, "node_ids")["node_ids"]
            places[node_ids[: end - begin]] = torch.arange(begin, end)
        return places

    def _merged(self, part: int) -> dict[str, torch.Tensor]:
        if part not in self._made:
            self._made[part] = self._merge(part)
        return self._made[part]

    @cached_property
    def _made(self) -> dict[int, dict[str, torch.Tensor]]:
        return {}

    def _merge(self, part: int) -> dict[str, torch.Tensor]:
        first, last = self._ptr[part], self._ptr[part + 1]
        if self._reader.is_vertex_cut:
            edges = self._owned_edges(part)
            degrees, sources, sent = edges.degrees, edges.sources, edges.sent
            edge_ids = edges.of_edges(
                [self._reader.structure(each, "edge_ids")["edge_ids"] for each in range(self._reader.parts)]
            )
        else:
            inside = [self._reader.structure(each) for each in self._within(part)]
            degrees = torch.cat([each["indptr"].diff() for each in inside])
            sources = torch.cat([self._places[each["node_ids"]][each["indices"].long()] for each in inside])
            sent = [self._needed_by(other, part, inside) for other in range(self.parts)]
            edge_ids = torch.cat([each["edge_ids"] for each in inside])
        user_ids = torch.empty_like(self._places).index_copy_(0, self._places, torch.arange(len(self._places)))
        is_remote = (sources < first) | (sources >= last)
        halo = sources[is_remote].unique()
        indices = torch.where(is_remote, last - first + torch.searchsorted(halo, sources), sources - first)
        return {
            "indptr": torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]),
            "indices": indices.to(torch.int32 if len(self._places) < 2**31 else torch.int64),
            "edge_ids": edge_ids,
            "node_ids": user_ids[torch.cat([torch.arange(first, last), halo])],
            "send_rows": torch.cat(sent),
            "send_ptr": torch.tensor([0, *(len(each) for each in sent)]).cumsum(0),
            "recv_ptr": torch.searchsorted(halo, torch.tensor(self._ptr)),
        }

    def _owned_edges(
        self, part: int
    ) -> OwnedEdges:  # not kept: it is as large as the structure, and read twice at most
        return owned_edges(self._reader, self._places, self._ptr, part)

    def _needed_by(self, other: int, part: int, inside: list[dict]) -> torch.Tensor:
        """The rows of a part that another one holds copies of."""
        if other == part:
            return torch.empty(0, dtype=torch.int64)
        found, ptr = [], self._reader.manifest["ptr"]
        begin, end = self._bounds[other], self._bounds[other + 1]
        for each, structure in zip(self._within(part), inside):
            rows = structure["send_rows"][structure["send_ptr"][begin] : structure["send_ptr"][end]]
            found.append(ptr[each] - self._ptr[part] + rows.long())
        return torch.cat(found).unique()

    def ends(self, part: int) -> list[int]:
        """Return where the parts in a part begin among its rows, and the end of the last one."""
        ptr = self._reader.manifest["ptr"]
        return [ptr[each] - self._ptr[part] for each in (*self._within(part), self._bounds[part + 1])]

    def rows(self, part: int, depth: int = 1) -> list[int]:
        """Return the number of owned rows, and of held rows."""
        assert depth == 1
        return [self._ptr[part + 1] - self._ptr[part], len(self._merged(part)["node_ids"])]

    def structure(self, part: int, *names: str, depth: int = 1) -> dict[str, torch.Tensor]:
        """Return arrays of a part's structure (all, or those named)."""
        assert depth == 1
        arrays = self._merged(part)
        return {name: arrays[name] for name in names or arrays}

    def data(self, part: int, kind: str, *names: str, rows: int) -> dict[str, torch.Tensor]:
        """Return ``"node_data"`` or ``"edge_data"`` (all, or those named) of a part's owned or held nodes, or its edges."""
        is_of_nodes, count = kind == "node_data", "owned" if kind == "node_data" else "edges"
        has_all = self._reader.is_vertex_cut and not is_of_nodes and bool(names or self._reader.manifest[kind])
        of_parts = [
            self._reader.data(each, kind, *names, rows=self._reader.manifest["per_part"][each][count])
            for each in (range(self._reader.parts) if has_all else self._within(part))
        ]
        join = self._owned_edges(part).of_edges if has_all else torch.cat
        columns = {name: join([each[name] for each in of_parts]) for name in of_parts[0]}
        if is_of_nodes and rows > self.rows(part)[0]:
            copies = self._of_halo(part, tuple(columns))
            columns = {name: torch.cat([column, copies[name]]) for name, column in columns.items()}
        return columns

    def _of_halo(self, part: int, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Node data of the halo, read where they are owned."""
        owned = self.rows(part)[0]
        places, found = self._places[self._merged(part)["node_ids"][owned:]], []
        for other, (begin, end) in enumerate(pairwise(self._reader.manifest["ptr"])):
            chosen = places[(places >= begin) & (places < end)] - begin
            columns = self._reader.data(other, "node_data", *names, rows=end - begin)
            found.append({name: column[chosen] for name, column in columns.items()})
        return {name: torch.cat([each[name] for each in found]) for name in names}

    def links(self) -> dict[str, torch.Tensor]:
        """Return the links, as the shards hold them."""
        return self._reader.links()

    def counts(self, part: int) -> list[dict]:
        """What a manifest says of a part, and of each piece of a vertex cut in it; and the copies that each holds of rows of others."""
        arrays, (owned, held) = self._merged(part), self.rows(part)
        stored = [self._reader.manifest["per_part"][each] for each in self._within(part)]
        pieces = [self._counts_of_piece(part, each) for each in self._within(part)] if self.was_vertex_cut else []
        cut_edges = int((arrays["indices"] >= owned).sum())
        near_edges = sum(each["near_edges"] for each in pieces or stored)
        size = sum(each["bytes"] for each in stored)
        received = arrays["recv_ptr"].diff().tolist()
        return [_counts(owned, held - owned, len(arrays["indices"]), cut_edges, near_edges, size, received), *pieces]

    def _counts_of_piece(self, part: int, piece: int) -> dict:
        """The same of a piece, as a part of an edge cut."""
        arrays, manifest, first = self._merged(part), self._reader.manifest, self._ptr[part]
        begin, end = manifest["ptr"][piece : piece + 2]
        indptr = arrays["indptr"][begin - first : end - first + 1]
        sources = self._places[arrays["node_ids"]][arrays["indices"][indptr[0] : indptr[-1]].long()]
        is_cut = (sources < begin) | (sources >= end)
        halo = sources[is_cut].unique()
        rows = torch.arange(end - begin).repeat_interleave(indptr.diff())
        indices = torch.where(is_cut, end - begin + torch.searchsorted(halo, sources), sources - begin)
        received = torch.searchsorted(halo, torch.tensor(manifest["ptr"])).diff().tolist()
        near_edges, size = count_near(rows.numpy(), indices.numpy()), manifest["per_part"][piece]["bytes"]
        return _counts(end - begin, len(halo), len(rows), int(is_cut.sum()), near_edges, size, received)

    def describe(self, counts: list[list[dict]]) -> None:
        """Take the counts of all parts into ``manifest``."""
        pieces = self._reader.manifest
        if self.was_vertex_cut:
            pieces = self._described(list(range(self._reader.parts + 1)), [each for _, *of in counts for each in of])
        joined = self._described(self._bounds, [each for each, *_ in counts])
        self.manifest = joined | {"pieces": pieces, "bounds": self._bounds}

    def _described(self, bounds: list[int], counts: list[dict]) -> dict:
        """The manifest of parts that have the old ones between ``bounds``."""
        old = self._reader.manifest
        received = np.array([each["received"] for each in counts])
        sent = received.sum(axis=0).tolist()

        def sums(values: list) -> list:
            return [sum(values[begin:end]) for begin, end in pairwise(bounds)]

        return old | {
            "cut": "edge",
            "parts": len(counts),
            "ptr": [old["ptr"][each] for each in bounds],
            "halo_depth": 1,
            "shares": sums(old["shares"]),
            "masked": {name: sums(values) for name, values in old["masked"].items()},
            "received_rows": received.tolist(),
            "per_part": [
                {name: each[name] for name in each if name != "received"} | {"sent": rows, "sent_by_hop": [rows]}
                for each, rows in zip(counts, sent)
            ],
            "hosts": {},
        }


def _counts(
    owned: int, halo: int, edges: int, cut_edges: int, near_edges: int, size_bytes: int, received: list[int]
) -> dict:
    return {
        "owned": owned,
        "halo": halo,
        "edges": edges,
        "cut_edges": cut_edges,
        "near_edges": near_edges,
        "halo_by_hop": [halo],
        "edges_by_hop": [edges],
        "sent_edges_by_hop": [0],
        "bytes": size_bytes,
        "received": received,
    }


def merged_parts(directory, manifest: dict, parts_per_rank: Sequence[int]) -> MergedParts:
    """The parts of shards as one part for each rank; see :func:`dgl_gt.partition.shards.manifest.check_joined`."""
    check_joined(directory, manifest, len(parts_per_rank))
    verify(directory, manifest)
    return MergedParts(ShardReader(directory, manifest, "pt"), [0, *accumulate(parts_per_rank)])
