"""Traces of the steps of ``dgl-gt train`` in the user's cache, so that plans and runs of one model trace it once."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import torch

from dgl_gt.ops.cpu import library
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import Count
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.storage import cache_folder

from .streamed_trace import StreamedTrace
from .trace import Event, Trace

_MOST_KEPT = 300  # of some 20 KB each


def kept(what: tuple, record: Callable[[], Trace]) -> Trace:
    """The trace that is kept of ``what``, or else what ``record`` returns, which is then kept.

    Another version of torch or of this package, or a changed file of it, makes another trace.
    """
    try:
        folder = cache_folder("traces")
    except InputError:  # there is no cache
        return record()
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    around = torch.__version__, torch.get_default_dtype(), autocast, library() is not None, _code()
    path = folder / hashlib.sha256(repr((what, around)).encode()).hexdigest()
    with suppress(OSError, zlib.error, msgspec.DecodeError):
        trace = _decoded(zlib.decompress(path.read_bytes()))
        with suppress(OSError):  # of another user
            os.utime(path)
        return trace
    trace = record()
    with suppress(InputError, OSError):  # no room, or another process removes the same
        with new_file(path, force=True) as file:
            file.write(zlib.compress(_encoded(trace), 1))
        for old in sorted(folder.iterdir(), key=os.path.getmtime)[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    return trace


@cache
def _code() -> str:
    """A digest of the package's modules."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    modules = {*root.rglob("*.py"), *(root / "partition").rglob("*.py")}  # a link in a checkout
    for each in sorted(modules):
        with suppress(OSError):  # an editor's lock is a link to nowhere
            digest.update(each.read_bytes())
    return digest.hexdigest()


_ARRAYS = [each.name for each in fields(StreamedTrace) if each.name not in ("counts", "events")]


def _encoded(trace: Trace) -> bytes:
    arrays = {name: getattr(trace, name) for name in _ARRAYS if hasattr(trace, name)}
    stored = {name: (each.dtype.str, each.shape, each.tobytes()) for name, each in arrays.items()}
    return msgspec.msgpack.encode((trace.counts, trace.events, stored))


def _decoded(data: bytes) -> Trace:
    kind = tuple[tuple[tuple, ...], tuple[tuple[str, tuple, str], ...], dict[str, tuple[str, tuple[int, ...], bytes]]]
    counts, events, stored = msgspec.msgpack.decode(data, type=kind)
    arrays = {name: np.frombuffer(each, dtype).reshape(shape) for name, (dtype, shape, each) in stored.items()}
    made = StreamedTrace if len(arrays) == len(_ARRAYS) else Trace
    return made(tuple(Count(*each) for each in counts), tuple(Event(*each) for each in events), **arrays)
