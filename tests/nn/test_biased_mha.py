"""BiasedMHA: DGL's dense numbers on the edges of a graph."""

import copy
import inspect
import math

import pytest
import torch
from dgl_or_skip import dgl

import dgl_gt
from dgl_gt.exchange.local import Local
from dgl_gt.nn import BiasedMHA
from dgl_gt.ops.head_minor import is_head_minor

C, H = 12, 3


def make(seed=0, **options):
    torch.manual_seed(seed)
    return BiasedMHA(C, H, **options).double()


def make_dense(seed=0, **options):
    torch.manual_seed(seed)
    return dgl.nn.BiasedMHA(C, H, **options).double()


def arguments(module):
    return [(p.name, p.default) for p in inspect.signature(module).parameters.values()]


def features(graph, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_nodes(), C, dtype=torch.float64, generator=generator, requires_grad=True)


def edge_bias(graph, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_edges(), H, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("projection_bias", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_the_dense_module(graph, densify, gradients, projection_bias, with_bias):
    ours, dense = make(bias=projection_bias), make_dense(bias=projection_bias)
    ours.eval(), dense.eval()
    feat, bias = features(graph), edge_bias(graph) if with_bias else None
    inputs = [feat] + ([bias] if with_bias else [])

    out = ours(graph, feat, bias)
    expected = dense(feat[None], *densify(graph, bias))[0]

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    found = gradients(out, inputs + list(ours.parameters()))
    wanted = gradients(expected, inputs + list(dense.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


class Watched(Local):
    """Keeps whether the rows that a layer projects have their heads side by side."""

    def attend(self, h, project, **options):
        self.__dict__["head_minor"] = is_head_minor(project(h, "qkv"))
        return super().attend(h, project, **options)


@pytest.mark.parametrize("projection_bias", [True, False])
@pytest.mark.parametrize("changed", [None, "k_proj", "out_proj"])
def test_rows_whose_heads_lie_side_by_side_give_the_same(graph, gradients, changed, projection_bias):
    """Eight heads of four numbers lie so in float32, not in float64; a user's hook sees heads one after the other."""
    torch.manual_seed(0)
    mha = BiasedMHA(32, 8, bias=projection_bias, attn_drop=0.0)
    if changed:
        factors = torch.linspace(1, 2, 32)
        getattr(mha, changed).register_forward_pre_hook(lambda _, inputs: inputs[0] * factors.to(inputs[0].dtype))
        getattr(mha, changed).register_forward_hook(lambda _, inputs, out: out * factors.to(out.dtype))
    results = []
    for module in (mha, copy.deepcopy(mha).double()):
        dtype = module.out_proj.weight.dtype
        feat = torch.randn(graph.num_nodes(), 32, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        strategy = Watched(dgl_gt.csc(graph))
        out = module(strategy, feat)
        results.append([out, *gradients(out, [feat, *module.parameters()])])
        assert strategy.head_minor == (dtype == torch.float32 and changed != "k_proj")
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_backward_hooks_run_where_heads_lie_side_by_side(graph):
    mha, seen = BiasedMHA(32, 8), []
    for name in ("q_proj", "out_proj"):
        getattr(mha, name).register_full_backward_hook(lambda *_, name=name: seen.append(name))
    mha(graph, torch.randn(graph.num_nodes(), 32, requires_grad=True)).sum().backward()
    assert seen == ["out_proj", "q_proj"]


def test_constructor_arguments_are_those_of_the_dense_module():
    assert arguments(BiasedMHA) == arguments(dgl.nn.BiasedMHA)


@pytest.mark.parametrize("projection_bias", [True, False])
def test_initial_weights_and_checkpoints_are_those_of_the_dense_module(projection_bias):
    ours, dense = make(bias=projection_bias), make_dense(bias=projection_bias)
    next_draw = torch.rand(4)
    make(bias=projection_bias)
    assert torch.equal(torch.rand(4), next_draw), "the same random numbers are consumed"
    assert list(ours.state_dict()) == list(dense.state_dict())
    for key, value in dense.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key

    other = make_dense(seed=5, bias=projection_bias)
    ours.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(ours.q_proj.weight, other.q_proj.weight)
    dense.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(dense.v_proj.weight, other.v_proj.weight)


def test_a_node_without_in_edges_gets_the_output_bias_alone(sparse_graph, gradients):
    mha = make().eval()
    torch.nn.init.normal_(mha.out_proj.bias)
    feat, bias = features(sparse_graph), edge_bias(sparse_graph)
    out = mha(sparse_graph, feat, bias)
    lonely = sparse_graph.in_degrees() == 0
    assert lonely.sum() == 5
    assert torch.equal(out[lonely], mha.out_proj.bias.expand(5, C))
    assert all(torch.isfinite(g).all() for g in gradients(out, [feat, bias, *mha.parameters()]))


def test_parallel_edges_count_twice(gradients):
    twice = dgl.graph(([0, 1, 1, 2], [3, 3, 3, 3]))
    once = dgl.graph(([0, 1, 2], [3, 3, 3]))
    bias = torch.zeros(3, H, dtype=torch.float64)
    bias[1] = math.log(2)
    mha = make().eval()
    feat = features(once)
    torch.testing.assert_close(mha(twice, feat), mha(once, feat, bias), rtol=0, atol=1e-12)


def test_bias_follows_edge_ids(graph):
    mha = make().eval()
    feat, bias = features(graph), edge_bias(graph)
    order = torch.randperm(graph.num_edges(), generator=torch.Generator().manual_seed(7))
    src, dst = graph.edges()
    reordered = dgl.graph((src[order], dst[order]), num_nodes=graph.num_nodes())
    torch.testing.assert_close(mha(reordered, feat, bias[order]), mha(graph, feat, bias), rtol=0, atol=1e-12)


def test_dropout_follows_an_explicit_seed(graph):
    mha, feat = make(attn_drop=0.4), features(graph)
    without = mha.eval()(graph, feat)
    assert torch.equal(mha(graph, feat), without)
    mha.train()
    mha.dropout_seed = 11
    first = mha(graph, feat)
    assert torch.equal(mha(graph, feat), first)
    assert not torch.allclose(first, without)
    mha.dropout_seed = 12
    assert not torch.allclose(mha(graph, feat), first)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5])
def test_refuses_seeds(seed):
    with pytest.raises(ValueError, match=r"seed is .*allowed: an int from 0 to 2\*\*63 - 1"):
        make().dropout_seed = seed


def test_dropout_without_a_seed_follows_torchs_generator(graph):
    mha, feat = make(attn_drop=0.4).train(), features(graph)
    torch.manual_seed(0)
    first, second = mha(graph, feat), mha(graph, feat)
    assert not torch.allclose(first, second)
    torch.manual_seed(0)
    assert torch.equal(mha(graph, feat), first)
    assert torch.equal(mha(graph, feat), second)


def test_no_random_number_is_drawn_where_no_weight_can_be_dropped(graph):
    feat = features(graph)
    for mha in (make(attn_drop=0.0).train(), make(attn_drop=0.4).eval()):
        before = torch.get_rng_state()
        mha(graph, feat)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feat_size": 10, "num_heads": 3}, "num_heads=3 does not divide feat_size=10"),
        ({"feat_size": 12, "num_heads": 0}, "num_heads is 0"),
        ({"feat_size": 0, "num_heads": 1}, "feat_size is 0"),
        ({"attn_bias_type": "max"}, "attn_bias_type is 'max'"),
        ({"attn_drop": 1.0}, r"attn_drop=1.0 is not in \[0, 1\)"),
        ({"attn_drop": -0.1}, r"attn_drop=-0.1 is not in \[0, 1\)"),
    ],
)
def test_refuses_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        BiasedMHA(**{"feat_size": C, "num_heads": H, **options})


@pytest.mark.parametrize(
    ("feat_shape", "bias_shape", "message"),
    [
        ((24, C + 1), None, r"\(24, 13\).*\(nodes, 12\)"),
        ((1, 24, C), None, r"\(1, 24, 12\).*\(nodes, 12\)"),
        ((24, C, C), None, r"\(24, 12, 12\).*\(nodes, 12\)"),
        ((C,), None, r"\(12,\).*\(nodes, 12\)"),
        ((23, C), None, "23 rows.*24 source nodes"),
        ((24, C), ("E",), r"attn_bias.*\(edges, 3\)"),
        ((24, C), ("E", H + 1), r"attn_bias.*\(edges, 3\)"),
        ((24, C), ("E", H, 1), r"attn_bias.*\(edges, 3\)"),
        ((24, C), (5, H), "bias"),
    ],
)
def test_refuses_shapes(graph, feat_shape, bias_shape, message):
    bias = bias_shape and torch.zeros([graph.num_edges() if n == "E" else n for n in bias_shape])
    with pytest.raises(ValueError, match=message):
        BiasedMHA(C, H)(graph, torch.zeros(feat_shape), bias)
