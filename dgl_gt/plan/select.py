"""Choose how to train: predict every candidate that the cuts of a graph allow, and take the quickest that fits."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dgl_gt.partition.errors import InputError, check_flags, check_one_of, check_type, whole_number
from dgl_gt.partition.figures.costs import Costs, CutCosts
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import CHOICES, HALO, LOCAL, STRATEGIES, StrategyRules, mesh, strategy_of
from dgl_gt.partition.system.allocator import has_room, smallest_given_back
from dgl_gt.partition.system.units import format_bytes, format_count

from .candidates import Candidate, NothingFits, Plan
from .trace import Trace, cut_costs, traced_time
from .tracer import Tracer

# holes between tensors of many sizes, as of pieces, that a process holds: of the bytes above some, and bytes
_HOLES, _WITHOUT_HOLES, _MOST_HOLES = 0.7, 64 << 20, 256 << 20


def choose(
    cuts: list[tuple[str | None, Figures]],
    step: Tracer | Callable,
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    activation_checkpoints: tuple[str, ...] | None = None,
    strategies: tuple[str, ...] | None = None,
    spill: bool = False,
) -> Plan:
    """Choose the cut, strategy, halo depth and activation checkpointing that make a training step fastest.

    The step is traced with every strategy that the cuts allow.

    Parameters
    ----------
    cuts : list of (str or None, Figures)
        Cuts of one graph with the same number of parts: the shard directory of each, or None, and its figures, see
        :func:`dgl_gt.partition.read_figures`.
    step : Tracer or callable
        Training step: ``dgl_gt.plan.tracer_of(config, features, classes)`` for that of ``dgl-gt train``; or a
        function that makes a step of any other model, as :func:`report_costs` takes it.
    profile : Profile
        Hardware profile of the ranks and links.
    rank_memory : int, optional
        Memory that a rank's process may take (bytes); by default as much as the profile says.
    max_depth : int, optional
        Deepest halo to consider. By default it is the deepest that the cuts have and the step can take. A step that a
        function makes can take one hop, or as many as ``max_depth`` says.
    activation_checkpoints : tuple of str, optional
        Modes of activation checkpointing to consider, by default all that the step can have. The first that fits the
        memory is taken: those that follow compute more and keep less.
    strategies : tuple of str, optional
        Strategies to consider; by default all, and ``mesh=M`` where the profile has hosts of M ranks with links of
        their own.
    spill : bool
        Whether to consider layers that run part by part, with rows in files, where no mode of activation checkpointing
        fits; see docs/spilling.md. On GPUs they cannot.

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
    check_flags(spill=spill)
    search = _make_search(step, profile, ranks, rank_memory, max_depth, strategies, activation_checkpoints)
    search = replace(search, spills=spill and profile.device == "cpu")
    traces, figures = search.traces, cuts[0][1]
    found = search.candidates(cuts)
    if not found:
        names = ", ".join(map(str, search.strategies))
        raise InputError(f"no strategy of {names} runs on the {figures.cut} cut; allow more strategies")
    candidates = [each for each, _ in found]
    fitting = sorted((each for each in candidates if not each.refused), key=lambda it: (it.seconds, it.memory_bytes))
    if not fitting:
        raise search.refusal(candidates, figures)
    refused = sorted((each for each in candidates if each.refused), key=lambda each: each.seconds or np.inf)
    choice, runner_up = fitting[0], fitting[1] if len(fitting) > 1 else None
    of_choice = next(figures for each, figures in found if each is choice)
    alone = traces.of_one_rank(figures)
    model = {
        name: value if isinstance(value, (str, int, float)) else str(value)
        for name, value in traces.description.items()
    }
    return Plan(
        choice=choice,
        runner_up=runner_up,
        reason=_reason(choice, runner_up, refused, search.bounds),
        candidates=fitting + refused,
        profile={"name": profile.name, "kind": profile.kind},
        model={**traces.description, **({} if choice.spilled else traces.variant(of_choice))},
        ranks=ranks,
        one_rank_seconds=alone and traced_time(alone, figures.in_one_part(), profile.of_slowest_rank()).total_s,
        costs=Costs(
            model=model,
            profile=profile.name,
            row_s=float(profile.row_seconds(ranks).mean()),
            **{kind: search.linear_costs(kind, found) for kind in ("edge", "vertex")},
        ),
    )


def _make_search(
    step, profile: Profile, ranks: int, rank_memory, max_depth, strategies, activation_checkpoints
) -> Search:
    """The search that the arguments of :func:`choose` ask for."""
    check_type("profile", profile, Profile)
    profile.check_ranks(ranks)
    for name, bound in (("rank_memory", rank_memory), ("max_depth", max_depth)):
        if bound is not None:
            whole_number(name, bound, 1)
    if not callable(step) and not isinstance(step, Tracer):
        raise InputError(
            f"step is {reprlib.repr(step)}; it must be a function that makes a training step, or what "
            "dgl_gt.plan.tracer_of returns"
        )
    traces = step if isinstance(step, Tracer) else Tracer(step, max_depth or 1)
    for name, names in (("strategies", strategies), ("activation_checkpoints", activation_checkpoints)):
        if names is not None and (not isinstance(names, (tuple, list)) or not names):
            raise InputError(f"{name} is {reprlib.repr(names)}; it must be a tuple of one name or more")
    modes = tuple(activation_checkpoints or traces.activation_checkpoints)
    for mode in modes:
        check_one_of("activation_checkpoints", mode, traces.activation_checkpoints)
    if strategies is not None:
        considered = tuple(dict.fromkeys(strategy_of(name, CHOICES, "strategies") for name in strategies))
    else:
        per_host = profile.ranks_per_host(ranks)
        considered = STRATEGIES if per_host is None else (*STRATEGIES, mesh(per_host))
    bounds = np.broadcast_to(rank_memory or profile.memory_bytes, ranks)
    deepest = min(max_depth or traces.max_depth, traces.max_depth)
    return Search(traces, profile, bounds, modes, deepest, considered, is_bounded=rank_memory is not None)


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
    counts = [{"part": it.parts, "node": it.nodes, "edge": int(it.edges.sum())} for _, it in cuts]
    names = [directory or f"cut {number}" for number, (directory, _) in enumerate(cuts, 1)]
    for name, of_cut in zip(names, counts):
        for what, count in of_cut.items():
            if count != counts[0][what]:
                raise InputError(
                    f"{name} has {format_count(count, what)}, but {names[0]} has {counts[0][what]:,}; give cuts of one graph "
                    "with the same number of parts"
                )
    return counts[0]["part"]


@dataclass(frozen=True)
class Search:
    """What to consider for each cut, and within which bounds; see :func:`choose`."""

    traces: Tracer
    profile: Profile
    bounds: np.ndarray  # memory of each rank (bytes), (P,)
    activation_checkpoints: tuple[str, ...]
    max_depth: int
    strategies: tuple[StrategyRules, ...]
    # bytes that each rank keeps in addition to what a trace knows, (P,) or one number
    also_kept: Callable[[Figures, StrategyRules, str], np.ndarray | int] = lambda figures, strategy, mode: 0
    spills: bool = False  # whether layers may run part by part
    is_bounded: bool = False  # by the user, so that allocators give memory back

    def candidates(self, cuts: list[tuple[str | None, Figures]]) -> list[tuple[Candidate, Figures]]:
        """The candidates of cuts: every strategy and depth, with the first mode of activation checkpointing that fits.

        If no mode of a strategy fits, all of its modes are listed. More parts than ranks run with rows between layers in
        files where there is also a cut into as many parts as ranks, which is better in memory.
        """
        has_plain = any(each.cut == "edge" and each.pieces is None for _, each in cuts)
        return [
            (replace(each, ranks=figures.parts, parts=(figures.pieces or figures).parts), figures)
            for directory, figures in cuts
            for strategy in self.strategies
            if strategy.is_of_use(figures)
            for depth in strategy.depths(figures, self.max_depth)
            for each in self._modes(
                Candidate(figures.cut, strategy.name, depth, "none", directory),
                figures,
                strategy,
                () if has_plain and figures.pieces else self.activation_checkpoints,
            )
        ]

    def linear_costs(self, kind: str, found: list[tuple[Candidate, Figures]]) -> CutCosts | None:
        """The costs on one kind of cut, of the candidate that is best there; None without a cut of two parts or more."""
        possible = [
            (each, figures)
            for each, figures in found
            if (figures.cut, each.depth) == (kind, 1)
            and each.seconds is not None
            and not each.spilled
            and strategy_of(each.strategy).sends_copies
        ]
        if not possible:
            return None
        best, figures = min(possible, key=lambda it: (it[0].refused is not None, it[0].seconds))
        trace = self.traces.of(figures, strategy_of(best.strategy), 1, best.activation_checkpoint)
        return cut_costs(trace, figures, self.profile, best.strategy)

    def refusal(self, candidates: list[Candidate], figures: Figures) -> InputError:
        """The error for candidates of which none can be chosen; ``figures`` are those of one of the cuts."""
        possible = [each for each in candidates if each.memory_bytes is not None]
        if not possible:
            return InputError(candidates[0].refused)
        least, most = min(possible, key=lambda each: each.memory_ratio), format_bytes(self.bounds.max())
        if self.bounds.min() < self.bounds.max():
            text = (
                f"nothing fits ranks of {format_bytes(self.bounds.min())} to {most}: {least.title} comes nearest and "
                f"{least.refused}; give ranks parts that match their memory (--target-weights, or --parts-per-rank where they share parts), or use more ranks"
            )
        else:
            enough = -(-least.memory_bytes // 2**20)  # rounded up, so that it fits with the number that is printed
            text = (
                f"nothing fits ranks of {most}: {least.title} needs the least, {format_bytes(least.memory_bytes)} on its "
                f"largest rank; raise the bound to that (--rank-memory {enough}MiB), or partition for more ranks"
                f"{', or into more parts' if least.spilled else ''}"
            )
        return NothingFits(text, least.memory_bytes, least.memory_bytes - int(self.bounds.max()))

    def _modes(
        self, candidate: Candidate, figures: Figures, strategy: StrategyRules, modes: tuple[str, ...]
    ) -> list[Candidate]:
        found: list[Candidate] = []
        for mode in modes:
            if mode == "keep_exchanges" and "full" in self.activation_checkpoints and found and not found[0].sent_bytes:
                continue  # without an exchange the two are the same
            candidate = replace(candidate, activation_checkpoint=mode)
            try:
                trace = self.traces.of(figures, strategy, candidate.depth, mode)
                kept = self.also_kept(figures, strategy, mode)
            except InputError as error:
                return [*found, replace(candidate, refused=str(error))]
            found.append(self._predicted(candidate, trace, figures, kept))
            if not found[-1].refused:
                return found
        if self.spills and strategy in (LOCAL, HALO) and candidate.depth == 1 and figures.schema is None:
            found.append(self._streamed(replace(candidate, activation_checkpoint="none"), figures))
        return found

    def _streamed(self, candidate: Candidate, figures: Figures) -> Candidate:
        """A candidate whose layers run part by part."""
        figures, candidate = figures.with_pieces, replace(candidate, spilled=True)
        try:
            trace = self.traces.streamed(figures)
        except InputError as error:
            return replace(candidate, refused=str(error))
        read, written = trace.copied_bytes(figures).sum(axis=0).tolist()
        at_once = int(trace.file_bytes(figures).sum())
        found = self._predicted(candidate, trace, figures, 0)
        return replace(found, file_bytes={"at_once": at_once, "read": read, "written": written})

    def _predicted(
        self, candidate: Candidate, trace: Trace, figures: Figures, also_kept: np.ndarray | int
    ) -> Candidate:
        """A candidate with its predictions; it is refused where a rank's process needs more memory than the rank has."""
        kept, tensors = trace.kept(figures) + also_kept, trace.peak_bytes(figures) + also_kept
        libraries = np.broadcast_to(self.profile.process_bytes, figures.parts)
        libraries = libraries + (self.profile.checkpointing_bytes if candidate.activation_checkpoint != "none" else 0.0)
        beside = (self.profile.memory_factor - 1) * tensors
        if candidate.spilled:
            beside = np.clip(_HOLES * (tensors - _WITHOUT_HOLES), 0, _MOST_HOLES)
        process = (tensors + beside + libraries).astype(np.int64)
        gives_back = self.is_bounded and not np.all(has_room(process, tensors, self.bounds))
        given_back = smallest_given_back(self.profile.memory_factor, gives_back, candidate.spilled)
        time = traced_time(trace, figures, self.profile, self.bounds - process, given_back)
        largest, shortest = int(process.argmax()), int((process / self.bounds).argmax())
        refused, memory_ratio = None, float(process[shortest] / self.bounds[shortest])
        if memory_ratio > 1:
            is_even = self.bounds.min() == self.bounds.max()
            where = (
                "its largest rank" if is_even else f"rank {shortest}, which has {format_bytes(self.bounds[shortest])}"
            )
            refused = f"needs {format_bytes(process[shortest])} on {where}"
        return replace(
            candidate,
            seconds=time.total_s,
            seconds_by_term=time.terms,
            sent_bytes=trace.sent_bytes(figures),
            peak_bytes=int(tensors.max()),
            peak_bytes_by_term={"kept": int(kept[largest]), "made in the step": int((tensors - kept)[largest])},
            memory_bytes=int(process.max()),
            memory_ratio=memory_ratio,
            refused=refused,
        )


def _reason(best: Candidate, second: Candidate | None, refused: list[Candidate], bounds: np.ndarray) -> str:
    """Why the best candidate was chosen, in a sentence."""
    spent = {name.removesuffix("_s"): value for name, value in best.seconds_by_term.items()}
    shown = {"products": "products", "rows": "rows", "attention": "edges", "exchange": "exchange"}
    shown |= {"files": "files"} if best.spilled else {}
    shown |= {"pages": "memory from the system"} if spent["pages"] else {}
    spent["exchange"] -= spent["hidden"]
    total = best.seconds or 1.0  # of a step that does nothing
    shares = ", ".join(f"{words} {spent[name] / total:.0%}" for name, words in shown.items())
    is_namesake = second is not None and second.title == best.title  # of two cuts of one kind
    where = f" in {best.directory}" if is_namesake else ""
    text = f"{best.title}{where}: a step is predicted to take {best.seconds:.3g} s ({shares})"
    if second:
        where = f" in {second.directory}" if is_namesake else ""
        text += f"; {second.title}{where} takes {second.seconds / total - 1:.1%} longer"
    faster = [each for each in refused if each.seconds is not None and each.seconds < best.seconds]
    if faster:
        text += f"; {faster[0].title} would take {faster[0].seconds:.3g} s, but {faster[0].refused}"
        if faster[0].refused.startswith("needs") and bounds.min() == bounds.max():
            text += f", and a rank has {format_bytes(bounds[0])}"
    return text
