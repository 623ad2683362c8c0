"""Figures that tests write by hand: only the counts that matter, zeros for the others; and how figures compare."""

import numpy as np

from dgl_gt.partition.figures.figures import Figures, HostCounts


def _figures(cut, owned, edges, copies, sent, **given) -> Figures:
    """Figures from lists per part; edges, copies and rows sent have one entry per hop."""
    parts = len(owned)
    none = np.zeros(parts, np.int64)
    others = dict.fromkeys(("cut_edges", "near_edges", "returned", "returns", "returned_edges"), none)
    data = {"hosts": {}, "masked": {}, "node_data": {}, "edge_data": {}}
    shares, rows = {"shares": np.full(parts, 1 / parts)}, {"received_rows": np.zeros((parts, parts), np.int64)}
    counts = {"owned": owned, "edges_by_hop": edges, "copies_by_hop": copies, "sent_by_hop": sent}
    counts["sent_edges_by_hop"] = 0 * np.array(edges)
    counts = {name: np.array(value, np.int64) for name, value in counts.items()}
    given = {name: np.array(value) if isinstance(value, list) else value for name, value in given.items()}
    return Figures(**{"cut": cut, **others, **data, **shares, **rows, **counts, **given})


def edge_figures(owned, edges, halo, sent, **given) -> Figures:
    """Figures of an edge cut; ``edges``, ``halo`` and ``sent`` have a list of hops per part."""
    return _figures("edge", owned, edges, halo, sent, **given)


def vertex_figures(owned, edges, mirrors, sent, returned, returns, **given) -> Figures:
    """Figures of a vertex cut, one number per part."""
    columns = ([[each] for each in column] for column in (edges, mirrors, sent))
    return _figures("vertex", owned, *columns, returned=returned, returns=returns, **given)


def assert_same_figures(found: Figures | HostCounts, expected: Figures | HostCounts) -> None:
    """Every field is equal, in type, shape and value."""
    for name, value in vars(expected).items():
        other = getattr(found, name)
        assert type(other) is type(value), name
        if isinstance(value, dict):
            assert other.keys() == value.keys(), name
            for key, each in value.items():
                if name == "hosts":
                    assert_same_figures(other[key], each)
                else:
                    assert np.array_equal(other[key], each) if name == "masked" else other[key] == each
            continue
        np.testing.assert_array_equal(other, value, name, strict=isinstance(value, np.ndarray))
