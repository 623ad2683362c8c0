"""Writes the report of a shard directory: one page that needs nothing else, and its numbers as JSON beside it.

Counting needs memory for two bit tables of N x P / 8 bytes, a few arrays of length N and one part's edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dgl_gt.partition.figures.by_type import count_by_type
from dgl_gt.partition.figures.figures import MEANINGS, edge_cut_quality, vertex_cut_quality
from dgl_gt.partition.shards.counts import describe_transforms, read_figures, read_schema
from dgl_gt.partition.shards.files import ShardReader, verify
from dgl_gt.partition.shards.manifest import MANIFEST, read_manifest
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.units import format_bytes

from . import pages

_SIZES = ("layers", "hidden", "heads", "features", "classes")  # of a model; a user's own may be known by other names
_COMPARED = ("volume", "replication_factor", "max_copies_factor", "node_balance", "edge_balance")


def write_report(directory, out, *, force: bool = False) -> dict:
    """Write the report of a shard directory: a page, and its numbers.

    Parameters
    ----------
    directory : path
        Shards. Their checksums are verified first.
    out : path
        The page, ``NAME.html``. Its numbers are written beside it as ``NAME.json``.
    force : bool
        Whether to replace these files where they exist.

    Returns
    -------
    dict
        The numbers; docs/cli.md lists their keys.

    Raises
    ------
    InputError
        The shards are missing or damaged; or ``out`` does not end in .html, exists or cannot be written.
    """
    targets = pages.check_targets(out, located(directory) / MANIFEST, force=force)
    numbers, text = make_report(directory)
    pages.write_both(targets, text, numbers, force=force)
    return numbers


def make_report(directory) -> tuple[dict, str]:
    """The numbers of a shard directory, whose checksums are verified first, and their page."""
    manifest = read_manifest(directory)
    verify(directory, manifest)
    numbers = count_shards(directory, manifest)
    return numbers, page(numbers)


def page(numbers: dict) -> str:
    """Return the page as HTML; the same numbers, from :func:`count_shards`, give the same text."""
    per_part, copies = numbers["per_part"], "halo" if numbers["cut"] == "edge" else "mirrors"
    columns = [
        _column(numbers, key, kind)
        for key, kind in (("owned", ""), (copies, "orange"), ("edges", ""), ("bytes", "grey"))
    ]
    candidates = _candidates(numbers)
    return (
        pages.make_environment()
        .get_template("page.html.j2")
        .render(
            numbers,
            added=describe_transforms(numbers["transforms"]),
            meanings=MEANINGS,
            quality_keys=[key for key in MEANINGS if numbers["quality"].get(key) is not None],
            copies_name="halo rows" if copies == "halo" else "mirrors",
            rows=np.array(numbers["traffic"]["rows"], np.int64),
            held=[part["owned"] + part[copies] for part in per_part],
            work=[part["edges"] for part in per_part],
            part_lines=list(zip(*columns)),
            widest=max(len(text) for column in columns for text, _ in column),
            is_crowded=numbers["parts"] > pages.MAX_NUMBERED_PARTS,
            candidates=candidates,
            assumed=_assumed(numbers["choice"]["model"]) if candidates else {},
            comparison=_comparison(candidates),
            bar=pages.bar,
            dots=pages.dots,
            heat_map=pages.HeatMap.of,
        )
    )


def _column(numbers: dict, key: str, kind: str) -> list[tuple]:
    """Return the text and the bar of a count of each part; the bar's mark is what the part's share of the sum is."""
    counts = [part[key] for part in numbers["per_part"]]
    targets = [share * sum(counts) for share in numbers["shares"]]
    most = max(*counts, *targets, 1)
    texts = [format_bytes(count) if key == "bytes" else f"{count:,}" for count in counts]
    return [(text, pages.bar(count / most, kind, target / most)) for text, count, target in zip(texts, counts, targets)]


def _candidates(numbers: dict) -> list[dict]:
    """Return the cuts that ``--cut auto`` chose from; none where only one cut was made."""
    found = numbers["choice"]["candidates"] if numbers["choice"] else []
    return found if len(found) > 1 else []


def _assumed(model: dict) -> dict:
    """Return the settings that say the size of a model, or all where it has none of these."""
    return {key: model[key] for key in _SIZES if key in model} or model


def _comparison(candidates: list[dict]) -> list[tuple]:
    """Return for each figure its name, its meaning, and for each cut: a text, a bar, and whether it is the better one."""
    lines = [("Step", "predicted seconds", [pages.seconds(each["predicted_seconds"]) for each in candidates])]
    for key in _COMPARED:
        lines.append((*MEANINGS[key], [pages.figure(each["quality"][key], key) for each in candidates]))
    found = []
    for name, meaning, texts in lines if candidates else ():
        shown = [float(text.replace(",", "")) for text in texts]  # of two that read the same, neither is better
        better = [number == min(shown) < max(shown) for number in shown]
        bars = [pages.bar(number / max(*shown, 1e-9), "" if each else "grey") for number, each in zip(shown, better)]
        found.append((name, meaning, list(zip(texts, bars, better))))
    return found


# ---- counts of a shard directory, and of a random cut ----

_WORD_BITS = 64  # parts per word of a bit table
_SEED = 0  # of the random cut


def count_shards(directory, manifest: dict) -> dict:
    """Count everything that the report shows: JSON values, whose keys docs/cli.md lists. The same shards give the same.

    ``random`` is the quality of a random cut of the same kind into as many parts. For an edge cut,
    ``default_rng(0).choice(P, N, p=shares)`` draws the owners of the nodes, in the order of the user's ids. For a vertex
    cut, ``choice(P, edges, p=shares)`` draws the parts of the edges, shard by shard and in a shard's order of edges.
    Then ``integers(0, holders)`` draws the masters of the nodes, in the order of the user's ids: the master's place
    among the parts that hold the node, ascending, or among all parts for a node without edges.
    """
    shards = _Shards(directory, manifest)
    kept = ("source", "seed", "cut", "halo_depth", "parts", "nodes", "edges", "quality", "per_part", "shares")
    random = _random_vertex_cut(shards) if shards.reader.is_vertex_cut else _random_edge_cut(shards)
    return {
        **{key: manifest[key] for key in kept},
        "random": random,
        "of_random": {key: _ratio(manifest["quality"].get(key), value) for key, value in random.items()},
        "traffic": _traffic(shards),
        "replication": _replication(shards),
        "types": count_by_type(read_figures(manifest)),
        **{key: manifest[key] for key in ("choice", "transforms", "versions", "checksum")},
    }


def _ratio(value: float | None, random: float | None) -> float | None:
    return value / random if random and value is not None else None


class _Shards:
    """The structure of all parts, in the user's ids, read one part at a time."""

    def __init__(self, directory: Path, manifest: dict):
        self.manifest, self.reader = manifest, ShardReader(directory, manifest)
        self.parts, self.nodes, self.shares = manifest["parts"], manifest["nodes"], manifest["shares"]
        self.schema = read_schema(manifest)

    def held_nodes(self) -> Iterator[np.ndarray]:
        """Yield the ids of each part's held nodes."""
        for part in range(self.parts):
            yield self.reader.structure(part, "node_ids", depth=self.manifest["halo_depth"])["node_ids"]

    def edges(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield sources and destinations of each part's own edges; every edge of the graph comes once."""
        for part in range(self.parts):
            # At depth 1 the rows of the halo have no edges: those are other parts' own.
            arrays = self.reader.structure(part, "indptr", "indices", "node_ids")
            node_ids, indptr = arrays["node_ids"], arrays["indptr"]
            yield node_ids[arrays["indices"]], np.repeat(node_ids[: len(indptr) - 1], np.diff(indptr))

    def training_nodes(self, owner: np.ndarray) -> np.ndarray | None:
        """Count the training nodes that each part has under another assignment, (P, splits)."""
        names = [name for name in self.manifest["node_data"] if name.rpartition("/")[2] == "train_mask"]
        if not names:
            return None
        counts = [np.zeros((), np.int64) for _ in names]
        for part, node_ids in enumerate(self.held_nodes()):
            owned = self.reader.rows(part)[0]
            for number, name in enumerate(names):
                mask, of_type = self.reader.data(part, "node_data", name, rows=owned)[name], node_ids[:owned]
                if self.schema is not None:
                    ids = self.schema.rows_of("node", name)
                    of_type = of_type[(of_type >= ids.start) & (of_type < ids.stop)]
                parts = owner[of_type]
                splits = [np.bincount(parts[split], minlength=self.parts) for split in np.atleast_2d(mask.T)]
                counts[number] = counts[number] + np.stack(splits, axis=1)
        same = len({each.shape for each in counts}) == 1
        return np.sum(counts, axis=0) if same else np.concatenate(counts, axis=1)


def _traffic(shards: _Shards) -> dict:
    copies = np.array(shards.manifest["received_rows"], np.int64)
    rows, results = copies, None
    if shards.reader.is_vertex_cut:
        results = np.stack([_results(shards, part) for part in range(shards.parts)])
        rows = copies + results
    receiver, sender = (int(index) for index in np.unravel_index(rows.argmax(), rows.shape))
    return {
        "rows": rows.tolist(),
        "copies": copies.tolist(),
        "results": None if results is None else results.tolist(),
        "received": rows.sum(axis=1).tolist(),
        "busiest": {"receiver": receiver, "sender": sender, "rows": int(rows[receiver, sender])},
    }


def _results(shards: _Shards, part: int) -> np.ndarray:
    """Return how many results a part's masters receive from each other part's mirrors, (P,)."""
    arrays = shards.reader.structure(part, "send_ptr", "send_returns")
    return np.diff(np.concatenate([[0], np.cumsum(arrays["send_returns"])])[arrays["send_ptr"]])


def _replication(shards: _Shards) -> dict:
    holders, degree = np.zeros((2, shards.nodes), np.int64)
    for node_ids in shards.held_nodes():
        holders[node_ids] += 1  # a part lists a node once
    for ends in shards.edges():
        for end in ends:
            degree += np.bincount(end, minlength=shards.nodes)
    power = np.frexp(degree)[1]  # the number of bits of a degree; degrees are far below 2**53
    nodes, held = np.bincount(power), np.bincount(power, holders)
    largest = np.zeros(len(nodes), np.int64)
    np.maximum.at(largest, power, holders)
    return {
        "held_once": int(np.count_nonzero(holders == 1)),
        "largest": int(holders.max()),
        "by_degree": [
            {
                "degrees": [2**p // 2, max(2**p - 1, 0)],
                "nodes": int(nodes[p]),
                "mean": float(held[p] / nodes[p]),
                "max": int(largest[p]),
            }
            for p in np.flatnonzero(nodes).tolist()
        ],
    }


# ---- the random cut --------------------------------------------------------------------------------------------------


def _random_edge_cut(shards: _Shards):
    """Count a random edge cut.

    A node is held by its owner and, hop by hop, by every part that holds a destination of its edges.
    """
    owner = np.random.default_rng(_SEED).choice(shards.parts, shards.nodes, p=shards.shares)
    table = _bit_table(shards)
    _mark(table, np.arange(shards.nodes), owner)
    edges, cut_edges = np.zeros(shards.parts, np.int64), 0
    for hop in range(shards.manifest["halo_depth"]):
        before = table.copy()  # copies of this hop spread only in the next
        for src, dst in shards.edges():
            for word in range(table.shape[1]):
                np.bitwise_or.at(table[:, word], src, before[dst, word])
            if hop == 0:
                edges += np.bincount(owner[dst], minlength=shards.parts)
                cut_edges += np.count_nonzero(owner[src] != owner[dst])
    owned = np.bincount(owner, minlength=shards.parts)
    held = [np.count_nonzero(_holds(table, part)) for part in range(shards.parts)]
    return edge_cut_quality(
        owned=owned,
        halo=held - owned,
        edges=edges,
        cut_edges=cut_edges,
        shares=shards.shares,
        train=shards.training_nodes(owner),
    )


def _random_vertex_cut(shards: _Shards):
    """Count a random vertex cut: a node is held by the parts of its edges, or by its master where it has none."""
    draw = np.random.default_rng(_SEED)
    touched, entered = _bit_table(shards), _bit_table(shards)
    edges = np.zeros(shards.parts, np.int64)
    for src, dst in shards.edges():
        parts = draw.choice(shards.parts, len(src), p=shards.shares)
        _mark(touched, src, parts)
        _mark(entered, dst, parts)
        edges += np.bincount(parts, minlength=shards.parts)
    touched |= entered
    holders = sum(_holds(touched, part).astype(np.int64) for part in range(shards.parts))
    place = draw.integers(0, np.where(holders, holders, shards.parts))
    master, passed = np.where(holders, -1, place), np.zeros(shards.nodes, np.int64)
    for part in range(shards.parts):
        holds = _holds(touched, part)
        master[holds & (passed == place)] = part
        passed += holds
    owned = np.bincount(master, minlength=shards.parts)
    mirrors, returned = (
        [np.count_nonzero(_holds(table, part) & (master != part)) for part in range(shards.parts)]
        for table in (touched, entered)
    )
    return vertex_cut_quality(
        owned=owned,
        mirrors=mirrors,
        returned=returned,
        edges=edges,
        shares=shards.shares,
        train=shards.training_nodes(master),
    )


def _bit_table(shards: _Shards) -> np.ndarray:
    """Return an empty table of the parts that hold each node, (N, ceil(P / 64)): bit p % 64 of word p // 64."""
    return np.zeros((shards.nodes, -(-shards.parts // _WORD_BITS)), np.uint64)


def _mark(table: np.ndarray, nodes: np.ndarray, parts: np.ndarray) -> None:
    bits = np.uint64(1) << (parts % _WORD_BITS).astype(np.uint64)
    np.bitwise_or.at(table.reshape(-1), nodes * table.shape[1] + parts // _WORD_BITS, bits)


def _holds(table: np.ndarray, part: int) -> np.ndarray:
    return table[:, part // _WORD_BITS] >> np.uint64(part % _WORD_BITS) & np.uint64(1) != 0
