"""Adjacency matrices in files of Matrix Market, read by scipy."""

from __future__ import annotations

from pathlib import Path

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
    return from_scipy(scipy.sparse.coo_array(matrix), path.name)
