"""How the report looks: numbers in words, the pieces of the page, and its style sheet."""

from __future__ import annotations

from html import escape

import numpy as np

MEANINGS = {
    "cut_ratio": ("Edges cut", "edges whose source another part owns"),
    "volume": ("Rows sent", "rows that cross parts"),
    "mirrors": ("Mirrors", "copies of nodes outside their master's part"),
    "replication_factor": ("Replication", "rows held / nodes; 1 is no copies"),
    "max_copies_factor": ("Largest part", "rows it holds / an even share of the nodes"),
    "node_balance": ("Node balance", "nodes of the fullest part / its share; 1 is perfect"),
    "edge_balance": ("Edge balance", "edges of the busiest part / its share; 1 is perfect"),
    "train_balance": ("Train balance", "training nodes of the fullest part / its share"),
}
SPACE = "\N{NO-BREAK SPACE}"


# ---- text ------------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """A text without control characters, and without halves of characters that no file can hold."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def escaped(value):
    """JSON values with every text in them, keys too, made fit for HTML; all that a page shows goes through here."""
    if isinstance(value, str):
        return escape(printable(value))
    if isinstance(value, dict):
        return {escaped(key): escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [escaped(each) for each in value]
    return value


# ---- words and numbers -----------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """A share for people: 5.7 %, 12.5 %, 31 %."""
    number = 100 * share
    text = f"{number:,.0f}" if number >= 20 else f"{number:.1f}".removesuffix(".0")
    return ("less than 0.1" if 0 < number < 0.05 else text) + f"{SPACE}%"


def value(key: str, number: float) -> str:
    """A quality figure for people."""
    if key == "cut_ratio":
        return percent(number)
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def short(number: int) -> str:
    """At most five characters: 9,999, 10k, 1.2M."""
    for unit, letter in ((10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.{1 if number < 10 * unit else 0}f}{letter}"
    return f"{number // 1000}k" if number >= 10_000 else f"{number:,}"


def darkest(rows: np.ndarray, random_pair: float) -> int:
    """The rows that the darkest cell of the map stands for: the mean pair's of a random cut, or the busiest pair's."""
    return max(int(rows.max()), round(random_pair), 1)


def seconds(number: float) -> str:
    """A time of three digits, without its unit."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def copies_key(figures: dict) -> str:
    """What ``per_part`` calls the rows that a part holds but does not own."""
    return "halo" if figures["cut"] == "edge" else "mirrors"


def count(number: int, noun: str) -> str:
    """1 part, 2 parts."""
    return f"{number:,}{SPACE}{noun}{'' if number == 1 else 's'}"


def quality_keys(figures: dict) -> list[str]:
    """The quality figures that there are, in the order of the page."""
    return [key for key in MEANINGS if figures["quality"].get(key) is not None]


def targets(figures: dict, key: str) -> list[float]:
    """What each part would have of a count of ``per_part`` if it had its share."""
    total = sum(part[key] for part in figures["per_part"])
    return [share * total for share in figures["shares"]]


def candidates(figures: dict) -> list[dict]:
    """The cuts that ``--cut auto`` chose from; none where one cut alone was made."""
    found = figures["choice"]["candidates"] if figures["choice"] else []
    return found if len(found) > 1 else []


def degrees(entry: dict) -> str:
    """The degrees of an entry of ``by_degree``, for people: 4-7."""
    first, last = entry["degrees"]
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


# ---- pieces of the page ----------------------------------------------------------------------------------------------


def section(title: str, verdict: str, body: str = "") -> str:
    """A part of the page: what it is, what follows from it, then what shows it."""
    return f'<section>\n<h2>{title}</h2>\n<p class="verdict">{verdict}</p>\n{body}</section>'


def table(heads: list[str], lines: list[str], *, kind: str = "", digits: float = 4.5) -> str:
    """A table; ``digits`` is the room for the widest number beside a bar."""
    return (
        f'<div class="scroll"><table class="{kind}" style="--digits:{digits}">\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n"
    )


def line(name: str, cells: list[str], meaning: str = "") -> str:
    """A line of a table, with what its name means under it."""
    meaning = f'<span class="meaning">{meaning}</span>' if meaning else ""
    return f'<tr><th scope="row">{name}{meaning}</th>{"".join(cells)}</tr>\n'


def bar(text: str, share: float, kind: str = "", target: float | None = None) -> str:
    """A number and a bar of ``share`` of the longest, with a mark at ``target``."""
    mark = "" if target is None else f'<u style="left:{100 * target:.1f}%"></u>'
    drawn = f'<span class="bar {kind}" aria-hidden="true"><i style="width:{100 * share:.1f}%"></i>{mark}</span>'
    return f'<div class="cell">{drawn}<span class="number">{text}</span></div>'


def caption(text: str) -> str:
    """What one sees, and what would be better."""
    return f'<p class="caption">{text}</p>\n'


# ---- style sheet -----------------------------------------------------------------------------------------------------

# Blue and orange differ in lightness as well, so that they stay apart for colour-blind readers and in grey print.
CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1a1f25; --soft: #5b6672; --line: #dde2e7; --wash: #f2f4f6;
  --blue: #0b65a8; --orange: #d98200; --grey: #9aa4ae; --on-blue: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #13171b; --ink: #e7eaed; --soft: #9ba6b1; --line: #2c343c; --wash: #1d2329;
    --blue: #5fb2f0; --orange: #f2aa45; --grey: #717c87; --on-blue: #0a1219;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums lining-nums;
}
main { max-width: 60rem; margin: 0 auto; padding: 3.5rem 1.5rem 3rem; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: .1rem 0 .3rem; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .3rem; letter-spacing: -.005em; }
p { margin: 0 0 .8rem; max-width: 44rem; text-wrap: pretty; }
section { margin-top: 3.25rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
.over { font-size: .8rem; letter-spacing: .09em; text-transform: uppercase; color: var(--blue); margin: 0; }
.facts, .meaning, .unit, .caption, figcaption, footer { color: var(--soft); }
.lead { font-size: 1.2rem; line-height: 1.5; margin: 1.4rem 0 0; }
.lead b { color: var(--blue); }
.verdict { margin-bottom: 1.1rem; }
.tiles {
  display: grid; grid-template-columns: repeat(4, 1fr); gap: 1px; margin: 1.9rem 0 0; padding: 0; list-style: none;
  background: var(--line); border: 1px solid var(--line); border-radius: .5rem; overflow: hidden;
}
.tiles li { background: var(--paper); padding: .95rem 1.05rem 1rem; font-size: .85rem; line-height: 1.4; }
.tiles b { display: block; margin: .1rem 0 .15rem; font-size: 1.75rem; line-height: 1.25; }
.tiles b { font-weight: 600; letter-spacing: -.02em; }
.tiles b .unit { font-size: 1rem; font-weight: 400; letter-spacing: 0; }
.tiles span:last-child { color: var(--soft); }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .94rem; }
th, td { padding: .5rem 0 .5rem 1.4rem; text-align: right; vertical-align: baseline; }
th:first-child, td:first-child { padding-left: 0; }
thead th { color: var(--soft); font-size: .82rem; font-weight: 500; vertical-align: bottom; }
thead th { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 500; text-align: left; }
thead th:first-child { text-align: left; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
.meaning { display: block; font-weight: 400; font-size: .82rem; line-height: 1.35; }
td { white-space: nowrap; }
td.best { font-weight: 600; }
.badge {
  display: inline-block; padding: 0 .5em; margin-left: .4em; border-radius: 1em; font-size: .75rem;
  background: var(--blue); color: var(--on-blue);
}
.caption, figcaption { font-size: .88rem; line-height: 1.5; margin: .9rem 0 0; max-width: 44rem; }
figure { margin: 0; }
.beside { display: flex; gap: 2.2rem; align-items: flex-start; }
.beside > div { flex: 0 1 auto; min-width: 0; }
.beside figcaption { flex: 1 1 12rem; margin-top: 2.3rem; }
/* A cell with a bar: the bar on the left, the number on the right; on narrow windows below each other. */
.cell { display: flex; align-items: center; gap: .7rem; justify-content: flex-end; }
.cell .bar { flex: 1 1 0; }
.cell .number { flex: none; min-width: calc(var(--digits) * .6rem); }
.bar { display: block; position: relative; height: .55rem; background: var(--wash); border-radius: 2px; }
.bar i { display: block; height: 100%; border-radius: 2px; background: var(--blue); }
.bar u { position: absolute; top: -3px; bottom: -3px; width: 1.5px; background: var(--ink); opacity: .6; }
.orange i, .key.orange { background: var(--orange); }
.grey i, .key.grey { background: var(--grey); }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; background: var(--blue); }
.key.mark { width: 1.5px; height: 1em; vertical-align: -.15em; background: var(--ink); opacity: .6; }
.key.dot { border-radius: 50%; }
.key.ring { border-radius: 50%; background: none; border: 2px solid var(--orange); }
.fixed { table-layout: fixed; }
.fixed th:first-child { width: 3.2rem; }
.many { font-size: .8rem; }
.many th, .many td { padding-top: .1rem; padding-bottom: .1rem; }
.many tbody tr + tr > * { border-top: 0; }
.dots tbody th, .dots td { vertical-align: middle; }
.random .wide { width: 32%; }
.halves { table-layout: fixed; }
.dots th:first-child { width: 8.5rem; }
.dots .wide { width: 46%; }
.dots .ends { display: flex; justify-content: space-between; }
.track { display: block; position: relative; height: 1rem; margin: 0 .45rem; }
.track::before {
  content: ""; position: absolute; left: -.45rem; right: -.45rem; top: calc(.5rem - .5px); height: 1px;
  background: var(--line);
}
.track * { position: absolute; top: .5rem; }
.track s { height: 3px; margin-top: -1.5px; background: var(--orange); opacity: .45; }
.track i, .track u { width: .7rem; height: .7rem; margin: -.35rem; border-radius: 50%; }
.track i { background: var(--blue); }
.track u { background: var(--paper); border: 2px solid var(--orange); }
svg { display: block; height: auto; max-width: 100%; font-family: inherit; }
svg text { fill: var(--soft); font-size: 12px; }
svg rect { fill: var(--blue); stroke: var(--paper); }
svg .none { fill: var(--wash); }
svg text { stroke: none; }
svg .inside text { fill: var(--ink); text-anchor: middle; }
svg .inside .deep { fill: var(--on-blue); }
@media (prefers-color-scheme: dark) { svg .inside .half { fill: var(--on-blue); } }
.scale { display: flex; align-items: center; gap: .6rem; margin: .3rem 0 0 2.4rem; }
.scale { font-size: .82rem; color: var(--soft); }
.scale span { width: 9rem; height: .55rem; border-radius: 2px; }
.scale span { background: linear-gradient(90deg, var(--wash), var(--blue)); }
code { font-size: .9em; background: var(--wash); padding: .1em .35em; border-radius: 3px; }
footer { margin-top: 3.25rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
footer { font-size: .8rem; line-height: 1.5; }
@media (max-width: 46rem) {
  main { padding: 1.75rem 1rem 2rem; }
  h1 { font-size: 1.6rem; }
  .lead { font-size: 1.08rem; }
  section { margin-top: 2.25rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .tiles b { font-size: 1.45rem; }
  table { font-size: .85rem; }
  th, td { padding-left: .7rem; }
  .cell { flex-direction: column-reverse; align-items: stretch; gap: .2rem; }
  .cell .bar { flex: none; height: .35rem; }
  .cell .number { min-width: 0; }
  .random .wide { width: 24%; }
  tbody th, td { vertical-align: top; }
  .fixed { table-layout: auto; font-size: .8rem; }
  .fixed th:first-child { width: 1.9rem; }
  .dots th:first-child { width: auto; white-space: nowrap; }
  .dots .wide { width: 36%; }
  .beside { display: block; }
  .beside figcaption { margin-top: .9rem; }
  .crowded { display: none; }
  .scale { margin-left: 0; }
}
@media print { main { padding: 0; } section { break-inside: avoid-page; } .bar i, svg { print-color-adjust: exact; } }
"""
