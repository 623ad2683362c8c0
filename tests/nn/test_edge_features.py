"""Edge features: the encoder, the update and the bias equal their formulas, and misuse is refused."""

import pytest
import torch

from dgl_gt.nn import (
    BiasedMHA,
    EdgeEncoder,
    EdgeUpdate,
    GraphTransformer,
    GraphTransformerLayer,
    apply_activation_checkpoint,
)
from dgl_gt.structure import CSC

NODES, WIDTH, HEADS = 5, 4, 2
SRC, DST = torch.tensor([0, 3, 3, 1, 1]), torch.tensor([0, 0, 2, 2, 2])  # parallel edges, nodes without in-edges
INDPTR = torch.tensor([0, 2, 2, 5, 5, 5])


@pytest.fixture(params=["in order", "other ids"])
def edges(request):
    """A graph, and the ends of its edges in the order of edge ids."""
    if request.param == "in order":
        return CSC.build(INDPTR, SRC, NODES), SRC, DST
    ids = torch.tensor([3, 0, 4, 1, 2])
    return CSC.build(INDPTR, SRC, NODES, edge_ids=ids), SRC[ids.argsort()], DST[ids.argsort()]


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def test_the_encoder_adds_a_linear_map_and_a_row_for_each_kind():
    encoder = EdgeEncoder(3, 2, 4).double()
    numbers, kinds = rows(5, 3), torch.tensor([[0, 1], [255, 0], [2, 2], [0, 0], [7, 255]], dtype=torch.uint8)
    one_hot = torch.nn.functional.one_hot(kinds.long(), 256).double()
    expected = numbers @ encoder.proj.weight.T + encoder.proj.bias
    for column, table in enumerate(encoder.tables):
        expected = expected + one_hot[:, column] @ table.weight
    torch.testing.assert_close(encoder(numbers, kinds), expected)
    assert EdgeEncoder(0, 1, 4)(edge_kind=kinds[:, :1]).shape == (5, 4)


def test_the_update_is_that_of_rows_side_by_side(edges):
    graph, src, dst = edges
    update = EdgeUpdate(3, WIDTH).double()
    e, q, k = rows(5, 3), rows(NODES, WIDTH), rows(NODES, WIDTH) + 1
    first = torch.cat([update.of_edge.weight, update.of_dst.weight, update.of_src.weight], 1)
    hidden = torch.relu(torch.cat([e, q[dst], k[src]], 1) @ first.T + update.of_edge.bias)
    torch.testing.assert_close(update(graph, e, q, k), e + hidden @ update.out.weight.T + update.out.bias)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_has_the_bias_and_the_update_of_its_own_rows(edges, norm_first):
    graph, _, _ = edges
    torch.manual_seed(0)
    layer = GraphTransformerLayer(WIDTH, 8, HEADS, norm_first=norm_first, edge_hidden=3, edge_update=True)
    layer = layer.double().eval()
    feat, e, given = rows(NODES, WIDTH), rows(5, 3), rows(5, HEADS)
    out, updated = layer(graph, feat, given, edge=e)
    plain = GraphTransformerLayer(WIDTH, 8, HEADS, norm_first=norm_first).double().eval()
    plain.load_state_dict({key: value for key, value in layer.state_dict().items() if not key.startswith("edge_")})
    torch.testing.assert_close(out, plain(graph, feat, given + layer.edge_bias(e)))
    x = layer.attn_layer_norm(feat) if norm_first else feat
    torch.testing.assert_close(updated, layer.edge_update(graph, e, layer.attn.q_proj(x), layer.attn.k_proj(x)))


def test_encoders_of_other_kinds():
    numbers, kinds = rows(5, 3), torch.tensor([[0], [255], [2], [0], [7]], dtype=torch.uint8)
    mlp, linear = EdgeEncoder(3, 1, 4, kind="mlp").double(), EdgeEncoder(3, 1, 4).double()
    linear.load_state_dict({name: value for name, value in mlp.state_dict().items() if not name.startswith("mlp")})
    torch.testing.assert_close(mlp(numbers, kinds), mlp.mlp[1](torch.relu(linear(numbers, kinds))))
    raw = EdgeEncoder(3, 0, 4, kind="raw")
    assert raw(numbers) is numbers and raw.width == 3 and not list(raw.parameters())
    with pytest.raises(ValueError, match="1 of the edge features are kinds"):
        EdgeEncoder(3, 1, 4, kind="raw")
    with pytest.raises(ValueError, match="edge_input is 'none'"):
        EdgeEncoder(3, 1, 4, kind="none")


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_adds_edges_to_keys_and_values(edges, norm_first):
    graph, src, dst = edges
    torch.manual_seed(0)
    options = dict(norm_first=norm_first, dropout=0.0, attn_dropout=0.0)
    layer = GraphTransformerLayer(WIDTH, 8, HEADS, edge_hidden=3, edge_role="key_value", **options).double()
    feat, e, given = rows(NODES, WIDTH), rows(5, 3), rows(5, HEADS)
    x = layer.attn_layer_norm(feat) if norm_first else feat
    q, k, v = (getattr(layer.attn, f"{name}_proj")(x).unflatten(1, (HEADS, -1)) for name in "qkv")
    of_edges = layer.edge_proj(e).unflatten(1, (HEADS, -1))
    scores = (q[dst] * (k[src] + of_edges)).sum(-1) / (WIDTH / HEADS) ** 0.5 + given
    attended = torch.zeros_like(q)
    for node in dst.unique():
        own = dst == node
        attended[node] = (scores[own].softmax(0).unsqueeze(-1) * (v[src] + of_edges)[own]).sum(0)
    plain = GraphTransformerLayer(WIDTH, 8, HEADS, **options).double()
    plain.load_state_dict({key: value for key, value in layer.state_dict().items() if not key.startswith("edge_")})
    plain.attn = _Given(layer.attn.out_proj(attended.flatten(1)))
    torch.testing.assert_close(layer(graph, feat, given, edge=e), plain(graph, feat))


class _Given(BiasedMHA):
    """Attention that returns what it was made with."""

    def __init__(self, result):
        super().__init__(WIDTH, HEADS)
        self.result = result

    def forward(self, *_):
        return self.result


def test_every_parameter_has_a_gradient_with_and_without_checkpoints(edges):
    graph, _, _ = edges
    options = {"edge_feats": 2, "edge_kinds": 1, "edge_hidden": 3, "edge_update": True}
    gradients = []
    for mode in ("none", "full"):
        torch.manual_seed(0)
        model = GraphTransformer(3, WIDTH, 2, layers=2, heads=HEADS, **options).double()
        apply_activation_checkpoint(model, mode)
        kinds = torch.arange(5, dtype=torch.uint8)[:, None]
        model(graph, rows(NODES, 3), edge_feat=rows(5, 2), edge_kind=kinds).pow(2).sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, each in gradients[0].items():
        assert each is not None, name
        torch.testing.assert_close(gradients[1][name], each)


def test_a_checkpointed_layer_takes_edges_by_name(edges):
    layer = GraphTransformerLayer(WIDTH, 8, HEADS, attn_dropout=0.0, dropout=0.0, edge_hidden=3).double()
    expected = layer(edges[0], rows(NODES, WIDTH), edge=rows(5, 3))
    apply_activation_checkpoint(layer, "full")
    torch.testing.assert_close(layer(edges[0], rows(NODES, WIDTH), edge=rows(5, 3)), expected)


def test_a_graph_without_edges():
    graph = CSC.build(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 3)
    model = GraphTransformer(3, WIDTH, 2, layers=2, heads=HEADS, edge_feats=2, edge_update=True)
    assert model(graph, torch.randn(3, 3), edge_feat=torch.zeros(0, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "edge_feat has shape None"),
        ({"edge_feat": torch.zeros(5, 3)}, r"edge_feat has shape \(5, 3\)"),
        (
            {"edge_feat": torch.zeros(5, 2), "edge_kind": torch.zeros(5, 1, dtype=torch.uint8)},
            r"edge_kind has shape \(5, 1\)",
        ),
        ({"edge_feat": torch.zeros(4, 2)}, "4"),
    ],
)
def test_edge_data_that_do_not_fit(edges, given, message):
    model = GraphTransformer(3, WIDTH, 2, layers=2, heads=HEADS, edge_feats=2)
    with pytest.raises(ValueError, match=message):
        model(edges[0], torch.zeros(NODES, 3), **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "gcn"}, "score is 'gcn'"),
        ({"edge_hidden": 0}, "edge_hidden is 0"),
        ({"edge_feats": -1}, "edge_feats is -1"),
        ({"edge_feats": 0, "edge_update": True}, "edge_update is True"),
        ({"edge_update": 1}, "edge_update is 1"),
    ],
)
def test_models_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        GraphTransformer(3, WIDTH, 2, layers=2, heads=HEADS, **{"edge_feats": 2} | options)


def test_what_takes_no_edges_and_what_needs_them(edges):
    graph, feat = edges[0], torch.zeros(NODES, WIDTH)
    with pytest.raises(ValueError, match="the model takes no edge_feat or edge_kind"):
        GraphTransformer(WIDTH, WIDTH, 2, 1, HEADS)(graph, feat, edge_feat=torch.zeros(5, 2))
    with pytest.raises(ValueError, match="edge is missing"):
        GraphTransformerLayer(WIDTH, 8, HEADS, edge_hidden=2)(graph, feat)
    with pytest.raises(ValueError, match="edge is given"):
        GraphTransformerLayer(WIDTH, 8, HEADS)(graph, feat, edge=torch.zeros(5, 2))
    with pytest.raises(ValueError, match="needs one graph, but got a list of blocks"):
        GraphTransformer(WIDTH, WIDTH, 2, 1, HEADS, edge_feats=2)([graph], feat, edge_feat=torch.zeros(5, 2))
    with pytest.raises(ValueError, match="edge_feats and edge_kinds are both 0"):
        EdgeEncoder(0, 0, 4)
