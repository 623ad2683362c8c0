"""Graphs from networkx, and from the files that it reads: GraphML, GML, GEXF, Pajek and node-link JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from numbers import Integral, Number
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError, first_line, import_optional
from dgl_gt.partition.system.user_files import reading

from .coo import COOGraph, as_float32_if_exact
from .node_data import as_names
from .numbering import check_plausible_nodes
from .text_table import SHOWN, line_cells, numbered_lines, parses

_LINES = ("arcs", "edges", "arcslist", "edgeslist")
_RELATION = re.compile(r":\d{1,9}")  # *Arcs :2 "likes"
_FURTHER = {"further columns": "text"}  # as an attribute, it is left out by this name


def read_networkx_file(path: Path) -> COOGraph:
    """Read a file by networkx's reader for its ending; nodes keep their names."""
    networkx = import_optional("networkx", str(path), "pip install networkx")
    kind = path.suffix.lower()
    try:
        with reading(path), open(path, "rb") as file:
            own = {".gml": _gml, ".json": _node_link, ".net": _pajek}.get(kind)
            graph = getattr(networkx, f"read_{kind[1:]}")(file) if own is None else own(networkx, path)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # parsers of XML and JSON, and plain exceptions of networkx
        raise InputError(f"{path} cannot be read as {kind} by networkx ({first_line(error)}); correct it") from error
    if all(isinstance(node, str) and node.isascii() and node.isdecimal() and str(int(node)) == node for node in graph):
        graph = networkx.relabel_nodes(graph, int)  # files of XML hold text alone
    return from_networkx(graph, path.name)


def _gml(networkx, path: Path):
    """Return the graph of a GML file; nodes without labels are called by their ids, and edges may be parallel."""
    text, label = path.read_text("ascii"), "label"
    parallel = re.sub(r"(?m)^(\s*graph\s*\[)", r"\1 multigraph 1", text, count=1)  # takes the edge attribute `key`
    while True:
        try:
            return networkx.parse_gml(text, label=label)
        except networkx.NetworkXError as error:
            if "no 'label'" in str(error) and label == "label":
                label = "id"
            elif "duplicated" in str(error) and text != parallel and "multigraph" not in text:
                text = parallel
            else:
                raise


def _node_link(networkx, path: Path):
    """Return the graph of node-link JSON, whose edges are called links or edges."""
    data = json.loads(path.read_bytes())
    edges = "links" if "links" in data else "edges"
    try:
        graph = networkx.node_link_graph(data, edges=edges)
    except TypeError:  # networkx before 3.4
        graph = networkx.node_link_graph({**data, "links": data[edges]})
    ids = Counter(str(node.get("id", i)) for i, node in enumerate(data["nodes"]))
    if twice := [each for each, count in ids.items() if count > 1]:
        raise ValueError(f"several nodes have the id {twice[0]}")
    if len(graph) > len(data["nodes"]):  # links by position, for instance
        raise ValueError(f"{edges} name nodes that are not among the ids of nodes")
    return graph


def from_networkx(graph, name: str = "networkx graph") -> COOGraph:
    """Make a COOGraph of a networkx graph of any class.

    If the node names are the integers 0..N-1, nodes keep these numbers. Otherwise nodes are numbered in the graph's
    order, and ``node_names`` holds their names as text, or as integers if all are. An undirected edge is stored in both
    directions (edges ``e`` and ``E + e``; a self-loop once). Attributes that are numbers, or rows of numbers of one
    length, become node and edge data. Floats become float32 if it holds them exactly, else float64; ``feat`` of nodes
    is always float32. Other attributes are left out and listed in ``left_out``.
    """
    nodes, names = list(graph), None
    are_integers = all(isinstance(node, Integral) and not isinstance(node, bool) for node in nodes)
    if are_integers and sorted(nodes) == list(range(len(nodes))):
        nodes.sort()
    elif are_integers and max(map(abs, nodes)) < 2**63:
        names = np.array(nodes, np.int64)
    else:
        names = as_names(np.array([str(node) for node in nodes]), f"{name}: the name of a node, as text,")
    number = {node: i for i, node in enumerate(nodes)}
    ends = [(u, v) for u, v, _ in graph.edges(data=True)]
    src, dst = np.array([(number[u], number[v]) for u, v in ends], np.int64).reshape(-1, 2).T
    node_data, node_others = _columns([graph.nodes[node] for node in nodes], f"{name}: node", nodes)
    edge_data, edge_others = _columns([data for _, _, data in graph.edges(data=True)], f"{name}: edge", ends)
    if "feat" in node_data and node_data["feat"].dtype.kind in "iuf":
        node_data["feat"] = node_data["feat"].astype(np.float32)
    left_out = [f"node data {key} (no numbers)" for key in node_others]
    left_out += [f"edge data {key} (no numbers)" for key in edge_others]
    more = {"listed_once": not graph.is_directed(), "left_out": tuple(left_out), "node_names": names}
    return COOGraph(src, dst, len(nodes), node_data, edge_data, name, **more)


def _columns(rows: list[dict], what: str, names: list) -> tuple[dict[str, np.ndarray], list]:
    """Return the numeric attributes as arrays by name, and the names of the other attributes."""
    columns, others = {}, []
    for key in dict.fromkeys(key for row in rows for key in row):
        if not any(_is_numeric(row[key]) for row in rows if key in row):
            others.append(key)
            continue
        for row, name in zip(rows, names):
            if key not in row or not _is_numeric(row[key]):
                raise InputError(f"{what} {name!r} has no number for {key!r}, which others have; set it for all")
        if str(key) in columns:
            raise InputError(f"{what} data have the name {str(key)!r} twice, as a str and as another type; rename one")
        values = [row[key] for row in rows]
        try:
            column = np.array(values)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{what} data {key!r} differ in length or type; make them alike") from None
        for value in values if column.dtype == np.float64 else ():  # among floats, and some integers beyond 64 bits
            if isinstance(value, Integral) and (abs(int(value)) >= 2**63 or float(value) != value):
                raise InputError(
                    f"{what} data {key!r}: the whole number {value} would lose digits in a column of floats; write only whole "
                    "numbers below 2**63 or only floats"
                )
        columns[str(key)] = as_float32_if_exact(column)
    return columns, others


def _is_numeric(value: object) -> bool:
    if isinstance(value, Number):
        return True
    try:
        return not isinstance(value, (str, bytes)) and np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):  # for example rows of unequal length
        return False


# ---- Pajek's .net files: vertices with labels, arcs from one to another, and edges, which go both ways


def _pajek(networkx, path: Path):
    """Return the network of a file as networkx's graph of directed edges.

    Nodes have their labels as names, or their numbers, from 1, where a label is missing.
    A third number of a line is edge data ``weight``, by default 1; several relations are edge data ``relation``.
    """
    count, labels, lines, section, relation = 0, dict[int, list[str]](), [], "", 0
    for number, line in numbered_lines(path):
        words = line_cells(path, number, line, None)
        if not words or words[0].startswith("%"):
            continue
        if words[0].startswith("*"):
            section = words[0][1:].lower()
            relation = next((int(word[1:]) for word in words[1:2] if _RELATION.fullmatch(word)), 0)
            size = _vertices(words[1:2], 10**18) if section == "vertices" and not count else []
            fits = size or section == "network" or (count and section in _LINES)
            count = size[0] if size else count
        elif section == "vertices":
            vertex = _vertices(words[:1], count)
            fits = vertex and vertex[0] not in labels
            labels |= dict.fromkeys(vertex, words[1:])
        else:
            ends = _vertices(words if section.endswith("list") else words[:2], count)
            rest = [] if section.endswith("list") else words[2:]
            fits = section in _LINES and len(ends) > 1 and parses(float, (rest or ["1"])[0])
            for end in ends[1:]:
                lines.append((ends[0], end, rest, relation))
                if section.startswith("edges") and end != ends[0]:
                    lines.append((end, ends[0], rest, relation))
        if not fits:
            raise InputError(
                f"{path}, line {number}: {line.strip()[:SHOWN]!r} is no part of one network: *Vertices N with the numbers 1 to "
                f"{count or 'N'} and labels, each once, then *Arcs, *Edges, *Arcslist or *Edgeslist with two such numbers and a "
                "weight; correct it, or put other parts into files of their own"
            )
    if count > len(labels):
        zeros = np.zeros(len(lines), np.int64)
        check_plausible_nodes(COOGraph(zeros, zeros, name=path.name), count, f"it states {count} vertices")
    rows = [labels.get(number, []) for number in range(1, count + 1)]
    names = [(row or [""])[0] or str(number) for number, row in enumerate(rows, 1)]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(f"{path}: several vertices are called {twice[0]!r:.80}; change their labels, or remove all")
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from((name, _FURTHER if row[1:] else {}) for name, row in zip(names, rows))
    has_weights, has_relations = any(rest for *_, rest, _ in lines), len({relation for *_, relation in lines}) > 1
    for src, dst, rest, relation in lines:
        data = {"weight": float((rest or ["1"])[0])} if has_weights else {}
        data |= ({"relation": relation} if has_relations else {}) | (_FURTHER if rest[1:] else {})
        graph.add_edge(names[src - 1], names[dst - 1], **data)
    return graph


def _vertices(words: list[str], count: int) -> list[int]:
    """Return the words as numbers of vertices; nothing where one is none."""
    numbers = [int(word) if word.isdecimal() and len(word) < 19 else 0 for word in words]
    return numbers if all(1 <= number <= count for number in numbers) else []
