"""METIS graph files: a header, then one line of neighbours a node."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partition.errors import InputError
from partition.system.user_files import first_bad_line, text_blocks

from .coo import COOGraph

_MOST_DIGITS = 18  # so that counts are int64


@dataclass(frozen=True)
class _Header:
    path: Path
    line: int
    num_nodes: int
    num_edges: int  # undirected
    sizes: int  # node sizes before the neighbours, 0 or 1
    weights: int  # node weights after them
    weighted: bool  # a weight follows each neighbour

    @property
    def skipped(self) -> int:
        """Numbers before the neighbours."""
        return self.sizes + self.weights


def read_metis(path: Path) -> COOGraph:
    """Read an undirected graph as METIS writes it (its manual, section 4.1.1).

    The header is ``n m [fmt [ncon]]``; line i then lists the neighbours of node i, counted from 1, so that every edge
    is listed by both its ends. An empty line is a node without edges; lines that start with ``%`` are comments. Node
    sizes and node weights are left out, and named in ``left_out``. Edge ids follow the order of listing, from the
    line's node to its neighbour.

    Returns
    -------
    COOGraph
        ``src``, ``dst`` int32 while n < 2**31, else int64, (2m,); edge data ``weight`` int64 (2m,) if the file has it.

    Raises
    ------
    InputError
        A damaged header or line, counts that differ from the header's, an edge listed by one end alone, a self-loop.
    """
    header = _header(path)
    dtype = np.int32 if header.num_nodes < 2**31 else np.int64
    src, dst, weight = [np.empty(0, dtype)], [np.empty(0, dtype)], [np.empty(0, np.int64)]
    seen = 0
    for numbers, counts in _neighbour_lines(header):
        if counts[header.num_nodes - seen :].any():
            raise InputError(f"{path}: more lines of neighbours than the {header.num_nodes} nodes of the header")
        counts = counts[: header.num_nodes - seen]
        node = np.repeat(np.arange(seen, seen + len(counts), dtype=dtype), counts)
        _check_lines(header, counts, seen)
        place = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts) - header.skipped
        listed = place >= 0
        if header.weighted:
            weight.append(numbers[listed & (place % 2 == 1)])
            listed &= place % 2 == 0
        neighbour = numbers[listed] - 1
        outside = (neighbour < 0) | (neighbour >= header.num_nodes)
        if outside.any():
            at = int(outside.argmax())
            raise InputError(
                f"{path}: node {node[listed][at] + 1} lists {neighbour[at] + 1}, which is outside 1..{header.num_nodes}"
            )
        src.append(node[listed])
        dst.append(neighbour.astype(dtype))
        seen += len(counts)
    if seen < header.num_nodes - 1:  # an empty last line without its newline cannot be told from none
        raise InputError(
            f"{path}: {seen} lines of neighbours for the {header.num_nodes} nodes of the header; it may be cut short"
        )
    edge_data = {"weight": np.concatenate(weight)} if header.weighted else {}
    left_out = [("node sizes", header.sizes), ("node weights", header.weights)]
    coo = COOGraph(np.concatenate(src), np.concatenate(dst), header.num_nodes, {}, edge_data, path.name)
    coo.left_out = tuple(f"{what} of {path.name} (METIS's own)" for what, count in left_out if count)
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
            f"{path}, line {number}: {line.strip()[:80]!r} is no METIS header; write 'nodes edges [fmt [ncon]]', fmt "
            "of three digits 0 or 1"
        )
    largest = max(cells, key=len)
    if len(largest) > _MOST_DIGITS:
        raise InputError(
            f"{path}, line {number}: a number of {len(largest)} digits, {largest[:20]}..., is more than any file can "
            "hold; correct the header"
        )
    sizes, weights, edge_weights = (digit == "1" for digit in fmt)
    ncon = int(cells[3]) if len(cells) > 3 else 1
    return _Header(path, number, int(cells[0]), int(cells[1]), int(sizes), ncon * weights, edge_weights)


def _neighbour_lines(header: _Header) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All numbers of a block, int64, and how many of them stand on each of its lines, int64."""
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
            number, line = first_bad_line(list(_data_lines(header, first_line, block)), _all_numbers)
            shown = line.strip()[:80]
            raise InputError(f"{header.path}, line {number}: {shown!r} must hold whole numbers only") from None


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
        # numpy before 2.3 only warns where it stops at what is no number
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(text, np.int64, sep=" ")
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from warning
    if len(numbers) != total:  # such as 1-2, which reads as two numbers
        raise ValueError("not whole numbers")
    return numbers, counts


def _all_numbers(text: str) -> bool:
    try:
        _numbers(text + "\n")
    except ValueError:
        return False
    return True


def _check_lines(header: _Header, counts: np.ndarray, seen: int) -> None:
    listed = counts - header.skipped
    bad = (listed < 0) | (listed % 2 == 1 if header.weighted else False)
    if bad.any():
        at = int(bad.argmax())
        form = "pairs of neighbour and weight" if header.weighted else "neighbours"
        raise InputError(
            f"{header.path}: the line of node {seen + at + 1} has {counts[at]} numbers; fmt asks for {header.skipped} "
            f"numbers for the node, then {form}"
        )


def _check_edges(header: _Header, coo: COOGraph) -> None:
    path, n = header.path, header.num_nodes
    if len(coo.src) != 2 * header.num_edges:
        raise InputError(
            f"{path}: {len(coo.src)} neighbours are listed, but {header.num_edges} edges, as the header says, need "
            f"{2 * header.num_edges}; correct the header or fetch the file again"
        )
    loops = coo.src == coo.dst
    if loops.any():
        node = coo.src[loops.argmax()] + 1
        raise InputError(f"{path}: node {node} lists itself; the format has no self-loops, ask for them at loading")
    there, back = coo.src.astype(np.int64) * n + coo.dst, coo.dst.astype(np.int64) * n + coo.src
    there.sort()
    back.sort()
    differ = there != back
    if differ.any():
        at = differ.argmax()
        one, other = divmod(int(min(there[at], back[at])), n)
        raise InputError(
            f"{path}: of nodes {one + 1} and {other + 1}, not each lists the other; an edge must stand on both lines"
        )
