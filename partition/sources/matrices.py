"""Graphs given as arrays, and as sparse matrices: of scipy, in files of Matrix Market and of MATLAB."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError, first_line
from dgl_gt.partition.graph import as_array
from dgl_gt.partition.system.child_process import bound_memory, read_in_child, serve
from dgl_gt.partition.system.user_files import reading

from .coo import COOGraph
from .text_table import text_blocks

_BANNER, _MARK = b"%%MatrixMarket", b"\xef\xbb\xbf"  # and that of UTF-8, which editors add


def from_array(edges, name: str = "edge_index") -> COOGraph:
    """Make a COOGraph of an array or tensor of integers, (2, E), sources first."""
    edges = as_array(edges, name)
    if edges.ndim != 2 or len(edges) != 2 or (edges.dtype.kind not in "iu" and edges.size):
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(f"{name} is {edges.dtype} {edges.shape}; it must be whole numbers (2, E), sources first{hint}")
    return from_pair(edges[0], edges[1], name)


def from_pair(src, dst, name: str = "(src, dst)") -> COOGraph:
    """Make a COOGraph of sources and destinations: arrays, tensors or lists of integers, (E,) each."""
    src, dst = as_array(src, "the sources of edges"), as_array(dst, "the destinations of edges")
    for ends in (src, dst):
        if ends.ndim != 1 or ends.shape != src.shape or (ends.dtype.kind not in "iu" and len(ends)):
            raise InputError(
                f"{name}: sources {src.dtype} {src.shape} and destinations {dst.dtype} {dst.shape} must be two lists "
                "of whole numbers (node ids) of the same length"
            )
    return COOGraph(src, dst, name=name)


def from_scipy(matrix, name: str = "scipy matrix") -> COOGraph:
    """Make a COOGraph of a square sparse matrix, (N, N): each stored entry (i, j) is an edge i -> j, in COO order.

    The values become edge data ``weight`` unless all of them are one.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} has shape {matrix.shape}; an adjacency matrix must be square, (N, N)")
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {matrix.dtype}; weights of edges must be numbers: take their absolute values")
    entries = matrix.tocoo()
    edge_data = {} if np.all(entries.data == 1) else {"weight": entries.data}
    return COOGraph(entries.row, entries.col, matrix.shape[0], {}, edge_data, name)


def checked_matrix(matrix, what: str):
    """Return a sparse matrix whose indices are in range; those of a damaged file would be followed anywhere."""
    if hasattr(matrix, "check_format"):
        try:
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise InputError(f"{what} is damaged ({first_line(error)}); save it again") from error
    return matrix


# ---- Matrix Market


def is_matrix_market(path: Path) -> bool:
    """Return whether a file begins with the banner of Matrix Market, whatever its name."""
    with reading(path), gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb") as file:
        return file.read(len(_MARK + _BANNER)).removeprefix(_MARK).startswith(_BANNER)


def read_matrix_market(path: Path) -> COOGraph:
    """Read a square sparse matrix, whose nodes count from 1; symmetric ones are stored both ways."""
    with reading(path):
        text = "".join(text for _, text in text_blocks(path))
    return parse_matrix_market(text.encode(), str(path), path.name)


def parse_matrix_market(text: bytes, what: str, name: str) -> COOGraph:
    """Read the text of a Matrix Market file; ``what`` names it in messages."""
    try:  # from memory, as a file that is closed while scipy raises would end the process, and so does a last line without an end
        matrix = scipy.io.mmread(io.BytesIO(text + b"\n"))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{what} is no Matrix Market file that scipy reads ({first_line(error)})") from error
    return from_scipy(scipy.sparse.coo_array(matrix), name)


# ---- MATLAB, read in a child process, because damaged files crash scipy


def read_matlab(path: Path, keys: Mapping[str, str]) -> COOGraph:
    """Read the sparse square matrix of a ``.mat`` file; where there are several, ``keys["edge_index"]`` names it."""
    given = (keys["edge_index"],) if "edge_index" in keys else ()
    ((header, arrays),) = read_in_child(__name__, path, "scipy", *given)
    matrix = scipy.sparse.coo_array((arrays["data"], (arrays["row"], arrays["col"])), header["shape"])
    left_out = tuple(f"{key} of {path.name} (unknown key)" for key in header["others"])
    return replace(from_scipy(matrix, path.name), left_out=left_out, used_keys=frozenset({"edge_index"} & {*keys}))


def records(path: Path, wanted: str | None) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """Yield the matrix of a file as the one record of :func:`dgl_gt.partition.system.child_process.serve`."""
    bound_memory(path.stat().st_size)
    try:
        with open(path, "rb") as file:
            values = {key: value for key, value in scipy.io.loadmat(file).items() if not key.startswith("__")}
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything, and version 7.3 NotImplementedError
        raise InputError(f"{path} is no MATLAB file up to version 7 ({first_line(error)}); save it with -v7") from error
    for name, value in list(values.items()):  # the struct of a collection: Problem.A
        if value.dtype.names and value.size == 1:
            values |= {f"{name}.{key}": value.flat[0][key] for key in value.dtype.names}
    squares = [key for key, value in values.items() if scipy.sparse.issparse(value) and len({*value.shape}) == 1]
    if wanted is None and len(squares) == 1:
        wanted = squares[0]
    if wanted not in values:
        raise InputError(
            f"{path} holds {len(squares)} square sparse matrices; its keys are {', '.join(values) or 'none'}. Name the "
            "matrix with keys (--keys edge_index=NAME)"
        )
    matrix = checked_matrix(values.pop(wanted), f"{path}: {wanted}")
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(f"{path}: {wanted} is {matrix.dtype} of shape {matrix.shape}; it must be a square matrix")
    coo = scipy.sparse.coo_array(matrix)
    others = [key for key, value in values.items() if value.size > 1]
    yield {"shape": coo.shape, "others": others}, {"row": coo.row, "col": coo.col, "data": coo.data}


if __name__ == "__main__":
    serve(sys.argv[2], records(Path(sys.argv[1]), next(iter(sys.argv[3:]), None)))
