"""apply_precision: bfloat16 from outside, with float32 parameters, gradients and results."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from dgl_gt.nn import GraphTransformer, GraphTransformerLayer, apply_activation_checkpoint, apply_precision

IN, C, OUT = 5, 16, 4


def make(**options):
    torch.manual_seed(0)
    return GraphTransformer(IN, C, OUT, layers=2, heads=4, **options)


def feat_of(graph):
    return torch.randn(graph.num_nodes(), IN, generator=torch.Generator().manual_seed(1))


def step(model, graph):
    model.zero_grad()
    result = model(graph, feat_of(graph))
    result.square().sum().backward()
    return [result.detach(), *(parameter.grad for parameter in model.parameters())]


def close(found, expected, share):
    """The results, and all gradients together, of which that of a key's bias is zero but for rounding."""
    assert {each.dtype for each in found} == {torch.float32}
    for own, others in ((found[:1], expected[:1]), (found[1:], expected[1:])):
        a, b = (torch.cat([each.flatten() for each in tensors]) for tensors in (own, others))
        assert (a - b).norm() <= share * b.norm()


def test_near_float32_with_float32_parameters(graph):
    model = make()
    keys, expected = list(model.state_dict()), step(model, graph)
    assert apply_precision(model, "bf16") is model and list(model.state_dict()) == keys
    seen = []
    hook = model.layers[1].attn.register_forward_hook(lambda _, args, out: seen.append(out.dtype))
    found = step(model, graph)
    hook.remove()
    assert seen == [torch.bfloat16]
    close(found, expected, share=0.05)
    assert not torch.equal(found[0], expected[0])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_float32_again(graph):
    model = make()
    expected = step(model, graph)
    for precision in ("bf16", "bf16", "fp32"):
        apply_precision(model, precision)
    for a, b in zip(step(model, graph), expected, strict=True):
        assert torch.equal(a, b)
    assert "forward" not in vars(apply_precision(make(), "fp32"))


def test_copies_keep_the_precision(graph):
    model = apply_precision(make(), "bf16")
    expected = step(model, graph)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1  # of the original alone
        for a, b in zip(step(each, graph), expected, strict=True):
            assert torch.equal(a, b)
        model = apply_precision(make(), "bf16")


@pytest.mark.parametrize("mode", ["full", "keep_exchanges"])
def test_with_activation_checkpointing(graph, mode):
    """Backward computes a layer again in bfloat16, with the same bits."""
    expected = step(apply_precision(make(), "bf16"), graph)
    model = apply_precision(apply_activation_checkpoint(make(), mode), "bf16")
    for a, b in zip(step(model, graph), expected, strict=True):
        torch.testing.assert_close(a, b)


class Own(nn.Module):
    """Returns more than a tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(IN, OUT)

    def forward(self, feat, *, twice=False):
        rows = self.linear(feat)
        return (rows, feat) if twice else rows.argmax(1)


def test_every_result_in_bfloat16_becomes_float32(graph):
    model = apply_precision(Own(), "bf16")
    rows, feat = model(feat_of(graph), twice=True)
    assert (rows.dtype, feat.dtype, model(feat).dtype) == (torch.float32, torch.float32, torch.int64)
    assert torch.equal(rows, rows.bfloat16().float())


def test_activation_checkpointing_does_not_undo_it():
    layer = apply_precision(GraphTransformerLayer(C, C, 4), "bf16")
    with pytest.raises(ValueError, match="has been replaced, for instance by apply_precision"):
        apply_activation_checkpoint(layer, "full")
    apply_activation_checkpoint(apply_precision(layer, "fp32"), "full")
    model = apply_precision(make(), "bf16")
    before = model.forward
    assert apply_activation_checkpoint(model, "full").forward is before


def test_refuses():
    with pytest.raises(ValueError, match="precision is 'fp16'"):
        apply_precision(make(), "fp16")


def test_a_model_is_freed_at_once():
    """With its parameters: nothing in it refers to the model or a layer, so no garbage collection is needed."""
    gc.disable()
    try:
        model = apply_precision(apply_activation_checkpoint(make(), "full"), "bf16")
        parameters = [weakref.ref(each) for each in model.parameters()]
        del model
        assert not any(each() is not None for each in parameters)
    finally:
        gc.enable()
