"""Archives of the SuiteSparse collection, as they are downloaded: a matrix and what belongs to it in one .tar.gz."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dgl_gt.partition.errors import InputError, first_line
from dgl_gt.partition.system.user_files import check_fits_memory, check_unpacked_size, reading

from .coo import COOGraph
from .matrices import parse_matrix_market


def read_matrix_archive(path: Path) -> COOGraph:
    """Read the matrix ``NAME/NAME.mtx`` of an archive of the SuiteSparse collection, ``.tar`` or ``.tar.gz``."""
    texts, others, unpacked_bytes = dict[str, bytes](), [], 0
    with reading(path):
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    unpacked_bytes += member.size
                    check_unpacked_size(path, unpacked_bytes)
                    name = PurePosixPath(member.name)
                    if member.isfile() and name.suffix == ".mtx" and name.stem == name.parent.name:
                        check_fits_memory(f"{path}: {name}", member.size)
                        texts[str(name)] = archive.extractfile(member).read()
                    elif member.isfile():
                        others.append(f"{name} of {path.name} (not the matrix)")
        except InputError:  # it is a ValueError, too
            raise
        except (tarfile.TarError, ValueError) as error:
            raise InputError(
                f"{path} is no tar archive, or is damaged ({first_line(error)}); fetch it again"
            ) from error
    if len(texts) != 1:
        raise InputError(f"{path} holds {len(texts)} files NAME/NAME.mtx; it must hold one: name the .mtx file itself")
    ((inner, text),) = texts.items()
    return replace(parse_matrix_market(text, f"{path}: {inner}", path.name), left_out=tuple(others))
