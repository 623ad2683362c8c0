"""What alpha-beta swap cuts (GLAD, arXiv 2210.17281) add to the local search on links.

    python benchmarks/swap_cuts.py [--graphs amazon_computer,tolokers,mesh] [--parts 4] [--floor 0.5]

The default profile with links of 200 Mbit/s, of which the one between ranks 0 and 1 has a tenth. Parts of one METIS cut
with the local search are mapped to ranks. From there, `search` is the search on links of `dgl-gt partition --profile`,
`cuts` are swap cuts, and `both` are swap cuts after the search.

A swap cut takes the nodes of two parts and divides them anew by a minimum cut (scipy's maximum flow). An edge between
the two costs the price of their link, and so does an edge from one of them to a third part; a node costs its rank's
computation, times a factor of that pair that is tried from 0 up so that parts may stay even. It is kept where the
predicted step falls, and parts keep half of their shares, as in the search (`--floor`). All pairs are tried until none
helps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace

import numpy as np
import scipy.sparse
from machine import processor
from msgspec.structs import replace as with_fields
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from selector import graph_of

from dgl_gt.partition import read_profile
from dgl_gt.partition.console import table
from dgl_gt.partition.cuts.attempts import best_assignment
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.cuts.local_search import refined_on_links
from dgl_gt.partition.cuts.permutation import count_assignment
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.figures.mapping import best_mapping
from dgl_gt.partition.graph import symmetrised

RATE, SLOW = 200 * 125_000, 0.1
FACTORS, SCALE, LIMIT_S = (0.0, 0.3, 1.0, 3.0), 1000, 240


class Layout:
    """A graph on ranks and links, and the predicted step of an assignment."""

    def __init__(self, graph, ranks: int, floor: float):
        self.graph, self.undirected, self.costs = graph, symmetrised(graph).astype(np.int32).tocsr(), default_costs()
        links = np.full((ranks, ranks), RATE, float)
        links[0, 1] = links[1, 0] = SLOW * RATE
        self.profile = with_fields(read_profile(), ranks=ranks, link_bytes_per_s=links.tolist())
        self.balance = make_balance(graph, ranks, costs=self.costs)
        self.floors = floor * np.outer(self.balance.shares, self.balance.weights.sum(axis=0))
        self.price = 2 * self.costs.of("edge").sent_bytes.sent / links * (1 - np.eye(ranks))

    def step_seconds(self, owner: np.ndarray) -> float:
        return self.costs.step_seconds(count_assignment(self.graph, owner, self.balance.shares), self.profile)

    def swapped(self, owner: np.ndarray, one: int, other: int, factor: float) -> np.ndarray:
        """The assignment after a minimum cut between two parts: what is left at the source goes to ``one``."""
        inside = np.flatnonzero((owner == one) | (owner == other))
        rows = self.undirected[inside]
        cost = np.zeros((len(inside), 2))  # of being in one, and in the other
        entry_row = np.repeat(np.arange(len(inside)), np.diff(rows.indptr))
        third = owner[rows.indices]
        is_outside = (third != one) & (third != other)
        for side, part in enumerate((one, other)):
            paid = self.price[part, third[is_outside]]
            cost[:, side] = np.bincount(entry_row[is_outside], paid, len(inside))
        step_s = self.costs.of("edge").compute_s.owned + self.costs.of("edge").compute_s.edges * 20
        loads = np.bincount(owner, minlength=len(self.price))
        cost += factor * step_s * np.array([loads[one], loads[other]]) / max(loads[one], loads[other])
        unit = SCALE / self.price[one, other]
        between = rows[:, inside].tocoo()
        source, sink = len(inside), len(inside) + 1
        nodes = np.arange(len(inside))
        to_sink, from_source = (np.minimum(np.rint(cost[:, side] * unit), 2**30).astype(np.int32) for side in (0, 1))
        heads = np.concatenate([between.row, np.full(len(inside), source), nodes])
        tails = np.concatenate([between.col, nodes, np.full(len(inside), sink)])
        capacity = np.concatenate([np.full(between.nnz, SCALE, np.int32), from_source, to_sink])
        size = (len(inside) + 2,) * 2
        capacities = scipy.sparse.csr_matrix((capacity, (heads, tails)), shape=size, dtype=np.int32)
        residual = capacities - maximum_flow(capacities, source, sink).flow
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, source, return_predecessors=False)
        found = owner.copy()
        found[inside] = other
        found[inside[reached[reached < len(inside)]]] = one
        return found

    def by_swap_cuts(self, owner: np.ndarray) -> tuple[np.ndarray, int]:
        """Keep swap cuts of all pairs that lower the predicted step, until none does or the time is over."""
        best_s, kept, started, has_helped = self.step_seconds(owner), 0, time.monotonic(), True
        while has_helped:
            has_helped = False
            for one, other in itertools.permutations(range(len(self.price)), 2):
                for factor in FACTORS:
                    if time.monotonic() - started > LIMIT_S:
                        return owner, kept
                    trial = self.swapped(owner, one, other, factor)
                    seconds = self.step_seconds(trial)
                    has_floor = (self.balance.loads(trial) >= self.floors).all()
                    if has_floor and seconds < best_s * (1 - 1e-9):
                        owner, best_s, kept, has_helped = trial, seconds, kept + 1, True
        return owner, kept


def cell(name: str, parts: int, floor: float) -> dict:
    graph = graph_of(name)
    layout = Layout(graph, parts, floor)
    owner = best_assignment(
        graph, parts, symmetrised(graph), layout.balance, 1, layout.step_seconds, 0, lambda *_: None
    )
    mapping = best_mapping(count_assignment(graph, owner, layout.balance.shares), layout.costs, layout.profile)
    ranks = np.array(mapping.rank_of_part, np.int32)
    owner = ranks[owner]
    balance = replace(layout.balance, shares=layout.balance.shares[np.argsort(ranks)])
    seconds = {"unmapped": mapping.unmapped_s, "mapped": mapping.mapped_s}
    spent, kept = {}, {}
    started = time.monotonic()
    searched, seconds["search"] = refined_on_links(
        graph, owner, balance, layout.costs, layout.profile, 0, lambda *_: None
    )
    spent["search"] = time.monotonic() - started
    for way, start in (("cuts", owner), ("both", searched)):
        started = time.monotonic()
        found, kept[way] = layout.by_swap_cuts(start)
        seconds[way], spent[way] = layout.step_seconds(found), time.monotonic() - started
    return {"graph": name, "parts": parts, "seconds": seconds, "spent": spent, "kept": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description="What alpha-beta swap cuts add to the local search on links.")
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=["amazon_computer", "tolokers", "mesh"])
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument(
        "--floor", type=float, default=0.5, help="least share of its even load that a cut leaves to a part"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cells = []
    for name in args.graphs:
        cells.append(cell(name, args.parts, args.floor))
        print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
    rows = [
        [
            each["graph"],
            *(f"{value:.3f}" for value in each["seconds"].values()),
            each["kept"]["cuts"],
            each["kept"]["both"],
        ]
        for each in cells
    ]
    header = [
        "graph",
        "unmapped (s)",
        "mapped (s)",
        "search (s)",
        "cuts (s)",
        "both (s)",
        "cuts kept",
        "kept after search",
    ]
    print(json.dumps(cells) if args.json else f"{processor()}\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
