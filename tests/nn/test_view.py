"""as_view, Local, and what a layer hands to a view."""

import pytest
import torch
from dgl_or_skip import dgl

import dgl_gt
from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.local import Local
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.exchange.view import View
from dgl_gt.nn import BiasedMHA, GraphTransformer, GraphTransformerLayer, set_dropout_step


class InPieces(View):
    """A view that projects a few rows at a time, as a rank does owned and halo rows, and notes what it is given."""

    def __init__(self, graph):
        self.local = as_view(graph)
        self.num_owned, self.num_dst, self.node_ids = self.local.num_owned, self.local.num_dst, None
        self.calls, self.drawn = [], []

    def broadcast(self, seeds):
        self.drawn.append(len(seeds))
        return seeds

    def attend(self, h, project, *, bias=None, dropout=None):
        self.calls.append({"width": h.shape[1], "bias": bias, "dropout": dropout})

        def project_in_pieces(rows, which):
            return torch.cat([project(piece, which) for piece in rows.split(7)])

        return self.local.attend(h, project_in_pieces, bias=bias, dropout=dropout)


class Sharded(ShardedGraph):
    """A ShardedGraph without a shard: a layer reads its view alone."""

    def __init__(self, view):
        self._view, self._has_warned, self.depth = view, False, 1


class Lookalike:
    """Has a view, but is no ShardedGraph."""

    view = "halo"


@pytest.mark.parametrize("kind", ["graph", "csc", "block"])
def test_what_one_process_holds_is_local(graph, kind):
    held = {"graph": graph, "csc": dgl_gt.csc(graph), "block": dgl.to_block(graph)}[kind]
    view = as_view(held)
    assert isinstance(view, Local)
    assert view.csc is dgl_gt.csc(held)
    assert view.num_owned == graph.num_nodes()


def test_a_block_owns_its_destinations(graph):
    block = dgl.to_block(dgl.in_subgraph(graph, [5, 6]), [5, 6])
    assert as_view(block).num_owned == 2


def test_the_structure_follows_the_features_to_their_device(graph):
    assert as_view(graph, torch.empty(0, device="meta")).csc.indptr.is_meta


def test_a_sharded_graph_gives_its_view_and_a_view_is_itself(graph):
    view = InPieces(graph)
    assert as_view(Sharded(view)) is view
    assert as_view(view) is view


@pytest.mark.parametrize("wrong", [None, "graph.bin", [0, 1], Lookalike()])
def test_refuses_other_types(wrong):
    with pytest.raises(ValueError, match=f"{type(wrong).__name__}; allowed: a DGLGraph.*ShardedGraph"):
        as_view(wrong)


def test_refuses_a_graph_of_several_edge_types():
    graph = dgl.heterograph({("a", "x", "b"): ([0], [0]), ("b", "y", "a"): ([0], [0])})
    with pytest.raises(ValueError, match="2 edge types"):
        as_view(graph)


def test_refuses_a_graph_between_nodes_of_two_types():
    """Its first sources are no destinations, though a block's are."""
    graph = dgl.heterograph({("user", "buys", "item"): ([0, 1, 2], [0, 1, 0])})
    for each in (graph, dgl.to_block(graph, {"item": [0, 1]})["buys"]):
        with pytest.raises(ValueError, match="from 'user' nodes to 'item' nodes.*to_homogeneous.*sparse_attention"):
            BiasedMHA(12, 3)(each, torch.randn(3, 12))


def test_a_layer_on_another_strategy_gives_the_same_numbers(graph, gradients):
    torch.manual_seed(0)
    layer = GraphTransformerLayer(12, 24, 3, dropout=0.0, attn_dropout=0.3).double().train()
    layer.attn.dropout_seed = 8
    feat = torch.randn(graph.num_nodes(), 12, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(graph.num_edges(), 3, dtype=torch.float64, requires_grad=True)
    view = InPieces(graph)

    out, expected = layer(Sharded(view), feat, bias), layer(graph, feat, bias)

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    tensors = [feat, bias, *layer.parameters()]
    for a, b in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    assert view.calls == [{"width": 12, "bias": bias, "dropout": (0.3, 8)}]


def test_a_strategy_is_given_the_projection_with_heads_apart(graph):
    mha, seen = BiasedMHA(12, 3).eval(), {}

    class Asks(View):
        num_owned = num_dst = graph.num_nodes()

        def attend(self, h, project, *, bias=None, dropout=None):
            seen["q"], seen["kv"], seen["qkv"] = (project(h, which) for which in ("q", "kv", "qkv"))
            return seen["q"]

    feat = torch.randn(graph.num_nodes(), 12)
    mha(Asks(), feat)
    q, k, v = (projection(feat).view(-1, 3, 4) for projection in (mha.q_proj, mha.k_proj, mha.v_proj))
    torch.testing.assert_close(seen, {"q": q, "kv": torch.stack([k, v], 1), "qkv": torch.stack([q, k, v], 1)})


def test_a_projection_that_a_user_replaced_or_hooked_is_called(graph):
    torch.manual_seed(0)
    mha, feat = BiasedMHA(12, 3).eval(), torch.randn(graph.num_nodes(), 12)
    plain, seen = mha(graph, feat), []
    handle = mha.k_proj.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.testing.assert_close(mha(graph, feat), plain)
    assert torch.equal(seen[0], mha.k_proj(feat))
    handle.remove()
    mha.v_proj = torch.nn.Sequential(mha.v_proj, torch.nn.Dropout(0.0))
    torch.testing.assert_close(mha(graph, feat), plain)


def test_a_model_asks_its_strategy_once_a_layer(graph):
    view = InPieces(graph)
    model = GraphTransformer(5, 12, 2, layers=3, heads=3, attention_dropout=0.2).train()
    set_dropout_step(model, 1, 2)
    model(Sharded(view), torch.randn(graph.num_nodes(), 5))
    assert [call["width"] for call in view.calls] == [12, 12, 12]
    assert [call["dropout"] for call in view.calls] == [(0.2, layer.attn.dropout_seed) for layer in model.layers]


def test_a_pass_draws_the_seeds_of_all_its_dropouts_at_once(graph):
    view = InPieces(graph)
    model = GraphTransformer(5, 12, 2, layers=3, heads=3, dropout=0.1, attention_dropout=0.2).train()
    for _ in range(2):
        model(Sharded(view), torch.randn(graph.num_nodes(), 5))
    assert view.drawn == [1 + 3 * 4] * 2
