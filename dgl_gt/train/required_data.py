"""Data of shards that a task needs, of a typed graph those of the type that is learned."""

from __future__ import annotations

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import read_schema, user_node_count


def required(sg: ShardedGraph, key: str, *, of_edges: bool = False, of_type: str = "") -> torch.Tensor:
    """The node data of this name, or the edge data; ``InputError`` if the shards have none.

    Of a typed graph those of a node type, or of a relation: a row for each node or edge, and other types have no label and
    are in no mask.
    """
    data = sg.edata if of_edges else sg.ndata
    prefix = learned_type(sg, of_type, of_edges=of_edges, key=key)
    if prefix:
        rows = sg.edge_rows(prefix) if of_edges else sg.rows(prefix)
        column = _required(sg, f"{prefix}/{key}", data, of_edges)
        missing = 0 if column.dtype == torch.bool else torch.nan if column.is_floating_point() else -1
        whole = column.new_full((sg.num_edges() if of_edges else sg.num_nodes(), *column.shape[1:]), missing)
        return whole.index_copy_(0, rows, column)
    return _required(sg, key, data, of_edges)


def learned_type(sg: ShardedGraph, name: str, *, of_edges: bool = False, key: str = "label") -> str:
    """The node type of a typed graph that is learned, or the relation: the one of this name, or the only one with labels.

    It is empty where the graph has one type of each.
    """
    option, schema = "relation" if of_edges else "type", sg.schema
    if schema is None:
        if name:
            raise InputError(
                f"{option} is {name!r}, and {sg.manifest['source']} has one type of nodes and edges; leave it out"
            )
        return ""
    if name:
        return str(schema.relations[schema.relation(name)]) if of_edges else schema.node_types[schema.node_type(name)]
    data = sg.edata if of_edges else sg.ndata
    having = [each.rpartition("/")[0] for each in data if each.rpartition("/")[2] == "label"]
    if len(having) != 1:
        raise InputError(
            f"{option} is not given, and {' and '.join(having) or 'no type'} of {sg.manifest['source']} has labels; name the "
            f"{option} that is learned (--{option})"
        )
    return having[0]


def nodes_at_ends(manifest: dict, relation) -> tuple[range, range]:
    """The user's numbers, among nodes of all types, of the sources and of the destinations that a relation can have.

    Of a graph of one type they are all nodes, and so without a relation.
    """
    schema = read_schema(manifest)
    if schema is None or not relation:
        return (range(user_node_count(manifest)),) * 2
    source, _, destination = schema.relations[schema.relation(relation)]
    ends = [schema.rows_of("node", f"{each}/") for each in (source, destination)]
    return range(ends[0].start, ends[0].stop), range(ends[1].start, ends[1].stop)


def nodes_of_links(manifest: dict) -> tuple[range, range]:
    """The user's numbers of the nodes that links can have as source, and as destination: all, or those of their types."""
    return nodes_at_ends(manifest, (manifest["links"] or {}).get("relation"))


def _required(sg: ShardedGraph, key: str, data: dict[str, torch.Tensor], of_edges: bool) -> torch.Tensor:
    if key not in data:
        present = ", ".join(map(repr, data)) or "none"
        kind, way = ("edge data", "") if of_edges else ("node data", ", or name a file that has it with --node-data")
        raise InputError(
            f"the shards of {sg.manifest['source']} have no {kind} {key!r} (they have: {present}); partition a graph that has "
            f"it{way}"
        )
    return data[key]
