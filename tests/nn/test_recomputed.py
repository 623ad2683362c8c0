"""Rows that backward computes again: the same results and gradients as with rows that are kept, in less memory."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dgl_gt
from dgl_gt.nn import GraphTransformer
from dgl_gt.plan.watch import LiveTensors

NODES, WIDTH = 300, 32
EDGES = torch.randint(0, NODES, (2, 2000), generator=torch.Generator().manual_seed(0))
GRAPH = dgl_gt.csc(EDGES, num_nodes=NODES)
FEAT = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(1))


class CountingProducts(TorchDispatchMode):
    """Counts matrix products."""

    products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.products += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


def make(**options):
    torch.manual_seed(2)
    model = GraphTransformer(8, WIDTH, 5, 3, 4, **{"dropout": 0.3, **options})
    for name, parameter in model.named_parameters():  # norms that are not all ones and zeros
        if "norm" in name:
            nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.3)
    dgl_gt.nn.set_dropout_step(model, 3, 4)
    return model


def kept(model):
    """The model with rows that are kept: a module with a hook runs as it is."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GELU, nn.ReLU, nn.Identity)):
            module.register_forward_hook(lambda *_: None)
    return model


def run(model, precision=None):
    """The result, and the gradients of features and parameters."""
    feat = FEAT.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        out = model(GRAPH, feat)
    out.float().square().sum().backward()
    return {"out": out.detach(), "feat": feat.grad} | {name: each.grad for name, each in model.named_parameters()}


def same_gradients(found, expected):
    """To rounding; that of the bias of keys is zero but for it."""
    assert {name for name, value in found.items() if value is None} == {
        name for name, value in expected.items() if value is None
    }
    largest = max(float(value.abs().max()) for value in expected.values() if value is not None)
    for name, value in expected.items():
        if value is not None:
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6 * largest, msg=name)


@pytest.mark.parametrize("norm", ["layer", "rms", "none", "batch"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
@pytest.mark.parametrize("options", [{}, {"dropout": 0.0}, {"norm_first": False}], ids=str)
def test_results_and_gradients(norm, activation, options):
    options = {"norm": norm, "activation": activation, **options}
    found, expected = run(make(**options)), run(kept(make(**options)))
    assert torch.equal(found["out"], expected["out"])
    same_gradients(found, expected)


def test_in_bfloat16():
    found, expected = run(make(), "bf16"), run(kept(make()), "bf16")
    assert torch.equal(found["out"], expected["out"])
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=0, atol=0.02 * float(value.abs().max()), msg=name)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_parameters_that_do_not_train(norm):
    model, other = make(norm=norm), kept(make(norm=norm))
    for each in (model, other):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_("ffn.0" not in name and "norm" not in name)
    found, expected = run(model), run(other)
    same_gradients(found, expected)


def without_biases(layer):
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(layer.attn, name, nn.Linear(WIDTH, WIDTH, bias=False))
    layer.ffn[0], layer.ffn[3] = nn.Linear(WIDTH, 48, bias=False), nn.Linear(48, WIDTH, bias=False)


def with_plain_norms(layer):
    layer.attn_layer_norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
    layer.ffn_layer_norm = nn.LayerNorm(WIDTH, bias=False)


def with_one_norm(layer):
    layer.ffn_layer_norm = layer.attn_layer_norm


def with_one_projection(layer):
    layer.ffn[0] = layer.ffn[3] = nn.Linear(WIDTH, WIDTH)


def with_no_activation(layer):
    layer.ffn[1] = nn.Identity()


def with_a_normed_activation(layer):
    layer.ffn[1] = nn.LayerNorm(64)


def with_other_dropouts(layer):
    layer.ffn[2], layer.ffn[4] = nn.Identity(), nn.Identity()


def with_more_parts(layer):
    layer.ffn.append(nn.Tanh())


def with_an_own_forward(layer):
    first = layer.ffn[0]
    first.forward = lambda x: 2 * nn.functional.linear(x, first.weight, first.bias)


def with_an_own_network(layer):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, h, seeded):
            return self.linear(h)

    layer.ffn = Own()


def with_a_hook_that_changes_rows(layer):
    layer.attn.register_forward_pre_hook(lambda _, given: (given[0], given[1] * 0.5, *given[2:]))


@pytest.mark.parametrize(
    "change",
    [
        *(without_biases, with_plain_norms, with_one_norm, with_one_projection, with_a_normed_activation),
        *(with_no_activation, with_other_dropouts, with_more_parts, with_an_own_forward, with_an_own_network),
        with_a_hook_that_changes_rows,
    ],
)
def test_layers_that_a_user_has_changed(change):
    model, other = make(), make()
    for each in (model, other):
        torch.manual_seed(5)
        for layer in each.layers:
            change(layer)
    found, expected = run(model), run(kept(other))
    assert torch.equal(found["out"], expected["out"])
    same_gradients(found, expected)


def test_a_model_that_is_evaluated_before_backward():
    found, expected = {}, {}
    for model, into in ((make(), found), (kept(make()), expected)):
        loss = model(GRAPH, FEAT).square().sum()
        model.eval()
        loss.backward()
        into.update({name: each.grad for name, each in model.named_parameters()})
    same_gradients(found, expected)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_parameters_that_are_given_for_a_call(norm):
    found, expected = {}, {}
    for model, into in ((make(norm=norm), found), (kept(make(norm=norm)), expected)):
        others = {name: (1.5 * each.detach()).requires_grad_() for name, each in model.named_parameters()}
        torch.func.functional_call(model, others, (GRAPH, FEAT)).square().sum().backward()
        into.update({name: each.grad for name, each in others.items()})
        assert all(each.grad is None for each in model.parameters())
    same_gradients(found, expected)


def test_an_activation_in_place_and_a_graph_that_is_kept():
    model = make()
    for layer in model.layers:
        layer.ffn[1] = nn.ReLU(inplace=True)
    loss = model(GRAPH, FEAT).square().sum()
    loss.backward(retain_graph=True)
    first = {name: each.grad.clone() for name, each in model.named_parameters()}
    loss.backward()
    same_gradients({name: each.grad for name, each in model.named_parameters()}, {k: 2 * v for k, v in first.items()})


def test_weights_that_do_not_train_cost_no_product():
    model = make()
    for parameter in model.layers.parameters():
        parameter.requires_grad_(False)
    with CountingProducts() as counted:
        run(model)
    for parameter in model.layers.parameters():
        parameter.requires_grad_(True)
    with CountingProducts() as of_all:
        run(model)
    assert of_all.products - counted.products == 4 * len(
        model.layers
    )  # q, k and v in one; out_proj; two of the network


def test_a_step_takes_a_fifth_less():
    peaks = []
    for change in (kept, lambda model: model):
        model = change(make())
        run(model)
        with LiveTensors() as live:
            run(model)
        peaks.append(live.peak_bytes)
    assert peaks[1] < 0.8 * peaks[0]
