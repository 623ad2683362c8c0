"""A hardware profile: what ranks and the links between them do, measured or from datasheets, as readable YAML."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_gt.yaml_file import read_yaml
from partition.errors import InputError
from partition.predict.model import Model
from partition.predict.step_time import ATTENTION_PASSES, Speeds
from partition.system.units import counted

FORMAT = "dgl-gt profile 1"
_PRESETS = Path(__file__).parent / "presets"
PRESETS = tuple(sorted(path.stem for path in _PRESETS.glob("*.yaml")))
DEFAULT = "default"
MOST_RANKS = 4096
KINDS = ("measured", "datasheet", "default")
_LEAST, _MOST = 1e-18, 1e18  # of any figure: beyond, seconds and bytes would overflow
_ITEMSIZE = 4  # of the numbers that were measured
_RANK_KEYS = ("memory_bytes", "process_bytes", "stream_bytes_per_s", "layer_s")
_ATTENTION_KEYS = ("edge_s", "head_s", "row_column_s", "near_column_s")


@dataclass(frozen=True)
class Profile:
    """What ranks and links do; a rank's figures are arrays with one for each rank, (P,), or of one element for all.

    Attributes
    ----------
    name : str
        File or preset.
    kind : {"measured", "datasheet", "default"}
    ranks : int or None
        P; None where the figures are the same for any number of ranks.
    memory_bytes, process_bytes : ndarray
        Of a rank, and what of it the interpreter and its libraries take.
    stream_bytes_per_s : ndarray
        Of operations on each number of a row, forward and backward.
    layer_s : ndarray
        Of a layer besides, whatever its size.
    products : dict of int to ndarray
        Operations a second of matrix products with rows of so many numbers.
    attention : dict of str to ndarray
        Seconds of an edge, forward and backward: ``edge_s`` of any, ``head_s`` of each head, ``near_column_s`` of each
        of C numbers where the two rows lie near each other, and, a dict, ``far_column_s`` where they lie anywhere, by
        the bytes of all keys and values. And ``row_column_s`` of each of C numbers of a row, whatever its edges.
    latency_s, overlap, reduce_bytes_per_s : float
        See :class:`partition.predict.step_time.Speeds`.
    link_bytes_per_s : ndarray (P, P), or dict
        Into rank i from rank j; or ``within`` and ``between`` hosts of ``ranks_per_host`` ranks.
    """

    name: str
    kind: str
    ranks: int | None
    memory_bytes: np.ndarray
    process_bytes: np.ndarray
    stream_bytes_per_s: np.ndarray
    layer_s: np.ndarray
    products: dict[int, np.ndarray]
    attention: dict[str, np.ndarray]
    latency_s: float
    overlap: float
    reduce_bytes_per_s: float
    link_bytes_per_s: np.ndarray | dict

    def speeds(self, model: Model, ranks: int, held_rows=None) -> Speeds:
        """What so many ranks do with rows and heads of this model.

        Parameters
        ----------
        model : Model
        ranks : int
        held_rows : ndarray, (P,), optional
            Rows of keys and values that each rank reads; by default more than any cache holds.

        Raises
        ------
        InputError
            The profile is of another number of ranks.
        """
        self.check_ranks(ranks)
        columns = ATTENTION_PASSES * 2 * _ITEMSIZE  # bytes that a column stands for
        widths = sorted(self.products)
        flops = [np.interp(math.log(model.hidden), [math.log(w) for w in widths], rates) for rates in self._by_rank()]
        near = self.attention["near_column_s"]
        far = np.maximum(self._far_column_s(model, ranks, held_rows), near)
        figures = {
            "flops_per_s": np.array(flops),
            "gather_bytes_per_s": columns / far,
            "near_bytes_per_s": columns / near,
            **{name: self.attention[name] for name in ("edge_s", "head_s")},
            "attend_s": self.attention["row_column_s"],
            "stream_bytes_per_s": self.stream_bytes_per_s,
            "layer_s": self.layer_s,
        }
        return Speeds(
            **{name: np.broadcast_to(value, ranks).copy() for name, value in figures.items()},
            link_bytes_per_s=self._links(ranks),
            latency_s=self.latency_s,
            reduce_bytes_per_s=self.reduce_bytes_per_s if ranks > 1 else np.inf,
            overlap=self.overlap,
        )

    def check_ranks(self, ranks: int) -> None:
        """Refuse another number of ranks than was measured; presets are of any."""
        if self.ranks not in (None, ranks):
            raise InputError(
                f"profile {self.name} is for {counted(self.ranks, 'rank')}, and {counted(ranks, 'rank')} will "
                f"train: run `dgl-gt calibrate --nproc {ranks}` on these machines, or name a preset "
                f"({', '.join(PRESETS)})"
            )

    def target_weights(self, model: Model) -> list[float]:
        """How much each rank should take, for ``--target-weights``: what it computes in a second, of all that ranks do.

        Of a layer with twenty in-edges a node.
        """
        speeds = self.speeds(model, self.ranks or 1)
        width, row = model.hidden, model.row_bytes
        seconds = 6 * width**2 * (4 + 2 * model.ffn) / speeds.flops_per_s
        seconds = seconds + (22 + 5 * model.ffn) * row / speeds.stream_bytes_per_s
        edge_s = speeds.edge_s + model.heads * speeds.head_s
        seconds = (
            seconds + width * speeds.attend_s + 20 * (edge_s + 2 * ATTENTION_PASSES * row / speeds.gather_bytes_per_s)
        )
        return (1 / seconds / (1 / seconds).sum()).tolist()

    def as_dict(self) -> dict:
        """Plain values, as in the file."""
        link = self.link_bytes_per_s
        return {
            "format": FORMAT,
            "kind": self.kind,
            "ranks": self.ranks,
            **{key: _plain(getattr(self, key)) for key in _RANK_KEYS},
            "products": {width: _plain(rates) for width, rates in self.products.items()},
            "attention": {
                **{key: _plain(self.attention[key]) for key in _ATTENTION_KEYS},
                "far_column_s": {held: _plain(seconds) for held, seconds in self.attention["far_column_s"].items()},
            },
            "latency_s": self.latency_s,
            "overlap": self.overlap,
            "reduce_bytes_per_s": self.reduce_bytes_per_s,
            "link_bytes_per_s": link if isinstance(link, dict) else [_rounded(row) for row in link],
        }

    def _far_column_s(self, model: Model, ranks: int, held_rows) -> np.ndarray:
        """By rank, between what was measured by the logarithm of bytes."""
        far = self.attention["far_column_s"]
        sizes = sorted(far)
        held_bytes = 2 * model.row_bytes * np.broadcast_to(np.inf if held_rows is None else held_rows, ranks)
        by_size = [np.broadcast_to(far[each], ranks) for each in sizes]
        return np.array(
            [
                np.interp(math.log(max(held, 1)) if held < np.inf else np.inf, np.log(sizes), seconds)
                for held, seconds in zip(held_bytes, np.stack(by_size, axis=1))
            ]
        )

    def _by_rank(self) -> list[list[float]]:
        widths = sorted(self.products)
        return np.stack(np.broadcast_arrays(*(self.products[width] for width in widths)), axis=1).tolist()

    def _links(self, ranks: int) -> np.ndarray:
        link = self.link_bytes_per_s
        if isinstance(link, dict):
            host = np.arange(ranks) // int(link["ranks_per_host"])
            return np.where(host[:, None] == host[None], float(link["within"]), float(link["between"]))
        return link


def read_profile(path=None, preset: str | None = None) -> Profile:
    """A profile from a file that ``dgl-gt calibrate`` wrote, a preset, or, with neither, the documented default.

    Raises
    ------
    InputError
        Unknown preset, unreadable file, or a figure that is missing or not positive.
    """
    if path is not None and preset is not None:
        raise InputError(f"a profile ({path}) and a preset ({preset}) are given; give one")
    if path is None:
        preset = preset or DEFAULT
        if preset not in PRESETS:
            raise InputError(f"preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
        path = _PRESETS / f"{preset}.yaml"
    values = read_yaml(path)
    if values.get("format") != FORMAT:
        raise InputError(f"{path} is no hardware profile ({FORMAT!r}); make one with `dgl-gt calibrate`")
    return _checked(preset or str(path), values)


def _checked(name: str, values: dict) -> Profile:
    def wanted(where: dict, key: str, title: str):
        if not isinstance(where, dict) or key not in where:
            raise InputError(f"profile {name} has no {title}; measure again with `dgl-gt calibrate`")
        return where[key]

    def numbers(value, title: str, *, zero: bool = False) -> np.ndarray:
        try:
            array = np.atleast_1d(np.asarray(value, float))
        except (TypeError, ValueError, OverflowError):
            array = np.array([np.nan])
        allowed = (array >= _LEAST) & (array <= _MOST) | (zero & (array == 0))
        if array.ndim > 1 or not allowed.all():
            raise InputError(
                f"profile {name}: {title} is {reprlib.repr(value)}; it must be {'0, or ' if zero else ''}a number from "
                f"{_LEAST:g} to {_MOST:g}, for every rank"
            )
        if ranks is not None and len(array) not in (1, ranks):
            raise InputError(
                f"profile {name}: {title} has {counted(len(array), 'figure')} for {counted(ranks, 'rank')}; give one "
                "for each"
            )
        if ranks is None and array.size != 1:
            raise InputError(
                f"profile {name}: {title} has {counted(array.size, 'figure')} and no number of ranks; give one"
            )
        return array

    ranks = wanted(values, "ranks", "ranks")
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS):
        raise InputError(
            f"profile {name}: ranks is {reprlib.repr(ranks)}; it must be a whole number from 1 to {MOST_RANKS}, or "
            "null for any number"
        )
    kind = wanted(values, "kind", "kind")
    if kind not in KINDS:
        raise InputError(f"profile {name}: kind is {reprlib.repr(kind)}; it must be one of {', '.join(KINDS)}")
    attention = wanted(values, "attention", "attention")
    tables = {
        "products": wanted(values, "products", "products"),
        "far_column_s": wanted(attention, "far_column_s", "attention.far_column_s"),
    }
    for key, what in (("products", "widths, such as 128,"), ("far_column_s", "bytes of keys and values")):
        found = tables[key]
        if not isinstance(found, dict) or not found or any(type(each) is not int or each < 1 for each in found):
            raise InputError(f"profile {name}: {key} must map {what} to positive numbers")
        tables[key] = {each: numbers(figures, f"{key} of {each}") for each, figures in found.items()}
    zero_too = ("layer_s", "process_bytes", "edge_s", "head_s", "row_column_s")
    scalars = {key: wanted(values, key, key) for key in ("latency_s", "overlap", "reduce_bytes_per_s")}
    for key, value in scalars.items():
        if isinstance(value, (list, dict)):
            raise InputError(
                f"profile {name}: {key} is {reprlib.repr(value)}; it must be one number, for all ranks together"
            )
        scalars[key] = float(numbers(value, key, zero=key != "reduce_bytes_per_s")[0])
    if scalars["overlap"] > 1:
        raise InputError(f"profile {name}: overlap is {scalars['overlap']}; it must be between 0 and 1")
    return Profile(
        name=name,
        kind=kind,
        ranks=ranks,
        **{key: numbers(wanted(values, key, key), key, zero=key in zero_too) for key in _RANK_KEYS},
        products=tables["products"],
        attention={
            key: numbers(wanted(attention, key, f"attention.{key}"), f"attention.{key}", zero=key in zero_too)
            for key in _ATTENTION_KEYS
        }
        | {"far_column_s": tables["far_column_s"]},
        **scalars,
        link_bytes_per_s=_checked_links(name, wanted(values, "link_bytes_per_s", "link_bytes_per_s"), ranks),
    )


def _checked_links(name: str, link, ranks: int | None):
    if isinstance(link, dict):
        for key in ("within", "between", "ranks_per_host"):
            value = link.get(key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not _LEAST <= value <= _MOST:
                raise InputError(
                    f"profile {name}: link_bytes_per_s.{key} is {reprlib.repr(value)}; it must be a number from "
                    f"{_LEAST:g} to {_MOST:g}"
                )
        hosted = link["ranks_per_host"]
        if hosted % 1:
            raise InputError(f"profile {name}: link_bytes_per_s.ranks_per_host is {hosted}; it must be a whole number")
        return link
    try:
        array = np.asarray(link, float)
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(0)
    if ranks is None or array.shape != (ranks, ranks) or not ((array >= _LEAST) & (array <= _MOST)).all():
        raise InputError(
            f"profile {name}: link_bytes_per_s must be {ranks or 'P'} lists of as many positive numbers, or within, "
            "between and ranks_per_host"
        )
    return array


def _plain(array: np.ndarray):
    values = _rounded(np.atleast_1d(array))
    return values[0] if len(values) == 1 else values


def _rounded(values) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
