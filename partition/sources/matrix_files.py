"""Adjacency matrices in files: Matrix Market and MATLAB, read by scipy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from partition.errors import InputError
from partition.system.optional_packages import first_line
from partition.system.user_files import reading

from .arrays import from_scipy
from .coo import COOGraph

BANNER = b"%%MatrixMarket"


def is_matrix_market(path: Path) -> bool:
    """Return whether a file begins with the banner of Matrix Market, whatever its name."""
    with reading(path), open(path, "rb") as file:
        return file.read(len(BANNER)) == BANNER


def read_matrix_market(path: Path) -> COOGraph:
    """Read a square sparse matrix; each entry (i, j) is an edge i -> j, and symmetric ones are stored both ways.

    Nodes count from 0 here and from 1 in the file. Values become edge data ``weight`` unless all of them are one.
    """
    with reading(path):
        try:
            matrix = scipy.io.mmread(str(path))  # a stream that is closed while scipy raises would end the process
        except InputError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{path} is not a Matrix Market file that scipy reads ({first_line(error)}); write it with scipy.io.mmwrite"
            ) from error
    return _graph(path, scipy.sparse.coo_array(matrix))


def read_matlab(path: Path, keys: Mapping[str, str]) -> COOGraph:
    """Read the sparse square matrix of a ``.mat`` file; where there are several, ``keys["edge_index"]`` names it."""
    try:
        with reading(path), open(path, "rb") as file:
            found = {key: value for key, value in scipy.io.loadmat(file).items() if not key.startswith("__")}
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything, and version 7.3 NotImplementedError
        raise InputError(
            f"{path} is not a MATLAB file up to version 7, or is damaged ({first_line(error)}); save it with -v7"
        ) from error
    for name, value in list(found.items()):  # a collection's struct: Problem.A
        if value.dtype.names and value.size == 1:
            found |= {f"{name}.{key}": value.flat[0][key] for key in value.dtype.names}
    squares = [key for key, value in found.items() if scipy.sparse.issparse(value) and len({*value.shape}) == 1]
    wanted = keys.get("edge_index", squares[0] if len(squares) == 1 else None)
    if wanted not in found:
        raise InputError(
            f"{path} holds {len(squares)} square sparse matrices; its keys are {', '.join(found) or 'none'}. Name the "
            "matrix with keys (--keys edge_index=NAME)"
        )
    matrix = found.pop(wanted)
    if scipy.sparse.issparse(matrix):
        try:
            matrix.check_format(full_check=True)  # indices of a damaged file would be followed anywhere
        except ValueError as error:
            raise InputError(f"{path}: {wanted} is damaged ({first_line(error)}); save it again") from error
    elif matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(f"{path}: {wanted} is {matrix.dtype} of shape {matrix.shape}; it must be a square matrix")
    left_out = tuple(f"{key} of {path.name} (unknown key)" for key, value in found.items() if value.size > 1)
    return replace(_graph(path, scipy.sparse.coo_array(matrix)), left_out=left_out)


def _graph(path: Path, matrix) -> COOGraph:
    if matrix.dtype.kind == "c":
        raise InputError(f"{path} holds complex numbers; weights of edges must be real: take their absolute values")
    if matrix.dtype.kind == "f" and np.isnan(matrix.data).any():
        raise InputError(f"{path} has an entry that is NaN; replace it first")
    return from_scipy(matrix, path.name)
