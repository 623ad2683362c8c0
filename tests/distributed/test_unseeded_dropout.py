"""Dropout whose seeds nobody sets: ranks drop what one process with the same torch.manual_seed does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from slow_case import slow
from test_strategies import make_shards
from whole_graph import csc_of

import dgl_gt
from dgl_gt.nn import BiasedMHA, GraphTransformer, GraphTransformerLayer, apply_activation_checkpoint

P, HIDDEN, HEADS, LAYERS, STEPS = 0.3, 12, 6, 3, 3
CASES = [("halo", 1), ("halo", 2), ("halo", 3), ("gather", 1), ("heads", 1), ("ring", 1), ("mirror", 1)]


def train(graph, feat, label, activation_checkpoint="none", depth_first=False):
    """The losses of a loop as users write it, which sets torch's seed once; and the next number of torch's generator.

    ``graph`` is a ShardedGraph or a CSC; ``depth_first``: the first exchange of a deep halo is spared.
    """
    torch.manual_seed(0)
    model = GraphTransformer(5, HIDDEN, 3, LAYERS, HEADS, dropout=P, attention_dropout=P).double()
    apply_activation_checkpoint(model, activation_checkpoint)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_sharded, losses = isinstance(graph, dgl_gt.ShardedGraph), []
    for _ in range(STEPS):
        views = graph.taking_held_rows() if depth_first else graph
        loss = F.cross_entropy(model(views, feat), label, reduction="sum") / 60
        optimizer.zero_grad()
        loss.backward()
        if is_sharded:
            graph.comm.sum_gradients(model.parameters())
        optimizer.step()
        loss = loss.detach().reshape(1)
        losses.append(float(graph.comm.all_reduce(loss) if is_sharded else loss))
    return losses, float(torch.rand(()))


def modules_alone(graph, feat):
    """A layer and an attention by themselves, twice each, forward and the feature gradient."""
    torch.manual_seed(0)
    modules = [GraphTransformerLayer(6, 7, 6, dropout=P, attn_dropout=P), BiasedMHA(6, 6, attn_drop=P)]
    results = []
    for module in modules:
        for _ in range(2):
            h = torch.cat([feat, feat[:, :1]], 1).requires_grad_()
            out = module.double()(graph, h)
            out.square().sum().backward()
            results += [out.detach(), h.grad]
    return results


def on_rank(rank, folder, feat, label):
    results = []
    for strategy, depth in CASES:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        own = feat[sg.node_ids], label[sg.node_ids]
        runs = [train(sg, *own), train(sg, *own, activation_checkpoint="full")]
        if depth > 1:
            runs.append(train(sg, feat[sg._shard.node_ids], own[1], depth_first=True))
        alone = [sg.gather(x).numpy() for x in modules_alone(sg, own[0])] if depth == 1 else None
        results.append((runs, alone))
    return results


@pytest.mark.parametrize("parts", [slow(2), 3])
def test_ranks_drop_what_one_process_does(awkward_graph, tmp_path, parts):
    """Losses of a loop with every strategy; a layer and an attention alone; and all draw as often as one process."""
    graph = awkward_graph(3)
    make_shards(graph, parts, tmp_path)
    feat = torch.from_numpy(graph.node_data["feat"]).double()
    label = torch.from_numpy(graph.node_data["label"])
    losses, draw = train(csc_of(graph), feat, label)
    expected = [x.numpy() for x in modules_alone(csc_of(graph), feat)]
    assert len(set(losses)) == STEPS and not np.allclose(expected[0], expected[2]), "each pass has its own masks"
    for results in run_ranks(parts, on_rank, tmp_path, feat, label):
        for case, (runs, alone) in zip(CASES, results, strict=True):
            for found, next_draw in runs:
                np.testing.assert_allclose(found, losses, rtol=1e-10, err_msg=str(case))
                assert next_draw == draw
            for one, other in zip(alone or (), expected):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-10, err_msg=str(case))


def with_other_generators(rank, directory, feat):
    """A forward pass on ranks whose generators differ."""
    sg = dgl_gt.load(directory)
    torch.manual_seed(0)
    model = GraphTransformer(5, HIDDEN, 3, 1, HEADS, dropout=P).double()
    torch.manual_seed(7 if rank == 0 else 100 + rank)
    before = sg.comm.sent_bytes
    with torch.no_grad():
        out = model(sg, feat[sg.node_ids])
    assert sg.strategy.name == "halo_h"
    halo_bytes = 8 * HIDDEN * sum(sg.view.shard.send_plan().send_counts)
    assert sg.comm.sent_bytes - before == halo_bytes, "agreeing is no exchange"
    return sg.gather(out).numpy()


def test_rank_0_draws_for_all(awkward_graph, tmp_path):
    graph = awkward_graph(4)
    make_shards(graph, 2, tmp_path)
    feat = torch.from_numpy(graph.node_data["feat"]).double()
    torch.manual_seed(0)
    model = GraphTransformer(5, HIDDEN, 3, 1, HEADS, dropout=P).double()
    torch.manual_seed(7)
    expected = model(csc_of(graph), feat).detach().numpy()
    for found in run_ranks(2, with_other_generators, tmp_path / "edge", feat):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
