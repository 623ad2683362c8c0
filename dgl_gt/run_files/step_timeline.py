"""The timeline of one step: for each rank, spans of computing, of exchanging, and of waiting for slower ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .run_record import Count, Seconds

_SHORTEST_S = 1e-7


class Span(msgspec.Struct):
    """A piece of the step of a rank; ``start`` and ``end`` are seconds from the beginning of the step."""

    kind: Literal["compute", "exchange", "wait"]
    name: str
    start: Seconds
    end: Seconds


class RankStep(msgspec.Struct):
    """The step of a rank: ``seconds``, what they were spent on, and the spans in their order."""

    seconds: Seconds
    compute_s: Seconds
    exchange_s: Seconds
    wait_s: Seconds
    spans: list[Span]


class StepTimeline(msgspec.Struct):
    """``timeline.json``: one step of all ranks."""

    epoch: Count
    strategy: str
    ranks: Annotated[list[RankStep], Meta(min_length=1)]


@dataclass(frozen=True)
class RankRecording:
    """What one rank recorded of a step; see :class:`dgl_gt.comm.step_recorder.StepRecorder` for the attributes.

    All ranks leave a barrier when their times begin, so their times can be compared.
    """

    places: list[tuple[float, str]]
    collectives: list[dict]
    seconds: float


def steps_of_ranks(recordings: list[RankRecording]) -> list[RankStep]:
    """Split the step of each rank into spans.

    A rank waits from the moment at which it can only wait for a collective until the last of the ranks that it needs
    has started the same collective. From then to the end of the collective it exchanges. All other time is computing,
    also while an exchange runs in the background.
    """
    found = []
    for mine in recordings:
        spans = _spans(mine, _blocked_spans(mine, recordings))
        sums = (_seconds_of(kind, spans) for kind in ("compute", "exchange", "wait"))
        found.append(RankStep(mine.seconds, *sums, spans))
    return found


def _seconds_of(kind: str, spans: list[Span]) -> float:
    return sum(each.end - each.start for each in spans if each.kind == kind)


def _blocked_spans(mine: RankRecording, recordings: list[RankRecording]) -> list[Span]:
    """The spans in which a rank waits or exchanges. Collective i of a rank is collective i of every other rank."""
    spans = []
    for number, each in enumerate(mine.collectives):
        if each["blocked"] is None:
            continue
        start, end = each["blocked"]
        others = [recordings[rank].collectives[number]["started"] for rank in each["senders"]]
        arrived = min(max([start, *others]), end)
        spans += [Span("wait", each["name"], start, arrived), Span("exchange", each["name"], arrived, end)]
    return _in_order(spans)


def _spans(mine: RankRecording, blocked: list[Span]) -> list[Span]:
    """All spans of a rank: the blocked ones, and computing between them, by the part of the step."""
    ends = [*mine.places[1:], (mine.seconds, "")]
    parts = [(start, min(end, mine.seconds), name) for (start, name), (end, _) in zip(mine.places, ends)]
    edges = [0.0, *(time for each in blocked for time in (each.start, each.end)), mine.seconds]
    spans, first = list(blocked), 0
    for start, end in list(pairwise(edges))[::2]:
        while first < len(parts) - 1 and parts[first][1] <= start:
            first += 1
        number = first
        while number < len(parts) and parts[number][0] < end:
            part_start, part_end, name = parts[number]
            spans.append(Span("compute", name, max(start, part_start), min(end, part_end)))
            number += 1
    return _in_order(spans)


def _in_order(spans: list[Span]) -> list[Span]:
    """The spans that are not empty, by their start."""
    return sorted((each for each in spans if each.end - each.start >= _SHORTEST_S), key=lambda each: each.start)
