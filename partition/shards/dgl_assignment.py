"""Writes an edge cut as an assignment of nodes to parts, which DGL's tools/dispatch_data.py and GraphStorm read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import Kind

from .layout import Layout
from .manifest import NODE_NAMES
from .write import described, write_node_names

_META, _MAKER = "partition_meta.json", "dgl-gt"
ASSIGNMENT = Kind("an assignment", _META, lambda meta: meta.get("made_by") == _MAKER, r"[^/]+\.txt")
_LINES = 1 << 16  # of a file that are written at a time


def check_node_type(graph) -> None:
    """Raise :class:`InputError` if the node type of a Graph or COOGraph cannot be the name of a file."""
    for name in [graph.node_type] if graph.schema is None else graph.schema.nodes:
        _check_name(graph, name)


def _check_name(graph, name: str) -> None:
    if not re.fullmatch(r"[^/.\x00-\x1f][^/\x00-\x1f]{0,99}", name) or f"{name}.txt" == NODE_NAMES:
        raise InputError(
            f"{graph.name} calls its nodes {name!r}, but DGL reads their parts from a file of that name: choose up to 100 "
            f"characters without '/', which do not begin with '.' and are not {NODE_NAMES.removesuffix('.txt')!r}"
        )


def write_assignment(layout: Layout, folder: Path, **made) -> dict:
    """Write ``{node type}.txt`` of each type, the part of each node in order, a line each, and ``partition_meta.json``.

    Where nodes have names, ``node_names.txt`` lists them in the same order. Returns what a manifest of shards would say,
    except for files; ``made`` is as for :func:`dgl_gt.partition.shards.write.write_shards`.
    """
    graph, cut = layout.graph, layout.cut
    owner = np.empty(graph.num_nodes, np.int32)
    owner[cut.order] = np.repeat(np.arange(cut.parts, dtype=np.int32), np.diff(cut.ptr))
    types = {graph.node_type: graph.num_nodes} if graph.schema is None else graph.schema.nodes
    for name, parts in zip(types, np.split(owner, np.cumsum([*types.values()])[:-1])):
        with open(folder / f"{name}.txt", "w") as file:
            for start in range(0, len(parts), _LINES):
                file.write("".join(f"{part}\n" for part in parts[start : start + _LINES].tolist()))
    write_node_names(folder, graph.node_names)
    # DGL's reader knows no other algorithm than metis and random, and ignores the key of ours
    meta = {"algo_name": "metis", "made_by": _MAKER, "num_parts": cut.parts, "version": "1.0.0"}
    (folder / _META).write_text(json.dumps(meta, indent=4) + "\n")
    return described(layout, [0] * cut.parts, **made) | {"links": None}
