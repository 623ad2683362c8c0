"""The torch operators: gradcheck, opcheck, torch.compile."""

import pytest
import torch
from attention_cases import Case, draw_csc, draw_inputs, head_minor
from dgl_or_skip import dgl
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad

from dgl_gt import csc, sparse_attention
from dgl_gt.ops import cpu
from dgl_gt.ops.dispatch import operator
from dgl_gt.ops.reference import reference_attention

needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")
EDGES = [(0, 0), (1, 0), (1, 0), (4, 2), (0, 2), (2, 3), (3, 3), (4, 3), (3, 4)]  # row 1 has none
CASES = [
    Case("bias and dropout", 5, 6, EDGES + [(5, 2), (5, 0)], heads=2, width=3, bias=True, dropout_p=0.3),
    Case("no bias, packed", 5, 5, EDGES, heads=1, width=2, packed=True),
    Case("head-minor", 5, 6, EDGES, heads=4, width=4, bias=True, head_minor=True),
]
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@needs_kernel
@pytest.mark.parametrize("implementation", [sparse_attention, reference_attention], ids=lambda f: f.__name__)
@by_name
def test_gradcheck_through_both_results(case, implementation):
    csc = draw_csc(case)
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    has_edges = csc.indptr.diff() > 0

    def results(q, k, v, bias):
        if implementation is sparse_attention:
            options = dict(bias=bias, dropout_p=case.dropout_p, seed=3, return_lse=True)
            out, lse = sparse_attention(csc, q, k, v, **options)
        else:
            out, lse = reference_attention(csc, q, k, v, bias, 0.5, case.dropout_p, 3)
        return out, lse[has_edges]

    inputs = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (q, k, v, bias)]
    assert not has_edges.all()
    assert torch.autograd.gradcheck(results, inputs)


@needs_kernel
@pytest.mark.parametrize("packing", ["none", "kv", "qkv"])
@by_name
def test_opcheck(case, packing):
    csc = draw_csc(case)
    _, (q, k, v, bias) = draw_inputs(case, torch.float32)
    as_given = head_minor if case.head_minor else lambda rows: rows
    if packing == "kv":
        k, v = as_given(torch.stack([k, v], 1).detach().requires_grad_()), None
    elif packing == "qkv":
        csc = draw_csc(Case("", 5, 5, EDGES, bias=case.bias))
        q, k, v = as_given(torch.stack([q, q, q], 1).detach().requires_grad_()), None, None
        bias = None if bias is None else bias[: len(EDGES)].detach().requires_grad_()
    bias = None if bias is None else bias.detach().T.contiguous().T.requires_grad_()  # gradients keep its strides
    fields = (csc.indptr, csc.indices, csc.edge_ids, csc.global_edge_ids, csc.rev_indptr, csc.rev_dst, csc.rev_position)
    numbers = (torch.tensor(3) if case.dropout_p else None, csc.head_offset, 0.5, case.dropout_p, None)
    torch.library.opcheck(torch.ops.dgl_gt.sparse_attention, (q, k, v, bias, None, None, *fields, *numbers))

    out, lse = torch.ops.dgl_gt.sparse_attention(q, k, v, bias, None, None, *fields, *numbers)
    tensors = [None if tensor is None else tensor.detach() for tensor in (out, lse, out, lse, q, k, v, bias)]
    for needs in [(True, True, case.bias), (True, False, False), (False, True, False)]:
        if packing == "qkv" and not (needs[0] and needs[1]):
            continue  # one tensor: its gradient is wanted or not
        arguments = (*tensors, None, None, *fields, *numbers, *needs, False)
        torch.library.opcheck(torch.ops.dgl_gt.sparse_attention_backward, arguments)


def compile_as_one_graph(function):
    """torch.compile without a code generator, and a list that grows by one with each compilation."""
    compilations = []

    def count(graph_module, _):
        compilations.append(graph_module)
        return make_boxed_func(graph_module)

    backend = aot_autograd(fw_compiler=count, bw_compiler=lambda graph_module, _: make_boxed_func(graph_module))
    return torch.compile(function, fullgraph=True, backend=backend), compilations


def loss_of(graph, packed, bias, seed):
    out, lse = sparse_attention(graph, packed * 2, bias=bias, dropout_p=0.25, seed=seed, return_lse=True)
    return out.square().sum() + lse.clamp(min=-5).sum()


@needs_kernel
@pytest.mark.parametrize("graph_type", ["CSC", "DGLGraph"])
def test_compiles_as_one_graph(graph_type):
    generator = torch.Generator().manual_seed(0)
    graph = dgl.graph(tuple(torch.randint(0, 8, (2, 30), generator=generator)), num_nodes=8)
    if graph_type == "CSC":
        graph = csc(graph)
    csc(graph)  # made before, as torch.compile cannot follow DGL into its library
    leaves = [torch.randn(8, 3, 2, 4, generator=generator), torch.randn(30, 2, generator=generator)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    compiled, compilations = compile_as_one_graph(loss_of)
    for seed in (1, 2, 3):
        expected, got = (function(graph, *leaves, torch.tensor(seed)) for function in (loss_of, compiled))
        torch.testing.assert_close(got, expected)
        pairs = zip(torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other)
    assert len(compilations) == 1
    expected, got = (function(graph, *leaves, 5) for function in (loss_of, compiled))
    torch.testing.assert_close(got, expected)


@needs_kernel
def test_autocast_runs_in_its_dtype():
    made = draw_csc(Case("", 20, 20, 90))
    packed = torch.randn(20, 3, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    q, k, v = packed.unbind(1)
    expected = sparse_attention(made, packed.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sparse_attention(made, packed), expected)
        assert torch.equal(sparse_attention(made, q.bfloat16(), k, v), expected)  # mixed, as layers of both kinds give
        assert sparse_attention(made, *(x.double() for x in (q, k, v))).dtype == torch.float64
    (grad,) = torch.autograd.grad(expected.float().sum(), packed)
    assert grad.dtype == torch.float32
    assert sparse_attention(made, packed).dtype == torch.float32


@needs_kernel
def test_checkpoint_recomputes_the_same():
    made = draw_csc(Case("", 20, 20, 90))
    packed = torch.randn(20, 3, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def attend(packed):
        return sparse_attention(made, packed, dropout_p=0.5, seed=4)

    kept = attend(packed)
    again = torch.utils.checkpoint.checkpoint(attend, packed, use_reentrant=False)
    assert torch.equal(kept, again)
    grads = [torch.autograd.grad(out.square().sum(), packed)[0] for out in (kept, again)]
    assert torch.equal(*grads)


def test_meta_tensors_give_shapes():
    made = draw_csc(Case("", 5, 6, EDGES)).to("meta")
    q, k = (torch.empty(rows, 2, 4, device="meta", dtype=torch.bfloat16) for rows in (5, 6))
    out, lse = sparse_attention(made, q, k, k, return_lse=True)
    assert (out.shape, lse.shape) == ((5, 2, 4), (5, 2)) and out.is_meta
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


@needs_kernel
def test_vmap_is_refused():
    made = draw_csc(Case("", 5, 5, EDGES))
    rows = torch.randn(3, 5, 2, 4)
    with pytest.raises(NotImplementedError, match="no batching rule for torch.vmap"):
        torch.vmap(lambda q: sparse_attention(made, q, rows[0], rows[1]))(rows)


@needs_kernel
def test_second_derivative_is_refused():
    case = CASES[0]
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    out = sparse_attention(draw_csc(case), q, k, v, bias=bias)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative.*create_graph"):
        grad.sum().backward()


@needs_kernel
@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_forward_mode_is_refused(name):
    """By torch.func.jvp, jacfwd and dual tensors: the operator would give no tangent, or zeros."""
    case = CASES[0]
    made, inputs = draw_csc(case), dict(zip(("q", "k", "v", "bias"), draw_inputs(case, torch.float64)[1]))

    def attend(x):
        return sparse_attention(made, **{**inputs, name: x})

    x, tangent = inputs[name].detach(), torch.ones_like(inputs[name])
    for derivative in (lambda: torch.func.jvp(attend, (x,), (tangent,)), lambda: torch.func.jacfwd(attend)(x)):
        with pytest.raises(NotImplementedError, match="sparse_attention has no derivative in forward mode.*reverse"):
            derivative()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        attend(forward_ad.make_dual(x, tangent))
    with forward_ad.dual_level():
        assert torch.equal(attend(x), sparse_attention(made, **inputs)), "without a tangent there is nothing to lose"


def test_functions_of_operators_are_hidden_from_the_compiler():
    """Also where a frame cannot be compiled, and what it calls is compiled by itself."""
    traced, graphs = [], []

    @operator("add_one(Tensor x) -> Tensor")
    def add_one(x):
        traced.append(torch.compiler.is_compiling())
        return x + 1

    def compiled(graph, _):
        graphs.extend(node.name for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def steps(x):
        for _ in range(2):
            print(end="")  # the compiler gives up on a loop with such a call
            x = add_one(x)
        return x

    assert torch.compile(steps, backend=compiled)(torch.zeros(2)).tolist() == [2, 2]
    assert traced == [False, False] and "add" not in graphs
