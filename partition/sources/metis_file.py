"""METIS graph files: a header, then one line of neighbours per node."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError

from .coo import COOGraph
from .text_table import SHOWN, first_bad_line, numbered_lines, text_blocks

_LARGEST = np.iinfo(np.int64).max
_HEADER = re.compile(r"(\d{1,18})\s+(\d{1,18})(?:\s+([01]{1,3})(?:\s+(\d{1,18}))?)?", re.ASCII)


def read_metis(path: Path) -> COOGraph:
    """Read an undirected graph in the format of METIS (section 4.1.1 of its manual).

    Node weights become node data ``weight``, int64 (N,), or (N, ncon) if there are several for each node, and edge
    weights edge data ``weight``, int64. Node sizes are left out. Edge ids follow the order in the file; each edge goes
    from the line's node to its neighbour.
    """
    is_data = (each for each in numbered_lines(path) if each[1].strip() and not _is_comment(each[1]))
    number, line = next(is_data, (0, ""))
    header = _HEADER.fullmatch(line.strip())
    if header is None:
        raise InputError(
            f"{path}, line {number}: {line.strip()[:SHOWN]!r} is not a METIS header; write 'nodes edges [fmt [ncon]]', numbers of "
            "at most 18 digits, where fmt is up to three digits, each 0 or 1"
        )
    n, m = int(header[1]), int(header[2])
    has_size, has_weights, has_edge_weights = (digit == "1" for digit in (header[3] or "").zfill(3))
    weights = int(header[4] or 1) if has_weights else 0  # numbers of the node, after its size
    before = has_size + weights
    numbers, counts = _all_numbers(path, number)
    if counts[n:].any() or len(counts) < n - (before == 0):  # an empty last line without a newline looks like none
        cause = "correct" if len(counts) > n else "the file may be truncated: fetch it again, or correct"
        raise InputError(
            f"{path}: {len(counts)} lines of neighbours for the {n} nodes of the header; {cause} the header"
        )
    counts = np.append(counts, [0])[:n]
    odd = (counts < before) | (((counts - before) % 2 == 1) & has_edge_weights)
    if odd.any():
        node = int(odd.argmax())
        raise InputError(
            f"{path}: the line of node {node + 1} has {counts[node]} numbers; the header's fmt asks for {before} numbers of the "
            f"node, then {'pairs of neighbour and weight' if has_edge_weights else 'neighbours'}; correct the line, or fmt"
        )
    place = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts + before, counts)
    is_neighbour = place >= 0
    edge_data, node_data = {}, {}
    if has_edge_weights:
        edge_data["weight"] = numbers[is_neighbour & (place % 2 == 1)]
        is_neighbour &= place % 2 == 0
    if weights:
        columns = numbers[(place < 0) & (place >= -weights)].reshape(n, weights)
        node_data["weight"] = columns[:, 0] if weights == 1 else columns
    dtype = np.int32 if n < 2**31 else np.int64
    src, dst = np.repeat(np.arange(n, dtype=dtype), counts)[is_neighbour], numbers[is_neighbour] - 1
    outside = (dst < 0) | (dst >= n)
    if outside.any():
        at = int(outside.argmax())
        raise InputError(f"{path}: node {src[at] + 1} lists {dst[at] + 1}, which is outside 1..{n}; correct the line")
    _check_edges(path, src, dst, n, m)
    left_out = (f"node sizes of {path.name} (used by METIS only)",) if has_size else ()
    return COOGraph(src, dst.astype(dtype), n, node_data, edge_data, path.name, left_out=left_out)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("%")


def _all_numbers(path: Path, header_line: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all numbers after the header, and how many of them are on each line, int64."""
    pieces = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for first_line, block in text_blocks(path):
        numbered = None
        if first_line <= header_line or "%" in block:
            lines = enumerate(block.removesuffix("\n").split("\n"), first_line)
            numbered = [each for each in lines if each[0] > header_line and not _is_comment(each[1])]
            if not numbered:
                continue
        text = block.removesuffix("\n") if numbered is None else "\n".join(line for _, line in numbered)
        try:
            pieces.append(_numbers(text))
        except ValueError:
            number, line = first_bad_line(numbered or list(enumerate(text.split("\n"), first_line)), _numbers)
            raise InputError(f"{path}, line {number}: {line[:SHOWN]!r} must be whole numbers below 2**63 - 1") from None
    numbers, counts = zip(*pieces)
    return np.concatenate(numbers), np.concatenate(counts)


def _numbers(lines: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of lines, and how many are on each; ValueError if there is anything else."""
    data = np.frombuffer(f"{lines}\n".encode(), np.uint8)
    begins = data > ord(" ")
    begins[1:] &= data[:-1] <= ord(" ")
    counts = np.diff(np.cumsum(begins)[data == ord("\n")], prepend=0)
    if not counts.any():
        return np.empty(0, np.int64), counts
    with warnings.catch_warnings():
        # numpy before 2.3 only warns when it stops at text that is not a number
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(lines, np.int64, sep=" ")
        except DeprecationWarning as warning:
            raise ValueError(str(warning)) from warning
    if len(numbers) != counts.sum():  # for example 1-2, which numpy reads as two numbers
        raise ValueError("not whole numbers")
    if numbers.max() == _LARGEST or numbers.min() == -_LARGEST - 1:  # what numpy makes of numbers beyond int64
        raise ValueError("numbers beyond int64")
    return numbers, counts


def _check_edges(path: Path, src: np.ndarray, dst: np.ndarray, n: int, m: int) -> None:
    if len(src) != 2 * m:
        raise InputError(f"{path}: {len(src)} neighbours are listed; the header's {m} edges need {2 * m}: correct it")
    loops = src == dst
    if loops.any():
        raise InputError(f"{path}: node {src[loops.argmax()] + 1} lists itself; use self_loops (--self-loops) for that")
    forward, backward = np.sort(src.astype(np.int64) * n + dst), np.sort(dst * n + src)
    if not np.array_equal(forward, backward):
        at = (forward != backward).argmax()
        one, other = divmod(int(min(forward[at], backward[at])), n)
        raise InputError(f"{path}: nodes {one + 1} and {other + 1} do not both list each other; add what is missing")
