"""Which of two cuts of a graph to keep, and why, in words."""

from __future__ import annotations

from dataclasses import asdict

from partition.errors import InputError
from partition.predict.step_memory import rank_memory_bytes
from partition.predict.step_time import Speeds, step_seconds
from partition.predict.traffic import Model, exchange_traffic
from partition.system.units import size

from .layout import Layout


def choose_cut(layouts: list[Layout], model: Model, speeds: Speeds, rank_memory: int | None = None) -> dict:
    """The manifest's ``choice``: the cut of the lower predicted time among those whose largest part fits.

    Parameters
    ----------
    layouts : list of Layout
        One a cut.
    model, speeds
        For the prediction.
    rank_memory : int, optional
        Bytes that a rank has. Where no cut fits, the one that needs least is taken; :func:`check_memory` refuses it.
    """
    candidates = [
        {
            "cut": layout.figures["cut"],
            "predicted_seconds": step_seconds(layout.figures, model, speeds),
            "rank_memory_bytes": _memory_bytes(layout, model),
            "quality": layout.figures["quality"],
        }
        for layout in layouts
    ]
    fitting = [each for each in candidates if rank_memory is None or each["rank_memory_bytes"] <= rank_memory]
    best = min(fitting or candidates, key=lambda each: each["predicted_seconds" if fitting else "rank_memory_bytes"])
    figures = {layout.figures["cut"]: layout.figures for layout in layouts}
    return {
        "cut": best["cut"],
        "reason": _reason(best, candidates, figures, model, rank_memory),
        "model": asdict(model),
        "speeds": speeds.as_dict(),
        "candidates": candidates,
    }


def check_memory(layout: Layout, model: Model, rank_memory: int | None) -> None:
    """Raise :class:`InputError` where the largest part of a cut needs more than a rank has."""
    needed = _memory_bytes(layout, model)
    if rank_memory is not None and needed > rank_memory:
        raise InputError(
            f"no cut fits ranks of {size(rank_memory)}: the {layout.figures['cut']} cut needs about {size(needed)} for "
            "its largest part; make more parts, try cut 'auto', or raise rank_memory"
        )


def _memory_bytes(layout: Layout, model: Model) -> int:
    """Estimated bytes that the rank of the largest part needs, see :func:`partition.predict.step_memory.rank_memory_bytes`."""
    graph, figures = layout.graph, layout.figures
    copies = "mirrors" if layout.is_vertex_cut else "halo"
    row, edge = (sum(value[:1].nbytes for value in data.values()) for data in (graph.node_data, graph.edge_data))
    per_part = [
        {
            **part,
            "bytes": (part["owned"] + part[copies]) * (row + 16)
            + 8 * part["sent"]
            + sum(part.get("edges_by_hop", [part["edges"]])) * (edge + 12),
        }
        for part in figures["per_part"]
    ]
    return int(rank_memory_bytes({**figures, "per_part": per_part}, model).max())


def _reason(best: dict, candidates: list[dict], figures: dict, model: Model, rank_memory: int | None) -> str:
    others = [each for each in candidates if each is not best]
    if not others:
        return f"the {best['cut']} cut is the only one that the memory bound allows"
    other = others[0]
    shown = (best, other)
    sent = [exchange_traffic(figures[each["cut"]], model).total_bytes for each in shown]
    held, edges = ([each["quality"][key] for each in shown] for key in ("max_copies_factor", "edge_balance"))
    reason = (
        f"a step is predicted to take {best['predicted_seconds']:.3g} s with the {best['cut']} cut and "
        f"{other['predicted_seconds']:.3g} s with the {other['cut']} cut; a layer sends {size(sent[0])} and "
        f"{size(sent[1])}, and the largest part holds {held[0]:.2f} and {held[1]:.2f} times an even share of the nodes "
        f"and {edges[0]:.2f} and {edges[1]:.2f} times an even share of the edges"
    )
    if rank_memory is not None and other["rank_memory_bytes"] > rank_memory:
        reason += (
            f"; the {other['cut']} cut does not fit: its largest part needs about {size(other['rank_memory_bytes'])}, "
            f"and a rank has {size(rank_memory)}"
        )
    return reason
