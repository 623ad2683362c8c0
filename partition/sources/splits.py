"""The split of the nodes of a source: by masks, by ids of nodes, by shares, or with a validation mask to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.schema import Schema, columns_by_type
from dgl_gt.partition.transforms.node_split import shares_of, with_masks, with_masks_of_ids, with_validation_mask

from .coo import COOGraph, nodes_alone, standard_label
from .node_data import NodeColumns
from .options import SourceOptions


def with_split(
    source: Graph | COOGraph, columns: Sequence[NodeColumns], options: SourceOptions
) -> tuple[Graph | COOGraph, str | None]:
    """Return a source, whose nodes are numbered, with the masks that it and its columns give; and what to say of them.

    In a typed graph, ``split`` is of the types that have labels, each by itself.
    """
    if source.schema is not None:
        return _with_split_by_type(source, source.schema, options)
    given = [source.split_ids] if isinstance(source, COOGraph) else []
    for ids in [*given, *(each.split_ids for each in columns)]:
        source = with_masks_of_ids(source, ids)
    if options.split is not None:
        label = source.node_data.get("label")
        label = standard_label(label) if label is not None and isinstance(source, COOGraph) else label
        source = with_masks(source, label, shares_of(options.split), options.stratify, options.seed)
    return with_validation_mask(source, options.seed)


def _with_split_by_type(
    source: Graph | COOGraph, schema: Schema, options: SourceOptions
) -> tuple[Graph | COOGraph, str | None]:
    by_type, said = columns_by_type(source.node_data), []
    labelled = [each for each in schema.nodes if "label" in by_type.get(each, {})]
    if options.split is not None and not labelled:
        raise InputError(
            f"{source.name} has labels for no node type, so split (--split) has nothing to split; leave it out"
        )
    for node_type, count in schema.nodes.items():
        columns, name = by_type.get(node_type, {}), f"{source.name}: {node_type}"
        alone = nodes_alone(count, columns, name)
        own = options if node_type in labelled else replace(options, split=None, stratify=False)
        made, note = with_split(alone, (), own)
        by_type[node_type] = made.node_data
        said += [] if note is None else [note]
    data = {f"{of}/{key}" if of else key: value for of, each in by_type.items() for key, value in each.items()}
    return replace(source, node_data=data), "; ".join(said) or None
