"""Products of features that are mostly zeros, such as counts of words."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from dgl_gt.torch_internals import is_transformed, is_watched

_SHARE = 0.05  # of numbers that are not zero; a product of more is no faster
_SIZE = 2**17  # numbers; making a sparse matrix of fewer takes as long as the product
_found = WeakTensorKeyDictionary()  # features are read in every step


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` for rows (n, F), on the CPU without the zeros where nearly all numbers are zero."""
    sparse = _sparse(rows) if _may_be_sparse(rows) else None
    if sparse is None:
        return functional.linear(rows, weight, bias)
    result = sparse @ weight.T
    return result if bias is None else result + bias


def _sparse(rows: Tensor) -> Tensor | None:
    """Return rows without their zeros, or None where that would be no faster; kept until the rows change or are gone."""
    if rows.is_inference():  # they do not say whether they have changed
        return _without_zeros(rows)
    version, sparse = _found.get(rows, (-1, None))
    if version != rows._version:
        sparse = _without_zeros(rows)
        _found[rows] = rows._version, sparse
    return sparse


def _without_zeros(rows: Tensor) -> Tensor | None:
    if int(torch.count_nonzero(rows)) >= _SHARE * rows.numel():
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return rows.to_sparse_csr()


def _may_be_sparse(rows: Tensor) -> bool:
    if torch.compiler.is_compiling() or rows.dtype not in (torch.float32, torch.float64):  # it may not ask for sizes
        return False
    if rows.requires_grad or rows.device.type != "cpu" or rows.dim() != 2 or rows.numel() < _SIZE:
        return False
    return not (torch.is_autocast_enabled("cpu") or is_transformed() or is_watched())
