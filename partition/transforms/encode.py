"""Computes encodings of a whole graph and adds them to its node data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError, check_type, whole_number
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.system.user_files import check_fits_memory

from .encodings import Encoding, edge_bytes, parse_encodings, row_bytes
from .exphormer import untransformed
from .hop_tokens import hop_tokens, token_counts
from .laplacian import laplacian_encoding
from .node_encodings import PROBES, anchor_encoding, hop_encoding, random_walk_encoding, simple_adjacency
from .shortest_path import shortest_path_encoding


def encode(graph: Graph, encodings: str, *, seed: int = 0, progress=None) -> Graph:
    """Compute structural encodings of a graph, and return the graph with them as node data or edge data.

    They describe the place of each node in the whole graph, so they are computed before the graph is cut. All but
    ``degree`` and ``shortest_path`` see the graph as METIS does: undirected, without parallel edges and self-loops.
    None of them sees expander edges or virtual nodes; virtual nodes have zeros in this node data. All but ``hops`` take
    typed graphs as if all nodes and edges were of one type.

    Parameters
    ----------
    graph : Graph
        See :func:`dgl_gt.partition.load_graph`.
    encodings : str
        The encodings to compute, with commas between them, such as ``"laplacian=16,degree"``. Each becomes node data of
        the same name, float32, and the last one edge data:

        - ``laplacian=K``, (N, K): eigenvectors of the symmetric normalised Laplacian, those of the smallest eigenvalues
          above 0 (arXiv:2012.09699). Columns have length 1.
        - ``random_walk=K``, (N, K): the probability that a random walk is back after 1 to K steps (arXiv:2110.07875).
          Exact for graphs of moderate size, beyond that estimated from the third step on.
        - ``degree``, (N, 2): log(1 + in-degree) and log(1 + out-degree).
        - ``anchors=A``, (N, A): 1 / (1 + hops) to each of A landmarks of high degree, and 0 where no path leads to it
          (after arXiv:2312.01342).
        - ``hops=K``, (N, K F): ``feat``, (N, F), multiplied 1 to K times by the normalised adjacency. With
          ``hops=KxW``, features wider than W are projected to W random directions first (after arXiv:2310.14481). Of a
          typed graph, ``paper/hops``, (papers, T W), for each node type: T = 1 + K R tokens of width W (64 by default),
          the node's own and K for each of the R relations into its type, see :func:`~.hop_tokens.hop_tokens`. Types
          without features have random ones.
        - ``shortest_path=K``, uint8 (E, 2), edge data: for an edge u -> v, the number of hops from u to v, and from v
          to u, along directed edges; K + 1 for a longer path or none. The first is 1 for every edge of the graph
          itself, so it is informative only for expander edges. Both are 0 for self-loops, and K + 1 for edges of
          virtual nodes (after the bias of Graphormer, arXiv:2106.05234).
    seed : int
        Seed of start vectors, estimates and projections; the same seed gives the same encodings.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    Graph
        Its ``encodings`` say what was computed, as the manifest does.

    Raises
    ------
    InputError
        The text names no encodings that exist, a size is out of range, the graph has data of such a name already or no
        ``feat`` for ``hops``, eigenvectors did not converge, or the encodings do not fit into memory.

    Examples
    --------
    >>> from dgl_gt.partition import encode, load_graph
    >>> graph = encode(load_graph("sample:communities?nodes=200"), "laplacian=4,degree")
    >>> graph.node_data["laplacian"].shape
    (200, 4)
    """
    check_type("graph", graph, Graph)
    check_type("encodings", encodings, str)
    parsed, seed = parse_encodings(encodings), whole_number("seed", seed, 0)
    check_encodable(graph, parsed)
    return add_encodings(graph, parsed, seed=seed, progress=progress)


def check_encodable(source, encodings: Sequence[Encoding], random_features: int | None = None) -> None:
    """Raise :class:`InputError` if a Graph or COOGraph has data of the encodings' names, or lacks what they need."""
    for each in encodings:
        kind, data = ("edge", source.edge_data) if each.is_of_edges else ("node", source.node_data)
        is_typed = each.name == "hops" and source.schema is not None
        for name in [f"{of_type}/hops" for of_type in source.schema.nodes] if is_typed else [each.name]:
            if name in data:
                raise InputError(
                    f"{source.name} has {kind} data {name!r} already; rename them in the source, or leave {each.name} out of "
                    "encode (--encode)"
                )
        if each.name == "hops" and not is_typed and "feat" not in source.node_data and random_features is None:
            raise InputError(
                f"{source.name} has no features, which the encoding 'hops' needs; add node data 'feat', or leave 'hops' out "
                "of encode (--encode)"
            )


def add_encodings(graph: Graph, encodings: Sequence[Encoding], *, seed: int, progress=None) -> Graph:
    """Do the second half of :func:`encode`: compute what :func:`check_encodable` allowed."""
    if not encodings:
        return graph
    encodings = [each.on(graph.schema) for each in encodings]
    features = int(np.prod(graph.node_data["feat"].shape[1:])) if "feat" in graph.node_data else 0
    result_bytes = row_bytes(encodings, features) * graph.num_nodes
    check_fits_memory(
        f"{graph.name}: {sum(each.columns(features) for each in encodings)} columns of encodings",
        result_bytes + edge_bytes(encodings) * graph.num_edges,
    )
    plain, adjacency = untransformed(graph), None
    node_data, edge_data, records = dict(graph.node_data), dict(graph.edge_data), dict(graph.encodings)
    for each in encodings:
        if progress:
            progress(f"encoding, {each.name}")
        if each.is_of_edges:
            edge_data[each.name] = shortest_path_encoding(graph, plain, each.size)
            records[each.name] = {"columns": 2, "most": each.size}
            continue
        if each.tokens is not None:
            node_data |= _tokens(each, graph, seed, records)
            continue
        if adjacency is None and each.name != "degree":
            adjacency = simple_adjacency(plain)
        values, record = _compute(each, plain, adjacency, seed)
        if plain is not graph:
            values = np.pad(values, ((0, graph.num_nodes - len(values)), (0, 0)))
        node_data[each.name] = values
        records[each.name] = {"columns": values.shape[1], **record}
    return replace(graph, node_data=node_data, edge_data=edge_data, encodings=records)


def _tokens(encoding: Encoding, graph: Graph, seed: int, records: dict) -> dict[str, np.ndarray]:
    """The tokens of each node type, under the names of node data; ``records`` gets what the manifest says of them."""
    assert graph.schema is not None and encoding.width is not None
    records["hops"] = record_of_hops(encoding, graph.schema, 0, seed)
    found = hop_tokens(graph, encoding.size, encoding.width, seed)
    return {f"{name}/hops": rows for name, rows in found.items()}


def record_of_hops(encoding: Encoding, schema: Schema | None, columns: int, seed: int) -> dict:
    """What the manifest says of ``hops``; ``columns`` are those of a graph of one type."""
    sizes = {"hops": encoding.size, "width": encoding.width, "seed": seed}
    if schema is None:
        return {"columns": columns, **sizes}
    assert encoding.width is not None
    tokens = token_counts(schema, encoding.size)
    return {"columns": encoding.width * sum(tokens.values()), **sizes, "tokens": tokens}


def _compute(encoding: Encoding, graph: Graph, adjacency, seed: int) -> tuple[np.ndarray, dict]:
    """An encoding's node data, and what the manifest says of them."""
    match encoding.name:
        case "laplacian":
            values, eigenvalues = laplacian_encoding(adjacency, encoding.size, seed)
            return values, {"eigenvalues": eigenvalues.tolist(), "seed": seed}
        case "random_walk":
            values, exact = random_walk_encoding(adjacency, encoding.size, seed)
            return values, {"exact_columns": exact, "probes": PROBES if exact < encoding.size else 0, "seed": seed}
        case "anchors":
            values, landmarks = anchor_encoding(adjacency, encoding.size)
            return values, {"landmarks": landmarks.tolist()}
        case "hops":
            feat = graph.node_data["feat"]
            values = hop_encoding(adjacency, feat, encoding.size, encoding.width, seed)
            return values, record_of_hops(encoding, None, values.shape[1], seed)
    degrees = np.stack([graph.in_degrees(), np.bincount(graph.indices, minlength=graph.num_nodes)], axis=1)
    return np.log1p(degrees).astype(np.float32), {}
