"""Edge features of typed graphs: an encoder for each relation, and attention across relations that reads their rows."""

import math

import pytest
import torch
from torch.nn.functional import one_hot

from dgl_gt.exchange.local import Local
from dgl_gt.exchange.relations import union_csc
from dgl_gt.exchange.view import SeededView
from dgl_gt.nn import HeteroGraphTransformer
from dgl_gt.nn.edge_features import RelationEdgeEncoder
from dgl_gt.nn.typed_layer import RelationAttention
from dgl_gt.partition import InputError
from dgl_gt.partition.schema import Relation, Schema

USERS, ITEMS, HEADS, WIDTH = 5, 4, 2, 6
RELATIONS = [Relation("user", "rates", "item"), Relation("item", "like", "item"), Relation("item", "of", "user")]
NAMES = [*map(str, RELATIONS)]
ENDS = [([0, 1, 1, 4, 4], [2, 2, 2, 0, 3]), ([0, 1, 2], [0, 2, 2]), ([2, 2], [1, 0])]  # parallel edges, and a self-loop


def view():
    schema = Schema({"user": USERS, "item": ITEMS}, {name: len(ends[0]) for name, ends in zip(RELATIONS, ENDS)})
    return Local(union_csc(schema, [(torch.tensor(src), torch.tensor(dst)) for src, dst in ENDS]), schema=schema)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("role", ["bias", "key_value"])
@pytest.mark.parametrize("maps", [False, True])
def test_attention_is_the_formula(role, maps):
    graph, edge, h = view(), torch.randn(10, 3), torch.randn(USERS + ITEMS, WIDTH)
    sources = torch.tensor([0, 1, 1])
    layer = RelationAttention(WIDTH, HEADS, 2, sources, 0.0, maps, 3, role)
    torch.nn.init.normal_(layer.relation)
    if maps:
        torch.nn.init.normal_(layer.maps)
    types = torch.tensor([0] * USERS + [1] * ITEMS)

    def mapped(maps_of_types, row, kind):
        return h[row] @ maps_of_types.weight[kind] + maps_of_types.bias[kind]

    expected = torch.zeros(USERS + ITEMS, WIDTH)
    for node in range(USERS + ITEMS):
        scores, values, number = [], [], -1
        for relation, (ends, first) in enumerate(zip(ENDS, [(0, USERS), (USERS, USERS), (USERS, 0)])):
            for src, dst in zip(*ends):
                number += 1
                if dst + first[1] != node:
                    continue
                rows = mapped(layer.key_value, src + first[0], sources[relation]).view(2, HEADS, -1)
                if maps:
                    rows = torch.einsum("cHd,cHde->cHe", rows, layer.maps[relation])
                key, value = rows + layer.relation[relation].view(2, HEADS, -1)
                bias = torch.zeros(HEADS)
                if role == "bias":
                    bias = layer.edge_bias(edge[number])
                else:
                    key, value = (x + layer.edge_proj(edge[number]).view(HEADS, -1) for x in (key, value))
                query = mapped(layer.query, node, types[node]).view(HEADS, -1)
                scores.append((query * key).sum(1) / math.sqrt(WIDTH / HEADS) + bias)
                values.append(value)
        if scores:
            weights = torch.stack(scores).softmax(0)
            expected[node] = (weights.unsqueeze(2) * torch.stack(values)).sum(0).flatten()
        expected[node] = expected[node] @ layer.output.weight[types[node]] + layer.output.bias[types[node]]
    torch.testing.assert_close(layer(SeededView(graph, {}), h, edge), expected, rtol=1e-9, atol=1e-12)


def test_relations_have_encoders_of_their_own():
    encoder = RelationEdgeEncoder(NAMES, {NAMES[0]: 2}, {NAMES[2]: 1}, 4)
    numbers, kinds = torch.randn(5, 2), torch.tensor([[7], [0]], dtype=torch.int32)
    found = encoder(view(), {NAMES[0]: numbers}, {NAMES[2]: kinds})
    torch.testing.assert_close(found[:5], encoder.encoders[0](numbers))
    torch.testing.assert_close(found[8:], encoder.encoders[1](None, kinds))
    assert not found[5:8].any()


@pytest.mark.parametrize(
    ("sizes", "kind", "named"),
    [
        (({"user,buys,item": 2}, {}), "linear", "user,buys,item"),
        (({NAMES[0]: 2, NAMES[1]: 3}, {}), "raw", "raw"),
        (({}, {NAMES[0]: 1}), "raw", "raw"),
    ],
)
def test_sizes_that_do_not_fit(sizes, kind, named):
    with pytest.raises(InputError, match=named):
        RelationEdgeEncoder(NAMES, *sizes, 4, kind)


def test_data_that_do_not_fit_name_the_relation():
    encoder = RelationEdgeEncoder(NAMES, {NAMES[0]: 2}, {}, 4)
    with pytest.raises(InputError, match=f"{NAMES[0]} have 3 rows"):
        encoder(view(), {NAMES[0]: torch.randn(3, 2)}, {})
    with pytest.raises(InputError, match=NAMES[1]):
        encoder(view(), {NAMES[0]: torch.randn(5, 2), NAMES[1]: torch.randn(3, 2)}, {})
    with pytest.raises(ValueError, match="edge_feat"):
        encoder(view(), {}, {})


def test_a_model_takes_relations_by_tuple_or_string():
    sizes = {"relations": RELATIONS, "edge_feats": {NAMES[0]: 1}, "edge_role": "key_value"}
    model = HeteroGraphTransformer({"user": 0, "item": 3}, 8, 2, 2, 2, **sizes)
    feat, numbers = {"item": torch.randn(ITEMS, 3)}, one_hot(torch.arange(5))[:, :1].double()
    found = [model(view(), feat, {name: numbers}) for name in (NAMES[0], tuple(RELATIONS[0]))]
    torch.testing.assert_close(*found)
    assert not torch.allclose(found[0], model(view(), feat, {NAMES[0]: numbers + 1}))
    with pytest.raises(InputError, match="edge_feat"):
        HeteroGraphTransformer({"user": 0, "item": 3}, 8, 2, 2, 2, relations=RELATIONS)(
            view(), feat, {NAMES[0]: numbers}
        )
