"""Quotes: the hours and the money of a run on clusters of rented machines, from a file with their prices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.profile import MAX_RANKS, PRESETS, Hosts, Profile, read_profile
from dgl_gt.partition.system.units import format_bytes, format_count, parse_size
from dgl_gt.partition.system.yaml_file import check_keys, read_yaml, typed

from .candidates import NothingFits, Plan
from .forecast import assumed_profile

_SHOWN = 15  # clusters in the table
_MOST_MONEY = 1e9
_COUNT = Annotated[int, Meta(ge=1, le=MAX_RANKS)]
_PROFILES = f"{', '.join(PRESETS)}, or a file that ends in .yaml"
_KINDS = {
    "measured": "the median error of a step's seconds was 3.4 % to 9 % on the processors of docs/selector.md",
    "datasheet": "peaks of datasheets, which no run reaches: compare clusters by them, and expect more hours and money; "
    "`dgl-gt calibrate` on such machines measures them",
    "default": "a core of a server processor for each rank and 10 Gbit/s links are assumed; `dgl-gt calibrate` on such "
    "machines measures them",
}


class _Machine(Struct, frozen=True):
    """A type of machine, as in the file."""

    profile: Annotated[str, Meta(description=_PROFILES)]
    price: Annotated[
        float, Meta(gt=0, le=_MOST_MONEY, description=f"a price an hour, above 0 and up to {_MOST_MONEY:g}")
    ]
    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS, description=f"a whole number from 1 to {MAX_RANKS}")]
    counts: Annotated[
        list[_COUNT],
        Meta(min_length=1, description=f"a list of whole numbers from 1 to {MAX_RANKS}, such as [1, 2, 4]"),
    ]
    memory: Annotated[
        str | int | None, Meta(description="the memory of a machine, such as 64GiB, or null for that of the profile")
    ] = None


class Cluster(NamedTuple):
    """Machines of one type: their number, the price of an hour of all of them, and what their ranks and links do."""

    machine: str
    machines: int
    hour_price: float
    ranks: int
    profile: Profile


class Quote(NamedTuple):
    """What a run costs on a cluster.

    Attributes
    ----------
    cluster : Cluster
    plan : Plan or NothingFits
    hours, money : float
        Of all epochs, without evaluation; ``inf`` where nothing fits.
    is_late : bool
        Whether a run takes longer than the deadline.
    """

    cluster: Cluster
    plan: Plan | NothingFits
    hours: float
    money: float
    is_late: bool

    @property
    def title(self) -> str:
        """Such as ``2 x gpu-box``."""
        return f"{self.cluster.machines} x {self.cluster.machine}"

    @property
    def missing_bytes(self) -> int:
        """What the largest process needs beyond the memory of the largest rank."""
        return self.plan.missing_bytes if isinstance(self.plan, NothingFits) else 0

    @property
    def lack(self) -> str:
        """What a rank lacks, in words."""
        return (
            f"lacks {format_bytes(self.missing_bytes)} a rank"
            if self.missing_bytes > 0
            else "a smaller rank lacks memory"
        )

    def as_dict(self) -> dict:
        """Plain values: those of the cluster, and those of the plan, see docs/cli.md."""
        profile, plan = self.cluster.profile, self.plan
        values = {name: getattr(self.cluster, name) for name in ("machine", "machines", "hour_price", "ranks")}
        if isinstance(plan, Plan):
            return {**values, "hours": self.hours, "money": self.money, "is_late": self.is_late, **plan.as_dict()}
        values |= {"hours": None, "money": None, "is_late": None, "choice": None, "refused": str(plan)}
        values |= {"least_memory_bytes": plan.least_bytes, "missing_memory_bytes": plan.missing_bytes}
        return {**values, "profile": {"name": profile.name, "kind": profile.kind}}


def read_prices(path) -> tuple[list[Cluster], str]:
    """The clusters that a file of prices lists, and its currency; :class:`InputError` says what is wrong with it."""
    values = read_yaml(path)
    try:
        check_keys(values, ("machines", "currency"), "it")
        machines, currency = values.get("machines"), values.get("currency", "money")
        if not isinstance(machines, dict) or not machines:
            raise InputError(f"machines is {machines!r}; it must be a map from names of machines to their prices")
        if not isinstance(currency, str):
            raise InputError(f"currency is {currency!r}; it must be a name, such as USD")
        return [each for name in machines for each in _clusters(str(name), machines[name], Path(path).parent)], currency
    except InputError as error:
        raise InputError(f"prices {path}: {error}") from None


def _clusters(name: str, values, folder: Path) -> list[Cluster]:
    """The clusters of one type of machine, one for each number of them."""
    place = f"machines.{name}"
    if not isinstance(values, dict):
        raise InputError(f"{place} is {values!r}; it must be a map with {', '.join(_Machine.__struct_fields__)}")
    check_keys(values, _Machine.__struct_fields__, place)
    machine = typed(values, _Machine, place)
    counts = sorted(set(machine.counts))
    if machine.ranks * counts[-1] > MAX_RANKS:
        raise InputError(
            f"{place} has {counts[-1]} machines of {format_count(machine.ranks, 'rank')}, and {MAX_RANKS:,} ranks are the most; "
            "lower counts"
        )
    profile = _profile(machine, place, folder)
    if other := [count for count in counts if profile.ranks not in (None, count * machine.ranks)]:
        raise InputError(
            f"{place}: profile {machine.profile} is for {format_count(profile.ranks, 'rank')}, and {format_count(other[0], 'machine')} "
            f"of ranks: {machine.ranks} would train on {other[0] * machine.ranks}; list these machines under another name, with a profile "
            f"of so many ranks, or name a preset ({', '.join(PRESETS)})"
        )
    return [Cluster(name, count, count * machine.price, count * machine.ranks, profile) for count in counts]


def _profile(machine: _Machine, place: str, folder: Path) -> Profile:
    """The profile of such machines, with the memory and the ranks of each of them."""
    if machine.profile in PRESETS:
        profile = read_profile(preset=machine.profile)
    elif machine.profile.endswith(".yaml"):
        profile = read_profile(folder / machine.profile)
    else:
        raise InputError(f"{place}.profile is {machine.profile!r}; it must be {_PROFILES}")
    profile, link = assumed_profile(profile, bounded=False), profile.link_bytes_per_s
    if isinstance(link, Hosts):
        profile = msgspec.structs.replace(
            profile, link_bytes_per_s=msgspec.structs.replace(link, ranks_per_host=machine.ranks)
        )
    if machine.memory is None:
        return profile
    if profile.device == "cuda":
        raise InputError(
            f"{place}.memory is {machine.memory!r}, and GPUs have the memory of profile {machine.profile}; leave memory out"
        )
    try:
        return msgspec.structs.replace(profile, memory_bytes=parse_size(str(machine.memory)) / machine.ranks)
    except InputError as error:
        raise InputError(f"{place}.memory: {error}") from None


def quotes(clusters: list[Cluster], plans: list[Plan | NothingFits], epochs: int, deadline_s: float) -> list[Quote]:
    """A quote for each cluster: the cheapest in time first, then those that are too late, the fastest first, then those that lack memory.

    :class:`InputError` says that none is in time, and which is the fastest, or that none has the memory.
    """
    found = []
    for cluster, plan in zip(clusters, plans):
        hours = plan.choice.seconds * epochs / 3600 if isinstance(plan, Plan) else math.inf
        found.append(Quote(cluster, plan, hours, hours * cluster.hour_price, hours * 3600 > deadline_s))
    fastest, nearest = min(found, key=lambda each: each.hours), min(found, key=lambda each: each.missing_bytes)
    if fastest.hours == math.inf:
        raise InputError(
            f"nothing fits any cluster: {nearest.title} comes nearest, and {nearest.lack}; add larger counts, or machines with "
            "more memory"
        )
    if fastest.is_late:
        raise InputError(
            f"deadline is {_short(deadline_s / 3600)} h, and the fastest cluster, {fastest.title}, takes {_short(fastest.hours)} h; "
            "allow as much, or add faster machines or larger counts"
        )

    def place(each: Quote) -> tuple:
        return each.hours == math.inf, each.is_late, each.hours if each.is_late else each.money, each.missing_bytes

    return sorted(found, key=place)


def quotes_table(found: list[Quote], epochs: int, currency: str) -> str:
    """A table of quotes, with one row for each cluster."""
    rows: list[list] = []
    for quote in found[:_SHOWN]:
        if not isinstance(quote.plan, Plan):
            rows.append([quote.title, *["-"] * 9, quote.lack])
            continue
        choice, runner_up = quote.plan.choice, quote.plan.runner_up
        mode = "part by part" if choice.spilled else choice.activation_checkpoint
        named = [quote.title, choice.cut, choice.strategy, choice.depth, mode, choice.parts // choice.ranks]
        figures = [f"{choice.seconds:.3g}", _short(quote.hours), _short(quote.money), format_bytes(choice.memory_bytes)]
        notes = ["too late"] if quote.is_late else []
        if runner_up:
            longer = runner_up.seconds / choice.seconds - 1
            notes.append(f"{runner_up.strategy} ({runner_up.cut}, depth {runner_up.depth}): {longer:+.0%}")
        rows.append([*named, *figures, "; ".join(notes)])
    header = ["cluster", "cut", "strategy", "depth", "checkpoint", "parts / rank", "s / step", f"{epochs} epochs, h"]
    header += [currency, "memory / rank", "next best"]
    more = len(found) - _SHOWN
    return table(header, rows, (0, 10)) + (f"\nand {more} more (--json lists all)" if more > 0 else "")


def text_of_quote(quote: Quote, currency: str) -> str:
    """The cluster with its hours and money."""
    return f"{quote.title}, {_short(quote.hours)} h, {_short(quote.money)} {currency}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def doubts(found: list[Quote], evaluate_every: int, is_scaled: bool) -> list[str]:
    """What makes the quotes uncertain, a line each."""
    lines = []
    for kind, text in _KINDS.items():
        names = dict.fromkeys(each.cluster.profile.name for each in found if each.cluster.profile.kind == kind)
        if names:
            lines.append(f"{', '.join(names)}: {text}")
    spilled = [each.cluster for each in found if isinstance(each.plan, Plan) and each.plan.choice.spilled]
    machines = dict.fromkeys(each.machine for each in spilled if each.profile.disk is None)
    if machines:
        text = "a disk of 1 GB/s is assumed; `dgl-gt calibrate --spill` on such machines measures it"
        lines.append(f"{', '.join(machines)}: {text}")
    if is_scaled:
        lines.append("rows, edges and bytes are taken to grow from the sample to the graph in proportion")
    often = "every epoch" if evaluate_every == 1 else f"every {evaluate_every:,} epochs"
    lines.append(
        f"the hours leave out partitioning, the start of machines, reading, checkpoints, and evaluation, a forward pass {often}"
    )
    lines.append("all epochs are counted, although patience may end a run earlier; bills are taken to be by the second")
    return lines
