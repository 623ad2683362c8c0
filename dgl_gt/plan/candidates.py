"""Plans: ways to train with their predictions, the chosen one and why; as JSON values, as text and as a picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError, import_optional
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.units import format_bytes, format_count

_SHOWN = 12  # candidates in the table that fit; those that are refused are all there, with the reason
_MEMORY = "memory / rank is that of the process: its libraries, its tensors, and what the allocator adds to these"
_OF_FILES = ["parts", "on disk"]  # of a table where layers run part by part, or ranks share parts
_KINDS = {
    "measured": "ranks and links as measured",
    "datasheet": "ranks and links from datasheets: no run reaches these peaks; compare choices, not seconds",
    "default": "no profile or preset given: one core of a server processor per rank and 10 Gbit/s links are assumed",
}


@dataclass(frozen=True)
class Candidate:
    """One way to train, and the predictions for one training step.

    Predictions are None for a candidate that cannot run at all.

    Attributes
    ----------
    cut : {"edge", "vertex"}
    strategy : str
        A strategy of :func:`dgl_gt.load`.
    depth : int
        Hops of halo that one exchange fills.
    activation_checkpoint : {"none", "keep_exchanges", "full"}
    directory : str or None
        Shard directory; None where the cut was made only to plan.
    seconds : float or None
        Time of a step (s).
    seconds_by_term : dict of str to float, or None
        What the time is spent on (s).
    sent_bytes : int or None
        Bytes that all ranks send in a step; exact.
    peak_bytes : int or None
        Tensors of the rank that needs most, at the peak of a step (bytes).
    peak_bytes_by_term : dict of str to int, or None
        Those that outlive a step (``kept``), and all others, on the rank with the largest process (bytes).
    memory_bytes : int or None
        Largest process: its tensors, the interpreter and its libraries (bytes).
    memory_ratio : float or None
        Memory that a rank's process needs, divided by the memory that the rank has; the largest of all ranks. Above 1,
        the candidate does not fit.
    refused : str or None
        Why the candidate cannot be chosen; None if it can.
    ranks, parts : int
        Ranks, and the parts that they share; more parts than ranks are neighbours that a rank joins.
    spilled : bool
        Whether layers run part by part, with rows in files, as :func:`dgl_gt.load` does where it is given ``spill``.
    file_bytes : dict of str to int, or None
        Of these files on all ranks: their size (``at_once``), and rows that a step copies (``read``, ``written``) (bytes).
    """

    cut: str
    strategy: str
    depth: int
    activation_checkpoint: str
    directory: str | None = None
    seconds: float | Any = None  # Any: those that can run are used without a test
    seconds_by_term: dict | None = None
    sent_bytes: int | None = None
    peak_bytes: int | None = None
    peak_bytes_by_term: dict | None = None
    memory_bytes: int | Any = None
    memory_ratio: float | Any = None
    refused: str | None = None
    ranks: int = 1
    parts: int = 1
    spilled: bool = False
    file_bytes: dict | Any = None

    @property
    def title(self) -> str:
        """The candidate in a few words."""
        depth = f" of depth {self.depth}" if self.depth > 1 else ""
        mode = f", activation checkpoint {self.activation_checkpoint}" if self.activation_checkpoint != "none" else ""
        shared = f", {self.sharing}" if self.sharing else ""
        return f"{self.strategy}{depth} on the {self.cut} cut{mode}{shared}{', part by part' * self.spilled}"

    @property
    def sharing(self) -> str:
        """How ranks share parts, such as ``"8 parts on 2 ranks"``; empty where each has one."""
        if self.parts == self.ranks:
            return ""
        return f"{format_count(self.parts, 'part')} on {format_count(self.ranks, 'rank')}"

    @property
    def of_files(self) -> list[str]:
        """Cells of a table: how ranks share parts, and the size of the files."""
        return [self.sharing or "one a rank", format_bytes(self.file_bytes["at_once"]) if self.file_bytes else ""]


@dataclass(frozen=True)
class Plan:
    """How to train: the chosen candidate, why it was chosen, and all others.

    Attributes
    ----------
    choice : Candidate
        The quickest candidate that fits.
    runner_up : Candidate or None
        The second quickest that fits.
    reason : str
        Why the choice was made, in a sentence.
    candidates : list of Candidate
        All candidates: those that fit, the quickest first, then those that are refused.
    profile : dict
        ``name`` and ``kind`` of the hardware profile; the kind is ``measured``, ``datasheet`` or ``default``.
    model : dict
        Settings of the model, or the name of the function that makes the step; and what its ``variant`` says of the
        chosen cut, see :class:`dgl_gt.plan.Tracer`.
    ranks : int
        Number of ranks P.
    one_rank_seconds : float or None
        Predicted time of a step on the slowest rank alone, as if it held the whole graph (s). None if a traced step
        does not run on one rank.
    costs : Costs
        Linear costs of the step, by which :func:`dgl_gt.partition.partition` compares cuts.
    """

    choice: Candidate
    runner_up: Candidate | None
    reason: str
    candidates: list[Candidate]
    profile: dict
    model: dict
    ranks: int
    one_rank_seconds: float | None
    costs: Costs

    def __str__(self) -> str:
        return text_of_plan(self)

    @property
    def load_options(self) -> dict:
        """Strategy and depth, as keyword arguments of :func:`dgl_gt.load`; a choice that is ``spilled`` also needs ``spill``."""
        return {"strategy": self.choice.strategy, "depth": self.choice.depth}

    def as_dict(self) -> dict:
        """The plan as ``dgl-gt plan --json`` prints it, see docs/cli.md."""
        named = ("cut", "strategy", "depth", "activation_checkpoint", "directory", "ranks", "parts", "spilled")
        predicted = ("seconds", "sent_bytes", "peak_bytes", "memory_bytes", "file_bytes")
        return {
            "choice": {
                **{name: getattr(self.choice, name) for name in named},
                **{f"predicted_{name}": getattr(self.choice, name) for name in predicted},
                "reason": self.reason,
            },
            "candidates": [asdict(each) for each in self.candidates],
            **{name: getattr(self, name) for name in ("profile", "model", "ranks", "one_rank_seconds")},
        }


class NothingFits(InputError):
    """No candidate fits the memory of the ranks.

    Attributes
    ----------
    least_bytes : int
        Largest process of the candidate that comes nearest (bytes).
    missing_bytes : int
        What it needs beyond the largest bound.
    """

    def __init__(self, message: str, least_bytes: int, missing_bytes: int):
        super().__init__(message)
        self.least_bytes, self.missing_bytes = least_bytes, missing_bytes

    def __reduce__(self):  # so that it can come from another process
        return NothingFits, (str(self), self.least_bytes, self.missing_bytes)


def _shows_files(candidate: Candidate) -> bool:
    return candidate.spilled or candidate.parts != candidate.ranks


def text_of_plan(plan: Plan) -> str:
    """A table of a plan's candidates, and the reason for the choice."""
    fitting = [each for each in plan.candidates if not each.refused]
    refused = plan.candidates[len(fitting) :]
    rows, has_files = [], any(map(_shows_files, plan.candidates))
    for each in fitting[:_SHOWN] + refused:
        cells = [""] * 7
        if terms := each.seconds_by_term:
            of_kinds = [
                *(terms[key] for key in ("products_s", "rows_s", "attention_s")),
                terms["exchange_s"] - terms["hidden_s"],
            ]
            cells = [f"{seconds:.3g}" for seconds in (each.seconds, *of_kinds)]
            cells += [format_bytes(each.sent_bytes), format_bytes(each.memory_bytes)]
        named = [each.cut, each.strategy, each.depth, "part by part" if each.spilled else each.activation_checkpoint]
        rows.append([*named, *cells, *(each.of_files if has_files else []), each.refused or ""])
    header = ["cut", "strategy", "depth", "checkpoint", "s / step", "products", "rows", "edges", "exchange", "sent"]
    header += ["memory / rank", *(_OF_FILES if has_files else []), ""]
    more = len(fitting) - _SHOWN
    listed = table(header, rows) + (f"\nand {more} more that fit (--json lists all)" if more > 0 else "")
    notes = [f"chosen: {plan.reason}"]
    if factored := plan.model.get("factored"):
        notes.append(
            f"gradients of {', '.join(factored)} travel as factors of the training rows, which takes fewer bytes"
        )
    return "\n".join([listed, "", *notes, _MEMORY, _KINDS[plan.profile["kind"]]])


def forecast_table(plans: dict[int, Plan | NothingFits], profile: Profile) -> str:
    """A table of plans, one row for each number of ranks."""
    rows, has_files = [], any(isinstance(each, Plan) and _shows_files(each.choice) for each in plans.values())
    more = _OF_FILES if has_files else []
    for ranks, plan in plans.items():
        if isinstance(plan, NothingFits):
            needed = f"{format_bytes(plan.least_bytes)} at least: does not fit"
            rows.append([ranks, *["-"] * 8, needed, *["-"] * len(more)])
            continue
        choice, speed_up = plan.choice, (plan.one_rank_seconds or math.nan) / plan.choice.seconds
        mode = "part by part" if choice.spilled else choice.activation_checkpoint
        named = [choice.cut, choice.strategy, choice.depth, mode]
        figures = [f"{choice.seconds:.3g}", f"{speed_up:.2f}", f"{speed_up / plan.ranks:.0%}"]
        figures += [format_bytes(choice.sent_bytes), format_bytes(choice.memory_bytes)]
        rows.append([ranks, *named, *figures, *(choice.of_files if has_files else [])])
    header = ["ranks", "cut", "strategy", "depth", "checkpoint", "s / step", "speed-up", "efficiency", "sent"]
    header += ["memory / rank", *more]
    measured = "rows, edges and bytes are those of real cuts into that many parts; " + _KINDS[profile.kind]
    return f"{table(header, rows)}\n\n{_MEMORY}\n{measured}"


def plot(plans: dict[int, Plan | NothingFits], profile: Profile, path, *, force: bool = False) -> None:
    """Draw seconds and memory by number of ranks as a PNG; ``force`` replaces an existing file."""
    pictures = import_optional("matplotlib.figure", "--plot", "pip install matplotlib")
    drawn = [plan for plan in plans.values() if isinstance(plan, Plan)]
    ranks = [plan.ranks for plan in drawn]
    figure = pictures.Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(ranks, [plan.choice.seconds for plan in drawn], "o-", label="predicted")
    perfect = [(plan.one_rank_seconds or math.nan) / plan.ranks for plan in drawn]
    left.plot(ranks, perfect, ":", color="grey", label="perfect")
    for plan in drawn:
        where = plan.ranks, plan.choice.seconds
        left.annotate(plan.choice.strategy, where, textcoords="offset points", xytext=(4, 6))
    left.set(xlabel="ranks", ylabel="seconds per step", xscale="log", yscale="log")
    left.legend()
    right.plot(ranks, [plan.choice.memory_bytes / 2**30 for plan in drawn], "s-", color="tab:red")
    right.set(xlabel="ranks", ylabel="GiB of the largest rank", xscale="log", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(ranks, [str(each) for each in ranks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.suptitle(_KINDS[profile.kind], fontsize=9)
    with new_file(path, force=force) as file:
        figure.savefig(file, format="png", dpi=120)
