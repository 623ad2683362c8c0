"""``torch.func``: gradients in reverse mode are those of autograd, and what kernels cannot do is refused in plain words."""

import pytest
import torch
from attention_cases import Case, draw_csc

from dgl_gt import merge, nn, sparse_attention
from dgl_gt.exchange.local import Local
from dgl_gt.ops import cpu
from dgl_gt.ops.dropout import keyed_dropout

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")
EDGES = [(0, 0), (1, 0), (2, 1), (1, 2), (3, 3), (0, 3), (2, 2)]
GRAPH = draw_csc(Case("", 4, 4, EDGES))
PARTS = [draw_csc(Case("", 4, 4, edges)) for edges in (EDGES[:4], EDGES[4:])]
GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(4, 3, 2, 4, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(len(EDGES), 2, generator=GENERATOR, dtype=torch.float64)
CONV = nn.GATConv(4, 4, 2, attn_drop=0.25).double()
LAYER = nn.GraphTransformerLayer(4, 8, 2, dropout=0.0, attn_dropout=0.0).double()
CONV.dropout_seed = 5
Q, K, V = ROWS.unbind(1)


def attend_in_parts(q):
    return merge([sparse_attention(part, q, K, V, return_lse=True) for part in PARTS])[0]


FUNCTIONS = {
    "packed": (lambda x: sparse_attention(GRAPH, x, bias=BIAS, dropout_p=0.3, seed=3), ROWS),
    "keys": (lambda x: sparse_attention(GRAPH, Q, x, V, bias=BIAS), K),
    "bias": (lambda x: sparse_attention(GRAPH, ROWS, bias=x), BIAS),
    "scale": (lambda x: sparse_attention(GRAPH, ROWS, scale=x), torch.tensor(0.7, dtype=torch.float64)),
    "additive": (lambda x: sparse_attention(GRAPH, x, K[..., 0], V, score="additive"), Q[..., 0].clone()),
    "merge": (attend_in_parts, Q),
    "keyed dropout": (lambda x: keyed_dropout(x, 0.4, 3), Q[:, 0]),
    "GATConv": (lambda x: CONV(GRAPH, x), Q[:, 0]),
    "layer": (lambda x: LAYER(GRAPH, x), Q[:, 0]),
}
by_function = pytest.mark.parametrize("name", FUNCTIONS)


def case_of(name):
    """A function of one tensor, a tensor, its value there, and the gradient of the weighted sum of its result."""
    function, x = FUNCTIONS[name]
    leaf = x.detach().clone().requires_grad_()
    out = function(leaf)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return function, x, out.detach(), upstream, torch.autograd.grad(out, leaf, upstream)[0]


@by_function
def test_gradients_are_those_of_autograd(name):
    function, x, out, upstream, expected = case_of(name)
    assert expected.abs().sum() > 0

    def loss(x):
        return (function(x) * upstream).sum()

    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    got, pull = torch.func.vjp(function, x)
    torch.testing.assert_close(got, out)
    torch.testing.assert_close(pull(upstream)[0], expected)
    rows = torch.func.jacrev(function, chunk_size=1)(x)
    torch.testing.assert_close((upstream.reshape(-1) @ rows.reshape(out.numel(), -1)).view_as(x), expected)


@by_function
def test_a_parameter_that_needs_a_gradient_may_be_there(name):
    """Where autograd records, too, as in a module whose parameters were not detached."""
    function, x, _, upstream, expected = case_of(name)
    leaf = x.detach().clone().requires_grad_()
    got = torch.func.grad(lambda x: (function(x) * upstream).sum())(leaf)
    torch.testing.assert_close(got.detach(), expected)


def test_functional_call_trains_a_module():
    parameters = {name: value.detach() for name, value in LAYER.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(LAYER, parameters, (GRAPH, Q[:, 0])).square().sum()

    found = torch.func.grad(loss)(parameters)
    LAYER.zero_grad()
    LAYER(GRAPH, Q[:, 0]).square().sum().backward()
    for name, value in LAYER.named_parameters():
        torch.testing.assert_close(found[name], value.grad)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "keyed dropout"])
def test_what_kernels_cannot_do_is_refused(name):
    function, x = FUNCTIONS[name]

    def loss(x):
        return function(x).square().sum()

    for message, transform in (
        ("batching rule.*chunk_size=1", torch.func.jacrev(loss)),
        ("batching rule", lambda x: torch.vmap(function)(x.expand(2, *x.shape))),
        ("second derivative", torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())),
        ("forward mode", torch.func.hessian(loss)),
        ("forward mode", torch.func.jacfwd(function)),
        ("forward mode", lambda x: torch.func.jvp(function, (x,), (x,))),
    ):
        with pytest.raises(NotImplementedError, match=f"sparse_attention has no.*{message}"):
            transform(x)


def test_keyed_dropout_is_linear():
    """So it has all derivatives in reverse mode, and maps over a dimension."""
    x = Q[:, 0]
    factors = keyed_dropout(torch.ones_like(x), 0.4, 3)

    def loss(x):
        return keyed_dropout(x, 0.4, 3).pow(3).sum()

    second = torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(x)
    torch.testing.assert_close(second, 6 * factors.pow(3) * x)
    torch.testing.assert_close(torch.func.jacrev(lambda x: keyed_dropout(x, 0.4, 3).sum())(x), factors)
    torch.testing.assert_close(torch.vmap(lambda x: keyed_dropout(x, 0.4, 3))(x.expand(2, 4, 4))[1], x * factors)
    with pytest.raises(NotImplementedError, match="keyed_dropout has no derivative in forward mode"):
        torch.func.hessian(loss)(x)


def test_a_graph_of_several_ranks_is_refused():
    """Before any exchange, so that no rank waits."""

    class OfSeveral(Local):
        holds_all = False

    for layer in (CONV, LAYER):
        with pytest.raises(NotImplementedError, match="ShardedGraph.*torch.func.*backward"):
            torch.func.grad(lambda x, layer=layer: layer(OfSeveral(GRAPH), x).sum())(Q[:, 0])
