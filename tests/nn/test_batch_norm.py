"""BatchNorm on one process: torch's numbers. tests/distributed/test_models_on_ranks.py has it on several."""

import pytest
import torch

from dgl_gt.exchange.local import Local
from dgl_gt.exchange.view import View
from dgl_gt.nn import BatchNorm, ConvolutionLayer, apply_activation_checkpoint
from dgl_gt.structure import CSC

NODES = 5
GRAPH = CSC.build(torch.zeros(NODES + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), NODES)


class Halves(View):
    """A strategy of one of two ranks, whose other rank has the same rows."""

    num_owned = num_dst = NODES

    def stack_over_ranks(self, values):
        return values.detach().expand(2, -1 if values.ndim == 1 else values.shape[0], *values.shape[1:])


class NoNodes(View):
    num_owned = num_dst = 0


def rows(seed, dtype=torch.float64):
    return torch.randn(NODES, 3, dtype=dtype, generator=torch.Generator().manual_seed(seed), requires_grad=True)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("graph", [None, GRAPH])
def test_equals_torch(graph, momentum):
    ours, theirs = (kind(3, momentum=momentum).double() for kind in (BatchNorm, torch.nn.BatchNorm1d))
    for seed in range(3):
        torch.testing.assert_close(ours(rows(seed), graph), theirs(rows(seed)), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.eval()(rows(9), graph), theirs.eval()(rows(9)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}])
def test_two_ranks_with_the_same_rows_equal_torch_on_both(options):
    ours, theirs = (kind(3, **options).double() for kind in (BatchNorm, torch.nn.BatchNorm1d))
    for seed in range(3):
        x, twice = rows(seed), rows(seed)
        out, expected = ours(x, Halves()), theirs(torch.cat([twice, twice]))[:NODES]
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 1, 3 * NODES, dtype=torch.float64).view(NODES, 3)
    (out * weights).sum().backward()
    both = theirs(torch.cat([twice, twice]))
    (both * torch.cat([weights, weights])).sum().backward()
    torch.testing.assert_close(x.grad, twice.grad / 2, rtol=0, atol=1e-12)
    if options.get("affine", True):
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad / 2, rtol=0, atol=1e-12)


def test_bfloat16_rows_have_statistics_in_float32():
    x = rows(0, torch.float32).detach().add(1000)
    out = BatchNorm(3)(x.bfloat16(), Halves())
    assert out.dtype == torch.bfloat16
    expected = torch.nn.BatchNorm1d(3)(x.bfloat16().float().repeat(2, 1))[:NODES]
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.02)


def test_a_checkpointed_layer_in_evaluation_has_the_gradients_of_a_plain_one():
    grads = []
    for mode in ("none", "full"):
        torch.manual_seed(0)
        layer = ConvolutionLayer(3, 3, norm="batch").eval()
        apply_activation_checkpoint(layer, mode)
        strategy = Local(GRAPH)
        object.__setattr__(strategy, "holds_all", False)
        x = rows(0, torch.float32)
        layer(strategy, x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("mode", ["full", "keep_exchanges"])
def test_a_checkpointed_layer_has_the_gradients_and_the_statistics_of_a_plain_one(mode):
    """Where one process holds the graph; each pass counts once in the running statistics."""
    found = []
    for each in ("none", mode):
        torch.manual_seed(0)
        layer = apply_activation_checkpoint(ConvolutionLayer(3, 3, norm="batch"), each)
        for _ in range(2):
            layer(GRAPH, rows(0, torch.float32)).square().sum().backward()
        found.append([*(each.grad for each in layer.parameters()), *layer.buffers()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_refuses_too_few_nodes():
    with pytest.raises(ValueError, match="all ranks together have 0 nodes"):
        BatchNorm(2)(torch.zeros(0, 2), NoNodes())
