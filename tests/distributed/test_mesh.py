"""Heads within a host and halo between hosts, against one process."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from test_strategies import HEADS, HIDDEN, LAYERS, compare, make_shards, run_model
from whole_graph import csc_of

import dgl_gt
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition.errors import InputError


def on_mesh(rank, folder, shapes, feat, bias):
    found = []
    for per_host, overlap, mode in shapes:
        sg = dgl_gt.load(folder / "edge", f"mesh={per_host}", overlap=overlap)
        own_bias = None if bias is None else bias[sg.edge_ids]
        out, feat_grad, bias_grad, parameters = run_model(
            sg, feat[sg.node_ids], own_bias, torch.float64, activation_checkpoint=mode
        )
        edges, rows = torch.cat(sg.comm.gather_rows(sg.edge_ids)), torch.cat(sg.comm.gather_rows(bias_grad))
        bias_grad = torch.empty_like(rows).index_copy_(0, edges, rows).numpy()
        found.append((*(sg.gather(x).numpy() for x in (out, feat_grad)), bias_grad, parameters))
    return found


@pytest.mark.parametrize(("parts", "shapes"), [(1, [1]), (2, [1, 2]), (3, [1, 3]), (4, [1, 2, 4])])
@pytest.mark.parametrize("with_an_empty_part", [False, True])
def test_equal_to_one_process(awkward_graph, tmp_path, parts, shapes, with_an_empty_part):
    graph = awkward_graph(parts)
    owner = np.random.default_rng(parts).integers(0, max(parts - 1, 1), graph.num_nodes)
    make_shards(graph, parts, tmp_path, owner if with_an_empty_part else None)
    feat = torch.randn(graph.num_nodes, 5, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(graph.num_edges, HEADS, generator=torch.Generator().manual_seed(2))
    expected = run_model(csc_of(graph), feat, bias, torch.float64)
    cases = [(shape, overlap, "none") for shape in shapes for overlap in (True, False)]
    cases += [(shapes[-1], True, "full"), (shapes[-1], True, "keep_exchanges")]
    for rank, results in enumerate(run_ranks(parts, on_mesh, tmp_path, cases, feat, bias)):
        for case, found in zip(cases, results, strict=True):
            compare(expected, found, torch.float64, f"{parts} ranks, rank {rank}, {case}:")


def expected_bytes(graph, owner, parts, per_host, layers, row_bytes):
    """What each rank sends in a step, forward and backward: within hosts as ``heads``, between them the host's halo once."""
    host, dst = owner // per_host, np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    owned, hosts = np.bincount(owner, minlength=parts), parts // per_host
    pairs = np.unique(np.stack([host[dst], graph.indices])[:, host[dst] != host[graph.indices]], axis=1)
    needed = np.bincount(pairs[0], minlength=hosts), np.bincount(host[pairs[1]], minlength=hosts)  # received, sent
    rank_host = np.arange(parts) // per_host
    others = np.bincount(rank_host, owned, hosts)[rank_host] - owned
    within = 4 * (owned * (per_host - 1) + others)  # Q, K, V and results, both ways
    return layers * row_bytes // per_host * (within + 2 * (needed[0] + needed[1])[rank_host])


def bytes_on_mesh(rank, folder, shapes):
    found = []
    for per_host in shapes:
        sg = dgl_gt.load(folder / "edge", f"mesh={per_host}")
        run_model(sg, sg.ndata["feat"], None, torch.float64)
        found.append((sg.comm.sent_bytes, sg.comm.received_bytes))
    return found


def test_bytes(awkward_graph, tmp_path):
    graph = awkward_graph(4)
    owner = np.random.default_rng(4).integers(0, 4, graph.num_nodes)
    make_shards(graph, 4, tmp_path, owner)
    results = run_ranks(4, bytes_on_mesh, tmp_path, [1, 2, 4])
    for number, per_host in enumerate((1, 2, 4)):
        expected = expected_bytes(graph, owner, 4, per_host, LAYERS, 8 * HIDDEN)
        for rank in range(4):
            assert results[rank][number] == (expected[rank], expected[rank])


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("mesh", "strategy is 'mesh'"),
        ("mesh=0", "strategy is 'mesh=0'"),
        ("mesh=two", "strategy is 'mesh=two'"),
        (
            "mesh=2",
            "strategy mesh=2 needs 2 ranks on each host",
        ),
        ("meshes", "strategy is 'meshes'"),
    ],
)
def test_hosts_that_do_not_fit(awkward_graph, tmp_path, strategy, message):
    make_shards(awkward_graph(1), 1, tmp_path)
    with pytest.raises(InputError, match=message):
        dgl_gt.load(tmp_path / "edge", strategy)


def seven_heads(rank, folder):
    sg = dgl_gt.load(folder / "edge", "mesh=2")
    with pytest.raises(InputError, match="heads is 7"):
        GraphTransformer(5, 14, 3, 1, 7)(sg, sg.ndata["feat"])


def test_heads_that_a_host_cannot_share(awkward_graph, tmp_path):
    make_shards(awkward_graph(2), 2, tmp_path)
    run_ranks(2, seven_heads, tmp_path)
