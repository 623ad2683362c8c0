"""An ``edge_index`` -> CSC, kept for as long as the tensor lives and holds the same edges."""

import weakref

import torch

from .structure import CSC

# For each living tensor, by its id: a weak reference to it, a copy of it, the numbers of nodes, and the CSC by device.
# The copy is compared at every call, because a tensor's version does not show changes through .data or numpy.
_KEPT: dict = {}


def structure_of(edge_index, num_nodes, device=None):
    """Return the CSC of a tensor (2, E), sources above destinations, on a device; by default on that of the tensor.

    ``num_nodes`` is the number of nodes, or a pair of the numbers of sources and of destinations. Raises
    ``ValueError`` if the tensor is not an ``edge_index``, or has a node outside these numbers.
    """
    _check_kind(edge_index)
    counts = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    if len(counts) != 2 or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(
            f"num_nodes is {num_nodes!r}; an edge_index needs the number of nodes, or a tuple of the numbers of sources "
            "and of destinations; pass dgl_gt.csc(edge_index, num_nodes=...)"
        )
    key = id(edge_index)
    reference, copy, counts_then, by_device = _KEPT.get(key, (lambda: None, None, None, None))
    if reference() is not edge_index or counts_then != counts or not torch.equal(copy, edge_index):
        by_device = {edge_index.device: _build(edge_index, *counts)}
        reference = weakref.ref(edge_index, lambda _: _KEPT.pop(key, None))
        _KEPT[key] = reference, edge_index.detach().clone(), counts, by_device
    device = edge_index.device if device is None else torch.device(device)
    if device not in by_device:
        by_device[device] = by_device[edge_index.device].to(device)
    return by_device[device]


@torch.inference_mode(False)  # the result is kept, and training needs it, too
def _build(edge_index, num_src, num_dst):
    for ends, ids, count in zip(("sources", "destinations"), edge_index, (num_src, num_dst)):
        low, high = (int(bound) for bound in torch.aminmax(ids)) if len(ids) else (0, -1)
        if low < 0 or high >= count:
            raise ValueError(
                f"the {ends} in edge_index span {low} to {high}; allowed: 0 to {count - 1}, because there are {count} "
                "nodes; correct the edges, or pass num_nodes (or the features) of all nodes"
            )
    source, destination = edge_index if max(num_src, num_dst) >= 2**31 else edge_index.int()
    order = torch.sort(destination, stable=True).indices  # a row's edges stay in the order of the columns
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64, device=edge_index.device)
    torch.cumsum(torch.bincount(destination, minlength=num_dst), 0, out=indptr[1:])
    in_order = torch.equal(order, torch.arange(len(order), device=order.device))
    return CSC.build(indptr, source[order], num_src, edge_ids=None if in_order else order)


def _check_kind(edge_index):
    if edge_index.dim() != 2 or len(edge_index) != 2 or edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)} and dtype {edge_index.dtype}; allowed: (2, edges), with "
            "sources in row 0 and destinations in row 1, and torch.int32 or torch.int64"
        )
