"""The report as one HTML page that needs nothing else: no script, no picture, no font, no network."""

from __future__ import annotations

import numpy as np

from partition.system.units import size

from . import style as show

_MOST_LINES = 64  # of the heat map; of more parts, several share a line
_CROWDED = 16  # parts beyond which numbers do not fit into the heat map, and lines of the table move together
_GRID = 640  # of the heat map, in its own units


def page(figures: dict) -> str:
    """The whole page.

    Parameters
    ----------
    figures : dict
        See :func:`partition.report.counts.figures`.

    Returns
    -------
    str
        HTML; the same figures give the same text.
    """
    figures = show.escaped(figures)
    title = f"{figures['source']}: {figures['cut']} cut, {show.count(figures['parts'], 'part')}"
    sections = [_beside_random(figures), _traffic(figures), _parts(figures), _replication(figures), _cuts(figures)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{show.CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join([_header(figures), *sections, _footer(figures)])
        + "\n</main>\n</body>\n</html>\n"
    )


def _per(figures: dict) -> str:
    depth = figures["halo_depth"]
    return f"per exchange (every {depth} layers) and direction" if depth > 1 else "per layer and direction"


# ---- header and footer -----------------------------------------------------------------------------------------------


def _header(figures: dict) -> str:
    quality, random, depth = figures["quality"], figures["random"], figures["halo_depth"]
    facts = [show.count(figures[f"{noun}s"], noun) for noun in ("node", "edge", "part")]
    facts.append(f"{figures['cut']} cut" + (f" of halo depth {depth}" if depth > 1 else ""))
    if figures["seed"] is not None:
        facts.append(f"seed {figures['seed']}")
    share = figures["of_random"]["volume"]
    of_random = "none in a random cut either" if share is None else f"{show.percent(share)} of a random cut’s"
    tiles = [(show.MEANINGS["volume"][0], f"{quality['volume']:,}", f"{_per(figures)}; {of_random}")]
    for key, meaning in (
        ("replication_factor", "rows held over nodes"),
        ("max_copies_factor", "an even share of the nodes"),
        ("edge_balance", "the busiest part’s share of edges"),
    ):
        times = f'{quality[key]:.2f}<span class="unit"> ×</span>'
        tiles.append((show.MEANINGS[key][0], times, f"{meaning}; random{show.SPACE}{random[key]:.2f}"))
    items = "\n".join(f"<li>{name}<b>{number}</b><span>{beside}</span></li>" for name, number, beside in tiles)
    return (
        f'<header>\n<p class="over">Partition report</p>\n<h1>{figures["source"]}</h1>\n'
        f'<p class="facts">{" · ".join(facts)}</p>\n<p class="lead">{_judgement(figures)}</p>\n'
        f'<ul class="tiles">\n{items}\n</ul>\n</header>'
    )


def _judgement(figures: dict) -> str:
    """The page in three sentences: what travels, what is held, who waits."""
    quality, parts, share = figures["quality"], figures["parts"], figures["of_random"]["volume"]
    if parts == 1:
        return "One part holds the whole graph: nothing travels, and nothing is held twice."
    if share is None:
        sent = "No row crosses parts, and none would in a random cut."
    elif share > 1.05:
        sent = f"This cut sends <b>{share:.2f} times</b> the rows that a random one would: a bad cut."
    elif share > 0.95:
        sent = "This cut sends <b>as many</b> rows as a random one: it found no communities to follow."
    else:
        sent = f"This cut sends <b>{show.percent(share)}</b> of the rows that a random one would."
    largest = quality["max_copies_factor"] / parts
    held = f"Its largest part holds {show.percent(largest)} of the nodes"
    if quality["max_copies_factor"] > 1.2 and largest >= 0.5:
        held += f" ({show.percent(1 / parts)} would be an even share), so that cutting saves little memory."
    else:
        held += f", where an even share is {show.percent(1 / parts)}."
    return f"{sent} {held} {_waiting(quality['edge_balance'])}"


def _waiting(balance: float) -> str:
    if balance <= 1.1:
        return "Edges, which are the work, are dealt out evenly."
    busiest = f"The busiest part has {balance:.2f} times its share of the edges"
    return (
        f"{busiest}, and the others wait for it." if balance <= 1.5 else f"{busiest}: the others idle much of the time."
    )


def _footer(figures: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items() if version)
    return (
        "<footer>The random cut is drawn with seed 0 and counted, not estimated. The JSON file beside this page has "
        f"its numbers in full. Shards made with {versions}; checksum of their manifest "
        f"{figures['checksum'][:16]}.</footer>"
    )


# ---- beside a random cut ---------------------------------------------------------------------------------------------


def _beside_random(figures: dict) -> str:
    lines = []
    for key in show.quality_keys(figures):
        name, meaning = show.MEANINGS[key]
        if key == "volume":
            meaning += f" {_per(figures)}"
        share = figures["of_random"][key]
        of_random = "–" if share is None else show.percent(share)
        if share is not None and not key.endswith("balance"):  # those are near 1 in most random cuts
            of_random = show.bar(of_random, min(share, 1), "orange" if share > 1.05 else "")
        numbers = [show.value(key, figures[cut][key]) for cut in ("quality", "random")]
        lines.append(show.line(name, [f"<td>{text}</td>" for text in (*numbers, of_random)], meaning))
    heads = ["<th>Figure</th>", "<th>this cut</th>", "<th>random</th>", '<th class="wide">of random</th>']
    return show.section(
        "Beside a random cut",
        "The same kind of cut, into as many parts, with the part of each "
        f"{'node' if figures['cut'] == 'edge' else 'edge'} drawn at random.",
        show.table(heads, lines, kind="random")
        + show.caption(
            "Lower is better in every line. A random cut balances well and sends a lot; a good one gives up a little "
            "balance and sends a fraction."
        ),
    )


# ---- traffic ---------------------------------------------------------------------------------------------------------


def _traffic(figures: dict) -> str:
    title, rows = "Who sends to whom", np.array(figures["traffic"]["rows"], np.int64)
    if not rows.any():
        return show.section(title, "No part needs a row of another: nothing travels.")
    busiest, received, parts = figures["traffic"]["busiest"], np.array(figures["traffic"]["received"]), len(rows)
    most, pairs = int(received.argmax()), parts * (parts - 1)
    mean_pair, random_pair = rows.sum() / pairs, figures["random"]["volume"] / pairs
    verdict = (
        f"Part {most} receives the most, {show.count(int(received[most]), 'row')}, "
        f"{received[most] / received.mean():.2f} times the mean. The busiest pair: part {busiest['receiver']} receives "
        f"{show.count(busiest['rows'], 'row')} from part {busiest['sender']}, {busiest['rows'] / mean_pair:.2f} times "
        "the mean pair."
    )
    shared = -(-parts // _MOST_LINES)  # parts that share a line
    if shared > 1:
        starts = np.arange(0, parts, shared)
        rows = np.add.reduceat(np.add.reduceat(rows, starts, axis=0), starts, axis=1)
    darkest = show.darkest(rows, random_pair * shared**2)
    caption = (
        "Each line of the map is a part that receives, and each column is a part that sends. The stronger the blue, "
        "the more rows travel between the two in one exchange and direction."
    )
    if figures["cut"] == "vertex":
        caption += " The rows are the copies that mirrors get and the results that masters get back."
    if shared > 1:
        caption += f" Each cell adds up {shared} by {shared} parts."
    caption += (
        " The darkest blue stands for what two parts exchange on average in a random cut, or for the busiest pair "
        "where that exchanges more. The best map is pale all over. A strong cell is a pair of parts that the others "
        "wait for, and a strong line is a part that waits for all the others."
    )
    scale = f'<div class="scale" aria-hidden="true">0<span></span>{show.count(darkest, "row")}</div>'
    return show.section(
        title,
        verdict,
        f'<figure class="beside">\n<div>{_heat_map(rows, shared, darkest)}\n{scale}</div>\n'
        f"<figcaption>{caption}</figcaption>\n</figure>\n",
    )


def _heat_map(rows: np.ndarray, shared: int, darkest: int) -> str:
    count = len(rows)
    unit, left, top = min(56.0, _GRID / count), 34, 40
    side, every, grid = f"{unit:.1f}", -(-count // _CROWDED), f"{count * unit:.1f}"
    cells = [f'<rect class="none" x="{left}" y="{top}" width="{grid}" height="{grid}"></rect>']
    numbers, labels = [], []
    for i, line in enumerate(rows.tolist()):
        middle = (i + 0.5) * unit
        if i % every == 0:
            labels.append(f'<text x="{left - 8}" y="{top + middle + 4:.1f}" text-anchor="end">{i * shared}</text>')
            labels.append(f'<text x="{left + middle:.1f}" y="{top - 8}" text-anchor="middle">{i * shared}</text>')
        for j, number in enumerate(line):
            share = number / darkest
            if number:
                place = f'x="{left + j * unit:.1f}" y="{top + i * unit:.1f}" width="{side}" height="{side}"'
                pair = f"<title>part {i} from part {j}: {number:,}</title>" if shared == 1 else ""
                cells.append(f'<rect {place} fill-opacity="{max(share, 0.05):.2f}">{pair}</rect>')
            if count <= _CROWDED and i != j:
                ink = ' class="deep"' if share > 0.8 else ' class="half"' if share > 0.5 else ""
                place = f'x="{left + (j + 0.5) * unit:.1f}" y="{top + middle + 4:.1f}"'
                numbers.append(f"<text {place}{ink}>{show.short(number)}</text>")
    width, height = f"{left + count * unit:.0f}", f"{top + count * unit:.0f}"
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" stroke-width="{min(2, unit / 10):.1f}" role="img" '
        'aria-label="Rows that each part receives from each other part">\n'
        f'<text x="{left}" y="12">from part</text>\n{"".join(cells)}\n{"".join(labels)}\n'
        f'<g class="inside{" crowded" if count > _CROWDED // 2 else ""}">{"".join(numbers)}</g>\n</svg>'
    )


# ---- parts -----------------------------------------------------------------------------------------------------------


def _parts(figures: dict) -> str:
    copies, per_part = show.copies_key(figures), figures["per_part"]
    columns = [
        ("owned", "nodes owned", ""),
        (copies, "halo rows" if copies == "halo" else "mirrors", "orange"),
        ("edges", "edges", ""),
        ("bytes", "on disk", "grey"),
    ]
    bars, digits = [], 0
    for key, _, kind in columns:
        numbers, targets = [part[key] for part in per_part], show.targets(figures, key)
        texts = [size(number) if key == "bytes" else f"{number:,}" for number in numbers]
        most = max(*numbers, *targets, 1)
        bars.append([show.bar(text, n / most, kind, at / most) for text, n, at in zip(texts, numbers, targets)])
        digits = max(digits, *map(len, texts))
    lines = [show.line(str(part), [f"<td>{bar}</td>" for bar in cells]) for part, cells in enumerate(zip(*bars))]
    largest = max(per_part, key=lambda part: part["owned"] + part[copies])
    busiest = max(per_part, key=lambda part: part["edges"])
    verdict = (
        f"Part {per_part.index(largest)} holds the most rows, {largest['owned'] + largest[copies]:,}, of which it owns "
        f"{largest['owned']:,}; part {per_part.index(busiest)} has the most edges, {busiest['edges']:,}."
    )
    if len(per_part) == 1:
        verdict = "One part owns every node and every edge."
    heads = ["<th>Part</th>", *(f"<th>{name}</th>" for _, name, _ in columns)]
    return show.section(
        "Part by part",
        verdict,
        show.table(
            heads,
            lines,
            kind="fixed many" if len(per_part) > _CROWDED else "fixed",
            digits=digits,
        )
        + show.caption(
            'Bars are drawn to the longest of their column, and <span class="key mark"></span> marks the part’s share '
            "of the sum. Edges are the work, and the rows that a part owns or copies take memory. A part receives its "
            f"{columns[1][1]} in every exchange. The best bars end at their mark, and the best orange bars are short."
        ),
    )


# ---- replication -----------------------------------------------------------------------------------------------------


def _replication(figures: dict) -> str:
    replication, parts = figures["replication"], figures["parts"]
    once = replication["held_once"] / figures["nodes"]
    verdict = f"{show.percent(once)} of the nodes are held by one part alone."
    often = [show.degrees(each) for each in replication["by_degree"] if each["mean"] >= parts / 2]
    if parts > 2 and often:
        verdict += f" At degree {often[0]}, half of the parts or more hold the mean node."
    elif parts > 2:
        verdict += " Even hubs stay in few parts: at no degree does the mean reach half of them."
    lines = []
    for each in replication["by_degree"]:
        mean, most = (100 * (each[key] - 1) / max(parts - 1, 1) for key in ("mean", "max"))
        dots = (
            f'<s style="left:{mean:.1f}%;width:{most - mean:.1f}%"></s><u style="left:{most:.1f}%"></u>'
            f'<i style="left:{mean:.1f}%"></i>'
        )
        cells = [f"<td>{text}</td>" for text in (f"{each['nodes']:,}", f"{each['mean']:.2f}", each["max"])]
        cells.append(f'<td><span class="track" aria-hidden="true">{dots}</span></td>')
        lines.append(show.line(show.degrees(each), cells))
    ends = f'<th class="wide"><span class="ends"><span>1{show.SPACE}part</span><span>{parts}</span></span></th>'
    heads = ["<th>Degree</th>", "<th>nodes</th>", "<th>mean</th>", "<th>max</th>", ends]
    return show.section(
        "Replication against degree",
        verdict,
        show.table(heads, lines, kind="dots")
        + show.caption(
            'How many parts hold a node, by its degree (in + out): <span class="key dot"></span> the mean, '
            '<span class="key ring"></span> the most. Further left is better. Where the dots leave the left side only '
            "at high degrees, a few hubs make the copies, which suits a vertex cut; where they leave it at once, the "
            "graph has no good cut into so many parts."
        ),
    )


# ---- edge cut beside vertex cut --------------------------------------------------------------------------------------


def _cuts(figures: dict) -> str:
    title, choice, candidates = "Edge cut beside vertex cut", figures["choice"], show.candidates(figures)
    if not candidates:
        other = "vertex" if figures["cut"] == "edge" else "edge"
        return show.section(
            title,
            f"No {other} cut was made. To see both, partition with <code>--cut auto</code>: it makes both and keeps "
            "the one that is predicted to train faster.",
        )
    model, speeds = choice["model"], choice["speeds"]
    chosen = next(each for each in candidates if each["cut"] == figures["cut"])
    others_s = min(each["predicted_seconds"] for each in candidates if each is not chosen)
    verdict = (
        f"The {chosen['cut']} cut was chosen: its training step is predicted to take "
        f"{show.percent(chosen['predicted_seconds'] / others_s)} of the other’s time."
    )
    heads = ["<th>Figure</th>"]
    for each in candidates:
        heads.append(f"<th>{each['cut']} cut{'<span class=badge>chosen</span>' if each is chosen else ''}</th>")
    lines = [_compared("Step", "predicted seconds", [show.seconds(each["predicted_seconds"]) for each in candidates])]
    for key in ("volume", "replication_factor", "max_copies_factor", "node_balance", "edge_balance"):
        lines.append(_compared(*show.MEANINGS[key], [show.value(key, each["quality"][key]) for each in candidates]))
    return show.section(
        title,
        verdict,
        show.table(heads, lines, kind="halves", digits=7)
        + show.caption(
            f"Lower is better in every line, and the better one is blue. In full: {choice['reason']}. "
            f"Predicted for {model['layers']} layers of width {model['hidden']}, {model['heads']} heads and a link "
            f"of {_link(speeds['link_bytes_per_s'])} Gbit/s."
        ),
    )


def _link(bytes_per_s) -> str:
    """The speed of a link in Gbit/s, or of the slowest and the fastest of several."""
    slowest, fastest = (f"{each * 8 / 1e9:g}" for each in (np.min(bytes_per_s), np.max(bytes_per_s)))
    return slowest if slowest == fastest else f"{slowest} to {fastest}"


def _compared(name: str, meaning: str, texts: list[str]) -> str:
    """A line of the comparison; what reads the same is no better."""
    numbers = [float(text.replace(",", "")) for text in texts]
    cells = []
    for text, number in zip(texts, numbers):
        best = number == min(numbers) < max(numbers)
        bar = show.bar(text, number / max(*numbers, 1e-9), "" if best else "grey")
        cells.append(f"<td{' class=best' if best else ''}>{bar}</td>")
    return show.line(name, cells, meaning)
