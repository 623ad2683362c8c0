"""Adjacency matrices in MATLAB files, read by scipy in a child process, because damaged files crash it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.guarded_read import bound_memory, read_in_child, serve
from dgl_gt.partition.system.optional_packages import first_line

from .arrays import from_scipy
from .coo import COOGraph


def read_matlab(path: Path, keys: Mapping[str, str]) -> COOGraph:
    """Read the sparse square matrix of a ``.mat`` file; where there are several, ``keys["edge_index"]`` names it.

    Each entry (i, j) is an edge i -> j. Values become edge data ``weight`` unless all of them are one.
    """
    given = (keys["edge_index"],) if "edge_index" in keys else ()
    ((header, arrays),) = read_in_child(__name__, path, "scipy", *given)
    matrix = scipy.sparse.coo_array((arrays["data"], (arrays["row"], arrays["col"])), header["shape"])
    left_out = tuple(f"{key} of {path.name} (unknown key)" for key in header["others"])
    return replace(from_scipy(matrix, path.name), left_out=left_out, used_keys=frozenset({"edge_index"} & {*keys}))


def records(path: Path, wanted: str | None) -> Iterator[tuple[dict, dict[str, np.ndarray]]]:
    """Yield the matrix of a file as the one record of :func:`dgl_gt.partition.system.guarded_read.serve`."""
    bound_memory(path.stat().st_size)
    try:
        with open(path, "rb") as file:
            values = {key: value for key, value in scipy.io.loadmat(file).items() if not key.startswith("__")}
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything, and version 7.3 NotImplementedError
        raise InputError(
            f"{path} is not a MATLAB file up to version 7, or is damaged ({first_line(error)}); save it with -v7"
        ) from error
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
    matrix = values.pop(wanted)
    if scipy.sparse.issparse(matrix):
        try:
            matrix.check_format(full_check=True)  # indices of a damaged file would be followed anywhere
        except ValueError as error:
            raise InputError(f"{path}: {wanted} is damaged ({first_line(error)}); save it again") from error
    elif matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(f"{path}: {wanted} is {matrix.dtype} of shape {matrix.shape}; it must be a square matrix")
    coo = scipy.sparse.coo_array(matrix)
    others = [key for key, value in values.items() if value.size > 1]
    yield {"shape": coo.shape, "others": others}, {"row": coo.row, "col": coo.col, "data": coo.data}


if __name__ == "__main__":
    serve(sys.argv[2], records(Path(sys.argv[1]), *sys.argv[3:] or [None]))
