"""Writes the report of a shard directory: one page that needs nothing else, and its numbers as JSON beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgl_gt.partition.figures.figures import MEANINGS
from dgl_gt.partition.shards.counts import describe_transforms
from dgl_gt.partition.shards.manifest import MANIFEST, read_manifest, verify
from dgl_gt.partition.system.units import format_bytes

from . import pages
from .counts import count_shards

_SIZES = ("layers", "hidden", "heads", "features", "classes")  # of a model; a user's own may be known by other names
_COMPARED = ("volume", "replication_factor", "max_copies_factor", "node_balance", "edge_balance")


def write_report(directory, out, *, force: bool = False) -> dict:
    """Write the report of a shard directory: a page, and its numbers.

    Parameters
    ----------
    directory : path
        Shards. Their checksums are verified first.
    out : path
        The page, ``NAME.html``. Its numbers are written beside it as ``NAME.json``.
    force : bool
        Whether to replace these files where they exist.

    Returns
    -------
    dict
        The numbers; docs/cli.md lists their keys.

    Raises
    ------
    InputError
        The shards are missing or damaged; or ``out`` does not end in .html, exists or cannot be written.
    """
    targets = pages.check_targets(out, Path(directory) / MANIFEST, force=force)
    manifest = read_manifest(directory)
    verify(directory, manifest)
    numbers = count_shards(directory, manifest)
    pages.write_both(targets, page(numbers), numbers, force=force)
    return numbers


def page(numbers: dict) -> str:
    """Return the page as HTML; the same numbers, from :func:`.counts.count_shards`, give the same text."""
    per_part, copies = numbers["per_part"], "halo" if numbers["cut"] == "edge" else "mirrors"
    columns = [
        _column(numbers, key, kind)
        for key, kind in (("owned", ""), (copies, "orange"), ("edges", ""), ("bytes", "grey"))
    ]
    candidates = _candidates(numbers)
    return (
        pages.make_environment()
        .get_template("page.html.j2")
        .render(
            numbers,
            added=describe_transforms(numbers["transforms"]),
            meanings=MEANINGS,
            quality_keys=[key for key in MEANINGS if numbers["quality"].get(key) is not None],
            copies_name="halo rows" if copies == "halo" else "mirrors",
            rows=np.array(numbers["traffic"]["rows"], np.int64),
            held=[part["owned"] + part[copies] for part in per_part],
            work=[part["edges"] for part in per_part],
            part_lines=list(zip(*columns)),
            widest=max(len(text) for column in columns for text, _ in column),
            is_crowded=numbers["parts"] > pages.MAX_NUMBERED_PARTS,
            candidates=candidates,
            assumed=_assumed(numbers["choice"]["model"]) if candidates else {},
            comparison=_comparison(candidates),
            bar=pages.bar,
            dots=pages.dots,
            heat_map=pages.HeatMap.of,
        )
    )


def _column(numbers: dict, key: str, kind: str) -> list[tuple]:
    """Return the text and the bar of a count of each part; the bar's mark is what the part's share of the sum is."""
    counts = [part[key] for part in numbers["per_part"]]
    targets = [share * sum(counts) for share in numbers["shares"]]
    most = max(*counts, *targets, 1)
    texts = [format_bytes(count) if key == "bytes" else f"{count:,}" for count in counts]
    return [(text, pages.bar(count / most, kind, target / most)) for text, count, target in zip(texts, counts, targets)]


def _candidates(numbers: dict) -> list[dict]:
    """Return the cuts that ``--cut auto`` chose from; none where only one cut was made."""
    found = numbers["choice"]["candidates"] if numbers["choice"] else []
    return found if len(found) > 1 else []


def _assumed(model: dict) -> dict:
    """Return the settings that say the size of a model, or all where it has none of these."""
    return {key: model[key] for key in _SIZES if key in model} or model


def _comparison(candidates: list[dict]) -> list[tuple]:
    """Return for each figure its name, its meaning, and for each cut: a text, a bar, and whether it is the better one."""
    lines = [("Step", "predicted seconds", [pages.seconds(each["predicted_seconds"]) for each in candidates])]
    for key in _COMPARED:
        lines.append((*MEANINGS[key], [pages.figure(each["quality"][key], key) for each in candidates]))
    found = []
    for name, meaning, texts in lines if candidates else ():
        shown = [float(text.replace(",", "")) for text in texts]  # of two that read the same, neither is better
        better = [number == min(shown) < max(shown) for number in shown]
        bars = [pages.bar(number / max(*shown, 1e-9), "" if each else "grey") for number, each in zip(shown, better)]
        found.append((name, meaning, list(zip(texts, bars, better))))
    return found
