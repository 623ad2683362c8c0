"""Transforms of a graph before it is cut: expander edges and virtual nodes (Exphormer, arXiv:2303.06147).

Nodes and edges that a transform adds get the last ids, so the user's ids do not change. The edge data ``edge_kind``
tell a model which edges were added.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError, check_type, whole_number
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.system.distinct import unique
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.user_files import check_fits_memory

from .added_edges import with_more_edges

EDGE_KIND, VIRTUAL_NODE = "edge_kind", "virtual_node"
_EDGE_KINDS = {"expander": 1, "virtual_nodes": 2}  # in edge_kind; 0 are the edges of the graph
MAX_DEGREE, MAX_VIRTUAL_NODES = 128, 128
EDGE_BYTES = 48  # to build the in-edges of a graph, per edge


def add_expander_edges(graph: Graph, degree: int, *, seed: int = 0) -> Graph:
    """Add the edges of a random regular graph, in both directions, so that any two nodes are a few hops apart.

    The random graph is the union of ``degree / 2`` Hamiltonian cycles over the user's nodes, each in a random order, as
    in Exphormer (arXiv:2303.06147). It has no self-loops. A pair that is next to each other on several cycles is joined
    once, so a few nodes may get fewer new edges than ``degree``. An edge that the graph already has is added all the
    same; the two are then parallel, and of different kinds.

    Parameters
    ----------
    graph : Graph
        See :func:`dgl_gt.partition.load_graph`. Its virtual nodes, if there are any, get no expander edges.
    degree : int
        New in-edges, and new out-edges, of each node: an even number, at least 2, at most 128, less than the number of
        nodes.
    seed : int
        The same seed gives the same edges.

    Returns
    -------
    Graph
        The new edges have the ids after the existing ones: u -> v of each pair u < v in ascending order, then v -> u of
        each pair. ``edge_data["edge_kind"]``, uint8 (E,), is 0 for an edge of the graph, 1 for an expander edge and 2
        for an edge from or to a virtual node. In other edge data the new edges have zeros.

    Raises
    ------
    InputError
        The degree is not possible, the graph has expander edges or other data named ``edge_kind``, or it has the
        encoding ``shortest_path``, which would lack the new edges.

    Examples
    --------
    >>> from dgl_gt.partition import add_expander_edges, load_graph
    >>> graph = add_expander_edges(load_graph("sample:communities?nodes=200"), 4)
    >>> graph.transforms["expander"]["degree"]
    4
    """
    check_type("graph", graph, Graph)
    degree = whole_number("degree", degree)
    check_transforms(graph, expander=degree)
    nodes, seed = user_nodes(graph), whole_number("seed", seed, 0)
    check_degree(graph.name, degree, nodes)
    check_fits_memory(
        f"{graph.name}: expander edges of degree {degree}", EDGE_BYTES * (graph.num_edges + degree * nodes)
    )
    draw, pairs = np.random.default_rng(seed), np.zeros(0, np.int64)
    for _ in range(degree // 2):
        order = draw.permutation(nodes)
        following = np.roll(order, -1)
        pairs = unique(np.concatenate([pairs, np.minimum(order, following) * nodes + np.maximum(order, following)]))
    src, dst = np.divmod(pairs, nodes)
    record = {"degree": degree, "edges": 2 * len(pairs), "seed": seed}
    return _with_added(graph, "expander", np.concatenate([src, dst]), np.concatenate([dst, src]), record)


def add_virtual_nodes(graph: Graph, count: int) -> Graph:
    """Add nodes that are joined with every node of the user, in both directions (Gilmer et al., arXiv:1704.01212).

    Parameters
    ----------
    graph : Graph
        See :func:`dgl_gt.partition.load_graph`.
    count : int
        V, the number of virtual nodes, 1 to 128. They have no edges among each other, and no self-loops.

    Returns
    -------
    Graph
        The virtual nodes have the ids after the user's N nodes. Their label is -1 or NaN (none), they are in no mask, and all
        their other node data are zero. To tell them apart, the new ``node_data["virtual_node"]``, uint8 (N + V, V), has
        a one in column i for virtual node i, and zeros elsewhere. The new edges have the ids
        after the existing ones: for each virtual node N edges to it, then N edges from it, by ascending id of the other
        end. ``edge_data["edge_kind"]`` is as in :func:`add_expander_edges`, and other edge data of new edges are zero.

    Raises
    ------
    InputError
        The number is out of range, the graph has virtual nodes or other data of these names, or it has the encoding
        ``shortest_path``, which would lack the new edges.

    Examples
    --------
    >>> from dgl_gt.partition import add_virtual_nodes, load_graph
    >>> graph = add_virtual_nodes(load_graph("sample:communities?nodes=200"), 2)
    >>> graph.num_nodes
    202
    """
    check_type("graph", graph, Graph)
    count = whole_number("count", count)
    check_transforms(graph, virtual_nodes=count)
    nodes, edges = graph.num_nodes, 2 * count * graph.num_nodes
    row_bytes = sum(value.nbytes for value in graph.node_data.values())
    check_fits_memory(f"{graph.name}: virtual_nodes {count}", EDGE_BYTES * (graph.num_edges + edges) + row_bytes)
    users, virtual = np.tile(np.arange(nodes), count), np.repeat(np.arange(nodes, nodes + count), nodes)
    ends = np.stack([users, virtual]).reshape(2, count, 1, nodes)
    src, dst = np.concatenate([ends, ends[::-1]], axis=2).reshape(2, edges)
    node_data = {key: _with_zeros(value, count) for key, value in graph.node_data.items()}
    if "label" in node_data:
        label = node_data["label"]
        node_data["label"] = label = label.astype(np.int64) if label.dtype.kind == "u" else label
        label[nodes:] = np.nan if label.dtype.kind == "f" else -1
    node_data[VIRTUAL_NODE] = np.concatenate([np.zeros((nodes, count), np.uint8), np.eye(count, dtype=np.uint8)])
    graph = replace(graph, node_data=node_data, encodings={**graph.encodings, VIRTUAL_NODE: {"columns": count}})
    return _with_added(graph, "virtual_nodes", src, dst, {"nodes": count, "edges": edges})


def check_transforms(source, *, expander: int | None = None, virtual_nodes: int | None = None) -> None:
    """Raise :class:`InputError` unless a Graph or COOGraph can have these transforms; None stands for no transform.

    Without a source only the numbers are checked.
    """
    for name, value, most in (
        ("expander", expander, MAX_DEGREE),
        ("virtual_nodes", virtual_nodes, MAX_VIRTUAL_NODES),
    ):
        if value is None:
            continue
        if whole_number(name, value, 1, most) % 2 and name == "expander":
            raise InputError(f"expander is {value}; it must be an even number from 2 to {most}")
        if source is None:
            continue
        if source.schema is not None:
            what = f"{name} (--{name.replace('_', '-')})"
            raise InputError(
                f"{source.name} has node types, which {what} would join without a relation; leave {what} out"
            )
        present = None
        if name in source.transforms:
            present = "expander edges" if name == "expander" else "virtual nodes"
        elif EDGE_KIND in source.edge_data and not source.transforms:
            present = f"edge data {EDGE_KIND!r}"
        elif VIRTUAL_NODE in source.node_data and name == "virtual_nodes":
            present = f"node data {VIRTUAL_NODE!r}"
        elif "shortest_path" in source.encodings:
            present = "the encoding shortest_path, which the new edges would lack"
        if present:
            option = f"{name} (--{name.replace('_', '-')})"
            raise InputError(f"{source.name} already has {present}; remove it from the source, or leave {option} out")


def check_degree(name: str, degree: int, nodes: int) -> None:
    """Raise :class:`InputError` unless a simple graph of this many nodes can be regular of a degree."""
    if degree >= nodes:
        raise InputError(
            f"expander is {degree}, but {name} has {format_count(nodes, 'node')}, so a node has at most {nodes - 1} neighbours; "
            "choose a smaller even number, or leave expander (--expander) out"
        )


def transformed(graph: Graph, *, expander: int | None, virtual_nodes: int | None, seed: int) -> Graph:
    """The graph with expander edges, then virtual nodes; None stands for none."""
    graph = graph if expander is None else add_expander_edges(graph, expander, seed=seed)
    return graph if virtual_nodes is None else add_virtual_nodes(graph, virtual_nodes)


def added_sizes(nodes: int, *, expander: int | None = None, virtual_nodes: int | None = None) -> tuple[int, int]:
    """How many nodes, and at most how many edges, transforms add to a graph of this many nodes."""
    return virtual_nodes or 0, nodes * ((expander or 0) + 2 * (virtual_nodes or 0))


def user_nodes(graph: Graph) -> int:
    """The number of nodes without virtual nodes."""
    return graph.num_nodes - graph.transforms.get("virtual_nodes", {"nodes": 0})["nodes"]


def untransformed(graph: Graph) -> Graph:
    """The graph without what transforms added; node data and edge data are views."""
    if not graph.transforms:
        return graph
    nodes, edges = user_nodes(graph), graph.num_edges - sum(each["edges"] for each in graph.transforms.values())
    keep = graph.edge_ids < edges
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return replace(
        graph,
        indptr=kept_before[graph.indptr[: nodes + 1]],
        indices=graph.indices[keep],
        edge_ids=graph.edge_ids[keep],
        node_data={key: value[:nodes] for key, value in graph.node_data.items() if key != VIRTUAL_NODE},
        edge_data={key: value[:edges] for key, value in graph.edge_data.items() if key != EDGE_KIND},
        encodings={key: record for key, record in graph.encodings.items() if key != VIRTUAL_NODE},
        transforms={},
    )


def _with_added(graph: Graph, name: str, src: np.ndarray, dst: np.ndarray, record: dict) -> Graph:
    """The graph with the edges of a transform, which has extended the node data."""
    edge_data = {EDGE_KIND: np.zeros(graph.num_edges, np.uint8), **graph.edge_data}
    edge_data = {key: _with_zeros(value, len(src)) for key, value in edge_data.items()}
    edge_data[EDGE_KIND][graph.num_edges :] = _EDGE_KINDS[name]
    num_nodes = graph.num_nodes + record.get("nodes", 0)
    graph = with_more_edges(graph, src, dst, num_nodes)
    return replace(graph, edge_data=edge_data, transforms={**graph.transforms, name: record})


def _with_zeros(values: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([values, np.zeros((rows, *values.shape[1:]), values.dtype)])
