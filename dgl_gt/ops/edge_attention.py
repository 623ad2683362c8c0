"""The torch operators of sparse attention whose keys and values read features of edges."""

import torch

from dgl_gt.structure import CSC

from . import dispatch
from .checks import check_seed_value
from .dispatch import differentiable, operator
from .reference import accumulation_dtype

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor edge, Tensor q_edge, Tensor indptr, Tensor indices, "
    "Tensor? edge_ids, Tensor? global_edge_ids, Tensor rev_indptr, Tensor rev_dst, Tensor rev_position, Tensor? seed, "
    "SymInt head_offset, float scale, float dropout_p"
)


def attend_with_edges(graph, rows, bias, edge, scale, dropout_p, seed):
    """Return out, lse and out_edge of checked arguments; ``rows`` are q, k and v, ``edge`` the features and q_edge."""
    fields = (graph.indptr, graph.indices, graph.edge_ids, graph.global_edge_ids, graph.rev_indptr)
    rest = graph.rev_dst, graph.rev_position, seed, graph.head_offset, scale, dropout_p
    return _attend(*rows, bias, *edge, *fields, *rest)


def _of_kernel(q, k, v, bias, edge, q_edge, *rest):
    """Return the arguments of a kernel, from those of the operators."""
    *arrays, seed, head_offset, scale, dropout_p = rest
    check_seed_value(seed)
    structure = CSC(*arrays[:4], k.shape[0], head_offset, *arrays[4:])
    return (structure, q, k, v, bias, scale, dropout_p, seed), (edge, q_edge)


@operator(f"sparse_attention_edges({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
def _forward(q, *rest):
    arguments, edge = _of_kernel(q, *rest)
    return dispatch.backend(q.device.type).forward(*arguments, edge=edge)


@torch.library.register_fake(_forward)
def _forward_fake(q, k, v, bias, edge, q_edge, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=accumulation_dtype(q.dtype)), q.new_empty(q_edge.shape)


# An operator cannot return None: where a gradient is not wanted, an empty tensor takes its place.
@operator(
    f"sparse_attention_edges_backward(Tensor grad_out, Tensor grad_lse, Tensor grad_out_edge, Tensor out, Tensor lse, "
    f"Tensor out_edge, {_ARGUMENTS}, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _backward(grad_out, grad_lse, grad_out_edge, out, lse, out_edge, *rest):
    *arguments, needs = rest
    grads = [_gradient(x, needed, arguments[0]) for x, needed in zip(arguments[:6], needs, strict=True)]
    *of_rows, of_edge, of_q_edge = [grad if needed else None for grad, needed in zip(grads, needs)]
    (structure, *rows, scale, dropout_p, seed), edge = _of_kernel(*arguments)
    backend = dispatch.backend(grad_out.device.type)
    backend.backward(
        structure, grad_out, grad_lse, out, lse, *rows, scale, dropout_p, seed, of_rows,
        edge=(*edge, out_edge, grad_out_edge, of_edge, of_q_edge),
    )  # fmt: skip
    return tuple(grads)


def _gradient(x, needed, q):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device) if needed else q.new_empty(0)


@torch.library.register_fake(_backward)
def _backward_fake(grad_out, grad_lse, grad_out_edge, out, lse, out_edge, *rest):
    return tuple(_gradient(x, needed, rest[0]) for x, needed in zip(rest[:6], rest[-1], strict=True))


def _save(ctx, inputs, output):
    *tensors, head_offset, scale, dropout_p = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.numbers = (head_offset, scale, dropout_p)


def _differentiate(ctx, grad_out, grad_lse, grad_out_edge):
    of_q, of_k, of_v, *others = ctx.needs_input_grad[:6]
    needs = [of_q, of_k or of_v, of_k or of_v, *others]
    if not any(needs):
        return (None,) * 17
    grads = _gradients(grad_out, grad_lse, grad_out_edge, *ctx.saved_tensors, *ctx.numbers, needs)
    wanted = ctx.needs_input_grad[:6]
    return *(grad if needed else None for grad, needed in zip(grads, wanted)), *((None,) * 11)


_attend = differentiable(_forward, _differentiate, _save)
_gradients = differentiable(_backward, dispatch.refuse_second_derivative)
dispatch.refuse_vmap(_forward, _backward)
