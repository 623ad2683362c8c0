"""METIS graph files: a header, then one line of neighbours per node."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .coo import COOGraph
from .text_blocks import first_bad_line, parses, text_blocks

_LARGEST = np.iinfo(np.int64).max
_MAX_DIGITS = 18  # counts of this many digits fit int64


@dataclass(frozen=True)
class _Header:
    path: Path
    line: int
    num_nodes: int
    num_edges: int  # undirected edges
    node_sizes: int  # numbers per line, 0 or 1; they come first
    node_weights: int  # numbers per line, after the node size
    has_edge_weights: bool  # whether a weight follows each neighbour

    @property
    def numbers_before(self) -> int:
        """How many numbers precede the neighbours on a line."""
        return self.node_sizes + self.node_weights


def read_metis(path: Path) -> COOGraph:
    """Read an undirected graph in the format of METIS (section 4.1.1 of its manual).

    The header is ``n m [fmt [ncon]]``. Then line i lists the neighbours of node i; nodes count from 1. Both nodes of an
    edge list each other. An empty line is a node without edges, and lines that start with ``%`` are comments. Node
    weights become node data ``weight``, int64 (N,), or (N, ncon) if there are several for each node, and edge weights
    edge data ``weight``, int64. Node sizes are left out and listed in ``left_out``.
    Edge ids follow the order in the file; each edge goes from the line's node to its neighbour.
    """
    header = _header(path)
    dtype = np.int32 if header.num_nodes < 2**31 else np.int64
    src, dst, weight = [np.empty(0, dtype)], [np.empty(0, dtype)], [np.empty(0, np.int64)]
    node_weight = [np.empty(0, np.int64)]
    seen = 0
    for numbers, counts in _neighbour_lines(header):
        if counts[header.num_nodes - seen :].any():
            raise InputError(
                f"{path}: more lines of neighbours than the {header.num_nodes} nodes of the header; correct "
                "the header, or remove lines"
            )
        counts = counts[: header.num_nodes - seen]
        node = np.repeat(np.arange(seen, seen + len(counts), dtype=dtype), counts)
        _check_lines(header, counts, seen)
        place = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts) - header.numbers_before
        listed = place >= 0
        node_weight.append(numbers[(place < 0) & (place >= -header.node_weights)])
        if header.has_edge_weights:
            weight.append(numbers[listed & (place % 2 == 1)])
            listed &= place % 2 == 0
        neighbour = numbers[listed] - 1
        outside = (neighbour < 0) | (neighbour >= header.num_nodes)
        if outside.any():
            at = int(outside.argmax())
            raise InputError(
                f"{path}: node {node[listed][at] + 1} lists {neighbour[at] + 1}, which is outside 1..{header.num_nodes}; "
                "correct this line, or the header"
            )
        src.append(node[listed])
        dst.append(neighbour.astype(dtype))
        seen += len(counts)
    if seen < header.num_nodes - (
        header.numbers_before == 0
    ):  # an empty last line without a newline looks like no line
        raise InputError(
            f"{path}: {seen} lines of neighbours for the {header.num_nodes} nodes of the header; the file may be "
            "truncated: fetch it again, or correct the header"
        )
    edge_data = {"weight": np.concatenate(weight)} if header.has_edge_weights else {}
    node_data = {}
    if header.node_weights:
        columns = np.concatenate(node_weight).reshape(header.num_nodes, header.node_weights)
        node_data["weight"] = columns[:, 0] if header.node_weights == 1 else columns
    left_out = (f"node sizes of {path.name} (used by METIS only)",) if header.node_sizes else ()
    ends = np.concatenate(src), np.concatenate(dst)
    coo = COOGraph(*ends, header.num_nodes, node_data, edge_data, path.name, left_out=left_out)
    _check_edges(header, coo)
    return coo


def _header(path: Path) -> _Header:
    for first_line, text in text_blocks(path):
        for number, line in enumerate(text.split("\n"), first_line):
            if line.strip() and not line.lstrip().startswith("%"):
                return _parsed_header(path, number, line)
    raise InputError(f"{path}: no header; a METIS file begins with the numbers of nodes and edges")


def _parsed_header(path: Path, number: int, line: str) -> _Header:
    cells = line.split()
    fmt = cells[2].zfill(3) if len(cells) > 2 else "000"
    numbers = 2 <= len(cells) <= 4 and all(cell.isascii() and cell.isdecimal() for cell in cells)
    if not numbers or len(fmt) != 3 or set(fmt) - {"0", "1"}:
        raise InputError(
            f"{path}, line {number}: {line.strip()[:80]!r} is not a METIS header; write 'nodes edges [fmt [ncon]]', "
            "where fmt is three digits, each 0 or 1"
        )
    largest = max(cells, key=len)
    if len(largest) > _MAX_DIGITS:
        raise InputError(
            f"{path}, line {number}: the header has a number of {len(largest)} digits, {largest[:20]}...; at most "
            f"{_MAX_DIGITS} digits are allowed: correct the header"
        )
    sizes, weights, edge_weights = (digit == "1" for digit in fmt)
    ncon = int(cells[3]) if len(cells) > 3 else 1
    return _Header(path, number, int(cells[0]), int(cells[1]), int(sizes), ncon * weights, edge_weights)


def _neighbour_lines(header: _Header) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each block of lines, all its numbers and how many of them are on each line, int64."""
    for first_line, block in text_blocks(header.path):
        text = block
        if first_line <= header.line or "%" in block:
            text = "\n".join(line for _, line in _data_lines(header, first_line, block))
        if not text:
            continue
        if not text.endswith("\n"):
            text += "\n"
        try:
            yield _numbers(text)
        except ValueError:
            number, line = first_bad_line(
                list(_data_lines(header, first_line, block)), lambda some: parses(_numbers, some + "\n")
            )
            shown = line.strip()[:80]
            raise InputError(
                f"{header.path}, line {number}: {shown!r} must hold only whole numbers below 2**63 - 1; correct it"
            ) from None


def _data_lines(header: _Header, first_line: int, block: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(block.split("\n"), first_line):
        if number > header.line and not line.lstrip().startswith("%"):
            yield number, line


def _numbers(text: str) -> tuple[np.ndarray, np.ndarray]:
    space = np.frombuffer(text.encode(), np.uint8) <= ord(" ")
    begins = ~space
    begins[1:] &= space[:-1]
    ends = np.flatnonzero(np.frombuffer(text.encode(), np.uint8) == ord("\n"))
    counts = np.diff(np.cumsum(begins)[ends], prepend=0)
    total = int(begins.sum())
    if total == 0:
        return np.empty(0, np.int64), counts
    with warnings.catch_warnings():
        # numpy before 2.3 only warns when it stops at text that is not a number
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(text, np.int64, sep=" ")
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from warning
    if len(numbers) != total:  # for example 1-2, which numpy reads as two numbers
        raise ValueError("not whole numbers")
    if numbers.max() == _LARGEST or numbers.min() == -_LARGEST - 1:  # what numpy makes of numbers beyond int64
        raise ValueError("numbers beyond int64")
    return numbers, counts


def _check_lines(header: _Header, counts: np.ndarray, seen: int) -> None:
    listed = counts - header.numbers_before
    bad = (listed < 0) | (listed % 2 == 1 if header.has_edge_weights else False)
    if bad.any():
        at = int(bad.argmax())
        form = "pairs of neighbour and weight" if header.has_edge_weights else "neighbours"
        raise InputError(
            f"{header.path}: the line of node {seen + at + 1} has {counts[at]} numbers; the header's fmt asks "
            f"for {header.numbers_before} numbers of the node, then {form}; correct the line, or fmt"
        )


def _check_edges(header: _Header, coo: COOGraph) -> None:
    path, n = header.path, header.num_nodes
    if len(coo.src) != 2 * header.num_edges:
        raise InputError(
            f"{path}: {len(coo.src)} neighbours are listed, but the header's {header.num_edges} edges need "
            f"{2 * header.num_edges}; correct the header or fetch the file again"
        )
    loops = coo.src == coo.dst
    if loops.any():
        node = coo.src[loops.argmax()] + 1
        raise InputError(
            f"{path}: node {node} lists itself, but the format has no self-loops; remove it, and add self-loops with "
            "self_loops (--self-loops)"
        )
    forward, backward = coo.src.astype(np.int64) * n + coo.dst, coo.dst.astype(np.int64) * n + coo.src
    forward.sort()
    backward.sort()
    differ = forward != backward
    if differ.any():
        at = differ.argmax()
        one, other = divmod(int(min(forward[at], backward[at])), n)
        raise InputError(
            f"{path}: nodes {one + 1} and {other + 1} do not both list each other; write the edge on the lines of both"
        )
