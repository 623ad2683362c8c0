"""What a ShardedGraph shares with a DGLGraph: counts, degrees, edges, devices, and a hint for the rest."""

import warnings

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import partition

CUTS = ("edge", "alone", "vertex")


def described(rank, directory):
    """Of each cut what its ShardedGraph says, by the user's ids; and of the edge cut what its block and graph say."""
    found = {}
    for cut in CUTS:
        sg = dgl_gt.load(directory / cut)
        assert sg.comm.sent_bytes == 0, "what load exchanges does not count"
        assert sg.num_nodes() == len(sg.ndata["feat"]) == len(sg.nodes()) and sg.num_edges() == len(sg.edata["weight"])
        held_ids = sg.pull(sg.node_ids[:, None].double())[:, 0].long()
        ends = [held_ids[rows].numpy() for rows in sg.edges()]
        found[cut] = sg.node_ids.numpy(), sg.in_degrees().numpy(), sg.out_degrees().numpy(), sg.edge_ids.numpy(), *ends
    sg = dgl_gt.load(directory / "edge")
    for ends in zip(sg.edges(), sg.block.edges(), sg.graph.edges()):
        assert all(torch.equal(ends[0], each) for each in ends[1:])
    found["block"] = [graph.out_degrees().numpy() for graph in (sg.block, sg.block.local_var(), sg.block.cpu())]
    with sg.block.local_scope():
        found["block"].append(sg.block["_E"].out_degrees().numpy())
    assert sg.block.int().out_degrees().dtype == torch.int32 and sg.block.out_degrees(0) == found["block"][0][0]
    assert torch.equal(sg.graph.in_degrees(), sg.in_degrees()) and torch.equal(sg.graph.out_degrees(), sg.out_degrees())
    found["held"] = sg.pull(sg.node_ids[:, None].double())[:, 0].long().numpy()
    return found


def verified(rank, folder):
    """Parts whose files a rank with strategy heads reads to verify them, in order, until it has attended."""
    from dgl_gt.exchange import load, shard

    parts, verify = [], shard.verify

    def note(directory, manifest, wanted):
        parts.extend(wanted)
        verify(directory, manifest, wanted)

    shard.verify = load.verify = note
    sg = dgl_gt.load(folder, "heads")
    dgl_gt.nn.GraphTransformer(5, 8, 3, layers=1, heads=2)(sg, sg.ndata["feat"])
    return parts


def test_heads_verifies_each_part_once(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    assert run_ranks(2, verified, tmp_path / "shards") == [[0, 1], [1, 0]]


@pytest.mark.needs_dgl
def test_degrees_and_edges_are_those_of_the_whole_graph(awkward_graph, tmp_path):
    """Also of halo rows; with isolated nodes, hubs, and a rank that owns nothing."""
    graph = awkward_graph(5)
    partition(graph, 2, tmp_path / "edge", owner=np.arange(graph.num_nodes) % 2)
    partition(graph, 2, tmp_path / "alone", owner=np.zeros(graph.num_nodes, int))
    partition(graph, 2, tmp_path / "vertex", cut="vertex")
    out_degrees = np.bincount(graph.indices, minlength=graph.num_nodes)
    ends = dict(zip(graph.edge_ids.tolist(), zip(graph.indices.tolist(), graph.destinations().tolist())))
    results = run_ranks(2, described, tmp_path)
    for cut in CUTS:
        assert sum(len(result[cut][0]) for result in results) == graph.num_nodes
        assert sum(len(result[cut][3]) for result in results) == graph.num_edges
    for result in results:
        for cut in CUTS:
            ids, found_in, found_out, edge_ids, src, dst = result[cut]
            np.testing.assert_array_equal(found_in, graph.in_degrees()[ids])
            np.testing.assert_array_equal(found_out, out_degrees[ids])
            assert [ends[edge] for edge in edge_ids.tolist()] == list(zip(src.tolist(), dst.tolist()))
        for found in result["block"]:
            np.testing.assert_array_equal(found, out_degrees[result["held"]])


@pytest.fixture
def alone(awkward_graph, tmp_path):
    """A ShardedGraph of one part, in this process."""
    partition(awkward_graph(1), 1, tmp_path / "shards")
    return dgl_gt.load(tmp_path / "shards")


def test_to_moves_everything(alone):
    assert alone.to("cpu") is alone
    moved = alone.to("meta")
    assert moved.device.type == moved.ndata["feat"].device.type == moved.in_degrees().device.type == "meta"
    assert moved.view.shard.node_ids.device.type == "meta" and alone.device.type == "cpu"


def moved_alone(rank, directory):
    """Rank 0 alone moves its part to another device and back; then both run a model."""
    found = []
    for strategy in ("gather", "ring"):
        sg = dgl_gt.load(directory, strategy)
        before = sg.comm.sent_bytes
        if rank == 0:
            sg.to("meta")
        assert sg.comm.sent_bytes == before == 0
        with torch.no_grad():
            torch.manual_seed(0)
            model = dgl_gt.nn.GraphTransformer(5, 8, 3, layers=1, heads=2)
            found.append(sg.gather(model(sg, sg.ndata["feat"])).numpy())
    return found


def test_a_rank_moves_its_part_without_the_others(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    for gathered, ring in run_ranks(2, moved_alone, tmp_path / "shards"):
        np.testing.assert_allclose(gathered, ring, atol=1e-5)


@pytest.mark.needs_dgl
def test_a_dgl_layer_given_the_sharded_graph_names_the_way(alone):
    import dgl.nn

    feat = alone.ndata["feat"]
    hgt = dgl.nn.HGTConv(5, 1, 5, 1, 1)
    for layer, more in ((dgl.nn.GraphConv(5, 2), ()), (dgl.nn.SGConv(5, 2), ()), (hgt, (0, 0))):
        with pytest.raises(AttributeError, match=r"use conv\(sg\.block, sg\.pull\(h\)\)"):
            layer(alone, feat, *more)


def test_names_of_pyg_lead_to_ours(alone):
    assert torch.equal(alone.edge_index, torch.stack(alone.edges()))
    with pytest.raises(AttributeError, match=r"'edge_attr'.*sg\.ndata, sg\.edata and sg\.edges\(\)"):
        alone.edge_attr


def test_what_a_part_cannot_answer_is_refused(alone):
    import dgl

    for graph in (alone.block, alone.graph):
        for change in (dgl.add_self_loop, dgl.remove_self_loop, lambda g: g.add_edges([0], [1])):
            with pytest.raises(NotImplementedError, match="partition it again"):
                change(graph)
        with pytest.raises((NotImplementedError, dgl.DGLError), match="(?i)revers"):
            dgl.reverse(graph)
        with pytest.raises(NotImplementedError, match="sg.comm.all_reduce_sum"):
            graph.batch_num_nodes()
    with pytest.raises(NotImplementedError, match="sg.comm.all_reduce_sum"):
        dgl.mean_nodes(alone.graph, "h")
    with pytest.raises(NotImplementedError, match="update_all and apply_edges"):
        alone.graph.push([0], None, None)


@pytest.mark.needs_dgl
def test_a_field_that_update_all_made_can_be_read_at_sources(alone):
    """As on a DGLGraph: two hops without setting the field again, by a built-in function and by one of the user's."""
    import dgl
    import dgl.function as fn

    whole = dgl.graph(alone.edges(), num_nodes=alone.num_nodes())
    for message in (fn.copy_u("h", "m"), lambda edges: {"m": edges.src["h"] + edges.dst["h"]}):
        results = []
        for graph in (whole, alone.graph):
            graph.ndata["h"] = alone.ndata["feat"]
            for _ in range(2):
                graph.update_all(message, fn.sum("m", "h"))
            results.append(graph.ndata.pop("h"))
        torch.testing.assert_close(*results)


def under_ddp(rank, directory):
    sg = dgl_gt.load(directory)
    model = dgl_gt.nn.GraphTransformer(5, 8, 3, layers=2, heads=2)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(sg, sg.ndata["feat"])
        without = len(caught)
        for _ in range(3):
            wrapped(sg, sg.ndata["feat"]).sum().backward()
        return without, [str(each.message) for each in caught]


def test_distributed_data_parallel_warns_once(awkward_graph, tmp_path):
    partition(awkward_graph(2), 2, tmp_path / "shards")
    for without, caught in run_ranks(2, under_ddp, tmp_path / "shards"):
        assert without == 0
        (said,) = [text for text in caught if "ShardedGraph" in text]
        assert "sg.comm.sum_gradients(model.parameters())" in said
