"""Products of features that are mostly zeros, such as counts of words."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional

from dgl_gt.torch_internals import is_transformed, is_watched

_SHARE = 0.05  # of numbers that are not zero; a product of more is no faster
_SIZE = 2**17  # numbers; making a sparse matrix of fewer takes as long as the product


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` for rows (n, F), on the CPU without the zeros where nearly all numbers are zero."""
    if not _are_sparse(rows):
        return functional.linear(rows, weight, bias)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        result = rows.to_sparse_csr() @ weight.T
    return result if bias is None else result + bias


def _are_sparse(rows: Tensor) -> bool:
    if torch.compiler.is_compiling() or rows.dtype not in (torch.float32, torch.float64):  # it may not ask for sizes
        return False
    if rows.requires_grad or rows.device.type != "cpu" or rows.dim() != 2 or rows.numel() < _SIZE:
        return False
    if torch.is_autocast_enabled("cpu") or is_transformed() or is_watched():
        return False
    return int(torch.count_nonzero(rows)) < _SHARE * rows.numel()
