"""What the report shows: counts from a shard directory, and the same counts of a random cut. Pure numpy.

Memory is two bit tables of N x K / 8 bytes, a few arrays of length N and one part's edges.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open

from partition.predict.quality import edge_cut_quality, vertex_cut_quality
from partition.shards.manifest import read_manifest

_WORD = 64  # parts a word of a bit table
BASELINE_SEED = 0


def figures(directory) -> dict:
    """Count everything that the report shows.

    Parameters
    ----------
    directory : path
        Shards, of either cut and any halo depth.

    Returns
    -------
    dict
        JSON values only; the same shards give the same values.

        ``source, seed, cut, halo_depth, parts, nodes, edges, quality, per_part, choice, versions, checksum`` are the
        manifest's (docs/format.md).

        ``shares`` is what each part was to take of the whole; equal unless the manifest says otherwise.

        ``random`` has the keys of ``quality`` for a random cut of the same kind, into as many parts, counted: of an
        edge cut the owner of each node is drawn by ``default_rng(0).choice(K, N, p=shares)``, in the order of the
        user's node ids. Of a vertex cut, the parts of the edges are drawn first, ``choice(K, edges, p=shares)`` for
        one shard after the other, in its order of edges; then ``integers(0, holders)`` for the nodes in the order of
        the user's ids, the master's place among the parts that hold the node (ascending), or of a node without edges
        the master among all.

        ``of_random`` is ``quality / random`` key by key, null where there is nothing to divide, or by.

        ``traffic``: ``rows``, K x K, the rows that part i (line) receives from part j (column) in one exchange,
        forward; they are the sum of ``copies`` (to halo or mirrors) and, in a vertex cut, ``results`` (back from
        mirrors with in-edges), else null. ``received`` are the sums over senders; ``busiest`` names the largest entry.

        ``replication``: ``held_once``, the nodes that one part alone holds; ``largest``, the most parts that hold a
        node; ``by_degree``, for degrees (in + out) of 0, 1, 2-3, 4-7 and so on: ``degrees`` [first, last], ``nodes``,
        and the ``mean`` and ``max`` of the parts that hold one. Empty bins are left out.

    Raises
    ------
    InputError
        No shards, or a damaged manifest.
    """
    manifest = read_manifest(directory)
    shards = _Shards(Path(directory), manifest)
    kept = ("source", "seed", "cut", "halo_depth", "parts", "nodes", "edges", "quality", "per_part")
    baseline = _random_vertex_cut(shards) if manifest["cut"] == "vertex" else _random_edge_cut(shards)
    random = baseline.as_dict()
    return {
        **{key: manifest[key] for key in kept},
        "shares": shards.shares,
        "random": random,
        "of_random": {key: _ratio(manifest["quality"].get(key), value) for key, value in random.items()},
        "traffic": _traffic(shards),
        "replication": _replication(shards),
        "choice": manifest.get("choice"),
        "versions": manifest["versions"],
        "checksum": manifest["checksum"],
    }


def _ratio(value: float | None, random: float | None) -> float | None:
    return value / random if random and value is not None else None


class _Shards:
    """Structure of the parts, read one at a time; ids are the user's."""

    def __init__(self, directory: Path, manifest: dict):
        self.directory, self.manifest = directory, manifest
        self.parts, self.nodes = manifest["parts"], manifest["nodes"]
        self.shares = manifest.get("shares") or [1 / self.parts] * self.parts
        self.owned = [part["owned"] for part in manifest["per_part"]]

    def arrays(self, *names, file: str = "structure"):
        """Those arrays of each part in turn."""
        for part in range(self.parts):
            with safe_open(self.directory / f"part{part}" / f"{file}.safetensors", framework="numpy") as tensors:
                yield [tensors.get_tensor(name) for name in names]

    def edges(self):
        """Sources and destinations of the edges that each part owns; every edge of the graph comes once."""
        for part, (indptr, indices, node_ids) in enumerate(self.arrays("indptr", "indices", "node_ids")):
            if self.manifest["cut"] == "edge":  # rows of the halo repeat edges that other parts own
                indptr = indptr[: self.owned[part] + 1]
            rows = np.repeat(node_ids[: len(indptr) - 1], np.diff(indptr))
            yield node_ids[indices[: indptr[-1]]], rows

    def training_nodes(self, owner: np.ndarray) -> np.ndarray | None:
        """How many training nodes each part has under another assignment, (K, splits)."""
        if "train_mask" not in self.manifest["node_data"]:
            return None
        counts = 0
        masks = self.arrays("train_mask", file="node_data")
        for owned, (node_ids,), (mask,) in zip(self.owned, self.arrays("node_ids"), masks):
            parts = owner[node_ids[:owned]]
            splits = [np.bincount(parts[split], minlength=self.parts) for split in np.atleast_2d(mask[:owned].T)]
            counts = counts + np.stack(splits, axis=1)
        return counts


def _traffic(shards: _Shards) -> dict:
    copies = np.array(shards.manifest["received_rows"], np.int64)
    rows, results = copies, None
    if shards.manifest["cut"] == "vertex":
        results = np.stack(
            [
                np.diff(np.concatenate([[0], np.cumsum(returns)])[send_ptr])
                for send_ptr, returns in shards.arrays("send_ptr", "send_returns")
            ]
        )
        rows = copies + results
    receiver, sender = (int(index) for index in np.unravel_index(rows.argmax(), rows.shape))
    return {
        "rows": rows.tolist(),
        "copies": copies.tolist(),
        "results": None if results is None else results.tolist(),
        "received": rows.sum(axis=1).tolist(),
        "busiest": {"receiver": receiver, "sender": sender, "rows": int(rows[receiver, sender])},
    }


def _replication(shards: _Shards) -> dict:
    holders, degree = np.zeros((2, shards.nodes), np.int64)
    for (node_ids,) in shards.arrays("node_ids"):
        holders[node_ids] += 1  # a part lists a node once
    for ends in shards.edges():
        for end in ends:
            degree += np.bincount(end, minlength=shards.nodes)
    power = np.frexp(degree)[1]  # 0 of 0, 1 of 1, 2 of 2 and 3, 3 of 4 to 7; degrees are far below 2**53
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
    """A node is held by its owner and, hop by hop, by whoever holds a destination of its edges."""
    owner = np.random.default_rng(BASELINE_SEED).choice(shards.parts, shards.nodes, p=shards.shares)
    table = _bit_table(shards)
    _mark(table, np.arange(shards.nodes), owner)
    edges, cut_edges = np.zeros(shards.parts, np.int64), 0
    for hop in range(shards.manifest["halo_depth"]):
        before = table.copy()  # what is added in this hop spreads in the next
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
    """A node is held by the parts of its edges, and by its master where it has none."""
    draw = np.random.default_rng(BASELINE_SEED)
    touched, entered = _bit_table(shards), _bit_table(shards)
    edges = np.zeros(shards.parts, np.int64)
    for src, dst in shards.edges():
        part = draw.choice(shards.parts, len(src), p=shards.shares)
        _mark(touched, src, part)
        _mark(entered, dst, part)
        edges += np.bincount(part, minlength=shards.parts)
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
    """Which parts hold each node, (N, ceil(K / 64)): bit p % 64 of word p // 64."""
    return np.zeros((shards.nodes, -(-shards.parts // _WORD)), np.uint64)


def _mark(table: np.ndarray, nodes: np.ndarray, parts: np.ndarray) -> None:
    bits = np.uint64(1) << (parts % _WORD).astype(np.uint64)
    np.bitwise_or.at(table.reshape(-1), nodes * table.shape[1] + parts // _WORD, bits)


def _holds(table: np.ndarray, part: int) -> np.ndarray:
    return table[:, part // _WORD] >> np.uint64(part % _WORD) & np.uint64(1) != 0
