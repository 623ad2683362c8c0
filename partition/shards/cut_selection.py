"""Which of several cuts of a graph to keep, and why, in words."""

from __future__ import annotations

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.system.units import format_bytes

from .layout import Layout


def choose_cut(
    layouts: list[Layout], costs: Costs, rank_memory: int | None = None, profile: Profile | None = None
) -> dict:
    """Return the manifest's ``choice``: the cut of the lowest predicted step time among those that fit.

    With a profile, steps are predicted for its ranks and links.

    A cut fits if its largest part needs at most ``rank_memory`` bytes. Where none does, the one that needs least is
    chosen, and :func:`check_memory` refuses it.
    """
    candidates = [
        {
            "cut": layout.figures.cut,
            "predicted_seconds": costs.step_seconds(layout.figures, profile),
            "rank_memory_bytes": _largest_rank_bytes(layout.figures, costs),
            "quality": layout.quality,
        }
        for layout in layouts
    ]
    fitting = [each for each in candidates if rank_memory is None or each["rank_memory_bytes"] <= rank_memory]
    best = min(fitting or candidates, key=lambda each: each["predicted_seconds" if fitting else "rank_memory_bytes"])
    sent = {layout.figures.cut: costs.sent_bytes(layout.figures) for layout in layouts}
    return {
        "cut": best["cut"],
        "reason": _reason(best, candidates, sent, rank_memory),
        "model": costs.model,
        "profile": costs.profile if profile is None else profile.name,
        "candidates": candidates,
    }


def check_memory(figures: Figures, costs: Costs, rank_memory: int | None, *, is_only: bool) -> None:
    """Raise :class:`InputError` where the largest part of a cut needs more than ``rank_memory`` bytes.

    Unless it is the only cut that was made, it is the one that needs least.
    """
    if rank_memory is None:
        return
    needed = _largest_rank_bytes(figures, costs)
    if needed > rank_memory:
        which = f"the {figures.cut} cut does not fit" if is_only else "no cut fits"
        other = "try cut='auto' (--cut auto), " if is_only else ""
        raise InputError(
            f"{which} ranks of {format_bytes(rank_memory)}: the {figures.cut} cut needs about {format_bytes(needed)} for its largest "
            f"part; make more parts, {other}or raise rank_memory (--rank-memory)"
        )


def _largest_rank_bytes(figures: Figures, costs: Costs) -> int:
    return int(costs.rank_memory_bytes(figures).max())


def _reason(best: dict, candidates: list[dict], sent: dict[str, int], rank_memory: int | None) -> str:
    others = [each for each in candidates if each is not best]
    if not others:
        return f"the {best['cut']} cut is the only one that the memory bound allows"
    other = others[0]
    held, edges = ([each["quality"][key] for each in (best, other)] for key in ("max_copies_factor", "edge_balance"))
    reason = (
        f"a step is predicted to take {best['predicted_seconds']:.3g} s with the {best['cut']} cut and "
        f"{other['predicted_seconds']:.3g} s with the {other['cut']} cut; a step sends {format_bytes(sent[best['cut']])} and "
        f"{format_bytes(sent[other['cut']])}, and the largest part holds {held[0]:.2f} and {held[1]:.2f} times an even share of "
        f"the nodes and {edges[0]:.2f} and {edges[1]:.2f} times an even share of the edges"
    )
    if rank_memory is not None and other["rank_memory_bytes"] > rank_memory:
        reason += (
            f"; the {other['cut']} cut does not fit: its largest part needs about {format_bytes(other['rank_memory_bytes'])}, "
            f"and a rank has {format_bytes(rank_memory)}"
        )
    return reason
