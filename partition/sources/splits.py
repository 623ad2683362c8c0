"""The split of the nodes of a source: by masks, by ids of nodes, by shares, or with a validation mask to be drawn."""

from __future__ import annotations

from collections.abc import Sequence

from dgl_gt.partition.graph import Graph
from dgl_gt.partition.transforms.node_split import shares_of, with_masks, with_masks_of_ids, with_validation_mask

from .coo import COOGraph, standard_label
from .node_data import NodeColumns
from .options import SourceOptions


def with_split(
    source: Graph | COOGraph, columns: Sequence[NodeColumns], options: SourceOptions
) -> tuple[Graph | COOGraph, str | None]:
    """Return a source, whose nodes are numbered, with the masks that it and its columns give; and what to say of them."""
    given = [source.split_ids] if isinstance(source, COOGraph) else []
    for ids in [*given, *(each.split_ids for each in columns)]:
        source = with_masks_of_ids(source, ids)
    if options.split is not None:
        label = source.node_data.get("label")
        label = standard_label(label) if label is not None and isinstance(source, COOGraph) else label
        source = with_masks(source, label, shares_of(options.split), options.stratify, options.seed)
    return with_validation_mask(source, options.seed)
