"""Choose how to train: predict every way that the cuts of a graph allow, and take the quickest that fits."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from partition.errors import InputError, check_one_of, check_type, whole_number
from partition.predict.figures import Figures
from partition.predict.model import Model
from partition.predict.strategies import STRATEGIES
from partition.system.units import counted, size

from .hardware_profile import Profile
from .plan import Candidate, NothingFits, Plan
from .predictors import ByFormulas, ByTraces, Prediction


def choose(
    cuts: list[tuple[str | None, Figures]],
    model: Model | Callable,
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    activation_checkpoints: tuple[str, ...] | None = None,
) -> Plan:
    """Choose the cut, strategy, halo depth and activation checkpointing that train a model quickest.

    Parameters
    ----------
    cuts : list of (str or None, Figures)
        Cuts of one graph into one number of parts: the shard directory of each, or None, and its figures, see
        :func:`partition.shards.counts.read_figures`.
    model : Model or callable
        Sizes of the graph transformer; without ``features`` and ``classes``, its first and last projection are left
        out. Or a function that makes a training step of any other model, as :func:`report_costs` takes it: it is traced
        with each strategy, and each cut needs its directory. Halos deeper than one hop are then tried only if
        ``max_depth`` allows them, and the step applies activation checkpointing itself.
    profile : Profile
        Hardware profile of the ranks and links.
    rank_memory : int, optional
        Memory that a rank's process may take (bytes); by default as much as the profile says.
    max_depth : int, optional
        Deepest halo that may be chosen; by default the deepest that the cuts have.
    activation_checkpoints : tuple of str, optional
        Modes of activation checkpointing that may be chosen; by default all that can be predicted.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        There is no cut, the cuts differ in their numbers of parts, nodes or edges, the profile is for another number
        of ranks, a bound is below 1, or the step runs with no strategy; as :class:`NothingFits`, no candidate fits into
        the memory.
    """
    ranks = _check_cuts(cuts)
    check_type("profile", profile, Profile)
    profile.check_ranks(ranks)
    if rank_memory is not None:
        whole_number("rank_memory", rank_memory, 1)
    if max_depth is not None:
        whole_number("max_depth", max_depth, 1)
    predictor = _predictor(cuts, model, profile, max_depth)
    modes = predictor.activation_checkpoints if activation_checkpoints is None else activation_checkpoints
    if not isinstance(modes, (tuple, list)) or not modes:
        raise InputError(f"activation_checkpoints is {reprlib.repr(modes)}; it must be a tuple of one mode or more")
    for mode in modes:
        check_one_of("activation_checkpoints", mode, predictor.activation_checkpoints)
    bounds = np.broadcast_to(rank_memory or profile.memory_bytes, ranks)
    candidates = [
        _within_depth(each, max_depth)
        for directory, figures in cuts
        for each in _of_cut(figures, directory, predictor, profile, bounds, modes)
    ]
    fitting = sorted((each for each in candidates if not each.refused), key=lambda it: (it.seconds, it.memory_bytes))
    if not fitting:
        possible = [each for each in candidates if each.memory_bytes is not None and _may_be_so_deep(each, max_depth)]
        raise _nothing_fits(possible, bounds) if possible else InputError(candidates[0].refused)
    refused = sorted((each for each in candidates if each.refused), key=lambda each: each.seconds or np.inf)
    choice, runner_up = fitting[0], fitting[1] if len(fitting) > 1 else None
    return Plan(
        choice=choice,
        runner_up=runner_up,
        reason=_reason(choice, runner_up, refused, bounds),
        candidates=fitting + refused,
        profile={"name": profile.name, "kind": profile.kind},
        model=predictor.description,
        ranks=ranks,
        one_rank_seconds=predictor.one_rank_seconds(cuts[0][1]),
    )


def _check_cuts(cuts: list[tuple[str | None, Figures]]) -> int:
    """Return the number of parts; raise :class:`InputError` unless the cuts are of one graph into as many parts."""
    if not isinstance(cuts, (list, tuple)) or not all(
        isinstance(each, (list, tuple)) and len(each) == 2 and isinstance(each[1], Figures) for each in cuts
    ):
        raise InputError(
            f"cuts is {reprlib.repr(cuts)}; it must be a list of pairs: a shard directory, and its Figures"
        )
    if not cuts:
        raise InputError("no cut is given; give at least one shard directory with its figures")

    def counts(figures: Figures) -> dict[str, int]:
        return {"part": figures.parts, "node": figures.nodes, "edge": int(figures.edges.sum())}

    first = counts(cuts[0][1])
    for directory, figures in cuts:
        for name, count in counts(figures).items():
            if count != first[name]:
                raise InputError(
                    f"{directory} has {counted(count, name)} and {cuts[0][0]} has {first[name]:,}: give cuts of one "
                    "graph into one number of parts"
                )
    return first["part"]


def _predictor(cuts, model, profile: Profile, max_depth: int | None) -> ByFormulas | ByTraces:
    """What predicts the candidates; raises :class:`InputError` unless it is given what it needs."""
    if isinstance(model, Model):
        return ByFormulas(model, profile)
    if not callable(model):
        raise InputError(f"model is {model!r}; it must be a partition.Model, or a function that makes a training step")
    if any(directory is None for directory, _ in cuts):
        raise InputError("a cut has no directory; to trace a training step, give the shard directory of every cut")
    return ByTraces(model, cuts[0][0], profile, max_depth or 1)


def _of_cut(
    figures: Figures,
    directory: str | None,
    predictor: ByFormulas | ByTraces,
    profile: Profile,
    bounds: np.ndarray,
    activation_checkpoints: tuple[str, ...],
) -> list[Candidate]:
    """Candidates of one cut: every strategy, depth and activation checkpointing."""
    found = []
    for strategy in _strategies(figures):
        deepest = predictor.deepest(figures) if strategy == "halo_h" else 1
        for depth in range(1, deepest + 1):
            try:
                exchanges = predictor.exchanges(figures, strategy, depth)
            except InputError as error:
                found.append(Candidate(figures.cut, strategy, depth, "none", directory, refused=str(error)))
                continue
            for mode in activation_checkpoints:
                if mode == "keep_exchanges" and not exchanges and "full" in activation_checkpoints:
                    continue  # without an exchange the two are the same
                way = Candidate(figures.cut, strategy, depth, mode, directory)
                prediction = predictor.predict(figures, strategy, depth, mode)
                found.append(_predicted(way, prediction, figures, profile, bounds))
    return found


def _strategies(figures: Figures) -> tuple[str, ...]:
    """The strategies that a cut of so many parts may run."""
    if figures.cut == "vertex":
        return ("mirror",)
    if figures.parts == 1:
        return ("local",)
    return tuple(each for each in STRATEGIES if each not in ("local", "mirror"))


def _predicted(
    way: Candidate, prediction: Prediction, figures: Figures, profile: Profile, bounds: np.ndarray
) -> Candidate:
    """A candidate with its predictions; it is refused where a rank's process needs more memory than the rank has."""
    tensors = np.sum(list(prediction.memory.values()), axis=0)
    process = (tensors + np.broadcast_to(profile.process_bytes, figures.parts)).astype(np.int64)
    largest, shortest = int(process.argmax()), int((process / bounds).argmax())
    refused, shortage = None, float(process[shortest] / bounds[shortest])
    if shortage > 1:
        is_even = bounds.min() == bounds.max()
        where = "its largest rank" if is_even else f"rank {shortest} of {size(bounds[shortest])}"
        refused = f"needs {size(process[shortest])} on {where}"
    return replace(
        way,
        seconds=prediction.time.total_s,
        seconds_by_term=vars(prediction.time),
        sent_bytes=prediction.sent_bytes,
        peak_bytes=int(tensors.max()),
        peak_bytes_by_term={key: int(value[largest]) for key, value in prediction.memory.items()},
        memory_bytes=int(process.max()),
        shortage=shortage,
        refused=refused,
    )


def _may_be_so_deep(candidate: Candidate, max_depth: int | None) -> bool:
    return max_depth is None or candidate.depth <= max_depth


def _within_depth(candidate: Candidate, max_depth: int | None) -> Candidate:
    """The candidate, refused if its halo is deeper than allowed."""
    if _may_be_so_deep(candidate, max_depth):
        return candidate
    return replace(candidate, refused=f"deeper than {max_depth}")


def _nothing_fits(possible: list[Candidate], bounds: np.ndarray) -> NothingFits:
    """The error that names the candidate that comes nearest, and what to do."""
    least = min(possible, key=lambda each: each.shortage)
    if bounds.min() < bounds.max():
        return NothingFits(
            f"nothing fits ranks of {size(bounds.min())} to {size(bounds.max())}: {least.title} comes nearest and "
            f"{least.refused}; partition by what ranks have (--target-weights), or for more ranks",
            least.memory_bytes,
        )
    enough = -(-least.memory_bytes // 2**20)  # rounded up, so that it fits with the number that is printed
    return NothingFits(
        f"nothing fits ranks of {size(bounds[0])}: {least.title} needs least, {size(least.memory_bytes)} on its "
        f"largest rank; raise the bound to that (--rank-memory {enough}MiB), or partition for more ranks",
        least.memory_bytes,
    )


def _reason(best: Candidate, second: Candidate | None, refused: list[Candidate], bounds: np.ndarray) -> str:
    """Why the best candidate was chosen, in a sentence."""
    spent = {name.removesuffix("_s"): value for name, value in best.seconds_by_term.items()}
    shown = {"products": "products", "rows": "rows", "attention": "edges", "exchange": "exchange"}
    spent["exchange"] -= spent["hidden"]
    shares = ", ".join(f"{words} {spent[name] / best.seconds:.0%}" for name, words in shown.items())
    is_namesake = second is not None and second.title == best.title  # of two cuts of one kind
    where = f" in {best.directory}" if is_namesake else ""
    text = f"{best.title}{where}: a step is predicted to take {best.seconds:.3g} s ({shares})"
    if second:
        where = f" in {second.directory}" if is_namesake else ""
        text += f"; {second.title}{where} is {second.seconds / best.seconds - 1:.1%} behind"
    faster = [each for each in refused if each.seconds is not None and each.seconds < best.seconds]
    if faster:
        text += f"; {faster[0].title} would take {faster[0].seconds:.3g} s, but {faster[0].refused}"
        if faster[0].refused.startswith("needs") and bounds.min() == bounds.max():
            text += f", and a rank has {size(bounds[0])}"
    return text
