"""GATConv: DGL's numbers, keys and refusals; blocks, pairs, attention weights; seeds."""

import pickle

import pytest
import torch
from dgl_or_skip import dgl
from torch import nn

import dgl_gt
from dgl_gt.nn import GATConv
from dgl_gt.nn.dropout import begin_pass

IN, D, H = 6, 4, 3

# arguments of the constructor besides sizes
VARIANTS = {
    "plain": {},
    "residual": {"residual": True},
    "identity residual": {"residual": True, "in_feats": D * H},
    "no bias": {"bias": False},
    "residual without bias": {"residual": True, "bias": False},
    "slope and activation": {"negative_slope": 0.7, "activation": torch.tanh},
    "negative slope": {"negative_slope": -0.3},
}


def both(in_feats=IN, **options):
    """Ours and DGL's, in float64 with the same weights."""
    ours = GATConv(in_feats, D, H, allow_zero_in_degree=True, **options).double()
    theirs = dgl.nn.GATConv(in_feats, D, H, allow_zero_in_degree=True, **options).double()
    for each in ours.parameters():
        nn.init.normal_(each)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def rows(count, width, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator, requires_grad=True)


def check(ours, theirs, graph, feat, gradients):
    found, expected = ours(graph, feat), theirs(graph, feat)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    leaves = feat if isinstance(feat, tuple) else (feat,)
    grads = [gradients(out, [*leaves, *module.parameters()]) for out, module in ((found, ours), (expected, theirs))]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_equals_dgl(sparse_graph, gradients, options):
    ours, theirs = both(**options)
    feat = rows(sparse_graph.num_nodes(), options.get("in_feats", IN))
    check(ours, theirs, sparse_graph, feat, gradients)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("residual", [False, True])
def test_equals_dgl_on_blocks_and_pairs(sparse_graph, gradients, residual):
    block = dgl.to_block(sparse_graph, torch.tensor([1, 4, 5]), include_dst_in_src=True) if residual else None
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
    block = sampler.sample(sparse_graph, torch.tensor([1, 4, 5]))[2][0]
    check(*both(residual=residual), block, rows(block.num_src_nodes(), IN), gradients)
    pair = rows(block.num_src_nodes(), IN), rows(3, IN + 2, seed=2)
    check(*both((IN, IN + 2), residual=residual), block, pair, gradients)
    shared = rows(block.num_src_nodes(), IN), rows(3, IN, seed=2)
    check(*both(residual=residual), block, shared, gradients)


@pytest.mark.needs_dgl
def test_attention_weights_equal_dgls(sparse_graph):
    ours, theirs = both()
    feat = rows(sparse_graph.num_nodes(), IN)
    for found, expected in zip(ours(sparse_graph, feat, get_attention=True), theirs(sparse_graph, feat, None, True)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("pair", [False, True])
def test_edge_weights_equal_dgls(sparse_graph, gradients, pair):
    """Of any sign, with the attention weights that DGL returns for them."""
    ours, theirs = both(residual=True)
    feat = rows(sparse_graph.num_nodes(), IN)
    feats = (feat, rows(sparse_graph.num_nodes(), IN, seed=3)) if pair else feat
    edge_weight = rows(1, sparse_graph.num_edges(), seed=2)[0].detach().requires_grad_()
    found, expected = (conv(sparse_graph, feats, edge_weight, True) for conv in (ours, theirs))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours(sparse_graph, feats, edge_weight=edge_weight), found[0], rtol=0, atol=0)
    leaves = [feat, edge_weight]
    grads = [gradients(out, [*leaves, *conv.parameters()]) for (out, _), conv in ((found, ours), (expected, theirs))]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("options", [{}, {"residual": True}, {"residual": True, "in_feats": D * H}], ids=str)
@pytest.mark.parametrize("inner", [(2,), (2, 3)], ids=str)
def test_dimensions_between_nodes_and_features(sparse_graph, gradients, options, inner):
    ours, theirs = both(**options)
    nodes, width = sparse_graph.num_nodes(), options.get("in_feats", IN)
    feat = rows(nodes, 6 * width)[:, : width * torch.Size(inner).numel()].unflatten(1, (*inner, width))
    feat = feat.detach().requires_grad_()
    check(ours, theirs, sparse_graph, feat, gradients)
    check(ours, theirs, sparse_graph, (feat, feat.flip(0).detach().requires_grad_()), gradients)
    for a, b in zip(ours(sparse_graph, feat, None, True), theirs(sparse_graph, feat, None, True), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.needs_dgl
def test_runs_inside_dgls_hetero_graph_conv_and_is_pickled_whole():
    """One relation has neither edges nor destinations."""
    edges = {("user", "buys", "item"): ([0, 1, 2], [4, 5, 6]), ("user", "likes", "tag"): ([], [])}
    graph = dgl.heterograph(edges, {"user": 5, "item": 10, "tag": 0})
    feat = {"user": torch.randn(5, IN), "item": torch.randn(10, IN), "tag": torch.randn(0, IN)}
    conv = dgl.nn.HeteroGraphConv({name: GATConv(IN, D, H, residual=True) for name in ("buys", "likes")})
    out = conv(graph, feat)
    assert out["item"].shape == (10, H, D) and out["tag"].shape == (0, H, D) and "user" not in out
    again = pickle.loads(pickle.dumps(conv))
    assert torch.equal(again(graph, feat)["item"], out["item"])


@pytest.mark.needs_dgl
def test_keys_and_initial_weights_are_dgls():
    for options in ({}, {"residual": True}, {"bias": False}, {"in_feats": (5, 7), "residual": True}):
        made = []
        for kind in (GATConv, dgl.nn.GATConv):
            torch.manual_seed(3)
            made.append(kind(**{"in_feats": IN, "out_feats": D, "num_heads": H, **options}).state_dict())
        assert list(made[0]) == list(made[1])
        for a, b in zip(made[0].values(), made[1].values()):
            assert torch.equal(a, b)


def test_weights_after_dropout_make_the_result(graph):
    """The weights that are returned have the mask of the pass."""
    conv = GATConv(IN, D, H, attn_drop=0.5, feat_drop=0.3, bias=False, allow_zero_in_degree=True).double()
    feat = rows(graph.num_nodes(), IN).detach()
    torch.manual_seed(5)
    out, weights = conv(graph, feat, get_attention=True)
    torch.manual_seed(5)
    torch.testing.assert_close(conv(graph, feat), out, rtol=0, atol=1e-12)  # the projection has other columns
    assert (weights == 0).any() and weights.shape == (graph.num_edges(), H, 1)
    torch.manual_seed(5)
    z = conv.fc(conv.feat_drop(feat, begin_pass(conv, graph, feat))).view(-1, H, D)
    structure = dgl_gt.csc(graph)
    src = torch.empty(graph.num_edges(), dtype=torch.int64)
    dst = src.clone()
    ids = torch.arange(graph.num_edges()) if structure.edge_ids is None else structure.edge_ids
    src[ids] = structure.indices.long()
    dst[ids] = torch.repeat_interleave(torch.arange(structure.num_dst), structure.indptr.diff())
    expected = torch.zeros_like(z).index_add(0, dst, weights * z[src])
    torch.testing.assert_close(out, expected)


def test_both_ends_of_a_pair_have_masks_of_their_own():
    conv, seen = GATConv((200, 200), D, H, feat_drop=0.5, allow_zero_in_degree=True), []
    conv.fc_src.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    conv.fc_dst.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    structure = dgl_gt.CSC.build(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2]), 3)
    conv(structure, (torch.ones(3, 200), torch.ones(3, 200)))
    assert len(seen) == 2 and not torch.equal(*seen)


def test_weights_add_up_to_one_under_autocast(graph):
    conv = GATConv(IN, D, H)
    conv.fc.register_forward_hook(lambda _, args, out: out.float() * 5)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = conv(graph, torch.randn(graph.num_nodes(), IN), get_attention=True)
    assert out.dtype == weights.dtype == torch.bfloat16
    sums = torch.zeros(graph.num_nodes(), H).index_add(0, graph.edges()[1], weights.squeeze(2).float())
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=4e-3)


def test_compiles_as_one_graph(graph):
    conv, feat = GATConv(IN, D, H, feat_drop=0.3, attn_drop=0.3), torch.randn(graph.num_nodes(), IN)
    structure = dgl_gt.csc(graph)
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    expected = conv(structure, feat)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(structure, feat), expected)


def test_a_seed_of_its_own(graph):
    conv = GATConv(IN, D, H, attn_drop=0.5, allow_zero_in_degree=True)
    feat = torch.randn(graph.num_nodes(), IN)
    first, second = conv(graph, feat), conv(graph, feat)
    assert not torch.equal(first, second)
    conv.dropout_seed = 4
    assert torch.equal(conv(graph, feat), conv(graph, feat))
    conv.eval()
    assert torch.equal(conv(graph, feat), conv(graph, feat))


def test_a_projection_with_a_hook(graph):
    """What a user puts on the projection runs."""
    conv = GATConv(IN, D, H, allow_zero_in_degree=True).double()
    feat = rows(graph.num_nodes(), IN).detach()
    plain = conv(graph, feat)
    seen = []
    conv.fc.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(conv(graph, feat), plain)
    assert seen


def test_refusals(sparse_graph):
    feat = torch.randn(sparse_graph.num_nodes(), IN)
    with pytest.raises(ValueError, match="nodes have no in-edges, so they receive zeros"):
        GATConv(IN, D, H)(sparse_graph, feat)
    conv = GATConv(IN, D, H)
    conv.set_allow_zero_in_degree(True)
    for wrong, message in (
        (dict(feat=feat[:, :3]), r"the features have shape \(\d+, 3\).* in_feats"),
        (dict(feat=feat, edge_weight=torch.ones(1)), r"edge_weight has shape \(1,\); allowed: \(7,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            conv(sparse_graph, **wrong)
    with pytest.raises(ValueError, match="pass the features of sources and of destinations as a pair"):
        GATConv((IN, IN), D, H, allow_zero_in_degree=True)(sparse_graph, feat)
    for options, message in (
        (dict(in_feats=0), "in_feats is 0"),
        (dict(num_heads=0), "num_heads is 0"),
        (dict(feat_drop=1.0), "feat_drop=1.0 is not in"),
        (dict(attn_drop=-1), "attn_drop=-1 is not in"),
        (dict(residual="yes"), "residual"),
    ):
        with pytest.raises(ValueError, match=message):
            GATConv(**{"in_feats": IN, "out_feats": D, "num_heads": H, **options})
