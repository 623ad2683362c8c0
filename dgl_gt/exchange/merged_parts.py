"""Fewer ranks than parts: several parts of an edge cut that are neighbours in the order of parts, read as one part."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import torch

from dgl_gt.partition.figures.figures import bounds_of_ranks
from dgl_gt.partition.shards.files import ShardReader, verify
from dgl_gt.partition.shards.manifest import check_joined

from .shard import Reader


class MergedParts:
    """A :class:`.shard.Reader` of as many parts as there are bounds but one: part i has those from ``bounds[i]`` on.

    Rows and edges of a part are those of the parts in it, one after the other. Its halo are the rows of other parts that
    any of them needs, each once, in the order of parts. There is one hop.

    ``manifest`` describes the new parts once :meth:`describe` has had the counts of each; before, the old ones.
    """

    is_vertex_cut = False

    def __init__(self, reader: Reader, bounds: list[int]):
        self._reader, self._bounds, self.parts = reader, bounds, len(bounds) - 1
        self._ptr = [reader.manifest["ptr"][each] for each in bounds]
        self.manifest = reader.manifest

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

    @cached_property
    def _user_ids(self) -> torch.Tensor:
        """The user's id of each node, in the order of parts."""
        return torch.empty_like(self._places).index_copy_(0, self._places, torch.arange(len(self._places)))

    def _merged(self, part: int) -> dict[str, torch.Tensor]:
        if part not in self._made:
            self._made[part] = self._merge(part)
        return self._made[part]

    @cached_property
    def _made(self) -> dict[int, dict[str, torch.Tensor]]:
        return {}

    def _merge(self, part: int) -> dict[str, torch.Tensor]:
        inside = [self._reader.structure(each) for each in self._within(part)]
        first, last = self._ptr[part], self._ptr[part + 1]
        sources = torch.cat([self._places[each["node_ids"]][each["indices"].long()] for each in inside])
        is_remote = (sources < first) | (sources >= last)
        halo = sources[is_remote].unique()
        indices = torch.where(is_remote, last - first + torch.searchsorted(halo, sources), sources - first)
        degrees = torch.cat([each["indptr"].diff() for each in inside])
        sent = [self._needed_by(other, part, inside) for other in range(self.parts)]
        return {
            "indptr": torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]),
            "indices": indices.to(inside[0]["indices"].dtype),
            "edge_ids": torch.cat([each["edge_ids"] for each in inside]),
            "node_ids": torch.cat([self._user_ids[first:last], self._user_ids[halo]]),
            "send_rows": torch.cat(sent),
            "send_ptr": torch.tensor([0, *(len(each) for each in sent)]).cumsum(0),
            "recv_ptr": torch.searchsorted(halo, torch.tensor(self._ptr)),
        }

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
        of_parts = [
            self._reader.data(each, kind, *names, rows=self._reader.manifest["per_part"][each][count])
            for each in self._within(part)
        ]
        columns = {name: torch.cat([each[name] for each in of_parts]) for name in of_parts[0]}
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

    def counts(self, part: int) -> dict:
        """What the manifest says of a part, and the copies that it holds of rows of each."""
        arrays, (owned, held) = self._merged(part), self.rows(part)
        edges, sent = len(arrays["indices"]), len(arrays["send_rows"])
        inside = [self._reader.manifest["per_part"][each] for each in self._within(part)]
        return {
            "owned": owned,
            "halo": held - owned,
            "edges": edges,
            "cut_edges": int((arrays["indices"] >= owned).sum()),
            "near_edges": sum(each["near_edges"] for each in inside),
            "sent": sent,
            "halo_by_hop": [held - owned],
            "sent_by_hop": [sent],
            "edges_by_hop": [edges],
            "sent_edges_by_hop": [0],
            "bytes": sum(each["bytes"] for each in inside),
            "received": arrays["recv_ptr"].diff().tolist(),
        }

    def describe(self, counts: list[dict]) -> None:
        """Take the counts of all parts into ``manifest``."""
        old = self._reader.manifest

        def sums(values: list) -> list:
            return [sum(values[begin:end]) for begin, end in pairwise(self._bounds)]

        self.manifest = old | {
            "parts": self.parts,
            "ptr": self._ptr,
            "halo_depth": 1,
            "shares": sums(old["shares"]),
            "masked": {name: sums(values) for name, values in old["masked"].items()},
            "received_rows": [each["received"] for each in counts],
            "per_part": [{name: each[name] for name in each if name != "received"} for each in counts],
            "hosts": {},
        }


def merged_parts(directory, manifest: dict, ranks: int) -> MergedParts:
    """The parts of an edge cut as one part for each rank; see :func:`dgl_gt.partition.shards.manifest.check_joined`."""
    check_joined(directory, manifest, ranks)
    verify(directory, manifest)
    return MergedParts(ShardReader(directory, manifest, "pt"), bounds_of_ranks(manifest["parts"], ranks))
