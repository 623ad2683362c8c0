"""The time line of one step: for each rank, spans of computing, of exchanging, and of waiting for slower ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

KINDS = ("compute", "exchange", "wait")
_SHORTEST_S = 1e-7


@dataclass(frozen=True)
class RankRecording:
    """What one rank recorded of a step; see :class:`dgl_gt.comm.timeline.Timeline` for the attributes.

    All ranks leave a barrier when their times begin, so their times can be compared.
    """

    places: list[tuple[float, str]]
    collectives: list[dict]
    seconds: float


def time_line(recordings: list[RankRecording]) -> list[dict]:
    """Split the step of each rank into spans.

    A rank waits from the moment at which it can only wait for a collective until the last of the ranks that it needs
    has started the same collective. From then to the end of the collective it exchanges. All other time is computing,
    also while an exchange runs in the background.

    Returns
    -------
    list of dict, (P,)
        For each rank ``seconds`` of its step; ``compute_s``, ``exchange_s`` and ``wait_s``, which add up to it; and
        ``spans`` in their order, each with ``kind`` (one of :data:`KINDS`), ``name``, ``start`` and ``end`` (s).
    """
    found = []
    for mine in recordings:
        spans = _spans(mine, _blocked_spans(mine, recordings))
        sums = {
            f"{kind}_s": sum(each["end"] - each["start"] for each in spans if each["kind"] == kind) for kind in KINDS
        }
        found.append({"seconds": mine.seconds, **sums, "spans": spans})
    return found


def _blocked_spans(mine: RankRecording, recordings: list[RankRecording]) -> list[dict]:
    """The spans in which a rank waits or exchanges. Collective i of a rank is collective i of every other rank."""
    spans = []
    for number, each in enumerate(mine.collectives):
        if each["blocked"] is None:
            continue
        start, end = each["blocked"]
        others = [recordings[rank].collectives[number]["started"] for rank in each["senders"]]
        arrived = min(max([start, *others]), end)
        spans += [_span("wait", each["name"], start, arrived), _span("exchange", each["name"], arrived, end)]
    return sorted((each for each in spans if _is_there(each)), key=lambda each: each["start"])


def _spans(mine: RankRecording, blocked: list[dict]) -> list[dict]:
    """All spans of a rank: the blocked ones, and computing between them, by the part of the step."""
    ends = [*mine.places[1:], (mine.seconds, "")]
    parts = [(start, min(end, mine.seconds), name) for (start, name), (end, _) in zip(mine.places, ends)]
    edges = [0.0, *(time for each in blocked for time in (each["start"], each["end"])), mine.seconds]
    spans, first = list(blocked), 0
    for start, end in list(pairwise(edges))[::2]:
        while first < len(parts) - 1 and parts[first][1] <= start:
            first += 1
        number = first
        while number < len(parts) and parts[number][0] < end:
            part_start, part_end, name = parts[number]
            spans.append(_span("compute", name, max(start, part_start), min(end, part_end)))
            number += 1
    return sorted((each for each in spans if _is_there(each)), key=lambda each: each["start"])


def _span(kind: str, name: str, start: float, end: float) -> dict:
    return {"kind": kind, "name": name, "start": start, "end": end}


def _is_there(span: dict) -> bool:
    return span["end"] - span["start"] >= _SHORTEST_S
