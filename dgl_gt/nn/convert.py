"""Weights that were trained with other implementations of these layers -> the ``state_dict`` of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from dgl_gt.partition.errors import InputError

from .attention import check_sizes

_OF_DGL_SPARSE = {
    "MHA": "attn",
    "batchnorm1": "attn_layer_norm",
    "batchnorm2": "ffn_layer_norm",
    "FFN1": "ffn.0",
    "FFN2": "ffn.3",
}


def from_dgl_sparse_gt(state_dict: Mapping[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """Convert weights of DGL's example of a sparse graph transformer, ``examples/sparse/graph_transformer.py``.

    A state of its ``SparseMHA`` becomes one of :class:`BiasedMHA`. A state of its ``GTLayer`` becomes one of
    ``GraphTransformerLayer(hidden, 2 * hidden, num_heads, dropout=0, attn_dropout=0, norm="batch")``. In the state of a
    model, layers of it are converted in the same way, and all else keeps its name. In that example,
    neighbouring columns belong to different heads; here the columns of a head lie together.

    There a query is the *source* of an edge, so that a node attends to the destinations of its out-edges. Here a query
    is the destination. For a graph in which each edge has its reverse, as in the molecules of that example, this is the
    same. Otherwise reverse the edges: ``dgl.reverse(graph, copy_edata=True)``, or ``edge_index.flip(0)``.

    Parameters
    ----------
    state_dict : mapping of str to Tensor
        The state of that example's module; it is not changed.
    num_heads : int
        Number of heads, which the state does not tell.

    Returns
    -------
    dict of str to Tensor
        For ``load_state_dict``; tensors that stay the same are not copied.

    Raises
    ------
    ValueError
        If the state has no projection of attention, or ``num_heads`` does not divide its width.
    """
    check_sizes(num_heads=num_heads)
    if not any(re.search(r"(^|\.)q_proj\.weight$", name) for name in state_dict):
        raise InputError(
            f"the state has no q_proj.weight; it has {_some(state_dict)}; pass the state_dict of a SparseMHA, a GTLayer or a "
            "model of DGL's sparse graph transformer"
        )
    converted = {}
    for name, value in state_dict.items():
        parts = [_OF_DGL_SPARSE.get(part, part) for part in name.split(".")]
        match = re.fullmatch(r"(.*\.)?([qkv]|out)_proj\.(weight|bias)", name)
        if match and f"{match[1] or ''}q_proj.weight" in state_dict:
            value = _heads_together(name, value, num_heads, inputs=match[2] == "out")
        converted[".".join(parts)] = value
    return converted


def from_pyg_transformer_conv(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Convert weights of PyG's ``TransformerConv`` to those of a :class:`GraphTransformerLayer`.

    The layer is ``GraphTransformerLayer(C, 0, num_heads, dropout=0, attn_dropout=p, residual="linear", norm="none")``,
    which computes what the convolution computes,

    .. math:: o_i = W_{skip} x_i + \sum_{j \to i} \mathrm{softmax}_j\!\left(q_i^\top k_j / \sqrt{D}\right) v_j

    for a convolution with ``in_channels = heads * out_channels = C``, ``concat=True``, ``root_weight=True``,
    ``beta=False`` and ``edge_dim=None``. Its output projection is the identity. To keep it so in further training, call
    ``layer.attn.out_proj.requires_grad_(False)``. A state does not tell whether ``root_weight`` was False, because PyG
    keeps :math:`W_{skip}` even then. If it was False, set the weights of ``layer.residual`` to zero.

    Parameters
    ----------
    state_dict : mapping of str to Tensor
        The state of the convolution; it is not changed.

    Returns
    -------
    dict of str to Tensor
        For ``load_state_dict``; tensors that stay the same are not copied.

    Raises
    ------
    ValueError
        If the state is of another module, or of a convolution with other options.
    """
    names = {"lin_query": "attn.q_proj", "lin_key": "attn.k_proj", "lin_value": "attn.v_proj", "lin_skip": "residual"}
    for part, option in (("lin_edge", "edge_dim=None"), ("lin_beta", "beta=False")):
        if f"{part}.weight" in state_dict:
            raise InputError(f"the state has {part}.weight; only a TransformerConv with {option} can be converted")
    allowed = {f"{part}.{kind}" for part in names for kind in ("weight", "bias")}
    if not {f"{part}.weight" for part in names} <= state_dict.keys() <= allowed:
        raise InputError(
            f"the state has {_some(state_dict)}; pass the state_dict of a TransformerConv, which has weights and biases of "
            f"{', '.join(names)}"
        )
    query = state_dict["lin_query.weight"]
    width = len(query)
    for part in names:
        shape = tuple(state_dict[f"{part}.weight"].shape)
        if shape != (width, width):
            raise InputError(
                f"{part}.weight has shape {shape}; allowed: {(width, width)}. Only a TransformerConv with concat=True and "
                "in_channels = heads * out_channels can be converted"
            )
    converted = {}
    for part, name in {**names, "out_proj": "attn.out_proj"}.items():
        identity = torch.eye(width, dtype=query.dtype, device=query.device)
        converted[f"{name}.weight"] = state_dict.get(f"{part}.weight", identity)
        converted[f"{name}.bias"] = state_dict.get(f"{part}.bias", query.new_zeros(width))
    return converted


def _heads_together(name: str, value: Tensor, num_heads: int, inputs: bool) -> Tensor:
    """Return a weight or bias with its rows (columns, for the output projection) reordered so that heads lie together."""
    if inputs:
        return value if value.ndim == 1 else _heads_together(name, value.T, num_heads, False).T.contiguous()
    if len(value) % num_heads:
        raise InputError(
            f"num_heads is {num_heads}, which does not divide {len(value)}, the width of {name}; pass the number of heads that "
            "the model was trained with"
        )
    return value.unflatten(0, (-1, num_heads)).transpose(0, 1).flatten(0, 1)


def _some(state_dict: Mapping[str, Tensor]) -> str:
    """Return the first names of a state, for a message."""
    return ", ".join([*list(state_dict)[:4], "..."][: len(state_dict)]) or "nothing"
