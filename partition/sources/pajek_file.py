"""Pajek's .net files: vertices with labels, arcs from one to another, and edges, which go both ways."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .coo import COOGraph
from .numbering import check_plausible_nodes
from .text_blocks import parses, text_blocks
from .text_table import line_cells

_LINES = ("arcs", "edges", "arcslist", "edgeslist")
_RELATION = re.compile(r":\d{1,9}")  # *Arcs :2 "likes"
_OTHERS = {"further columns": "text"}  # as an attribute, it is left out by this name


def read_pajek(networkx, path: Path):
    """Return the network of a file as networkx's graph of directed edges.

    Nodes have their labels as names, or their numbers, from 1, where a label is missing.
    A third number of a line is edge data ``weight``, by default 1; several relations are edge data ``relation``.
    """
    count, labels, lines, section, relation = 0, {}, [], "", 0
    for first_line, text in text_blocks(path):
        for number, line in enumerate(text.split("\n"), first_line):
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
                    f"{path}, line {number}: {line.strip()[:80]!r} is no part of one network: *Vertices N with the numbers 1 to "
                    f"{count or 'N'} and labels, each once, then *Arcs, *Edges, *Arcslist or *Edgeslist with two such numbers and a "
                    "weight; correct it, or put other parts into files of their own"
                )
    return _graph(networkx, path, count, labels, lines)


def _vertices(words: list[str], count: int) -> list[int]:
    """Return the words as numbers of vertices; nothing where one is none."""
    numbers = [int(word) if word.isdecimal() and len(word) < 19 else 0 for word in words]
    return numbers if all(1 <= number <= count for number in numbers) else []


def _graph(networkx, path: Path, count: int, labels: dict[int, list[str]], lines: list[tuple]):
    if count > len(labels):
        ends = np.zeros(len(lines), np.int64)
        check_plausible_nodes(COOGraph(ends, ends, name=path.name), count, f"it states {count} vertices")
    rows = [labels.get(number, []) for number in range(1, count + 1)]
    names = [(row or [""])[0] or str(number) for number, row in enumerate(rows, 1)]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(
            f"{path}: several vertices are called {twice[0]!r:.80}; change their labels, or remove all labels"
        )
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from((name, _OTHERS if row[1:] else {}) for name, row in zip(names, rows))
    has_weights, has_relations = any(rest for *_, rest, _ in lines), len({relation for *_, relation in lines}) > 1
    for src, dst, rest, relation in lines:
        data = {"weight": float((rest or [1])[0])} if has_weights else {}
        data |= ({"relation": relation} if has_relations else {}) | (_OTHERS if rest[1:] else {})
        graph.add_edge(names[src - 1], names[dst - 1], **data)
    return graph
