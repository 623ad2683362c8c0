"""Linear costs of a training step: all that partitioning knows about a model. ``dgl-gt plan --save-costs`` writes them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.user_files import reading, regular_file

from .figures import Figures, balance_of
from .profile import Profile

_FORMAT: Literal["dgl-gt costs 2"] = "dgl-gt costs 2"
_DEFAULT = Path(__file__).with_name("default_costs.json")
_MAX_BYTES, _MAX = 1 << 20, 2.0**62
_Amount = Annotated[float, Meta(ge=0, le=1e30)]


class PerCount(Struct, frozen=True, forbid_unknown_fields=True):
    """An amount per rank, plus an amount per unit of each count of its part, see :class:`Figures`.

    ``copies`` and ``sent`` are rows of the first hop. ``returned`` and ``returns`` are 0 on an edge cut.
    """

    rank: _Amount = 0.0
    owned: _Amount = 0.0
    copies: _Amount = 0.0
    edges: _Amount = 0.0
    sent: _Amount = 0.0
    returned: _Amount = 0.0
    returns: _Amount = 0.0

    def of(self, figures: Figures) -> np.ndarray:
        """The amount of each rank, float64, (P,)."""
        return (
            self.rank
            + self.owned * figures.owned
            + self.copies * figures.copies_within(1)
            + self.edges * figures.edges
            + self.sent * figures.sent_within(1)
            + self.returned * figures.returned
            + self.returns * figures.returns
        )


class CutCosts(Struct, frozen=True, forbid_unknown_fields=True):
    """What a training step costs on a cut of one kind."""

    strategy: str  # that the costs describe
    compute_s: PerCount  # time of computation, on a rank of average speed (s)
    sent_bytes: PerCount  # bytes that a rank sends in a step; it receives as many
    byte_s: _Amount  # exchange time that computation does not hide, per byte of the rank that sends most (s)
    calls: _Amount  # exchanges of a step
    call_s: _Amount  # fixed time per exchange (s)
    sum_s: _Amount  # time of sums over ranks, such as that of the gradients (s)
    tensor_bytes: PerCount  # tensors at the peak of a step, without node and edge data


class Costs(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a training step of one model costs on any cut, as a linear form.

    :func:`dgl_gt.plan.choose` finds it from traces of the step, see docs/selector.md.

    Attributes
    ----------
    model : dict
        Model that the costs describe: its settings, or the name of a function.
    profile : str
        Name of the hardware profile.
    row_s : float
        Mean of :meth:`Profile.row_seconds` over the ranks of that profile (s); the speed of
        other ranks is measured by it.
    edge, vertex : CutCosts or None
        Costs on each kind of cut.
    """

    format: Literal["dgl-gt costs 2"] = _FORMAT
    model: dict[str, str | bool | int | float]
    profile: str
    row_s: Annotated[float, Meta(gt=0, le=1e30)]
    edge: CutCosts | None
    vertex: CutCosts | None

    def of(self, cut: str) -> CutCosts:
        """The costs on a kind of cut; :class:`InputError` if there are none."""
        found = {"edge": self.edge, "vertex": self.vertex}[cut]
        if found is None:
            raise InputError(f"the costs do not cover {cut} cuts; choose another cut (--cut), or other costs (--costs)")
        return found

    def step_seconds(self, figures: Figures, profile: Profile | None = None) -> float:
        """Predicted time of a training step (s).

        The time is the longest computation of any rank, plus the longest exchange of any rank, plus sums over ranks.
        With a profile, part i is on rank i, speeds and links are those of the profile, and computation is assumed to
        hide nothing of an exchange. Without a profile, a rank with twice the share (``figures.shares``) is assumed to
        compute twice as fast.
        """
        costs, parts = self.of(figures.cut), figures.parts
        compute = costs.compute_s.of(figures)
        if parts == 1:
            return float(compute[0] * (1.0 if profile is None else self.slowness(profile, 1)[0]))
        if profile is None:
            exchange = costs.sent_bytes.of(figures) * costs.byte_s + costs.calls * costs.call_s
            compute = compute / (figures.shares * parts)
        else:
            exchange = (self.received_bytes(figures) / profile.links(parts)).sum(axis=1)
            exchange = exchange + costs.calls * profile.latency_s
            compute = compute * self.slowness(profile, parts)
        return float(compute.max() + exchange.max() + costs.sum_s)

    def compute_balance(self, figures: Figures) -> float:
        """Predicted time that the slowest rank computes, on ranks as fast as their shares say, over the mean."""
        return balance_of(self.of(figures.cut).compute_s.of(figures), figures.shares)

    def slowness(self, profile: Profile, ranks: int) -> np.ndarray:
        """Time of computation on each rank of a profile, relative to the average rank of these costs, (P,)."""
        return profile.row_seconds(ranks) / self.row_s

    def received_bytes(self, figures: Figures) -> np.ndarray:
        """Bytes that part i receives from part j in a step, float64, (P, P)."""
        sent, copies = self.of(figures.cut).sent_bytes, figures.copies_by_hop.sum(axis=1)
        rows = figures.received_rows * (figures.copies_within(1) / np.maximum(copies, 1))[:, None]
        results = rows * (figures.returned / np.maximum(copies, 1))[:, None]  # spread over masters as all mirrors are
        there, back = rows * sent.sent + results * sent.returns, rows * sent.copies + results * sent.returned
        return there + back.T

    def sent_bytes(self, figures: Figures) -> int:
        """Bytes that all ranks together send in a step."""
        return round(float(self.of(figures.cut).sent_bytes.of(figures).sum())) if figures.parts > 1 else 0

    def rank_memory_bytes(self, figures: Figures) -> np.ndarray:
        """Predicted tensors of each rank at the peak of a step, with all node and edge data of its part, int64, (P,)."""
        hops = max(figures.halo_depth, 1)
        data = (figures.feature_bytes + figures.node_bytes) * figures.held_within(hops)
        data = data + figures.edge_bytes * figures.edges_within(hops)
        return np.rint(np.minimum(self.of(figures.cut).tensor_bytes.of(figures) + data, _MAX)).astype(np.int64)

    def save(self, path, *, force: bool = False) -> None:
        """Write the costs to a new file, or with ``force`` over an old one; :class:`InputError` if that fails."""
        check_file(path, force=force)
        with new_file(path, force=force) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read_costs(path) -> Costs:
    """Read costs from a file that ``dgl-gt plan --save-costs`` wrote.

    Returns
    -------
    Costs

    Raises
    ------
    InputError
        The file cannot be read, or does not hold such costs.
    """
    path = regular_file(path)
    with reading(path), path.open("rb") as file:
        content = file.read(_MAX_BYTES)
    try:
        return msgspec.json.decode(content, type=Costs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"{path} holds no costs of a training step: {str(error)[:200]}; make such a file with "
            "`dgl-gt plan --save-costs FILE`"
        ) from None


@cache
def default_costs() -> Costs:
    """The costs that are assumed by default: of the default model of ``dgl-gt train``.

    They are those of this machine, once ``dgl-gt calibrate`` has measured it, or else of the default profile.
    """
    of_machine = machine_costs()
    if not os.path.isfile(of_machine):
        return read_costs(_DEFAULT)
    try:
        return read_costs(of_machine)
    except InputError as error:
        raise InputError(f"{error}; or run `dgl-gt calibrate` again, or remove the file") from None


def machine_costs() -> Path:
    """The file in which ``dgl-gt calibrate`` keeps the costs of this machine, in this user's cache directory."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder, "dgl-gt", f"{_FORMAT.removeprefix('dgl-gt ').replace(' ', '-')}.json")
