"""Node classification on a sharded graph: features, labels and splits of the owned rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from partition.errors import InputError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Task:
    """What is learnt on this rank's rows.

    Attributes
    ----------
    feat : Tensor, float32, (N_owned, F)
    label : Tensor, int64, (N_owned,)
    rows : dict of str to Tensor, int64
        Owned labelled rows of ``train``, ``val`` and ``test``; a rank may have none.
    counts : dict of str to int
        Rows of each split over all ranks.
    classes : int
        The largest label of all ranks plus one.
    """

    feat: torch.Tensor
    label: torch.Tensor
    rows: dict[str, torch.Tensor]
    counts: dict[str, int]
    classes: int


def features(sg: ShardedGraph) -> torch.Tensor:
    """``feat`` as float32, whatever its dtype, of the rows that the first layer reads: owned, (N_owned, F), or with a
    deep halo all held, (N_held, F).

    Raises
    ------
    InputError
        No ``feat``, or not of shape (N, F) with F at least 1.
    """
    feat = _required(sg, "feat")
    if sg.depth > 1:
        feat = sg.srcdata["feat"]
    if feat.dim() != 2 or not feat.shape[1]:
        raise InputError(
            f"feat of {sg.manifest['source']} has row shape {tuple(feat.shape[1:])}; it must be (N, F), F at least 1"
        )
    return feat.float()


def node_classification(sg: ShardedGraph, split: int = 0) -> Task:
    """Read features, labels and masks from a sharded graph; every rank calls it. Rows without a label are left out.

    Raises
    ------
    InputError
        Features, labels or masks are missing or unfit, a split that does not exist or has no labelled row, or labels
        that are no classes.
    """
    feat, label = features(sg), _required(sg, "label").long()
    rows, counts = {}, {}
    for name in SPLITS:
        mask = _required(sg, f"{name}_mask")
        splits = mask.shape[1] if mask.dim() == 2 else 1
        if split >= splits:
            raise InputError(f"split is {split}; the masks hold {splits} split{'s'[: splits > 1]}, counted from 0")
        mine = (mask[:, split] if mask.dim() == 2 else mask) & (label >= 0)
        rows[name] = mine.nonzero().squeeze(1)
        counts[name] = int(sg.comm.all_reduce(torch.tensor([len(rows[name])]))[0])
        if not counts[name]:
            raise InputError(f"{name}_mask of split {split} selects no labelled node; it must select some")
    largest = label.max().reshape(1).cpu() if len(label) else torch.tensor([-1])
    classes = int(sg.comm.all_reduce(largest, "max")[0]) + 1
    if not 2 <= classes <= sg.manifest["nodes"]:
        raise InputError(
            f"the largest label is {classes - 1}; labels number classes from 0, and there must be "
            f"at least two and at most as many as nodes ({sg.manifest['nodes']})"
        )
    return Task(feat, label, rows, counts, classes)


def _required(sg: ShardedGraph, key: str) -> torch.Tensor:
    if key not in sg.ndata:
        have = f"only {', '.join(map(repr, sg.ndata))}" if sg.ndata else "none at all"
        raise InputError(
            f"the shards of {sg.manifest['source']} have no node data {key!r}, and this command needs it; they have "
            f"{have}. Partition a graph that has {key!r}, or give a file with it by --node-data"
        )
    return sg.ndata[key]


def unused(manifest: dict) -> str | None:
    """Names of node data and edge data in the shards that training does not read, as a sentence; None without any."""
    known = {"feat", "label", *(f"{name}_mask" for name in SPLITS)}
    left = [f"node data {key!r}" for key in manifest["node_data"] if key not in known]
    left += [f"edge data {key!r}" for key in manifest["edge_data"]]
    return f"not used by train: {', '.join(left)}" if left else None
