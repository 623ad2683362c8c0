"""The figures of a report, recounted with networkx from the user's edges and the part of each node or edge."""

import json
import re
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.report.write import count_shards, write_report


def networkx_graph(graph):
    """Return the user's edges with their ids as keys, and the nodes with the splits in which they train."""
    nxg = nx.MultiDiGraph()
    nxg.add_nodes_from(range(graph.num_nodes))
    for node, splits in enumerate(graph.node_data.get("train_mask", ())):
        nxg.nodes[node]["train"] = np.atleast_1d(splits).tolist()
    for src, dst, edge in zip(graph.indices.tolist(), graph.destinations().tolist(), graph.edge_ids.tolist()):
        nxg.add_edge(src, dst, key=edge)
    return nxg


def recount_edge_cut(nxg, owner, parts, depth=1, shares=None):
    """Recount what the parts hold and send; ``owner`` has the part of each node, and a halo is what ``depth`` hops reach."""
    backwards, held = nxg.reverse(), []
    for part in range(parts):
        mine = {node for node in nxg if owner[node] == part}
        held.append(set(nx.multi_source_dijkstra_path_length(backwards, mine, cutoff=depth)) if mine else set())
    copies = [[sum(owner[node] == j for node in held[i]) * (i != j) for j in range(parts)] for i in range(parts)]
    edges = [sum(owner[dst] == part for _, dst in nxg.edges()) for part in range(parts)]
    owned = [sum(owner[node] == part for node in nxg) for part in range(parts)]
    return {
        "held": held,
        "copies": copies,
        "results": None,
        "rows": copies,
        "per_part": {"owned": owned, "halo": list(map(sum, copies)), "edges": edges},
        "quality": {
            "cut_ratio": sum(owner[s] != owner[d] for s, d in nxg.edges()) / max(nxg.size(), 1),
            "halo": sum(map(sum, copies)),
            **recount_shares(nxg, owner, held, copies, edges, shares or [1 / parts] * parts),
        },
    }


def recount_vertex_cut(nxg, edge_part, master, parts):
    """Recount a vertex cut from the part of each edge id and the master of each node."""
    held = [{node for node in nxg if master[node] == part} for part in range(parts)]
    into = [set() for _ in range(parts)]
    for src, dst, edge in nxg.edges(keys=True):
        held[edge_part[edge]] |= {src, dst}
        into[edge_part[edge]].add(dst)
    copies = [[sum(master[node] == j for node in held[i]) * (i != j) for j in range(parts)] for i in range(parts)]
    results = [[sum(master[node] == i for node in into[j]) * (i != j) for j in range(parts)] for i in range(parts)]
    edges = [list(edge_part).count(part) for part in range(parts)]
    owned = [sum(master[node] == part for node in nxg) for part in range(parts)]
    rows = (np.array(copies) + results).tolist()
    return {
        "held": held,
        "copies": copies,
        "results": results,
        "rows": rows,
        "per_part": {"owned": owned, "mirrors": list(map(sum, copies)), "edges": edges},
        "quality": {
            "mirrors": sum(map(sum, copies)),
            **recount_shares(nxg, master, held, rows, edges, [1 / parts] * parts),
        },
    }


def recount_shares(nxg, owner, held, rows, edges, shares):
    def balance(counts):
        loads = [count / (share * sum(counts)) for count, share in zip(counts, shares) if sum(counts)]
        return pytest.approx(max(loads, default=1))

    def nodes(chosen):
        return [sum(owner[node] == part for node in chosen) for part in range(len(shares))]

    splits = len(nxg.nodes[0].get("train", []))
    training = [[node for node in nxg if nxg.nodes[node]["train"][split]] for split in range(splits)]
    return {
        "volume": sum(map(sum, rows)),
        "replication_factor": pytest.approx(sum(map(len, held)) / len(nxg)),
        "max_copies_factor": pytest.approx(max(map(len, held)) * len(shares) / len(nxg)),
        "node_balance": balance(nodes(nxg)),
        "edge_balance": balance(edges),
        "train_balance": max((balance(nodes(each)) for each in training), key=lambda b: b.expected, default=None),
    }


def recount_replication(nxg, held):
    holders = {node: sum(node in each for each in held) for node in nxg}
    bins = {}
    for node, degree in nxg.degree():
        bins.setdefault(len(bin(degree)) - 2 if degree else 0, []).append(holders[node])
    return {
        "held_once": list(holders.values()).count(1),
        "largest": max(holders.values()),
        "by_degree": [
            {
                "degrees": [2 ** (bits - 1), 2**bits - 1] if bits else [0, 0],
                "nodes": len(bins[bits]),
                "mean": pytest.approx(sum(bins[bits]) / len(bins[bits])),
                "max": max(bins[bits]),
            }
            for bits in sorted(bins)
        ],
    }


def assert_equal_figures(found, nxg, counted, random):
    """Compare ``found`` with the counts of the cut and of the random cut."""
    assert (found["nodes"], found["edges"]) == (len(nxg), nxg.size())
    assert found["quality"] == counted["quality"]
    assert found["random"] == random["quality"]
    for key, value in found["random"].items():
        expected = pytest.approx(found["quality"][key] / value) if value else None
        assert found["of_random"][key] == expected, key
    for key, column in counted["per_part"].items():
        assert [part[key] for part in found["per_part"]] == column
    traffic, rows = found["traffic"], np.array(counted["rows"])
    assert {key: traffic[key] for key in ("rows", "copies", "results")} == {
        key: counted[key] for key in ("rows", "copies", "results")
    }
    assert traffic["received"] == [sum(line) for line in counted["rows"]]
    busiest = traffic["busiest"]
    assert busiest["rows"] == rows.max() == rows[busiest["receiver"], busiest["sender"]]
    assert found["replication"] == recount_replication(nxg, counted["held"])
    assert json.loads(json.dumps(found)) == found


def structures(directory, parts):
    return [load_file(directory / f"part{part}" / "structure.safetensors") for part in range(parts)]


def random_owner(graph, parts, shares=None):
    return np.random.default_rng(0).choice(parts, graph.num_nodes, p=shares or [1 / parts] * parts)


def random_vertex_cut(nxg, shards, parts):
    """Draw the random cut as documented: the parts of the edges shard by shard, then the place of each master."""
    draw = np.random.default_rng(0)
    edge_part = np.full(nxg.size(), -1)
    for shard in shards:
        edge_part[shard["edge_ids"]] = draw.choice(parts, len(shard["edge_ids"]), p=[1 / parts] * parts)
    holders = [set() for _ in nxg]
    for src, dst, edge in nxg.edges(keys=True):
        holders[src].add(edge_part[edge])
        holders[dst].add(edge_part[edge])
    choices = [sorted(each) or list(range(parts)) for each in holders]
    places = draw.integers(0, [len(each) for each in choices])
    return edge_part, [each[place] for each, place in zip(choices, places)]


def awkward_owner(graph, parts, seed):
    owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
    owner[owner == 1] = 0  # part 1 is empty
    return owner


def several_splits(graph):
    """Return the same graph with three splits, so that masks are (N, 3)."""
    splits = np.random.default_rng(0).integers(0, 3, (graph.num_nodes, 3))
    masks = {f"{name}_mask": splits == which for which, name in enumerate(("train", "val", "test"))}
    return replace(graph, node_data={**graph.node_data, **masks})


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 55])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_figure_of_an_edge_cut(awkward_graph, tmp_path, parts, seed):
    graph = several_splits(awkward_graph(seed)) if seed else awkward_graph(seed)
    owner = awkward_owner(graph, parts, seed) if parts > 1 else np.zeros(graph.num_nodes, int)
    partition(graph, parts, tmp_path / "out", owner=owner)
    nxg = networkx_graph(graph)
    random = recount_edge_cut(nxg, random_owner(graph, parts), parts)
    assert_equal_figures(
        count_shards(tmp_path / "out", read_manifest(tmp_path / "out")),
        nxg,
        recount_edge_cut(nxg, owner, parts),
        random,
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 55])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_figure_of_a_vertex_cut(awkward_graph, tmp_path, parts, seed):
    graph = several_splits(awkward_graph(seed)) if seed else awkward_graph(seed)
    manifest = partition(graph, parts, tmp_path / "out", cut="vertex")
    nxg, shards = networkx_graph(graph), structures(tmp_path / "out", parts)
    edge_part, master = np.full(graph.num_edges, -1), np.full(graph.num_nodes, -1)
    for part, shard in enumerate(shards):
        edge_part[shard["edge_ids"]] = part
        master[shard["node_ids"][: manifest["per_part"][part]["owned"]]] = part
    random = recount_vertex_cut(nxg, *random_vertex_cut(nxg, shards, parts), parts)
    assert_equal_figures(
        count_shards(tmp_path / "out", read_manifest(tmp_path / "out")),
        nxg,
        recount_vertex_cut(nxg, edge_part.tolist(), master.tolist(), parts),
        random,
    )


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_more_parts_than_bits_in_a_word(awkward_graph, tmp_path, cut):
    graph, parts = awkward_graph(5, nodes=150, edges=400), 130
    nxg = networkx_graph(graph)
    owner = awkward_owner(graph, parts, 0) if cut == "edge" else None
    partition(graph, parts, tmp_path / "out", cut=cut, owner=owner)
    if cut == "edge":
        random = recount_edge_cut(nxg, random_owner(graph, parts), parts)
    else:
        random = recount_vertex_cut(nxg, *random_vertex_cut(nxg, structures(tmp_path / "out", parts), parts), parts)
    assert count_shards(tmp_path / "out", read_manifest(tmp_path / "out"))["random"] == random["quality"]


@pytest.mark.parametrize("cut", ["edge", "vertex"])
@pytest.mark.parametrize("edges", [0, 1])
def test_graphs_with_hardly_an_edge(tmp_path, cut, edges):
    graph = from_edges(np.zeros(edges, int), np.ones(edges, int), 6)
    partition(graph, 3, tmp_path / "out", cut=cut)
    found = write_report(tmp_path / "out", tmp_path / "report.html")
    assert sum(each["nodes"] for each in found["replication"]["by_degree"]) == 6
    assert [each["degrees"] for each in found["replication"]["by_degree"]] == [[0, 0], [1, 1]][: edges + 1]
    assert edges or found["random"]["volume"] == 0 and found["of_random"]["volume"] is None


# ---- halo depth 2 ----------------------------------------------------------------------------------------------------


def write_deep_shards(graph, owner, parts, depth, directory, shares=None):
    """Write shards with a halo of several hops; return their figures recounted from sets."""
    graph = replace(graph, node_data={})
    partition(graph, parts, directory, owner=owner, halo_depth=depth, target_weights=shares)
    nxg = networkx_graph(graph)
    return nxg, recount_edge_cut(nxg, owner, parts, depth, shares)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_figure_of_a_deeper_halo(awkward_graph, tmp_path, parts, depth):
    """The random cut has the same depth. The edges of halo rows are other parts' own, and are counted once."""
    graph = awkward_graph(parts, edges=120)
    owner = np.random.default_rng(1).integers(0, parts, graph.num_nodes).tolist()
    nxg, counted = write_deep_shards(graph, owner, parts, depth, tmp_path / "out")
    random = recount_edge_cut(nxg, random_owner(graph, parts), parts, depth)
    assert_equal_figures(write_report(tmp_path / "out", tmp_path / "report.html"), nxg, counted, random)
    text = (tmp_path / "report.html").read_text()
    assert (f"halo depth {depth}" in text) == (f"every {depth} layers" in text) == (depth > 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_parts_that_were_to_take_unequal_shares(awkward_graph, tmp_path, depth):
    """The random cut has the same shares, and the mark in a bar is the part's own share."""
    graph, shares = awkward_graph(7), [0.5, 0.3, 0.2]
    owner = np.random.default_rng(2).choice(3, graph.num_nodes, p=shares).tolist()
    nxg, counted = write_deep_shards(graph, owner, 3, depth, tmp_path / "out", shares)
    random = recount_edge_cut(nxg, random_owner(graph, 3, shares), 3, depth, shares)
    found = write_report(tmp_path / "out", tmp_path / "report.html")
    assert_equal_figures(found, nxg, counted, random)
    most = max(*counted["per_part"]["owned"], *(share * graph.num_nodes for share in shares))
    marks = re.findall(
        r'<line x1="([\d.]+)%" x2="\1%" y2="100%"/></svg><span class="number">', (tmp_path / "report.html").read_text()
    )
    assert marks[:12:4] == [f"{100 * share * graph.num_nodes / most:.1f}" for share in shares]
