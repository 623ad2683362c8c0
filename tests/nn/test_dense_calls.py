"""Calls without a graph: DGL's dense modules and their dropout masks, and what is refused."""

import pytest
import torch
from dgl_or_skip import dgl

from dgl_gt.nn import BiasedMHA, GraphTransformerLayer, apply_activation_checkpoint

B, N, C, HIDDEN, H = 3, 7, 12, 20, 3
BIASES = ["add", "mul"]


def batch(seed=1):
    """Features, a bias for each query, key and head, and a mask that leaves each query itself."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    mask = torch.rand(B, N, N, generator=generator) < 0.5
    mask[:, range(N), range(N)] = False
    return draw(B, N, C).requires_grad_(), draw(B, N, N, H).requires_grad_(), mask


def same(ours, theirs, gradients, *inputs):
    """Run both in training, each from the same state of torch's generator; compare results and all gradients."""
    theirs.load_state_dict(ours.state_dict())
    leaves = [each for each in inputs if each is not None and each.requires_grad]
    found = []
    for module in (ours, theirs):
        torch.manual_seed(5)
        out = module(*inputs)
        found.append([out, *gradients(out, [*leaves, *module.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("attn_bias_type", BIASES)
@pytest.mark.parametrize("projection_bias", [True, False])
@pytest.mark.parametrize("given", ["all", "mask", "nothing"])
def test_attention_equals_dgls_with_its_dropout_masks(gradients, attn_bias_type, projection_bias, given):
    options = {"bias": projection_bias, "attn_bias_type": attn_bias_type, "attn_drop": 0.4}
    feat, bias, mask = batch()
    bias, mask = bias if given == "all" else None, None if given == "nothing" else mask
    same(BiasedMHA(C, H, **options).double(), dgl.nn.BiasedMHA(C, H, **options).double(), gradients, feat, bias, mask)


@pytest.mark.parametrize("attn_bias_type", BIASES)
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_layer_equals_dgls_with_its_dropout_masks(gradients, attn_bias_type, norm_first):
    options = {"attn_bias_type": attn_bias_type, "norm_first": norm_first, "dropout": 0.3, "attn_dropout": 0.4}
    ours, theirs = GraphTransformerLayer(C, HIDDEN, H, **options), dgl.nn.GraphormerLayer(C, HIDDEN, H, **options)
    same(ours.double(), theirs.double(), gradients, *batch())


def test_a_query_that_sees_no_key_gets_nan_as_in_dgl():
    feat, _, mask = batch()
    mask[1, 2] = True
    ours, theirs = BiasedMHA(C, H).double().eval(), dgl.nn.BiasedMHA(C, H).double().eval()
    theirs.load_state_dict(ours.state_dict())
    found, expected = ours(feat, attn_mask=mask), theirs(feat, attn_mask=mask)
    assert torch.equal(found.isnan().all(2), expected.isnan().all(2))
    assert found.isnan().any(2).sum() == 1


@pytest.mark.parametrize("checkpointing", [False, True])
def test_arguments_have_dgls_names(checkpointing):
    feat, bias, mask = batch()
    layer = GraphTransformerLayer(C, HIDDEN, H).double()
    if checkpointing:
        apply_activation_checkpoint(layer, "full")
    for module, name in ((BiasedMHA(C, H).double(), "ndata"), (layer, "nfeat")):
        results = []
        for call in (
            lambda: module(feat, bias, mask),
            lambda: module(feat, bias, attn_mask=mask),
            lambda: module(feat, attn_mask=mask, attn_bias=bias),
            lambda: module(**{name: feat, "attn_bias": bias, "attn_mask": mask.long()}),
        ):
            torch.manual_seed(3)
            feat.grad = None
            out = call()
            out.sum().backward()
            results.append((out, feat.grad))
        for out, grad in results[1:]:
            assert torch.equal(out, results[0][0]) and torch.equal(grad, results[0][1])


@pytest.mark.parametrize("kind", ["attention", "layer"])
def test_all_pairs_as_edges_give_the_dense_result(kind):
    """Without DGL: what a mask leaves is the graph whose edges go from keys to queries."""
    feat, bias, mask = batch()
    module = (BiasedMHA(C, H) if kind == "attention" else GraphTransformerLayer(C, HIDDEN, H)).double().eval()
    dense = module(feat, bias, mask)
    for index in range(B):
        query, key = (~mask[index]).nonzero(as_tuple=True)
        on_edges = module(torch.stack([key, query]), feat[index], bias[index, query, key])
        torch.testing.assert_close(on_edges, dense[index], rtol=0, atol=1e-12)


def test_a_gated_feed_forward_network_takes_a_batch():
    """Each graph of a batch gives what it gives alone."""
    feat = batch()[0]
    layer = GraphTransformerLayer(C, HIDDEN, H, activation="swiglu").double().eval()
    alone = torch.cat([layer(each[None]) for each in feat])
    torch.testing.assert_close(layer(feat), alone, rtol=0, atol=1e-12)


def test_what_broadcasts_is_taken():
    feat, bias, mask = batch()
    mha = BiasedMHA(C, H).double().eval()
    shared = mha(feat, bias[:1], mask[:1])
    torch.testing.assert_close(shared, mha(feat, bias[:1].expand_as(bias), mask[:1].expand_as(mask)))
    assert mha(feat[:0]).shape == (0, N, C) and mha(feat[:, :0]).shape == (B, 0, C)


@pytest.mark.parametrize("name", ["ndata", "nfeat"])
def test_refusals(name):
    feat, bias, mask = batch()
    module = (BiasedMHA(C, H) if name == "ndata" else GraphTransformerLayer(C, HIDDEN, H)).double()
    for arguments, message in (
        ((feat[0],), r"without a graph, the features are \(7, 12\); allowed: a tensor \(batch, nodes, 12\)"),
        ((feat[..., :5],), r"the features are \(3, 7, 5\)"),
        ((feat, bias[..., :2]), r"attn_bias has shape \(3, 7, 7, 2\); allowed: \(3, 7, 7, 3\)"),
        ((feat, None, mask[:2]), r"attn_mask has shape \(2, 7, 7\); allowed: \(3, 7, 7\)"),
    ):
        with pytest.raises(ValueError, match=message):
            module(*arguments)
    with pytest.raises(ValueError, match="the features are list"):
        module(**{name: [feat]})


def test_a_bias_that_multiplies_is_refused_on_edges():
    edges = torch.tensor([[0, 1], [1, 2]])
    for module in (BiasedMHA(C, H, attn_bias_type="mul"), GraphTransformerLayer(C, HIDDEN, H, attn_bias_type="mul")):
        assert module(edges, torch.randn(3, C)).shape == (3, C)
        with pytest.raises(ValueError, match="attn_bias_type is 'mul'"):
            module(edges, torch.randn(3, C), torch.randn(2, H))


@pytest.mark.parametrize("options", [{"score": "gcn"}, {"norm": "batch"}, {"edge_hidden": 4}])
def test_a_layer_with_options_that_dgls_lacks(options):
    with pytest.raises(ValueError, match="available with score='dot', and without norm='batch' and edge_hidden"):
        GraphTransformerLayer(C, HIDDEN, H, **options)(torch.randn(B, N, C))
