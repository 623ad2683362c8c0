"""Sparse attention: the public function, which checks and dispatches, and its torch operators."""

import torch

from dgl_gt.structure import CSC, csc

from . import dispatch
from .checks import check_kind_values, check_q_edge, check_scale, check_seed_value, checked_numbers, unpack
from .dispatch import differentiable, operator
from .head_minor import result_strides
from .reference import accumulation_dtype, reference_attention


def sparse_attention(
    graph,
    q,
    k=None,
    v=None,
    *,
    score="dot",
    negative_slope=0.2,
    bias=None,
    bias_of_kind=None,
    edge=None,
    scale=None,
    dropout_p=0.0,
    seed=None,
    return_lse=False,
):
    """Softmax attention of every destination node over its in-edges.

    For each destination i and head, over the in-edges e = (j, i):
    ``s_e = scale * q_i . k_j + bias_e``, ``out_i = sum_e drop(softmax(s)_e) v_j`` and ``lse_i = log sum_e exp(s_e)``.
    With additive scores [4]_, ``s_e = LeakyReLU(q_i + k_j)``.
    One pass computes them with an online softmax [1]_; the backward pass computes the weights again from ``lse`` [2]_.
    The kernels are C++ on the CPU and Triton on CUDA devices. They store nothing of size E x H x D, and nothing of size
    E x H unless `bias` needs a gradient, and give the same bits at every run. Without a kernel, plain torch operations
    give the result, with a warning.

    Parameters
    ----------
    graph : dgl.DGLGraph, CSC or torch.Tensor (2, E)
        A DGL graph or block with one edge type, ``dgl_gt.csc(graph)``, or an ``edge_index``, see :func:`csc`. Inside
        ``torch.compile`` pass the CSC.
    q : torch.Tensor, (N_dst, H, D), or (N, 3, H, D)
        Queries; or queries, keys and values packed, with `k` and `v` None. float32, float64, bfloat16 or float16; sums
        are held in float32 (float64 for float64). Rows and heads may have any strides, and views are not copied, with
        two exceptions for the CPU: :doc:`api` has them under "Layout".
    k : torch.Tensor, (N_src, H, D), or (N_src, 2, H, D), optional
        Keys, in the dtype and on the device of `q`; or keys and values packed, with `v` None. The gradient of a packed
        tensor is written in place, which saves the copies that autograd makes for gradients of views.
    v : torch.Tensor, (N_src, H, D), optional
        Values.
    score : {"dot", "additive"}
        How scores are made. With "additive", `q` is (N_dst, H) and `k` is (N_src, H), so that an edge reads D + 1
        numbers per head and not 2 D. Packed, `k` is (N_src, H, D + 1), which holds the values and then the keys, or `q`
        is (N, H, D + 2), which holds the values, the keys and then the queries.
    negative_slope : float, default 0.2
        Slope of LeakyReLU below 0; only for additive scores.
    bias : torch.Tensor, (E, H), optional
        Term added to dot products, in order of edge id, in the dtype of `q` or of the sums. ``-inf`` removes the edge
        for this head: it gives nothing to any result or gradient, even where its keys or values are NaN.
    bias_of_kind : tuple of torch.Tensor (K, H) and torch.Tensor (E,), optional
        In place of `bias`: a table with a row for each kind of edge, and the kind of each edge, uint8, int32 or int64,
        in order of edge id. The kernels read the table by index. Its gradient stores nothing of size E x H on the CPU; on
        a GPU it does.
    edge : tuple of torch.Tensor (E, F) and torch.Tensor (N_dst, H, F), optional
        Features x of edges, in order of edge id, and ``q_edge``, both in the dtype of `q`; only for dot products. Then
        ``s_e = scale * (q_i . k_j + q_edge_i . x_e) + bias_e``, and a second result is ``out_edge_i = sum_e
        drop(softmax(s)_e) x_e``. So features enter keys and values as ``k_j + W x_e`` and ``v_j + W x_e`` where ``q_edge
        = W^T q`` and ``W out_edge`` is added to ``out``; nothing of size E x H x D or E x H is stored for it.
    scale : float or torch.Tensor (), optional
        Factor of dot products; ``1 / sqrt(D)`` by default. A tensor, such as a learnt temperature, has a gradient; the
        queries are multiplied by it.
    dropout_p : float, default 0.0
        Probability in [0, 1) of dropping a normalised weight; kept weights are divided by ``1 - dropout_p``.
    seed : int, or torch.Tensor () int64 on the CPU, optional
        Seed of the dropout mask, 0 to 2**63 - 1; required with dropout. SplitMix64 [3]_ makes the mask from (seed,
        global edge id, global head) alone. Pass a different seed for each layer and step; as a tensor, a new seed does
        not recompile a compiled graph.
    return_lse : bool, default False
        Whether to return ``lse`` too. It is differentiable, and ``dgl_gt.merge`` takes it.

    Returns
    -------
    out : torch.Tensor, (N_dst, H, D)
        Zeros for a row without edges.
    out_edge : torch.Tensor, (N_dst, H, F)
        Only with `edge`.
    lse : torch.Tensor, (N_dst, H)
        Only with `return_lse`; float32, or float64 for float64. ``-inf`` for a row without edges.

    Raises
    ------
    ValueError
        A shape, dtype, device or value does not fit.
    NotImplementedError
        A kernel is asked for a second derivative, or for a derivative in forward mode, or is mapped by ``torch.vmap``.
        ``torch.func.grad``, ``vjp`` and ``jacrev(..., chunk_size=1)`` work.

    References
    ----------
    .. [1] M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018, arXiv 1805.02867.
    .. [2] T. Dao et al., FlashAttention, NeurIPS 2022, arXiv 2205.14135.
    .. [3] G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    .. [4] P. Velickovic et al., Graph attention networks, ICLR 2018, arXiv 1710.10903.
    """
    if score not in ("dot", "additive"):
        raise ValueError(f"score is {score!r}; allowed: 'dot' or 'additive'")
    if not isinstance(graph, CSC):
        graph = csc(graph, q.device, tuple(rows.shape[:1].numel() for rows in (q if k is None else k, q)))
    negative_slope = negative_slope if score == "additive" else None
    kind = None
    if bias_of_kind is not None:
        if bias is not None:
            raise ValueError("bias and bias_of_kind are both given; leave one of them out")
        bias, kind = bias_of_kind
    if edge is None:
        q, k, v = dispatch.autocast(q, k, v)
        out, lse = _attend(graph, q, k, v, bias, scale, dropout_p, seed, negative_slope, kind=kind)
        return (out, lse) if return_lse else out
    q, k, v, features, q_edge = dispatch.autocast(q, k, v, *edge)
    q, k, v = unpack(q, k, v, negative_slope is not None)
    check_q_edge(q, features, q_edge, negative_slope)
    wide = torch.cat([q, q_edge], 2)
    out, lse = _attend(graph, wide, k, v, bias, scale, dropout_p, seed, negative_slope, features, kind)
    results = out.split([q.shape[2], q_edge.shape[2]], 2)
    return (*results, lse) if return_lse else results


def attend_rows(graph, q, kv=None, *, bias=None, edge=None, dropout=None, negative_slope=None, return_lse=False):
    """Attend packed rows, as strategies have them: scores are additive where there is a negative slope.

    With ``edge``, features (E, F) of edges, queries and results are D + F wide, see ``reference_attention``. ``dropout`` is
    a pair of probability and seed. All else is as for :func:`sparse_attention`.
    """
    p, seed = dropout or (0.0, None)
    q, kv, edge = dispatch.autocast(q, kv, edge)
    out, lse = _attend(graph, q, kv, None, bias, None, p, seed, negative_slope, edge)
    return (out, lse) if return_lse else out


def _attend(graph, q, k, v, bias, scale, dropout_p, seed, negative_slope, edge=None, kind=None):
    """Check the arguments and attend, with the operator where there is a kernel; see ``reference_attention``."""
    rows = unpack(q, k, v, negative_slope is not None)
    if isinstance(scale, torch.Tensor):
        check_scale(scale, negative_slope)
        q, k, v = rows = rows[0] * scale.reshape(()), *rows[1:]
        scale = 1.0
    terms = {"edge": edge, "kind": kind}
    numbers = checked_numbers(graph, rows, bias, graph.num_edges, scale, dropout_p, seed, negative_slope, **terms)
    if not dispatch.has_kernel(q.device.type):
        if not torch.compiler.is_compiling():  # which cannot read values
            check_seed_value(numbers[2])
            check_kind_values(kind, bias)
        return reference_attention(graph, *rows, bias, *numbers, **terms)
    dispatch.refuse_forward_mode("sparse_attention", q, k, v, bias, edge)
    scale, dropout_p, seed, negative_slope = numbers
    fields = (graph.indptr, graph.indices, graph.edge_ids, graph.global_edge_ids, graph.rev_indptr)
    rest = graph.rev_dst, graph.rev_position, seed, graph.head_offset, scale, dropout_p, negative_slope
    return _attend_edges(q, k, v, bias, edge, kind, *fields, *rest)


_ARGUMENTS = (
    "Tensor q, Tensor? k, Tensor? v, Tensor? bias, Tensor? edge, Tensor? kind, Tensor indptr, Tensor indices, "
    "Tensor? edge_ids, Tensor? global_edge_ids, Tensor rev_indptr, Tensor rev_dst, Tensor rev_position, Tensor? seed, "
    "SymInt head_offset, float scale, float dropout_p, float? negative_slope"
)


@operator(f"sparse_attention({_ARGUMENTS}) -> (Tensor, Tensor)")
def _attention(*arguments):
    rows, terms = _of_kernel(*arguments)
    return dispatch.backend(rows[1].device.type).forward(*rows, **terms)


def _of_kernel(q, k, v, bias, edge, kind, *rest):
    """The arguments of a kernel, from those of the operators."""
    *arrays, seed, head_offset, scale, dropout_p, negative_slope = rest
    check_seed_value(seed)
    check_kind_values(kind, bias)
    q, k, v = unpack(q, k, v, negative_slope is not None)
    structure = CSC(*arrays[:4], k.shape[0], head_offset, *arrays[4:])
    rows = structure, q, k, v, bias, scale, dropout_p, seed
    return (*rows, negative_slope), {"edge": edge, "kind": kind}


def _new_empty(rows, is_dense):
    """Return a stand-in for a result, or for the gradient of ``rows``, in the layout that the kernels give it."""
    return rows.new_empty(rows.shape) if is_dense else rows.new_empty_strided(rows.shape, result_strides(rows))


@torch.library.register_fake(_attention)
def _attention_fake(q, k, v, bias, edge, *rest):
    negative_slope = rest[-1]
    q, _, v = unpack(q, k, v, negative_slope is not None)
    out = q.new_empty(len(q), *v.shape[1:]) if negative_slope is not None else _new_empty(q, edge is not None)
    return out, q.new_empty(q.shape[:2], dtype=accumulation_dtype(q.dtype))


# An operator cannot return None: where a gradient is not wanted, an empty tensor takes its place.
@operator(
    f"sparse_attention_backward(Tensor grad_out, Tensor grad_lse, Tensor out, Tensor lse, {_ARGUMENTS}, "
    "bool needs_q, bool needs_kv, bool needs_bias, bool needs_edge) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _attention_backward(grad_out, grad_lse, out, lse, *rest):
    *arguments, needs_q, needs_kv, needs_bias, needs_edge = rest
    q, k, v, bias, edge = arguments[:5]
    needs, additive = _needed(k, v, needs_q, needs_kv), arguments[-1] is not None
    grads = [dispatch.empty_like(x, additive) if needed else q.new_empty(0) for x, needed in zip((q, k, v), needs)]
    of_bias, of_edge = [
        torch.empty_like(x) if needed else None for x, needed in ((bias, needs_bias), (edge, needs_edge))
    ]
    packed = [grad if needed else None for grad, needed in zip(grads, needs)]
    is_packed = needs_q if k is None else needs_kv and v is None
    written = (*(unpack(*packed, additive) if is_packed else packed), of_bias)
    (structure, q, k, v, bias, scale, dropout_p, seed, slope), terms = _of_kernel(*arguments)
    backend = dispatch.backend(q.device.type)
    rows = grad_out, grad_lse, out, lse, q, k, v, bias
    backend.backward(structure, *rows, scale, dropout_p, seed, (*written, of_edge), slope, **terms)
    return *grads, *(q.new_empty(0) if grad is None else grad for grad in (of_bias, of_edge))


def _needed(k, v, needs_q, needs_kv):
    """Return whether each gradient of rows is wanted, and is a tensor of its own."""
    return needs_q, needs_kv and k is not None, needs_kv and v is not None


@torch.library.register_fake(_attention_backward)
def _attention_backward_fake(grad_out, grad_lse, out, lse, q, k, v, bias, edge, *rest):
    *_, negative_slope, needs_q, needs_kv, needs_bias, needs_edge = rest
    needs = _needed(k, v, needs_q, needs_kv)
    rows = [_new_empty(x, negative_slope is not None) if needed else None for x, needed in zip((q, k, v), needs)]
    rows += [torch.empty_like(x) if needed else None for x, needed in ((bias, needs_bias), (edge, needs_edge))]
    return tuple(q.new_empty(0) if x is None else x for x in rows)


def _save(ctx, inputs, output):
    *tensors, head_offset, scale, dropout_p, negative_slope = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.numbers = (head_offset, scale, dropout_p, negative_slope)


def _differentiate(ctx, grad_out, grad_lse):
    needs_q, needs_k, needs_v, needs_bias, needs_edge = needs = ctx.needs_input_grad[:5]
    wanted = needs_q, needs_k or needs_v, needs_bias, needs_edge
    grads = _gradients(grad_out, grad_lse, *ctx.saved_tensors, *ctx.numbers, *wanted)
    others = (None,) * 13
    return *(grad if needed else None for grad, needed in zip(grads, needs)), *others


_attend_edges = differentiable(_attention, _differentiate, _save)
_gradients = differentiable(_attention_backward, dispatch.refuse_second_derivative)
dispatch.refuse_vmap(_attention, _attention_backward)
