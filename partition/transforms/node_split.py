"""Splits nodes into those of training, validation and test, for a graph that lacks some or all of the masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS, Graph, check_data

from .link_split import numbers_of

SPLIT_IDS = {mask.replace("_mask", "_idx"): mask for mask in SPLIT_MASKS}  # ids of nodes, by the mask that they give
_TRAINING_NODES = 10  # of which one validates where nobody says which do

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


def with_masks_of_ids(source, ids: dict[str, np.ndarray]):
    """A ``Graph`` or ``COOGraph`` with the masks that ids of its nodes give, (n,) each, by the names ``SPLIT_IDS``."""
    masks = dict[str, np.ndarray]()
    for key, values in ids.items():
        name = SPLIT_IDS[key]
        if name in source.node_data:
            raise InputError(f"{source.name} has {name} and {key}, which are one; leave one of them out")
        if values.ndim != 1 or values.dtype.kind not in "iuU":
            raise InputError(
                f"{source.name}: {key} is {values.dtype} {values.shape}; it must be ids of nodes, (n,): call a mask {name}"
            )
        masks[name] = np.zeros(source.num_nodes, bool)
        numbers = numbers_of(f"{source.name}: {key}", values, source.node_names, source.num_nodes, source.name)
        masks[name][numbers] = True
    source = replace(source, node_data={**source.node_data, **masks}) if masks else source
    if masks and isinstance(source, Graph):
        check_data(source)
    return source


def with_validation_mask(source, seed: int):
    """A ``Graph`` or ``COOGraph`` that has masks of training and test, with one of validation, and what to say of it.

    Where there is none, one training node in ten is drawn for it, at least one in each split; the others still train.
    """
    data = source.node_data
    given = data.get("train_mask")
    if "val_mask" in data or "test_mask" not in data or given is None or not given.size or given.ndim not in (1, 2):
        return source, None
    train = np.array(given, order="C")
    val, rng = np.zeros_like(train), np.random.default_rng(seed)
    columns = [each.reshape(len(each), -1).T for each in (train, val)]  # views, a row for each split
    if any(np.count_nonzero(each) < 2 for each in columns[0]):
        return source, None
    for of_training, of_validation in zip(*columns):
        nodes = np.flatnonzero(of_training)
        drawn = rng.choice(nodes, max(1, len(nodes) // _TRAINING_NODES), replace=False)
        of_validation[drawn] = of_training[drawn]
        of_training[drawn] = 0
    note = (
        f"{source.name}: there is no val_mask, so it takes {np.count_nonzero(val):,} of the nodes of train_mask, drawn with "
        f"seed {seed}, which leaves {np.count_nonzero(train):,}; to choose, give one"
    )
    return replace(source, node_data={**data, "train_mask": train, "val_mask": val}), note
