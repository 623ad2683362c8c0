"""Plans as text and as a picture: a table of one plan's candidates, and a table and a plot of several plans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dgl_gt.partition.console import table
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.optional_packages import import_optional
from dgl_gt.partition.system.units import format_bytes

from .plan import NothingFits, Plan

if TYPE_CHECKING:
    from .policy_plan import PolicyPlan

_SHOWN = 12  # candidates in the table that fit; those that are refused are all there, with the reason
_MEMORY = (
    "The column memory / rank is what a run with --rank-memory takes. Without it, ranks on a CPU keep freed memory, "
    "which is faster and takes up to 1.45 times as much."  # measurements gave 1.34 to 1.43 times
)
_KINDS = {
    "measured": "ranks and links as measured",
    "datasheet": "ranks and links from datasheets: no run reaches these peaks; compare choices, not seconds",
    "default": "no profile or preset given: one core of a server processor per rank and 10 Gbit/s links are assumed",
}


def text_of_plan(plan: Plan) -> str:
    """A table of a plan's candidates, and the reason for the choice."""
    fitting = [each for each in plan.candidates if not each.refused]
    refused = plan.candidates[len(fitting) :]
    rows = []
    for each in fitting[:_SHOWN] + refused:
        terms = each.seconds_by_term or {}
        seconds = [f"{terms[key]:.3g}" for key in ("products_s", "rows_s", "attention_s")] if terms else [""] * 3
        exchange = f"{terms['exchange_s'] - terms['hidden_s']:.3g}" if terms else ""
        figures = [f"{each.seconds:.3g}", *seconds, exchange] if terms else [""] * 5
        moved = [format_bytes(each.sent_bytes), format_bytes(each.memory_bytes)] if terms else ["", ""]
        rows.append(
            [each.cut, each.strategy, each.depth, each.activation_checkpoint, *figures, *moved, each.refused or ""]
        )
    header = ["cut", "strategy", "depth", "checkpoint", "s / step", "products", "rows", "edges", "exchange", "sent"]
    header += ["memory / rank", ""]
    more = len(fitting) - _SHOWN
    listed = table(header, rows) + (f"\nand {more} more that fit (--json lists all)" if more > 0 else "")
    notes = [f"chosen: {plan.reason}"]
    if factored := plan.model.get("factored"):
        notes.append(
            f"gradients of {', '.join(factored)} travel as factors of the training rows, which takes fewer bytes"
        )
    return "\n".join([listed, "", *notes, _MEMORY, _KINDS[plan.profile["kind"]]])


def text_of_policy(planned: PolicyPlan, policy: str) -> str:
    """What a policy changes, compared with an exact step with the same strategy."""
    exact = planned.candidate
    saved = 1 - planned.sent_bytes / exact.sent_bytes if exact.sent_bytes else 0.0
    kept = (
        f", of which the policy keeps up to {format_bytes(planned.kept_bytes)} from step to step"
        if planned.kept_bytes
        else ""
    )
    lines = [
        f"policy, approximate       {policy}",
        f"strategy                  {exact.title}",
        f"a step, predicted         {planned.seconds:.3g} s instead of {exact.seconds:.3g} s",
        f"sent in a step            {format_bytes(planned.sent_bytes)}, {saved:.1%} less than {format_bytes(exact.sent_bytes)}",
        f"memory / rank             {format_bytes(exact.memory_bytes)}{kept}",
    ]
    return "\n".join(lines)


def forecast_table(plans: dict[int, Plan | NothingFits], profile: Profile) -> str:
    """A table of plans, one row for each number of ranks."""
    rows = []
    for ranks, plan in plans.items():
        if isinstance(plan, NothingFits):
            rows.append([ranks, *["-"] * 8, f"{format_bytes(plan.least_bytes)} at least: does not fit"])
            continue
        choice, speed_up = plan.choice, (plan.one_rank_seconds or math.nan) / plan.choice.seconds
        named = [choice.cut, choice.strategy, choice.depth, choice.activation_checkpoint]
        figures = [f"{choice.seconds:.3g}", f"{speed_up:.2f}", f"{speed_up / plan.ranks:.0%}"]
        rows.append([ranks, *named, *figures, format_bytes(choice.sent_bytes), format_bytes(choice.memory_bytes)])
    header = ["ranks", "cut", "strategy", "depth", "checkpoint", "s / step", "speed-up", "efficiency", "sent"]
    header += ["memory / rank"]
    measured = "rows, edges and bytes are those of real cuts into that many parts; " + _KINDS[profile.kind]
    return f"{table(header, rows)}\n\n{_MEMORY}\n{measured}"


def plot(plans: dict[int, Plan | NothingFits], profile: Profile, path, *, force: bool = False) -> None:
    """Draw seconds and memory by number of ranks as a PNG; ``force`` replaces an existing file."""
    pictures = import_optional("matplotlib.figure", "--plot", "pip install matplotlib")
    plans = [plan for plan in plans.values() if isinstance(plan, Plan)]
    ranks = [plan.ranks for plan in plans]
    figure = pictures.Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(ranks, [plan.choice.seconds for plan in plans], "o-", label="predicted")
    perfect = [(plan.one_rank_seconds or math.nan) / plan.ranks for plan in plans]
    left.plot(ranks, perfect, ":", color="grey", label="perfect")
    for plan in plans:
        left.annotate(
            plan.choice.strategy, (plan.ranks, plan.choice.seconds), textcoords="offset points", xytext=(4, 6)
        )
    left.set(xlabel="ranks", ylabel="seconds per step", xscale="log", yscale="log")
    left.legend()
    right.plot(ranks, [plan.choice.memory_bytes / 2**30 for plan in plans], "s-", color="tab:red")
    right.set(xlabel="ranks", ylabel="GiB of the largest rank", xscale="log", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(ranks, [str(each) for each in ranks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.suptitle(_KINDS[profile.kind], fontsize=9)
    with new_file(path, force=force) as file:
        figure.savefig(file, format="png", dpi=120)
