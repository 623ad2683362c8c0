"""Pajek's .net files: vertices with labels, arcs from one to another, and edges, which go both ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .arrays import as_names
from .coo import COOGraph, as_float32_if_exact
from .numbering import check_plausible_nodes
from .text_blocks import parses, text_blocks
from .text_table import line_cells

_LINES = ("arcs", "edges", "arcslist", "edgeslist")
_READ = "*Arcs, *Edges, *Arcslist and *Edgeslist"
_RELATION = re.compile(r":\d+")  # *Arcs :2 "likes"


def read_pajek(path: Path) -> COOGraph:
    """Read one network; an edge is stored in both directions.

    Nodes have their labels as names; or their numbers, from 1, where a label is missing or two have the same.
    A third number of a line is edge data ``weight``, by default 1; several relations are edge data ``relation``.
    """
    count, labels, section, relation = None, {}, None, 0
    listed: list[tuple] = []  # source, destination, weight or None, relation
    others = set()
    for number, words in _lines(path):
        where = f"{path}, line {number}: {' '.join(words)[:80]!r}"
        if words[0].startswith("*"):
            section = words[0][1:].lower()
            if section == "vertices" and count is None and words[1:] and _is_number(words[1]):
                count = int(words[1])
            elif section not in ("network", *_LINES) or (section != "network" and count is None):
                raise InputError(
                    f"{where} is no part of one network, which has '*Vertices N', then {_READ}; remove this part, or put it into "
                    "a file of its own"
                )
            relation = next((int(word[1:]) for word in words[1:2] if _RELATION.fullmatch(word)), 0)
        elif section == "vertices":
            if len(ids := _numbers(words[:1], count)) != 1 or ids[0] in labels:
                raise InputError(f"{where} must begin with the number of a vertex, 1 to {count}, each once")
            labels[ids[0]] = (words[1:2] or [""])[0]
            others |= {"vertices"} if len(words) > 2 else set()
        elif section in _LINES:
            ends = _numbers(words if section.endswith("list") else words[:2], count)
            weight = None if section.endswith("list") or len(words) < 3 else words[2]
            if len(ends) < 2 or not (weight is None or parses(float, weight)):
                raise InputError(f"{where} must hold numbers of vertices, 1 to {count}, and after two of them a weight")
            for other in ends[1:]:
                pairs = [(ends[0], other)] + [(other, ends[0])] * (section.startswith("edges") and other != ends[0])
                listed += [(*pair, weight, relation) for pair in pairs]
            others |= {"lines"} if weight is not None and len(words) > 3 else set()
        else:
            raise InputError(f"{where} is before *Vertices; begin with '*Vertices N'")
    return _graph(path, count or 0, labels, listed, others)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line."""
    for first_line, text in text_blocks(path):
        for number, line in enumerate(text.split("\n"), first_line):
            if (words := line_cells(path, number, line, None)) and not line.lstrip().startswith("%"):
                yield number, words


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) < 19  # fits int64


def _numbers(words: list[str], count: int) -> list[int]:
    """Return the words as numbers of vertices; nothing where one is none."""
    numbers = [int(word) if _is_number(word) else 0 for word in words]
    return numbers if all(1 <= number <= count for number in numbers) else []


def _graph(path: Path, count: int, labels: dict[int, str], listed: list[tuple], others: set[str]) -> COOGraph:
    src, dst, weights, relations = zip(*listed) if listed else ((),) * 4
    coo = COOGraph(np.array(src, np.int64) - 1, np.array(dst, np.int64) - 1, count, name=path.name)
    if count > len(labels):
        check_plausible_nodes(coo, count, f"it states {count} vertices")
    names, notes = np.arange(1, count + 1), ()
    listed_names = [labels.get(number, "") for number in range(1, count + 1)]
    twice = Counter(listed_names).most_common(1)
    if count and "" not in listed_names and twice[0][1] == 1:
        are_numbers = all(_is_number(name) and str(int(name)) == name for name in listed_names)
        names = np.array(list(map(int, listed_names)) if are_numbers else listed_names)
    elif labels:
        why = f"several are labelled {twice[0][0]}" if twice[0][0] else "not all have a label"
        notes = (f"{path.name}: vertices are called by their numbers, from 1, as {why}",)
    if any(weight is not None for weight in weights):
        values = [1.0 if weight is None else float(weight) for weight in weights]
        coo.edge_data["weight"] = as_float32_if_exact(np.array(values))
    if len({*relations}) > 1:
        coo.edge_data["relation"] = np.array(relations, np.int64)
    coo.node_names = as_names(names, f"{path}: labels") if count else None
    coo.notes, coo.left_out = notes, tuple(f"further columns of {each}" for each in sorted(others))
    return coo
