"""Node classification on a sharded graph: features, labels and splits of the owned rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.shards.transform_records import user_node_count
from dgl_gt.partition.system.units import format_count

from .config import Inputs
from .edge_rows import NO_EDGES, EdgeRows, edge_rows
from .sufficient_factors import SufficientFactors

SPLITS = tuple(mask.removesuffix("_mask") for mask in SPLIT_MASKS)


@dataclass(frozen=True)
class Task:
    """The data of this rank's rows."""

    feat: torch.Tensor  # float32 (N_owned, F), or with a deep halo (N_held, F): of the rows that the first layer reads
    label: torch.Tensor  # int64 (N_owned,)
    rows: dict[str, torch.Tensor]  # int64: owned labelled rows of train, val and test; a rank may have none
    counts: dict[str, int]  # rows of each split on all ranks together
    classes: int  # the largest label on any rank plus one
    num_nodes: int  # of the whole graph, without virtual nodes
    signed: range = range(0)  # columns of ``feat`` that are eigenvectors, whose signs training flips
    edges: EdgeRows = NO_EDGES
    user_rows: torch.Tensor | None = None  # bool (N_owned,), false for virtual nodes; None where there are none
    weights: torch.Tensor | None = None  # float32 (N_owned,), of the rows in the loss; None where each counts once
    factors: SufficientFactors | None = None  # sums gradients that only training rows reach; None without such


def features(sg: ShardedGraph, inputs: Inputs) -> torch.Tensor:
    """``feat`` and encodings, side by side, as float32, of the rows that the first layer reads.

    These are the owned rows, (N_owned, F), or with a deep halo all held rows, (N_held, F). ``InputError`` says that
    there is no ``feat`` or no such encoding, or that the shape of ``feat`` is not (N, F) with F at least 1.
    """
    feat = _required(sg, "feat")
    if sg.depth > 1:
        feat = sg.srcdata["feat"]
    if feat.dim() != 2 or not feat.shape[1]:
        raise InputError(
            f"feat of {sg.manifest['source']} has row shape {tuple(feat.shape[1:])}; it must be (N, F), with F at least 1"
        )
    feat = feat.float()
    if inputs.normalizes_features:
        feat = functional.normalize(feat, p=1.0)  # rows of zeros stay zero
    if not inputs.encodings:
        return feat
    stored = sg.manifest["encodings"]
    for name in inputs.encodings:
        if name not in stored:
            raise InputError(
                f"encodings has {name!r}, but the shards of {sg.manifest['source']} hold "
                f"{', '.join(stored) or 'no encodings'}; partition again with --encode {name}=..., or leave it out"
            )
    data = sg.srcdata if sg.depth > 1 else sg.ndata
    edge_encodings = [name for name in inputs.encodings if name not in data]
    if edge_encodings:
        raise InputError(f"encodings has {edge_encodings[0]!r}, which describes edges; name it in edge_features")
    # A column of eigenvectors has length 1; its numbers grow to the size of features for the model.
    factors = [user_node_count(sg.manifest) ** 0.5 if name == "laplacian" else 1.0 for name in inputs.encodings]
    encoded = [data[name].float() * factor for name, factor in zip(inputs.encodings, factors)]
    return torch.cat([feat, *encoded], 1)


def flip_signs(feat: torch.Tensor, columns: range, seed: int) -> torch.Tensor:
    """Return rows in which some columns have random signs, the same for all rows and on all ranks that share the seed.

    The sign of an eigenvector is arbitrary, and a model that sees both does not rely on it (Dwivedi and Bresson,
    arXiv:2012.09699).
    """
    signs = torch.ones(feat.shape[1])
    generator = torch.Generator().manual_seed(seed)
    signs[columns.start : columns.stop] = 2.0 * torch.randint(2, (len(columns),), generator=generator) - 1
    return feat * signs.to(feat.device)


def node_classification(sg: ShardedGraph, split: int = 0, inputs: Inputs | None = None) -> Task:
    """Features with encodings, labels and masks of a sharded graph; every rank calls it. Rows without a label are left out.

    ``InputError`` says that features, labels or masks are missing or have the wrong shape, that the split does not
    exist or has no labelled row, or that the labels are not class numbers.
    """
    inputs = inputs or Inputs()
    feat, label = features(sg, inputs), _required(sg, "label").long()
    rows, counts = {}, {}
    for name in SPLITS:
        mask = _required(sg, f"{name}_mask")
        splits = mask.shape[1] if mask.dim() == 2 else 1
        if split >= splits:
            raise InputError(f"split is {split}; the masks hold {format_count(splits, 'split')}, counted from 0")
        mine = (mask[:, split] if mask.dim() == 2 else mask) & (label >= 0)
        rows[name] = mine.nonzero().squeeze(1)
        counts[name] = int(sg.comm.all_reduce(torch.tensor([len(rows[name])]))[0])
        if not counts[name]:
            raise InputError(
                f"{name}_mask of split {split} selects no labelled node; it must select at least one: fix the mask"
            )
    largest = label.max().reshape(1).cpu() if len(label) else torch.tensor([-1])
    classes = int(sg.comm.all_reduce(largest, "max")[0]) + 1
    if not 2 <= classes <= sg.manifest["nodes"]:
        raise InputError(
            f"the largest label is {classes - 1}; labels must number classes from 0, at least two of them and at most "
            f"one per node ({sg.manifest['nodes']})"
        )
    num_nodes, signed = user_node_count(sg.manifest), signed_columns(sg, inputs.encodings)
    user_rows = sg.node_ids < num_nodes if num_nodes < sg.manifest["nodes"] else None
    return Task(feat, label, rows, counts, classes, num_nodes, signed, edge_rows(sg, inputs), user_rows)


def signed_columns(sg: ShardedGraph, encodings: tuple[str, ...]) -> range:
    """The columns that hold eigenvectors in the result of :func:`features`; none without the encoding ``laplacian``."""
    widths = [sg.ndata["feat"].shape[1], *(sg.ndata[name].shape[1] for name in encodings)]
    if "laplacian" not in encodings:
        return range(0)
    index = encodings.index("laplacian") + 1
    return range(sum(widths[:index]), sum(widths[: index + 1]))


def _required(sg: ShardedGraph, key: str) -> torch.Tensor:
    if key not in sg.ndata:
        present = ", ".join(map(repr, sg.ndata)) or "none"
        raise InputError(
            f"the shards of {sg.manifest['source']} have no node data {key!r} (they have: {present}); partition a graph "
            f"that has it, or name a file that has it with --node-data"
        )
    return sg.ndata[key]


def describe_unused_data(manifest: dict, inputs: Inputs | None = None) -> str | None:
    """A phrase that names the node data and edge data of the shards that training does not read; None without any."""
    inputs = inputs or Inputs()
    known = {"feat", "label", *(f"{name}_mask" for name in SPLITS), *inputs.encodings}
    unused = [f"node data {key!r}" for key in manifest["node_data"] if key not in known]
    unused += [f"edge data {key!r}" for key in manifest["edge_data"] if key not in inputs.edge_features]
    return f"not used by train: {', '.join(unused)}" if unused else None
