"""An ``edge_index`` in place of a graph, without DGL: the numbers of the same edges as a CSC, and what is refused."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from dgl_gt import CSC, csc, sparse_attention
from dgl_gt.nn import (
    BatchNorm,
    BiasedMHA,
    ConvolutionLayer,
    GATConv,
    GraphConv,
    GraphTransformer,
    GraphTransformerLayer,
    Polynormer,
    PolynormerAttention,
)

# Parallel edges, a self-loop, isolated nodes (7 and 8, the last ones), in no order.
EDGE_INDEX = torch.tensor([[4, 0, 0, 1, 5, 4, 0, 2, 3], [2, 1, 1, 2, 2, 4, 6, 6, 0]])
NODES, C, H = 9, 12, 3
BIAS = torch.linspace(-1, 1, EDGE_INDEX.shape[1] * H, dtype=torch.float64).view(-1, H)


def structure(edge_index=EDGE_INDEX, num_src=NODES, num_dst=NODES):
    """The same CSC, made edge by edge."""
    columns = [[c for c in range(edge_index.shape[1]) if edge_index[1, c] == row] for row in range(num_dst)]
    indptr = torch.tensor([0, *(len(each) for each in columns)]).cumsum(0)
    order = torch.tensor(sum(columns, []), dtype=torch.int64)
    return CSC.build(indptr, edge_index[0, order], num_src, edge_ids=order)


def features(width=C, rows=NODES, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, dtype=torch.float64, generator=generator, requires_grad=True)


GAT = {"feat_drop": 0.2, "attn_drop": 0.3, "allow_zero_in_degree": True}
MODULES = {
    "attention": (lambda: BiasedMHA(C, H, attn_drop=0.3), BIAS),
    "layer": (lambda: GraphTransformerLayer(C, 20, H), BIAS),
    "convolution layer": (lambda: ConvolutionLayer(C, C, H, "additive", attn_dropout=0.2), None),
    "graph conv": (lambda: GraphConv(C, 5, allow_zero_in_degree=True), None),
    "gat": (lambda: GATConv(C, 4, H, **GAT), None),
    "model": (lambda: GraphTransformer(C, 12, 5, layers=2, heads=H, dropout=0.2, attention_dropout=0.2), BIAS),
    "polynormer": (
        lambda: Polynormer(C, 12, 5, layers=2, heads=H, score="gcn", norm="batch"),
        None,
    ),
    "global attention": (lambda: PolynormerAttention(C, H), None),
}


@pytest.mark.parametrize(("make", "bias"), MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_modules_give_the_numbers_of_the_structure(gradients, make, bias, dtype):
    """In training, so that masks, which are keyed by edges, must agree, too."""
    torch.manual_seed(0)
    module, results = make().double(), []
    for graph in (EDGE_INDEX.to(dtype), structure()):
        feat = features()
        torch.manual_seed(3)
        out = module(graph, feat) if bias is None else module(graph, feat, bias)
        results.append([out, *gradients(out, [feat, *(p for p in module.parameters() if p.requires_grad)])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("make", "bias"), MODULES.values(), ids=MODULES)
def test_a_data_and_a_typed_edge_index_of_pyg_will_do(make, bias):
    pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install torch_geometric")
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Data, HeteroData

    module, feat = make().double().eval(), features()
    data = Data(x=feat, edge_index=EDGE_INDEX)
    more = [feat] if bias is None else [feat, bias]
    expected = module(EDGE_INDEX, *more)
    for graph in (data, EdgeIndex(EDGE_INDEX, sparse_size=(NODES, NODES)), Data(edge_index=EDGE_INDEX)):
        assert torch.equal(module(graph, *more), expected)
    for graph in (Data(x=feat), HeteroData()):
        with pytest.raises(ValueError, match=f"graph is a {type(graph).__name__}.*edge_index"):
            module(graph, *more)


def test_csc_counts_the_nodes_of_a_data():
    data = pytest.importorskip("torch_geometric.data", reason="PyG is not installed: pip install torch_geometric").Data
    graph = data(edge_index=EDGE_INDEX, num_nodes=NODES)
    assert csc(graph).num_src == csc(graph).num_dst == NODES and csc(graph) is csc(EDGE_INDEX, num_nodes=NODES)


def test_batch_norm_takes_it():
    feat = features()
    expected = torch.nn.BatchNorm1d(C).double()(feat)
    torch.testing.assert_close(BatchNorm(C).double()(feat, EDGE_INDEX), expected, rtol=0, atol=1e-12)


def test_pairs_and_weights_of_gat():
    """Three destinations and seven sources, each counted from 0."""
    edges = torch.tensor([[6, 0, 3, 3, 1], [2, 0, 2, 1, 0]])
    conv = GATConv((C, 5), 4, H).double()
    pair = features(rows=7), features(5, 3, seed=2)
    weight = torch.tensor([1.0, -2, 3, 0, 1], dtype=torch.float64)
    expected = conv(structure(edges, 7, 3), pair, weight, True)
    for a, b in zip(conv(edges, pair, weight, True), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("packed", [False, True])
def test_sparse_attention_takes_it(packed):
    qkv = features(3 * C).view(NODES, 3, H, C // H)
    rows = (qkv,) if packed else qkv.unbind(1)
    found = sparse_attention(EDGE_INDEX, *rows, bias=BIAS, dropout_p=0.4, seed=3)
    assert torch.equal(found, sparse_attention(structure(), *rows, bias=BIAS, dropout_p=0.4, seed=3))


def test_sparse_attention_counts_sources_and_destinations_apart():
    edges = torch.tensor([[6, 0, 3], [2, 0, 2]])
    q, k, v = features(rows=3).view(3, H, -1), features(rows=7).view(7, H, -1), features(rows=7, seed=2).view(7, H, -1)
    assert torch.equal(sparse_attention(edges, q, k, v), sparse_attention(structure(edges, 7, 3), q, k, v))


def test_a_list_gives_each_layer_its_edges():
    model, feat = GraphTransformer(C, 12, 5, layers=2, heads=H).double().eval(), features()
    edges = [EDGE_INDEX, EDGE_INDEX.flip(0)]
    assert torch.equal(model(edges, feat), model([csc(each, num_nodes=NODES) for each in edges], feat))


def test_edge_features_follow_its_columns():
    model, feat = (
        GraphTransformer(C, 12, 5, layers=3, heads=H, edge_feats=2, edge_update=True).double().eval(),
        features(),
    )
    edge_feat = BIAS[:, :2]
    assert torch.equal(model(EDGE_INDEX, feat, edge_feat=edge_feat), model(structure(), feat, edge_feat=edge_feat))


def test_its_structure():
    made, wanted = csc(EDGE_INDEX, num_nodes=NODES), structure()
    for name in ("indptr", "indices", "edge_ids"):
        assert torch.equal(getattr(made, name).long(), getattr(wanted, name)), name
    assert made.indices.dtype == made.rev_dst.dtype == torch.int32 and made.num_src == NODES
    by_destination = EDGE_INDEX[:, EDGE_INDEX[1].argsort(stable=True)]
    assert csc(by_destination, num_nodes=NODES).edge_ids is None
    empty = csc(EDGE_INDEX[:, :0], num_nodes=4)
    assert (empty.num_edges, empty.num_src, empty.num_dst) == (0, 4, 4)
    assert csc(EDGE_INDEX[:, :0], num_nodes=0).num_dst == 0
    assert csc(EDGE_INDEX, "meta", NODES).device.type == "meta"


def test_its_structure_is_kept_while_the_tensor_lives():
    edges = EDGE_INDEX.clone()
    made = csc(edges, num_nodes=NODES)
    assert csc(edges, num_nodes=NODES) is made and csc(edges, "meta", NODES) is csc(edges, "meta", NODES)
    assert csc(edges, num_nodes=NODES + 1).num_dst == NODES + 1
    kept = weakref.ref(csc(edges, num_nodes=NODES))
    del made, edges
    gc.collect()
    assert kept() is None


def test_one_made_without_gradients_serves_training():
    edges, mha = EDGE_INDEX.clone(), BiasedMHA(C, H)
    with torch.inference_mode():
        inside = EDGE_INDEX.clone()
        mha(edges, torch.ones(NODES, C)), mha(inside, torch.ones(NODES, C))
    for each in (edges, inside):
        mha(each, torch.ones(NODES, C, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    "change", [lambda x: x[0].fill_(8), lambda x: x.data[0].fill_(8), lambda x: x.numpy()[0].fill(8)]
)
def test_edges_that_change_in_place_are_seen(change):
    feat, edges, mha = features(), EDGE_INDEX.clone(), BiasedMHA(C, H).double().eval()
    before = mha(edges, feat)
    change(edges)
    after = mha(edges, feat)
    assert torch.equal(after, mha(csc(edges.clone(), num_nodes=NODES), feat)) and not torch.allclose(after, before)


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        (EDGE_INDEX.T, r"edge_index has shape \(9, 2\) and dtype torch.int64"),
        (EDGE_INDEX[0], r"edge_index has shape \(9,\)"),
        (EDGE_INDEX[None], r"edge_index has shape \(1, 2, 9\)"),
        (EDGE_INDEX.bool(), "dtype torch.bool; allowed: .* torch.int32 or torch.int64"),
        (EDGE_INDEX - 1, "the sources in edge_index span -1 to 4; allowed: 0 to 8, because there are 9 nodes"),
        (EDGE_INDEX + torch.tensor([[0], [3]]), "the destinations in edge_index span 3 to 9; allowed: 0 to 8"),
    ],
    ids=["transposed", "one row", "three dimensions", "bool", "negative", "too high"],
)
def test_bad_edges_are_refused(edge_index, message):
    rows = features().view(NODES, H, -1)
    for call in (
        lambda: BiasedMHA(C, H).double()(edge_index, features()),
        lambda: GraphTransformer(C, 12, 5, 1, H).double()(edge_index, features()),
        lambda: sparse_attention(edge_index, rows, rows, rows),
        lambda: csc(edge_index, num_nodes=NODES),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("num_nodes", [None, -1, True, 9.0, (9,), (9, None)], ids=repr)
def test_a_number_of_nodes_is_needed(num_nodes):
    with pytest.raises(ValueError, match="num_nodes is .*"):
        csc(EDGE_INDEX, num_nodes=num_nodes)


def test_floating_numbers_are_no_edges():
    with pytest.raises(ValueError, match="edge_index has shape .* and dtype torch.float32"):
        csc(EDGE_INDEX.float(), num_nodes=NODES)
    with pytest.raises(ValueError, match="For attention along edges, pass the graph first"):
        BiasedMHA(C, H).double()(EDGE_INDEX.float(), features())


def test_layers_do_not_load_dgl():
    """A process of its own, in which nothing else has loaded DGL."""
    code = (
        "import sys, torch, dgl_gt\n"
        "edges = torch.tensor([[0, 1], [1, 0]])\n"
        "dgl_gt.nn.GraphTransformer(4, 8, 3, 1, 2)(edges, torch.randn(2, 4))\n"
        "dgl_gt.nn.BiasedMHA(4, 2)(torch.randn(1, 2, 4))\n"
        "dgl_gt.nn.GATConv(4, 2, 2)(edges, torch.randn(2, 4), torch.ones(2), True)\n"
        "assert 'dgl' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
