"""A hardware profile: how fast ranks and the links between them are, measured or from datasheets, as readable YAML."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.yaml_file import check_keys, read_yaml, typed

from .figures import host_sizes

FORMAT = "dgl-gt profile 3"
ATTENTION_PASSES = 3  # over all edges: forward, dQ, and dK with dV
_PRESETS = Path(__file__).parent / "presets"
PRESETS = tuple(sorted(path.stem for path in _PRESETS.glob("*.yaml")))
DEFAULT = "default"
MAX_RANKS = 4096
_MIN, _MAX = 1e-18, 1e18  # of any figure: beyond these, seconds and bytes would overflow
# The layer whose rows give each rank's share of the work: its width, heads, and in-edges per row
_WIDTH, _HEADS, _DEGREE = 64, 8, 20
_SAME_SPEED = 1.05  # speeds that differ by a smaller factor count as equal: repeated measurements differ as much

_POSITIVE, _NOT_NEGATIVE = f"one number from {_MIN:g} to {_MAX:g}", f"one number from 0 to {_MAX:g}"
_Positive = Annotated[float, Meta(ge=_MIN, le=_MAX, description=_POSITIVE)]
_NotNegative = Annotated[float, Meta(ge=0, le=_MAX, description=_NOT_NEGATIVE)]
_PositiveByRank = Annotated[_Positive | list[_Positive], Meta(description=f"{_POSITIVE}, or one for each rank")]
_ByRank = Annotated[_NotNegative | list[_NotNegative], Meta(description=f"{_NOT_NEGATIVE}, or one for each rank")]
_OF_RANK: tuple[str, ...] = ("memory_bytes", "process_bytes", "stream_bytes_per_s", "simple_bytes_per_s")
_OF_RANK += ("operation_s", "bf16_product_speed", "bf16_edge_time")
_Key = Annotated[int, Meta(ge=1)]


class Attention(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds per edge, forward and backward, as one number for all ranks or as a list with one for each."""

    edge_s: _ByRank  # fixed time per edge
    head_s: _ByRank  # per edge and head
    row_column_s: _ByRank  # per number of a row, whatever its number of edges
    near_column_s: _PositiveByRank  # per edge and number of a row if the rows at both ends lie near each other
    far_column_s: Annotated[  # the same if they lie anywhere, by the bytes of all keys and values
        dict[_Key, _PositiveByRank],
        Meta(
            min_length=1,
            description="a map from bytes of keys and values to one positive number, or to one for each rank",
        ),
    ]


class Hosts(Struct, frozen=True, forbid_unknown_fields=True):
    """Links of ranks on hosts: bytes per second within a host and between hosts, and ranks per host."""

    within: _Positive
    between: _Positive
    ranks_per_host: Annotated[int, Meta(ge=1, description="a whole number of at least 1")]


class Disk(Struct, frozen=True, forbid_unknown_fields=True):
    """How fast a rank copies rows from files and to them (bytes/s), as all ranks of a host do at once.

    Without a measurement: one core of a server copies pages, and ranks share a disk of 1 GB/s.
    """

    cached_read: _Positive = 2e9  # of files that the system keeps in free memory
    cached_write: _Positive = 1e9
    read: _Positive = 5e8  # where it has no memory to keep them
    write: _Positive = 5e8

    def byte_seconds(self, is_cached: np.ndarray) -> np.ndarray:
        """Seconds for each byte that is read, and written, on each rank, (2, P)."""
        rates = np.array([[self.cached_read, self.cached_write], [self.read, self.write]])
        return 1 / rates[1 - is_cached.astype(int)].T


class Profile(Struct, frozen=True, kw_only=True):
    """How fast ranks and links are; a rank's figure is one number for all ranks or a list with one for each.

    Attributes
    ----------
    name : str
        Path of the file, or name of the preset; not stored in the file.
    kind : {"measured", "datasheet", "default"}
    device : {"cpu", "cuda"}
        What ranks compute on; layers run part by part, with rows in files, only on a CPU.
    ranks : int or None
        Number of ranks P; None if the figures hold for any number of ranks.
    memory_bytes, process_bytes : float or list
        Memory of a rank, and the part of it that the interpreter and its libraries take (bytes).
    memory_factor : float
        Bytes of a rank's process for each byte of its tensors, by its memory allocator.
    checkpointing_bytes : float
        Libraries that only activation checkpointing loads, in addition (bytes).
    page_byte_s : float
        Seconds for each byte of memory that a rank takes from the system; 0 where that is unknown.
    stream_bytes_per_s : float or list
        Bandwidth of norms, activation functions and all operations without a figure below: what they read and write
        (bytes/s).
    simple_bytes_per_s : float or list
        Bandwidth of simple operations, such as sums, zeros and selected rows (bytes/s).
    operation_s : float or list
        Fixed time per operation, whatever its size (s).
    products : dict of int to float or list
        Speed of matrix products, by the width of their rows (FLOP/s).
    attention : Attention
    bf16_product_speed, bf16_edge_time : float or list
        Speed of matrix products in bfloat16, and seconds per edge in bfloat16, each as a multiple of that in float32.
    latency_s : float
        Time that one collective call takes besides its bytes (s).
    overlap : float
        Share of an exchange that computation at the same time can hide, 0 to 1.
    reduce_bytes_per_s : float
        Rate at which gradients are summed over ranks (bytes/s).
    link_bytes_per_s : list of P lists, or Hosts
        Bandwidth into rank i from rank j (bytes/s).
    disk : Disk or None
        Speed of files with rows between layers, see docs/spilling.md; None, where it was not measured, stands for ``Disk()``.
    """

    format: str = FORMAT
    kind: Annotated[
        Literal["measured", "datasheet", "default"], Meta(description="one of measured, datasheet, default")
    ]
    device: Annotated[Literal["cpu", "cuda"], Meta(description="cpu or cuda")] = "cpu"
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_RANKS)] | None,
        Meta(description=f"a whole number from 1 to {MAX_RANKS}, or null for any number of ranks"),
    ]
    memory_bytes: _PositiveByRank
    process_bytes: _ByRank
    memory_factor: Annotated[float, Meta(ge=1, le=10, description="one number from 1 to 10")] = 1.0
    checkpointing_bytes: _NotNegative = 0.0
    page_byte_s: _NotNegative = 0.0
    stream_bytes_per_s: _PositiveByRank
    simple_bytes_per_s: _PositiveByRank
    operation_s: _ByRank
    products: Annotated[
        dict[_Key, _PositiveByRank],
        Meta(
            min_length=1, description="a map from widths, such as 128, to one positive number, or to one for each rank"
        ),
    ]
    attention: Annotated[Attention, Meta(description=f"a map with {', '.join(Attention.__struct_fields__)}")]
    bf16_product_speed: _PositiveByRank
    bf16_edge_time: _PositiveByRank
    latency_s: _NotNegative
    overlap: Annotated[float, Meta(ge=0, le=1, description="one number between 0 and 1")]
    reduce_bytes_per_s: _Positive
    link_bytes_per_s: Annotated[
        list[list[_Positive]] | Hosts,
        Meta(description="one list of positive numbers for each rank, or within, between and ranks_per_host"),
    ]
    disk: Annotated[Disk | None, Meta(description=f"a map with {', '.join(Disk.__struct_fields__)}, or null")] = None
    name: str = ""

    @property
    def rank_figures(self) -> dict[str, float | list[float]]:
        """Every figure that may be a list with one number for each rank, by its name in the file."""
        attention = self.attention
        return {
            **{key: getattr(self, key) for key in _OF_RANK},
            **{f"products of {width}": rates for width, rates in self.products.items()},
            **{f"attention.{key}": getattr(attention, key) for key in Attention.__struct_fields__[:-1]},
            **{f"far_column_s of {held}": seconds for held, seconds in attention.far_column_s.items()},
        }

    def product_flops_per_s(self, width: float, ranks: int, itemsize: int = 4) -> np.ndarray:
        """The speed of matrix products of this width on each rank, (P,) (operations/s); two bytes mean bfloat16."""
        speed = np.asarray(self.bf16_product_speed) if itemsize == 2 else 1.0
        return speed * _interpolated(self.products, np.full(ranks, width))

    def edge_seconds(self, heads: int, columns: int, source_bytes: np.ndarray, near, itemsize: int = 4) -> np.ndarray:
        """Seconds per edge, in all passes of a step, on each rank, (P,).

        ``columns`` is the width of a row, ``source_bytes`` (P,) the bytes of the keys and values from which a rank
        reads, and ``near``, (P,) or one number, the share of the edges that are near. ``itemsize`` 2 means bfloat16.
        """
        attention, share = self.attention, np.asarray(self.bf16_edge_time) if itemsize == 2 else 1.0
        near_s = np.asarray(attention.near_column_s)
        far_s = np.maximum(_interpolated(attention.far_column_s, np.maximum(source_bytes, 1)), near_s)
        fixed = np.asarray(attention.edge_s) + heads * np.asarray(attention.head_s)
        return share * (fixed + columns * (near * near_s + (1 - near) * far_s))

    def of_slowest_rank(self) -> Profile:
        """A profile for any number of ranks, all as slow as the slowest of these, with the memory of the smallest."""

        def least(value):
            return min(value) if isinstance(value, list) else value

        def most(value):
            return max(value) if isinstance(value, list) else value

        attention = {
            key: {held: most(each) for held, each in value.items()} if isinstance(value, dict) else most(value)
            for key, value in msgspec.structs.asdict(self.attention).items()
        }
        link = self.link_bytes_per_s
        if isinstance(link, list):
            slowest = min(map(min, link))
            link = Hosts(within=slowest, between=slowest, ranks_per_host=1)
        return msgspec.structs.replace(
            self,
            ranks=None,
            link_bytes_per_s=link,
            memory_bytes=least(self.memory_bytes),
            process_bytes=most(self.process_bytes),
            stream_bytes_per_s=least(self.stream_bytes_per_s),
            simple_bytes_per_s=least(self.simple_bytes_per_s),
            operation_s=most(self.operation_s),
            bf16_product_speed=least(self.bf16_product_speed),
            bf16_edge_time=most(self.bf16_edge_time),
            products={width: least(rate) for width, rate in self.products.items()},
            attention=Attention(**attention),
        )

    def check_ranks(self, ranks: int) -> None:
        """Refuse another number of ranks than was measured; presets hold for any number."""
        if self.ranks not in (None, ranks):
            raise InputError(
                f"profile {self.name} is for {format_count(self.ranks, 'rank')}, and {format_count(ranks, 'rank')} will "
                f"train: run `dgl-gt calibrate --nproc {ranks}` on these machines, or name a preset "
                f"({', '.join(PRESETS)})"
            )

    def row_seconds(self, ranks: int) -> np.ndarray:
        """Time of one row and its in-edges on each rank, (P,) (s).

        The row is one of a layer of width 64 with 8 heads, and has twenty in-edges.
        """
        row_bytes = 4 * _WIDTH
        seconds = 3 * 2 * 8 * _WIDTH**2 / self.product_flops_per_s(_WIDTH, ranks)  # of 8 projections
        seconds = seconds + 32 * row_bytes / np.asarray(self.stream_bytes_per_s)  # that they and norms read and write
        seconds = seconds + _WIDTH * np.asarray(self.attention.row_column_s)
        return seconds + _DEGREE * self.edge_seconds(_HEADS, _WIDTH, np.full(ranks, np.inf), 0.0)

    def target_weights(self) -> list[float]:
        """The share of each rank for ``--target-weights``: its speed as a share of the speed of all ranks."""
        speed = 1 / self.row_seconds(self.ranks or 1)
        return (speed / speed.sum()).tolist()

    def unequal_weights(self) -> list[float] | None:
        """The same; None where ranks are about as fast as each other, so that parts of equal size suit them."""
        weights = self.target_weights()
        return weights if max(weights) > _SAME_SPEED * min(weights) else None

    def as_dict(self) -> dict:
        """Plain values, as in the file."""
        values = msgspec.to_builtins(self)
        del values["name"]
        return values

    def ranks_per_host(self, ranks: int) -> int | None:
        """The size of hosts that the links suggest: consecutive ranks whose links are faster than all between hosts.

        Hosts of this size fill the ranks exactly. If several sizes do, it is the largest; None if there is none.
        """
        link = self.links(ranks)
        for size in reversed(host_sizes(ranks)):
            host = np.arange(ranks) // size
            is_within = host[:, None] == host[None]
            between = link[~is_within].max()
            np.fill_diagonal(is_within, False)
            if link[is_within].min() > between:
                return size
        return None

    def links(self, ranks: int) -> np.ndarray:
        """Bandwidth into rank i from rank j, (P, P) (bytes/s)."""
        link = self.link_bytes_per_s
        if isinstance(link, Hosts):
            host = np.arange(ranks) // link.ranks_per_host
            return np.where(host[:, None] == host[None], link.within, link.between)
        return np.array(link)


def _interpolated(figures: dict, sizes: np.ndarray) -> np.ndarray:
    """Each rank's figure for its size, (P,), interpolated by the logarithm of the sizes that were measured."""
    measured = sorted(figures)
    by_size = np.stack([np.broadcast_to(figures[each], len(sizes)) for each in measured], axis=1)
    return np.array([np.interp(math.log(each), np.log(measured), row) for each, row in zip(sizes, by_size)])


def read_profile(path=None, preset: str | None = None) -> Profile:
    """A profile from a file that ``dgl-gt calibrate`` wrote, from a preset, or, with neither, the documented default.

    Parameters
    ----------
    path : path, optional
        File that ``dgl-gt calibrate`` wrote.
    preset : str, optional
        Name of a preset, one of ``dgl_gt.plan.PRESETS``; give at most one of the two.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        The preset is unknown, the file cannot be read, or a figure is missing or out of range.
    """
    if path is not None and preset is not None:
        raise InputError(f"a profile ({path}) and a preset ({preset}) are given; give one")
    if path is None:
        preset = DEFAULT if preset is None else preset
        check_one_of("preset", preset, PRESETS)
        path = _PRESETS / f"{preset}.yaml"
    values = read_yaml(path)
    if values.get("format") != FORMAT:
        raise InputError(f"{path} is not a hardware profile ({FORMAT!r}); make one with `dgl-gt calibrate`")
    name = preset or str(path)
    check_keys(values, set(Profile.__struct_fields__) - {"name"}, f"profile {name}")
    try:
        profile = typed(values | {"name": name}, Profile)
        _check_numbers_of_figures(profile)
    except InputError as error:
        raise InputError(f"profile {name}: {error}") from None
    return profile


def _check_numbers_of_figures(profile: Profile) -> None:
    """Refuse lists that do not have one figure for each rank."""
    ranks, link = profile.ranks, profile.link_bytes_per_s
    for key, value in profile.rank_figures.items():
        if isinstance(value, list) and len(value) != ranks:
            raise InputError(
                f"{key} has {format_count(len(value), 'figure')} for {'any number of ranks' if ranks is None else format_count(ranks, 'rank')}; give one figure for all, "
                "or one for each rank"
            )
    if isinstance(link, list) and (ranks is None or [len(row) for row in link] != [ranks] * ranks):
        raise InputError(
            f"link_bytes_per_s must be {ranks or 'P'} lists of as many positive numbers, or within, between and "
            "ranks_per_host; correct the lists"
        )
