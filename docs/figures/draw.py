"""Draws the figures of the documentation: ``python docs/figures/draw.py`` writes the SVG files next to this script.

Every coordinate is written here by hand, so the files depend on no library and are the same on every machine.
The colours are after Okabe and Ito, which people with any kind of colour blindness can tell apart; each rank also
has its name written next to it.
"""

from html import escape
from pathlib import Path

INK, GREY, PAPER = "#222222", "#767676", "#ffffff"
RANK = ("#0072b2", "#d55e00", "#009e73", "#a64d82")  # the colour of what each rank owns
TINT = ("#d6e9f5", "#fbe3d3", "#d3efe6", "#f3dfeb")
NODE, ROW_HEIGHT = 15, 18


class Drawing:
    """One SVG file, element by element."""

    def __init__(self, width, height, title):
        self.size, self.title, self.parts = (width, height), title, []

    def text(self, x, y, words, size=14, anchor="middle", colour=INK, weight="normal"):
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(words)}</text>'
        )

    def box(self, x, y, width, height, fill=PAPER, stroke=GREY, dashed=False, radius=4):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" fill="{fill}" stroke="{stroke}"'
            f' stroke-width="1.5"{dash}/>'
        )

    def arrow(self, x1, y1, x2, y2, colour=INK, width=1.5, bend=0):
        """A straight arrow, or one that bends to its left by this many pixels."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        mid = (x1 + x2) / 2 + bend * (y2 - y1) / length, (y1 + y2) / 2 - bend * (x2 - x1) / length
        self.parts.append(
            f'<path d="M{x1} {y1} Q{mid[0]:.1f} {mid[1]:.1f} {x2} {y2}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}" marker-end="url(#tip-{colour[1:]})"/>'
        )

    def line(self, x1, y1, x2, y2, colour=INK):
        self.parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{colour}" stroke-dasharray="5 4"/>')

    def node(self, x, y, label, rank, copy=False):
        """A node in its owner's colour; a copy that another part holds has a dashed outline."""
        dash = ' stroke-dasharray="4 3"' if copy else ""
        self.parts.append(
            f'<circle cx="{x}" cy="{y}" r="{NODE}" fill="{TINT[rank] if copy else RANK[rank]}" stroke="{RANK[rank]}" '
            f'stroke-width="2"{dash}/>'
        )
        self.text(x, y + 5, label, colour=INK if copy else PAPER, weight="bold")

    def edge(self, start, end, colour=INK):
        """An edge between the outlines of two nodes."""
        (x1, y1), (x2, y2) = start, end
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        gap = NODE + 2
        self.arrow(*(round(each, 1) for each in (x1 + dx * gap, y1 + dy * gap, x2 - dx * gap, y2 - dy * gap)), colour)

    def rows(self, x, y, width, count, rank, copy=False):
        """Rows of a tensor, one bar each, in the colour of the rank that owns them."""
        for row in range(count):
            self.box(x, y + row * ROW_HEIGHT, width, ROW_HEIGHT - 4, TINT[rank], RANK[rank], copy, radius=2)

    def svg(self) -> str:
        width, height = self.size
        tips = "".join(
            f'<marker id="tip-{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
            for colour in (INK, GREY, *RANK)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="Helvetica, Arial, sans-serif" role="img"><title>{escape(self.title)}</title><defs>{tips}'
            f'</defs><rect width="{width}" height="{height}" fill="{PAPER}"/>' + "\n".join(self.parts) + "</svg>\n"
        )


def part_box(d, x, y, width, height, rank, name="rank"):
    d.box(x, y, width, height, stroke=RANK[rank])
    d.text(x + width / 2, y + 20, f"{name} {rank}", colour=RANK[rank], weight="bold")


def overview() -> Drawing:
    d = Drawing(760, 220, "A graph is cut into shards, ranks train one model on them, and every node gets a prediction")
    places = [(40, 70), (95, 45), (60, 125), (120, 110), (160, 65), (170, 140)]
    owners = [0, 0, 0, 1, 1, 1]
    for a, b in ((0, 1), (0, 2), (2, 3), (1, 4), (3, 4), (5, 3), (4, 5)):
        d.edge(places[a], places[b], GREY)
    for (x, y), owner, label in zip(places, owners, "abcdef"):
        d.node(x, y, label, owner)
    d.text(105, 195, "one large graph")
    d.arrow(200, 90, 275, 90)
    d.text(238, 78, "partition", size=13)
    for rank, y in ((0, 30), (1, 110)):
        part_box(d, 290, y, 110, 66, rank, "shard")
        d.rows(305, y + 27, 80, 1, rank)
        d.rows(305, y + 45, 80, 1, 1 - rank, copy=True)
        d.arrow(405, y + 33, 470, y + 33)
        part_box(d, 480, y, 110, 66, rank)
        d.text(535, y + 47, "layers", size=13)
        d.arrow(595, y + 33, 645, 90 if rank == 0 else 116)
    d.text(437, 52, "load", size=13)
    d.arrow(525, 98, 525, 109, RANK[0], 2)
    d.arrow(545, 109, 545, 98, RANK[1], 2)
    d.text(345, 195, "one shard per rank")
    d.text(537, 195, "boundary rows travel")
    d.box(655, 55, 80, 96)
    for row, label in enumerate("abcdef"):
        d.text(695, 73 + row * 14, f"{label}: class", size=12)
    d.text(695, 195, "your order")
    return d


def edge_cut() -> Drawing:
    d = Drawing(760, 300, "An edge cut: part 0 owns a, b, c and holds a copy of d; part 1 owns d, e, f and holds b")
    edges = (("a", "b"), ("c", "a"), ("b", "c"), ("b", "d"), ("d", "c"), ("d", "e"), ("e", "f"), ("f", "d"))
    owner = dict(zip("abcdef", (0, 0, 0, 1, 1, 1)))
    whole = {"a": (40, 150), "b": (110, 90), "c": (110, 210), "d": (200, 150), "e": (270, 90), "f": (270, 210)}
    parts = (
        {"a": (390, 150), "b": (450, 90), "c": (450, 210), "d": (510, 150)},
        {"b": (600, 90), "d": (640, 160), "e": (715, 100), "f": (715, 220)},
    )
    d.text(155, 30, "the graph and its owners", weight="bold")
    d.line(155, 50, 155, 262, GREY)
    for start, end in edges:
        d.edge(whole[start], whole[end], RANK[owner[end]])
    for name, place in whole.items():
        d.node(*place, name, owner[name])
    for rank, (x, places) in enumerate(zip((350, 560), parts)):
        part_box(d, x, 12, 190, 240, rank, "part")
        for start, end in edges:
            if owner[end] == rank:
                d.edge(places[start], places[end], RANK[rank])
        for name, place in places.items():
            d.node(*place, name, owner[name], copy=owner[name] != rank)
    d.text(155, 282, "an edge lies with the owner of its destination", size=13)
    d.text(555, 282, "dashed: halo node, a copy of a source that another part owns", size=13)
    return d


def vertex_cut() -> Drawing:
    d = Drawing(
        760, 300, "A vertex cut: the edges of the hub h lie on two parts; part 0 has its master, part 1 a mirror"
    )
    whole = {"h": (155, 150), "a": (60, 80), "b": (50, 170), "c": (90, 235), "d": (250, 80), "e": (262, 170)}
    whole["f"] = (222, 235)
    owner = {"h": 0, "a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1}
    edges = [(name, "h", owner[name]) for name in "abcde"] + [("h", "f", 1)]
    d.text(155, 30, "the graph and its edges' parts", weight="bold")
    for start, end, rank in edges:
        d.edge(whole[start], whole[end], RANK[rank])
    for name, place in whole.items():
        d.node(*place, name, owner[name])
    parts = (
        {"h": (490, 150), "a": (410, 80), "b": (400, 160), "c": (430, 220)},
        {"h": (610, 150), "d": (690, 80), "e": (705, 160), "f": (675, 220)},
    )
    for rank, (x, places) in enumerate(zip((350, 560), parts)):
        part_box(d, x, 12, 190, 240, rank, "part")
        for start, end, part in edges:
            if part == rank:
                d.edge(places[start], places[end], RANK[rank])
        for name, place in places.items():
            d.node(*place, name, owner[name], copy=owner[name] != rank)
    d.text(500, 185, "master", size=13, colour=RANK[0])
    d.text(608, 185, "mirror", size=13, colour=RANK[0])
    d.text(155, 282, "every edge lies with one part", size=13)
    d.text(555, 282, "dashed: mirror, a copy of a node that another part owns", size=13)
    return d


def three_ranks(title, copies, height=210) -> Drawing:
    """Three ranks with three rows each, and below them the copies that each holds: a list of (owner, rows)."""
    d = Drawing(760, height, title)
    for rank, held in enumerate(copies):
        x = 40 + rank * 240
        part_box(d, x, 10, 200, height - 50, rank)
        d.text(x + 10, 46, "owned", size=12, anchor="start")
        d.rows(x + 80, 36, 100, 3, rank)
        y = 104
        for source, count in held:
            d.rows(x + 80, y, 100, count, source, copy=True)
            y += count * ROW_HEIGHT
        d.text(x + 130, y + 10, "copies", size=12)
    return d


def halo() -> Drawing:
    d = three_ranks("halo: only rows of the halo travel", [[(1, 1)], [(0, 1), (2, 1)], [(1, 1)]])
    d.arrow(360, 62, 224, 110, RANK[1], 2)
    d.arrow(222, 80, 357, 112, RANK[0], 2)
    d.arrow(602, 62, 464, 128, RANK[2], 2)
    d.arrow(462, 80, 597, 112, RANK[1], 2)
    d.text(380, 198, "Only the rows that edges of another part read travel: h (C numbers) or K and V (2C numbers).", 13)
    return d


def gather() -> Drawing:
    every = [[(1, 3), (2, 3)], [(0, 3), (2, 3)], [(0, 3), (1, 3)]]
    d = three_ranks("gather: every rank receives K and V of all other ranks", every, 270)
    for rank, held in enumerate(every):
        for place, (source, _) in enumerate(held):
            near = 240 * (1 if rank > source else -1)
            start = 220 + 240 * source if near > 0 else 120 + 240 * source
            end = 118 + 240 * rank if near > 0 else 222 + 240 * rank
            d.arrow(start, 60, end, 131 + 54 * place, RANK[source], 2)
    d.text(380, 258, "K and V of every node travel to every rank, whatever the cut.", 13)
    return d


def heads() -> Drawing:
    d = Drawing(760, 290, "heads: ranks exchange rows of some heads for all rows of one share of the heads")
    for rank in range(3):
        y = 50 + rank * 70
        d.text(20, y + 30, f"rank {rank}", anchor="start", colour=RANK[rank], weight="bold")
        for share in range(3):
            d.rows(90 + share * 52, y, 48, 3, rank)
        x = 545 + rank * 68
        d.text(x + 30, 42, f"rank {rank}", colour=RANK[rank], weight="bold")
        for owner in range(3):
            d.rows(x, 50 + owner * 70, 60, 3, owner, copy=owner != rank)
    d.text(168, 22, "its rows, all heads", weight="bold")
    d.text(644, 22, "all rows, its heads", weight="bold")
    d.arrow(265, 120, 525, 120, INK, 2)
    d.text(395, 108, "Q, K, V: all-to-all")
    d.arrow(525, 170, 265, 170, INK, 2)
    d.text(395, 192, "results: all-to-all")
    d.text(380, 280, "Each rank computes attention over all edges, for H / P of the heads.", 13)
    return d


def mesh() -> Drawing:
    d = Drawing(760, 370, "mesh: heads are split within a host, and rows of the halo travel between hosts")
    for rank in range(4):
        host, member = divmod(rank, 2)
        x, y = 40 + host * 430, 42 + member * 155
        part_box(d, x, y, 250, 112, rank)
        d.text(x + 70, y + 42, "rows of its host", size=12)
        for owner in (2 * host, 2 * host + 1):
            d.rows(x + 40, y + 50 + (owner - 2 * host) * ROW_HEIGHT, 60, 1, owner, copy=owner != rank)
        d.text(x + 180, y + 42, "halo of its host", size=12)
        for place, owner in enumerate((2 - 2 * host, 3 - 2 * host)):
            d.rows(x + 150, y + 50 + place * ROW_HEIGHT, 60, 1, owner, copy=True)
        share = "first" if member == 0 else "second"
        d.text(x + 125, y + 101, f"with the {share} half of the heads", size=12)
    for host in range(2):
        x = 40 + host * 430
        d.box(x - 16, 8, 282, 322, "none", dashed=True)
        d.text(x + 125, 30, f"host {host}", weight="bold")
        d.arrow(x + 60, 156, x + 60, 194, INK, 2)
        d.arrow(x + 80, 194, x + 80, 156, INK, 2)
        d.text(x + 94, 180, "Q, K, V and results", 13, "start")
    for member in range(2):
        y = 92 + member * 155
        d.arrow(292, y, 468, y, RANK[member], 2)
        d.arrow(468, y + 16, 292, y + 16, RANK[2 + member], 2)
        d.text(380, y - 8, "K, V", 13)
    d.text(380, 358, "Within a host, ranks share the heads; between hosts, each row of the halo travels once.", 13)
    return d


def ring() -> Drawing:
    d = Drawing(760, 270, "ring: blocks of K and V pass from rank to rank; each rank attends one block at a time")
    for rank in range(3):
        d.text(250 + rank * 190, 28, f"rank {rank}", colour=RANK[rank], weight="bold")
    for step in range(3):
        y = 45 + step * 65
        d.text(20, y + 25, f"step {step + 1}: attend", anchor="start")
        for rank in range(3):
            owner = (rank - step) % 3
            x = 185 + rank * 190
            d.box(x, y, 130, 38, TINT[owner], RANK[owner], dashed=owner != rank)
            d.text(x + 65, y + 24, f"K, V of rank {owner}", 13, colour=INK)
            if step < 2 and rank < 2:
                d.arrow(x + 110, y + 40, x + 210, y + 63, RANK[owner], 2)
            if step < 2 and rank == 2:
                d.arrow(x + 20, y + 40, 290, y + 62, RANK[owner], 2, bend=-6)
    d.text(380, 258, "The next block travels while the block at hand is attended; partial results are merged.", 13)
    return d


def mirror() -> Drawing:
    d = Drawing(760, 300, "mirror: the master sends its row to the mirror, and the mirror's partial result comes home")
    part_box(d, 30, 12, 280, 240, 0)
    part_box(d, 450, 12, 280, 240, 1)
    places = {"h": (235, 120), "a": (100, 80), "b": (100, 160)}
    there = {"h": (525, 120), "d": (660, 80), "e": (660, 160)}
    for name in "ab":
        d.edge(places[name], places["h"], RANK[0])
        d.node(*places[name], name, 0)
    for name in "de":
        d.edge(there[name], there["h"], RANK[1])
        d.node(*there[name], name, 1)
    d.node(*places["h"], "h", 0)
    d.node(*there["h"], "h", 0, copy=True)
    d.text(235, 156, "master", 13, colour=RANK[0])
    d.text(525, 156, "mirror", 13, colour=RANK[0])
    d.arrow(258, 108, 502, 108, RANK[0], 2)
    d.text(380, 96, "1. row h (C)")
    d.arrow(502, 134, 258, 134, RANK[1], 2)
    d.text(380, 152, "3. out, lse (C + H)")
    d.text(170, 205, "2. attends a and b", 13)
    d.text(590, 205, "2. attends d and e", 13)
    d.text(170, 232, "4. merges both results", 13)
    d.text(380, 285, "Each part attends its own edges; merging the partial results is exact.", 13)
    return d


def deep_halo() -> Drawing:
    d = Drawing(760, 290, "deep halo of depth 2: one exchange, then two layers; the first also computes rows of hop 1")
    labels = ("owned", "hop 1", "hop 2")
    levels = (("after the exchange", 3), ("after layer 1", 2), ("after layer 2", 1))
    widths = (160, 110, 110)
    for level, (name, hops) in enumerate(levels):
        y, x = 30 + level * 80, 190
        d.text(20, y + 26, name, anchor="start")
        for hop in range(hops):
            d.box(x, y, widths[hop] - 6, 40, TINT[hop > 0], RANK[hop > 0], dashed=hop > 0)
            d.text(x + widths[hop] / 2 - 3, y + 25, labels[hop])
            x += widths[hop]
        if hops > 1:
            right = 190 + sum(widths[: hops - 1]) - 6
            d.arrow(190 + 40, y + 43, 190 + 40, y + 77, INK, 2)
            d.arrow(190 + sum(widths[:hops]) - 40, y + 43, right - 30, y + 77, INK, 2)
    d.text(590, 55, "h of two hops has arrived", 13, "start")
    d.text(480, 135, "hop 1 is computed here as well", 13, "start")
    d.text(370, 215, "the next exchange follows here", 13, "start")
    d.text(380, 278, "Deeper halos exchange less often; more rows and edges are computed again.", 13)
    return d


FIGURES = (overview, edge_cut, vertex_cut, halo, gather, heads, mesh, ring, mirror, deep_halo)


def draw(folder: Path) -> None:
    for figure in FIGURES:
        (folder / f"{figure.__name__}.svg").write_text(figure().svg())


if __name__ == "__main__":
    draw(Path(__file__).parent)
