"""Edge-cut shards with several hops of halo, recounted by sets, and what reads them."""

import dataclasses

import numpy as np
import pytest
from hand_made_costs import hand_made_costs
from safetensors.numpy import load_file

from dgl_gt.partition import partition, read_manifest, verify
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges

DATA = ("structure", "node_data", "edge_data")


def sparse_graph(seed, nodes=70, edges=110):
    """Directed, few edges a node, so that rings differ; isolated nodes, self-loops, parallel edges, a far chain."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes - 10, (2, edges))
    src[:6], dst[:6] = src[6:12], dst[6:12]
    dst[12:16] = src[12:16]
    chain = nodes - 8 + np.arange(5)  # a path into node 0
    src, dst = np.append(src, chain), np.append(dst, np.append(chain[1:], 0))
    shuffled = rng.permutation(len(src))
    node_data = {
        "feat": rng.standard_normal((nodes, 3)).astype(np.float32),
        "label": rng.integers(0, 4, nodes),
        "train_mask": np.arange(nodes) % 4 == 0,
    }
    edge_data = {"weight": rng.standard_normal((len(src), 2)), "kind": rng.integers(0, 9, len(src))}
    return from_edges(src[shuffled], dst[shuffled], nodes, node_data, edge_data, name=f"sparse-{seed}")


def owners(graph, parts, seed=0, empty=None):
    owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
    if empty is not None and parts > 1:
        owner[owner == empty] = (empty + 1) % parts
    return owner


def edge_list(graph):
    ends = np.empty((2, graph.num_edges), np.int64)
    ends[:, graph.edge_ids] = graph.indices, graph.destinations()
    return ends


def rings_of(src, dst, owned, depth):
    """Breadth first against the edges: the set of each hop."""
    held, frontier, rings = set(owned), set(owned), []
    for _ in range(depth):
        frontier = {s for s, d in zip(src, dst) if d in frontier} - held
        held |= frontier
        rings.append(frontier)
    return rings


def read(directory, parts):
    return [[load_file(directory / f"part{part}" / f"{name}.safetensors") for name in DATA] for part in range(parts)]


def new_ids(directory, manifest):
    """New id of every node of the user's, from the owned rows of the parts in turn."""
    order = []
    for (structure, *_), counts in zip(read(directory, manifest["parts"]), manifest["per_part"]):
        order += structure["node_ids"][: counts["owned"]].tolist()
    assert sorted(order) == list(range(manifest["nodes"]))
    return {node: new for new, node in enumerate(order)}


CASES = [(1, 1, None), (1, 3, None), (2, 1, None), (2, 2, None), (3, 2, 1), (3, 3, None), (4, 3, 0), (2, 40, None)]


@pytest.mark.parametrize("parts, depth, empty", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_part_against_sets(tmp_path, seed, parts, depth, empty):
    graph = sparse_graph(seed)
    src, dst = (ends.tolist() for ends in edge_list(graph))
    owner, out = owners(graph, parts, seed, empty), tmp_path / "out"
    manifest = partition(graph, parts, out, owner=owner, halo_depth=depth)
    verify(out, read_manifest(out))
    assert manifest["halo_depth"] == depth and manifest["cut"] == "edge"
    new = new_ids(out, manifest)
    into = [[edge for edge in range(graph.num_edges) if dst[edge] == node] for node in range(graph.num_nodes)]
    shards = read(out, parts)
    halos = []
    for part, (structure, node_data, edge_data) in enumerate(shards):
        owned = set(np.flatnonzero(owner == part).tolist())
        rings = rings_of(src, dst, owned, depth)
        held = [*sorted(owned, key=new.get), *(node for ring in rings for node in sorted(ring, key=new.get))]
        assert structure["node_ids"].tolist() == held
        assert manifest["ptr"][part : part + 2] == [min(map(new.get, owned), default=manifest["ptr"][part])] + [
            manifest["ptr"][part] + len(owned)
        ]

        computed = held[: len(owned) + sum(map(len, rings[:-1]))]  # rows that have all their in-edges here
        edges = [edge for node in computed for edge in into[node]]
        assert structure["edge_ids"].tolist() == edges
        assert structure["indptr"].tolist() == np.cumsum([0, *(len(into[node]) for node in computed)]).tolist()
        row = {node: i for i, node in enumerate(held)}
        assert structure["indices"].tolist() == [row[src[edge]] for edge in edges]

        by_owner = [[sum(owner[node] == peer for node in ring) for peer in range(parts)] for ring in rings]
        assert structure["recv_ptr"].tolist() == np.cumsum([0, *sum(by_owner, [])]).tolist()
        halos.append(rings)

        assert set(node_data) == set(graph.node_data) and set(edge_data) == set(graph.edge_data)
        for stored, whole, ids in ((node_data, graph.node_data, held), (edge_data, graph.edge_data, edges)):
            for key, value in whole.items():
                assert stored[key].dtype == value.dtype and (stored[key] == value[ids]).all()

        counts = manifest["per_part"][part]
        ends = np.cumsum([0, len(owned), *map(len, rings)])
        edges_by_hop = [sum(len(into[node]) for node in held[ends[hop] : ends[hop + 1]]) for hop in range(depth)]
        assert counts["owned"] == len(owned) and counts["halo"] == sum(map(len, rings))
        assert counts["halo_by_hop"] == [len(ring) for ring in rings]
        assert counts["edges_by_hop"] == edges_by_hop and counts["edges"] == edges_by_hop[0]
        assert manifest["received_rows"][part] == np.sum(by_owner, axis=0).tolist()

    for part, (structure, *_) in enumerate(shards):
        assert len(structure["send_ptr"]) == len(structure["recv_ptr"]) == depth * parts + 1
        sent = [
            [
                sum(owner[node] == part for peer, rings in enumerate(halos) if peer != part for node in rings[hop])
                for hop in range(depth)
            ]
        ]
        assert manifest["per_part"][part]["sent_by_hop"] == sent[0]
        assert manifest["per_part"][part]["sent"] == sum(sent[0])
        copied = [
            sum(len(into[node]) for rings in halos for node in rings[hop] if owner[node] == part)
            for hop in range(depth - 1)
        ]
        assert manifest["per_part"][part]["sent_edges_by_hop"] == [0, *copied]
    halo = sum(len(ring) for rings in halos for ring in rings)
    assert manifest["quality"]["halo"] == manifest["quality"]["volume"] == halo
    cut_edges = sum(owner[s] != owner[d] for s, d in zip(src, dst))
    assert manifest["quality"]["cut_ratio"] == pytest.approx(cut_edges / graph.num_edges)
    assert manifest["quality"]["replication_factor"] == pytest.approx(1 + halo / graph.num_nodes)
    held = [sum(map(len, rings)) + (owner == part).sum() for part, rings in enumerate(halos)]
    assert manifest["quality"]["max_copies_factor"] == pytest.approx(max(held) * parts / graph.num_nodes)


@pytest.mark.parametrize("parts, depth, empty", CASES)
def test_what_one_part_sends_is_what_the_other_receives_hop_by_hop(tmp_path, parts, depth, empty):
    graph = sparse_graph(2)
    manifest = partition(graph, parts, tmp_path / "out", owner=owners(graph, parts, 2, empty), halo_depth=depth)
    structures = [structure for structure, *_ in read(tmp_path / "out", parts)]
    for i, sender in enumerate(structures):
        assert (sender["send_rows"] < manifest["per_part"][i]["owned"]).all()
        for j, receiver in enumerate(structures):
            copies = receiver["node_ids"][manifest["per_part"][j]["owned"] :]
            for hop in range(depth):
                there, here = hop * parts + j, hop * parts + i
                sent = sender["node_ids"][sender["send_rows"][slice(*sender["send_ptr"][there : there + 2])]]
                assert sent.tolist() == copies[slice(*receiver["recv_ptr"][here : here + 2])].tolist()
                assert i != j or not len(sent)


def test_a_cycle_by_hand(tmp_path):
    """0 <- 1 <- 2 <- ... <- 5 <- 0, in three parts of two."""
    graph = from_edges((np.arange(6) + 1) % 6, np.arange(6), 6)
    owner = np.arange(6) // 2
    for depth in (1, 2, 3, 4, 6):
        manifest = partition(graph, 3, tmp_path / str(depth), owner=owner, halo_depth=depth)
        hops = ([1] * min(depth, 4) + [0] * depth)[:depth]
        for counts in manifest["per_part"]:
            assert counts["halo_by_hop"] == counts["sent_by_hop"] == hops
            assert counts["edges_by_hop"] == [2, *hops[:-1]] and counts["sent_edges_by_hop"] == [0, *hops[:-1]]
    structure = load_file(tmp_path / "3" / "part0" / "structure.safetensors")
    assert structure["node_ids"][2:].tolist() == [2, 3, 4]
    assert structure["indptr"].tolist() == [0, 1, 2, 3, 4]
    assert structure["recv_ptr"].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert structure["send_ptr"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]  # to part 2; again, its second hop; to 1


def test_no_edges_at_all(tmp_path):
    none = np.zeros(0, int)
    manifest = partition(from_edges(none, none, 5), 3, tmp_path / "out", owner=[0, 0, 2, 2, 2], halo_depth=3)
    for structure, *_ in read(tmp_path / "out", 3):
        assert len(structure["indices"]) == len(structure["edge_ids"]) == structure["indptr"][-1] == 0
    assert manifest["quality"]["halo"] == 0


def test_metis_parts_and_the_same_seed(tmp_path):
    graph = sparse_graph(3)
    first, second = (partition(graph, 3, tmp_path / name, seed=4, halo_depth=2, attempts=2) for name in "ab")
    assert first == second
    shallow = partition(graph, 3, tmp_path / "c", seed=4, attempts=2)
    assert shallow["ptr"] == first["ptr"], "the depth changes no owner"


# ---- who reads them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts, depth, empty", [(1, 2, None), (2, 2, None), (3, 3, 1), (2, 40, None)])
def test_a_shard_is_that_of_one_hop(tmp_path, parts, depth, empty):
    from dataclasses import fields

    torch = pytest.importorskip("torch")

    from dgl_gt.exchange.shard import read_shard
    from dgl_gt.structure import CSC

    def assert_same(one, other):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other)
        elif isinstance(one, dict):
            assert set(one) == set(other)
            for key in one:
                assert_same(one[key], other[key])
        elif isinstance(one, CSC):
            for name in ("indptr", "indices", "edge_ids", "global_edge_ids", "num_src", "num_dst", "num_edges"):
                assert_same(getattr(one, name), getattr(other, name))
        else:
            assert one == other

    graph = sparse_graph(4)
    for hops in (1, depth):
        partition(graph, parts, tmp_path / str(hops), owner=owners(graph, parts, 4, empty), halo_depth=hops)
    for part in range(parts):
        shallow, deep = (read_shard(tmp_path / str(hops), part) for hops in (1, depth))
        for field in fields(shallow):
            if field.name != "reader":
                assert_same(getattr(shallow, field.name), getattr(deep, field.name))


def pulled(rank, directory):
    """What a rank holds after an exchange, and the gradients that came home."""
    import dgl_gt

    sg = dgl_gt.load(directory)
    x = sg.ndata["feat"].double().requires_grad_()
    held = sg.pull(x)
    (held * (rank + 1)).sum().backward()
    return held.detach().numpy(), x.grad.numpy(), sg.comm.received_bytes, repr(sg)


def test_two_ranks_exchange_one_hop_of_a_deeper_halo(tmp_path):
    pytest.importorskip("torch")
    from ranks import run_ranks

    graph = sparse_graph(5)
    results = []
    for hops in (1, 3):
        partition(graph, 2, tmp_path / str(hops), owner=owners(graph, 2, 5), halo_depth=hops)
        results.append(run_ranks(2, pulled, tmp_path / str(hops)))
    for one, other in zip(*results):
        assert (one[0] == other[0]).all() and (one[1] == other[1]).all() and one[2:] == other[2:]


def test_an_export_to_dgl_is_that_of_one_hop(tmp_path):
    dgl = pytest.importorskip("dgl")
    from dgl_gt.partition.shards.dgl_export import export_dgl
    from dgl_gt.partition.shards.dgl_import import import_dgl

    graph = sparse_graph(6)
    for hops in (1, 2):
        partition(graph, 3, tmp_path / str(hops), owner=owners(graph, 3, 6), halo_depth=hops)
        export_dgl(tmp_path / str(hops), tmp_path / f"dgl-{hops}", graph_name="g")
    one, other = tmp_path / "dgl-1", tmp_path / "dgl-2"
    names = [sorted(file.relative_to(folder) for file in folder.rglob("*.*")) for folder in (one, other)]
    assert names[0] == names[1] and len(names[0]) == 1 + 3 * 4
    for name in names[0]:
        if name.name != "graph.dgl":  # DGL writes the same graph in different bytes
            assert (one / name).read_bytes() == (other / name).read_bytes(), name
            continue
        shallow, deep = (dgl.load_graphs(str(folder / name))[0][0] for folder in (one, other))
        for ours, theirs in zip(shallow.edges(order="eid"), deep.edges(order="eid")):
            assert ours.tolist() == theirs.tolist()
        for columns, same in ((shallow.ndata, deep.ndata), (shallow.edata, deep.edata)):
            assert set(columns) == set(same)
            assert all(value.tolist() == same[key].tolist() for key, value in columns.items())
    back = import_dgl(other / "g.json", tmp_path / "back")
    assert back["files"] == read_manifest(tmp_path / "1")["files"] and back["halo_depth"] == 1


def test_inspect_takes_deeper_halos(tmp_path, capsys):
    from dgl_gt.cli.main import main

    graph = sparse_graph(7)
    np.savez(tmp_path / "g.npz", edge_index=edge_list(graph), num_nodes=graph.num_nodes)
    base = ["partition", str(tmp_path / "g.npz"), "--parts", "2", "--out", str(tmp_path / "out")]
    assert main([*base, "--halo-depth", "2"]) == 0
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.count("edge cut, halo depth 2") == 2
    assert main([*base, "--halo-depth", "0", "--force"]) == 2
    assert "--halo-depth is 0; it must be a whole number from 1 to 100" in capsys.readouterr().err
    assert read_manifest(tmp_path / "out")["halo_depth"] == 2


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"halo_depth": 0}, "halo_depth is 0"),
        ({"halo_depth": -1}, "halo_depth is -1"),
        ({"halo_depth": 1.5}, "halo_depth is 1.5"),
        ({"halo_depth": "2"}, "halo_depth is '2'"),
        ({"halo_depth": None}, "halo_depth is None"),
        ({"halo_depth": 2, "cut": "vertex"}, r"halo_depth \(--halo-depth\) applies only to edge cuts"),
        ({"halo_depth": 2, "cut": "auto"}, r"halo_depth \(--halo-depth\) applies only to edge cuts"),
        ({"halo_depth": 0, "cut": "vertex"}, "halo_depth is 0"),
    ],
)
def test_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        partition(sparse_graph(0), 2, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_vertex_cut_of_depth_one_is_as_ever(tmp_path):
    manifest = partition(sparse_graph(0), 2, tmp_path / "out", cut="vertex", halo_depth=1)
    assert manifest["halo_depth"] == 0


def test_a_rank_must_have_memory_for_what_it_stores(tmp_path):
    """The bound counts the edges of inner rings, too, as they lie in the shard."""
    from dgl_gt.partition.cuts.edge_cut import make_edge_cut
    from dgl_gt.partition.shards.layout import Layout

    graph = sparse_graph(1)
    wide = from_edges(*edge_list(graph), graph.num_nodes, None, {"wide": np.zeros((graph.num_edges, 1000))})
    cut, costs = make_edge_cut(wide, 2, owner=owners(wide, 2, 1)), hand_made_costs()
    figures = Layout(wide, cut, 2).figures
    disk = figures.edges_by_hop.sum(axis=1) * 8000
    bare = dataclasses.replace(figures, edge_data={})
    assert costs.rank_memory_bytes(figures).tolist() == (costs.rank_memory_bytes(bare) + disk).tolist()
    needed = int(costs.rank_memory_bytes(figures).max())
    options = {"owner": owners(wide, 2, 1), "halo_depth": 2, "costs": costs}
    manifest = partition(wide, 2, tmp_path / "fits", **options, rank_memory=needed)
    assert max(part["bytes"] for part in manifest["per_part"]) < needed
    with pytest.raises(InputError, match="the edge cut does not fit ranks"):
        partition(wide, 2, tmp_path / "too-much", **options, rank_memory=needed - 1)
