"""Groups of some of the ranks: each has its own graph, and a failure in one leaves the other alone."""

import numpy as np
import torch
import torch.distributed as dist
from failing_ranks import outcome, prepare, swap
from ranks import run_ranks
from test_strategies import compare, make_shards, run_model
from whole_graph import csc_of

import dgl_gt
from dgl_gt.comm.group import Comm
from dgl_gt.partition.figures.strategies import NAMES


def one_of_two_groups_fails(rank):
    """Of ranks 0 and 1 the second fails; of ranks 2 and 3 the second is late."""
    prepare()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    comm = Comm(groups[rank // 2])

    def work():
        with comm.together():
            if rank == 1:
                raise ValueError("it broke")
            return swap(comm, pause_s=1.0 if rank == 3 else 0.0)[1]

    return outcome(work)[:2]


def test_a_failure_in_one_group_leaves_the_other_alone():
    told = ("RankError", "rank 1 stopped: ValueError: it broke")
    failed = ("ValueError", "it broke")
    assert run_ranks(4, one_of_two_groups_fails) == [told, failed, ("returned", True), ("returned", True)]


def in_groups(rank, folders, cases, feats, biases):
    """Ranks 0 and 2 share the first graph, 1 and 3 the second."""
    prepare()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    team = rank % 2
    feat, bias, results = feats[team], biases[team], []
    for strategy, depth, overlap, dtype in cases:
        directory = folders[team] / ("vertex" if strategy == "mirror" else "edge")
        sg = dgl_gt.load(directory, strategy, depth, group=groups[team], overlap=overlap)
        out, feat_grad, bias_grad, parameters = run_model(sg, feat[sg.node_ids], bias[sg.edge_ids], dtype)
        edges, rows = (torch.cat(sg.comm.gather_rows(x)) for x in (sg.edge_ids, bias_grad))
        bias_grad = torch.empty_like(rows).index_copy_(0, edges, rows).double().numpy()
        results.append((*(sg.gather(x).double().numpy() for x in (out, feat_grad)), bias_grad, parameters))
    return results


def test_two_groups_of_ranks_each_train_on_shards_of_their_own(awkward_graph, tmp_path):
    """Every strategy at once in both, each the same as one process on its graph."""
    graphs = [awkward_graph(21), awkward_graph(22)]
    folders = [tmp_path / "first", tmp_path / "second"]
    for graph, folder in zip(graphs, folders):
        make_shards(graph, 2, folder)
    cases = [(name, 1, True, torch.float64) for name in NAMES if name != "local"]
    cases += [("halo", 2, True, torch.float64), ("ring", 1, False, torch.float32)]
    generator = torch.Generator().manual_seed(3)
    feats = [torch.randn(graph.num_nodes, 5, generator=generator) for graph in graphs]
    biases = [torch.randn(graph.num_edges, 12, generator=generator) for graph in graphs]
    expected = {
        (team, dtype): run_model(csc_of(graph), feats[team], biases[team], dtype)
        for team, graph in enumerate(graphs)
        for dtype in (torch.float64, torch.float32)
    }
    assert not np.allclose(expected[0, torch.float64][0], expected[1, torch.float64][0])
    for rank, results in enumerate(run_ranks(4, in_groups, folders, cases, feats, biases)):
        for case, found in zip(cases, results, strict=True):
            compare(expected[rank % 2, case[3]], found, case[3], f"rank {rank}, {case}:")
