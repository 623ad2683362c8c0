"""Splits nodes into those of training, validation and test, for a graph that has no masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS

_ALLOWED = "three shares above 0, such as 60/20/20, which add up to 100 or to 1"


def shares_of(text) -> tuple[float, ...]:
    """The three shares that a text such as ``60/20/20`` gives, which add up to 1; ``InputError`` if it is wrong."""
    try:
        found = tuple(float(each) for each in text.split("/"))
    except (ValueError, AttributeError, TypeError):
        found = ()
    total = sum(found)
    if (
        len(found) != 3
        or not all(each > 0 for each in found)
        or not any(math.isclose(total, each) for each in (1, 100))
    ):
        raise InputError(f"split (--split) is {text!r}; it must be {_ALLOWED}")
    return tuple(each / total for each in found)


def with_masks(source, label: np.ndarray | None, shares: tuple[float, ...], stratify: bool, seed: int):
    """A ``Graph`` or ``COOGraph`` with random ``train_mask``, ``val_mask`` and ``test_mask`` of its labelled nodes.

    ``label`` has a row for each node; whole numbers from -1 on are -1 where there is none, and others NaN. Without it, all
    nodes are in one of the masks. With ``stratify`` each class is split by itself.

    Raises
    ------
    InputError
        There are masks already, ``stratify`` lacks one label of classes for each node, or a mask would be empty.
    """
    if known := next((each for each in SPLIT_MASKS if each in source.node_data), None):
        raise InputError(
            f"{source.name} has a {known} already; leave split (--split) out, or the masks out of the source"
        )
    is_labelled = np.ones(source.num_nodes, bool)
    if label is not None:
        rows = np.asarray(label).reshape(source.num_nodes, -1)
        has_none = rows.dtype.kind != "f" and rows.size and rows.min() == -1
        is_labelled = ((rows != -1) if has_none else (rows == rows)).any(1)
    nodes = np.flatnonzero(is_labelled)
    if not len(nodes):
        raise InputError(f"{source.name} has no labelled node to split (--split): all labels are -1 or NaN; give some")
    kind = np.zeros(len(nodes), np.int64)
    if stratify:
        if label is None or label.size != source.num_nodes or (rows[nodes, 0] != np.floor(rows[nodes, 0])).any():
            raise InputError(
                f"{source.name} has no classes of nodes in its label, which stratify (--stratify) needs; leave it out"
            )
        kind = np.unique(rows[nodes, 0], return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(len(nodes))
    order = order[np.argsort(kind[order], kind="stable")]
    counts = np.bincount(kind, minlength=1)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    place = (np.arange(len(nodes)) - first + 0.5) / np.repeat(counts, counts)  # in the class, 0 to 1
    split, masks = np.searchsorted(np.cumsum(shares[:2]), place, side="right"), {}
    for number, name in enumerate(SPLIT_MASKS):
        masks[name] = np.zeros(source.num_nodes, bool)
        masks[name][nodes[order[split == number]]] = True
        if not masks[name].any():
            raise InputError(
                f"{source.name} has {len(nodes):,} labelled nodes, and split (--split) gives none to {name}; choose other shares"
            )
    return replace(source, node_data={**source.node_data, **masks})
