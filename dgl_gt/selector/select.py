"""From figures of partitions, ranks and links to a plan: all candidates, those that fit, the best, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from partition.errors import InputError
from partition.predict.step_memory import step_memory
from partition.predict.step_time import Speeds, step_time
from partition.predict.traffic import (
    ACTIVATION_CHECKPOINTS,
    STRATEGIES,
    Model,
    check_strategy,
    rows_within,
    step_bytes,
    step_traffic,
)
from partition.system.units import counted, size

from .hardware_profile import Profile


@dataclass(frozen=True)
class Candidate:
    """One way to train, and what is predicted of a step.

    Attributes
    ----------
    cut, strategy, depth, activation_checkpoint
        See docs/selector.md.
    directory : str or None
        The shards, where there are some.
    seconds : float
    seconds_by_term : dict of str to float
        See :class:`partition.predict.step_time.StepTime`.
    sent_bytes : int
        By all ranks, exact.
    peak_bytes : int
        Of the tensors of the rank that needs most.
    peak_bytes_by_term : dict of str to int
        Of that rank, see :class:`partition.predict.step_memory.StepMemory`.
    memory_bytes : int
        The process of that rank: its tensors, the interpreter and its libraries.
    shortage : float
        What the rank that is shortest of memory needs over what it has; above 1 the candidate does not fit.
    refused : str or None
        Why it is no choice.
    """

    cut: str
    strategy: str
    depth: int
    activation_checkpoint: str
    directory: str | None = None
    seconds: float | None = None
    seconds_by_term: dict | None = None
    sent_bytes: int | None = None
    peak_bytes: int | None = None
    peak_bytes_by_term: dict | None = None
    memory_bytes: int | None = None
    shortage: float | None = None
    refused: str | None = None

    @property
    def title(self) -> str:
        """In a few words."""
        depth = f" of depth {self.depth}" if self.depth > 1 else ""
        checkpoint = (
            f", activation checkpoint {self.activation_checkpoint}" if self.activation_checkpoint != "none" else ""
        )
        return f"{self.strategy}{depth} on the {self.cut} cut{checkpoint}"


@dataclass(frozen=True)
class Plan:
    """The chosen candidate, the one behind it, and all others.

    Attributes
    ----------
    choice : Candidate
    runner_up : Candidate or None
    reason : str
    candidates : list of Candidate
        Those that fit, the quickest first; then the others.
    profile : dict
        ``name`` and ``kind`` of the figures of ranks and links: ``measured``, ``datasheet`` or ``default``.
    model : dict
    ranks : int
    one_rank_seconds : float
        Predicted of a step on one such rank, the slowest, that holds the whole graph.
    """

    choice: Candidate
    runner_up: Candidate | None
    reason: str
    candidates: list[Candidate]
    profile: dict
    model: dict
    ranks: int
    one_rank_seconds: float

    @property
    def load_options(self) -> dict:
        """For :func:`dgl_gt.load`: strategy and depth."""
        return {"strategy": self.choice.strategy, "depth": self.choice.depth}

    def as_dict(self) -> dict:
        """The documented keys of ``dgl-gt plan --json``."""
        choice = self.choice
        return {
            "choice": {
                **{
                    key: getattr(choice, key)
                    for key in ("cut", "strategy", "depth", "activation_checkpoint", "directory")
                },
                "predicted_seconds": choice.seconds,
                "predicted_sent_bytes": choice.sent_bytes,
                "predicted_peak_bytes": choice.peak_bytes,
                "predicted_memory_bytes": choice.memory_bytes,
                "reason": self.reason,
            },
            "candidates": [asdict(each) for each in self.candidates],
            "profile": self.profile,
            "model": self.model,
            "ranks": self.ranks,
            "one_rank_seconds": self.one_rank_seconds,
        }


class NothingFits(InputError):
    """No candidate fits the memory of a rank.

    Attributes
    ----------
    least_bytes : int
        What the largest process takes under the candidate that comes nearest.
    """

    def __init__(self, message: str, least_bytes: int):
        super().__init__(message)
        self.least_bytes = least_bytes


def choose(
    cuts: list[tuple[str | None, dict]],
    model: Model,
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    activation_checkpoints: tuple[str, ...] = ACTIVATION_CHECKPOINTS,
) -> Plan:
    """Choose how to train a model on cuts of one graph.

    Parameters
    ----------
    cuts : list of (str or None, dict)
        Of each its shard directory, where there is one, and its manifest or ``Layout.figures``.
    model : Model
        With ``features`` and ``classes``, else the ends of the model are left out.
    profile : Profile
    rank_memory : int, optional
        Bytes that a rank's process may take; by default what the profile says.
    max_depth : int, optional
        Deepest halo to consider; by default as deep as the cuts have.
    activation_checkpoints : tuple of str
        Those that may be chosen.

    Raises
    ------
    InputError
        The cuts differ in their number of parts or nodes, the profile is of another number of ranks, or, as
        :class:`NothingFits`, no candidate fits.
    """
    ranks = _check_cuts(cuts)
    profile.check_ranks(ranks)
    if rank_memory is not None and rank_memory < 1:
        raise InputError(f"rank_memory is {rank_memory}; it must be at least 1 byte")
    if max_depth is not None and max_depth < 1:
        raise InputError(f"max_depth is {max_depth}; it must be at least 1")
    bounds = np.broadcast_to(rank_memory or profile.memory_bytes, ranks)
    cut_options = {
        "model": model,
        "profile": profile,
        "bounds": bounds,
        "activation_checkpoints": activation_checkpoints,
    }
    judged = [
        _judged(each, max_depth) for directory, figures in cuts for each in _of_cut(figures, directory, **cut_options)
    ]
    fitting = sorted((each for each in judged if not each.refused), key=lambda each: (each.seconds, each.memory_bytes))
    if not fitting:
        possible = [each for each in judged if each.memory_bytes is not None and _is_shallow(each, max_depth)]
        raise _nothing_fits(possible, bounds)
    others = sorted((each for each in judged if each.refused), key=lambda each: each.seconds or np.inf)
    runner_up = fitting[1] if len(fitting) > 1 else None
    return Plan(
        fitting[0],
        runner_up,
        _reason(fitting[0], runner_up, others, bounds),
        fitting + others,
        {"name": profile.name, "kind": profile.kind},
        asdict(model),
        ranks,
        _alone(cuts[0][1], model, profile, ranks),
    )


def _alone(figures: dict, model: Model, profile: Profile, ranks: int) -> float:
    """Seconds of a step of the whole graph on the slowest rank."""
    total = {key: sum(part.get(key, 0) for part in figures["per_part"]) for key in ("owned", "edges", "near_edges")}
    part = {**total, "edges_by_hop": [total["edges"]], "halo_by_hop": [0], "sent_by_hop": [0]}
    whole = {"cut": "edge", "halo_depth": 1, "parts": 1, "shares": [1.0], "per_part": [part]}
    speeds = profile.speeds(model, ranks, total["owned"])
    slowest = {
        name: np.max(value) if name in ("edge_s", "head_s", "attend_s", "layer_s") else np.min(value)
        for name, value in vars(speeds).items()
        if name != "link_bytes_per_s"
    }
    return step_time(whole, model, Speeds(**slowest), "local").total_s


def _check_cuts(cuts) -> int:
    if not cuts:
        raise InputError("no cut is given; give at least one shard directory with its manifest")
    first = cuts[0][1]
    for directory, figures in cuts:
        for name, key in (("part", "parts"), ("node", "nodes"), ("edge", "edges")):
            if figures[key] != first[key]:
                raise InputError(
                    f"{directory} has {counted(figures[key], name)} and {cuts[0][0]} has {first[key]:,}: give cuts of "
                    "one graph into one number of parts"
                )
        if not {"quality", "per_part", "shares"} <= set(figures):
            raise InputError(f"{directory} has no quality figures: partition the graph again")
    return first["parts"]


def _of_cut(
    figures: dict, directory, model: Model, profile: Profile, bounds, activation_checkpoints
) -> list[Candidate]:
    """Every strategy, depth and activation checkpointing of one cut."""
    ranks = figures["parts"]
    speeds = profile.speeds(model, ranks, rows_within(figures, 1))
    found = []
    if figures["cut"] == "vertex":
        strategies = ("mirror",)
    elif ranks == 1:
        strategies = ("local",)
    else:
        strategies = tuple(each for each in STRATEGIES if each not in ("local", "mirror"))
    for strategy in strategies:
        deepest = min(figures["halo_depth"], model.layers) if strategy == "halo_h" else 1
        for depth in range(1, max(deepest, 1) + 1):
            try:
                check_strategy(figures, model, strategy, depth)
            except ValueError as error:
                found.append(Candidate(figures["cut"], strategy, depth, "none", directory, refused=str(error)))
                continue
            exchanges = bool(step_traffic(figures, model, strategy, depth)) and ranks > 1
            for activation_checkpoint in activation_checkpoints:
                if (
                    activation_checkpoint != "keep_exchanges" or exchanges or "full" not in activation_checkpoints
                ):  # with no exchange to keep, both are one
                    way = strategy, depth, activation_checkpoint
                    found.append(_predicted(figures, directory, model, profile, speeds, bounds, *way))
    return found


def _predicted(figures, directory, model, profile, speeds, bounds, strategy, depth, activation_checkpoint) -> Candidate:
    """One way; refused where a rank's process would take more than the rank has."""
    time = step_time(figures, model, speeds, strategy, depth, activation_checkpoint)
    memory = step_memory(figures, model, strategy, depth, activation_checkpoint)
    process = (memory.total + np.broadcast_to(profile.process_bytes, figures["parts"])).astype(np.int64)
    largest, short = int(process.argmax()), int((process / bounds).argmax())
    refused, shortage = None, float(process[short] / bounds[short])
    if shortage > 1:
        where = "its largest rank" if bounds.min() == bounds.max() else f"rank {short} of {size(bounds[short])}"
        refused = f"needs {size(process[short])} on {where}"
    return Candidate(
        figures["cut"],
        strategy,
        depth,
        activation_checkpoint,
        directory,
        seconds=time.total_s,
        seconds_by_term=vars(time),
        sent_bytes=step_bytes(figures, model, strategy, depth, activation_checkpoint),
        peak_bytes=int(memory.total.max()),
        peak_bytes_by_term={key: int(value[largest]) for key, value in vars(memory).items()},
        memory_bytes=int(process.max()),
        shortage=shortage,
        refused=refused,
    )


def _is_shallow(candidate: Candidate, max_depth: int | None) -> bool:
    return max_depth is None or candidate.depth <= max_depth


def _judged(candidate: Candidate, max_depth: int | None) -> Candidate:
    if not _is_shallow(candidate, max_depth):
        return replace(candidate, refused=f"deeper than {max_depth}")
    return candidate


def _nothing_fits(possible: list[Candidate], bounds: np.ndarray) -> NothingFits:
    least = min(possible, key=lambda each: each.shortage)
    if bounds.min() < bounds.max():
        return NothingFits(
            f"nothing fits ranks of {size(bounds.min())} to {size(bounds.max())}: {least.title} comes nearest and "
            f"{least.refused}; partition by what ranks have (--target-weights), or for more ranks",
            least.memory_bytes,
        )
    enough = -(-least.memory_bytes // 2**20)  # rounded up: with what is printed it must fit
    return NothingFits(
        f"nothing fits ranks of {size(bounds[0])}: {least.title} needs least, {size(least.memory_bytes)} on its "
        f"largest rank; raise the bound to that (--rank-memory {enough}MiB), or partition for more ranks",
        least.memory_bytes,
    )


def _reason(best: Candidate, second: Candidate | None, others: list[Candidate], bounds: np.ndarray) -> str:
    spent = {name.removesuffix("_s"): value for name, value in best.seconds_by_term.items()}
    shown = {"products": "products", "rows": "rows", "attention": "edges", "exchange": "exchange"}
    spent["exchange"] -= spent["hidden"]
    shares = ", ".join(f"{words} {spent[name] / best.seconds:.0%}" for name, words in shown.items())
    where = f" in {best.directory}" if second and second.title == best.title else ""
    text = f"{best.title}{where}: a step is predicted to take {best.seconds:.3g} s ({shares})"
    if second:
        behind = second.seconds / best.seconds - 1
        where = f" in {second.directory}" if second.title == best.title else ""  # two cuts of one kind
        text += f"; {second.title}{where} is {behind:.1%} behind"
    faster = [each for each in others if each.seconds is not None and each.seconds < best.seconds]
    if faster:
        text += f"; {faster[0].title} would take {faster[0].seconds:.3g} s, but {faster[0].refused}"
        if faster[0].refused.startswith("needs") and bounds.min() == bounds.max():
            text += f", and a rank has {size(bounds[0])}"
    return text
