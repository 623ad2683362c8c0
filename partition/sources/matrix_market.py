"""Adjacency matrices in files of Matrix Market, read by scipy."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.optional_packages import first_line
from dgl_gt.partition.system.user_files import reading

from .arrays import from_scipy
from .coo import COOGraph
from .text_blocks import text_blocks

BANNER, _MARK = b"%%MatrixMarket", b"\xef\xbb\xbf"  # and that of UTF-8, which editors add


def is_matrix_market(path: Path) -> bool:
    """Return whether a file begins with the banner of Matrix Market, whatever its name."""
    with reading(path), gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb") as file:
        return file.read(len(_MARK + BANNER)).removeprefix(_MARK).startswith(BANNER)


def read_matrix_market(path: Path) -> COOGraph:
    """Read a square sparse matrix; each entry (i, j) is an edge i -> j, and symmetric ones are stored both ways.

    Nodes count from 0 here and from 1 in the file. Values become edge data ``weight`` unless all of them are one.
    """
    with reading(path):
        try:  # from memory, as a file that is closed while scipy raises would end the process
            matrix = scipy.io.mmread(io.BytesIO("".join(text for _, text in text_blocks(path)).encode()))
        except InputError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{path} is not a Matrix Market file that scipy reads ({first_line(error)}); write it with scipy.io.mmwrite"
            ) from error
    return from_scipy(scipy.sparse.coo_array(matrix), path.name)
