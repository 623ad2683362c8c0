"""What a partition has of each node type and relation, for people and for reports."""

from __future__ import annotations

from .figures import Figures, balance_of


def count_by_type(figures: Figures) -> dict | None:
    """The counts of each node type and relation, as docs/cli.md lists them; None where there is one of each."""
    schema, typed = figures.schema, figures.typed
    if schema is None or typed is None:
        return None
    owned, copies = typed.nodes[:, 0], typed.nodes[:, 1:].sum(axis=(0, 1))
    of_nodes = _columns(figures.node_data)
    of_edges = _columns(figures.edge_data)
    nodes = {
        name: {
            "nodes": count,
            "copies": int(copies[number]),
            "balance": balance_of(owned[:, number], figures.shares),
            "data": of_nodes.get(name, {}),
        }
        for number, (name, count) in enumerate(schema.nodes.items())
    }
    edges = {
        str(name): {
            "edges": count,
            "cut_edges": int(typed.cut_edges[:, number].sum()),
            "data": of_edges.get(str(name), {}),
        }
        for number, (name, count) in enumerate(schema.edges.items())
    }
    return {"nodes": nodes, "edges": edges}


def _columns(data: dict) -> dict[str, dict[str, str]]:
    """The columns of each type, such as ``"float32 x 16"``; those of all types are left out."""
    found: dict[str, dict[str, str]] = {}
    for key, (dtype, shape) in data.items():
        of, slash, name = key.partition("/")
        if slash:
            found.setdefault(of, {})[name] = " x ".join([dtype, *map(str, shape)])
    return found
