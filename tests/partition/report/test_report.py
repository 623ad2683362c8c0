"""The page of a report: what it shows, how it is written, and what is refused."""

import json
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page

from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.report.pages import percent, seconds, short
from dgl_gt.partition.report.write import count_shards, page, write_report


@pytest.fixture(scope="module")
def made_shards(awkward_graph, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "out"
    partition(awkward_graph(0), 3, out, cut="auto")
    return out


@pytest.fixture
def shards(made_shards, tmp_path):
    """Shards that a test may damage."""
    return shutil.copytree(made_shards, tmp_path / "out")


def test_the_page_needs_nothing_else_and_shows_the_figures(shards, tmp_path):
    found = write_report(shards, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert not re.search(r"https?:|//|<script|<link|<img|@import|url\(|src=|href=|javascript", text, re.IGNORECASE)
    random, parts, replication, cuts, settings = Page(text).tables
    assert len(parts) == 1 + found["parts"] and len(replication) == 1 + len(found["replication"]["by_degree"])
    copies = "halo" if found["cut"] == "edge" else "mirrors"
    for cells, part in zip(parts[1:], found["per_part"]):
        assert cells[1:4] == [f"{part[key]:,}" for key in ("owned", copies, "edges")]
    for cells, each in zip(replication[1:], found["replication"]["by_degree"]):
        assert cells[1:4] == [f"{each['nodes']:,}", f"{each['mean']:.2f}", f"{each['max']}"]
    volume = random[1]
    assert volume[0].startswith("Volume"), "what costs comes first"
    share = percent(found["of_random"]["volume"])
    assert volume[1:] == [f"{found['quality']['volume']:,}", f"{found['random']['volume']:,}", share]
    steps = [seconds(each["predicted_seconds"]) for each in found["choice"]["candidates"]]
    assert cuts[1][1:] == steps and "chosen" in "".join(cuts[0])
    assert settings[1:] == [[name, str(value)] for name, value in found["choice"]["model"].items()]
    rows = found["traffic"]["rows"]
    for i, j in np.argwhere(rows):
        assert f"<title>part {i} from part {j}: {rows[i][j]:,}</title>" in text


def test_the_numbers_beside_it(shards, tmp_path):
    found = write_report(str(shards), str(tmp_path / "new" / "report.html"))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.html", "report.json"]
    assert (
        json.loads((tmp_path / "new" / "report.json").read_text())
        == found
        == count_shards(shards, read_manifest(shards))
    )


def test_same_shards_same_bytes(shards, tmp_path):
    for name in "ab":
        write_report(shards, tmp_path / f"{name}.html")
    for suffix in ("html", "json"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_all_text_of_a_crafted_manifest_is_escaped(awkward_graph, tmp_path):
    """The text in places of numbers is escaped, too, though the manifest's check already refuses it."""
    partition(awkward_graph(0), 2, tmp_path / "out", cut="auto")
    numbers, marked = count_shards(tmp_path / "out", read_manifest(tmp_path / "out")), "<script>&\0\ud800'\""

    def crafted(value, key=""):
        if isinstance(value, dict):
            return {name: crafted(each, name) for name, each in value.items()}
        return marked if isinstance(value, str) and key != "cut" else value

    numbers = crafted(numbers) | {"seed": marked, "versions": {marked: marked}}
    numbers["choice"] |= {"model": dict.fromkeys(("layers", "hidden", "heads"), marked)}
    text = page(numbers)
    text.encode()
    assert "<script" not in text and "\0" not in text
    assert text.count("&lt;script&gt;&amp;\ufffd\ufffd&#39;&#34;") == 11
    Page(text)


@pytest.mark.parametrize(
    ("model", "words", "tables"),
    [
        (None, "layers 2, hidden 64, heads 8, features 128, classes 40.", 5),
        ({"model": "module:function"}, "model module:function.", 4),
    ],
    ids=["default", "of a function"],
)
def test_the_model_of_the_prediction_is_named_briefly(shards, model, words, tables):
    """Its size is in a sentence, and its other settings are in a table."""
    numbers = count_shards(shards, read_manifest(shards))
    numbers["choice"]["model"] = model or numbers["choice"]["model"]
    found = Page(page(numbers))
    assert f"this model: {words}" in found.words().replace("\N{NO-BREAK SPACE}", " ")
    assert len(found.tables) == tables


@pytest.mark.parametrize(("depth", "often"), [(1, "per layer"), (2, "every 2 layers")])
def test_how_often_the_volume_travels(awkward_graph, tmp_path, depth, often):
    partition(awkward_graph(0), 2, tmp_path / "out", halo_depth=depth)
    table = Page(page(count_shards(tmp_path / "out", read_manifest(tmp_path / "out")))).tables[0]
    assert table[1][0] == f"Volumerows that parts send each other in one exchange; one {often} and direction"


def test_options_do_not_break_at_their_hyphens(shards):
    code = re.search(r"^code \{(.*)\}$", page(count_shards(shards, read_manifest(shards))), re.MULTILINE)
    assert "white-space: nowrap" in code[1]


def test_an_even_cut_is_paler_than_a_random_one(awkward_graph, tmp_path):
    graph = awkward_graph(0)
    owner = np.arange(graph.num_nodes) // 30
    partition(from_edges(*np.array([[0, 1, 31], [1, 30, 32]]), 60), 2, tmp_path / "out", owner=owner)
    numbers = count_shards(tmp_path / "out", read_manifest(tmp_path / "out")) | {
        "random": {**count_shards(tmp_path / "out", read_manifest(tmp_path / "out"))["random"], "volume": 20}
    }
    text = page(numbers)
    assert 'fill-opacity="0.10"' in text and "0<span></span>10\N{NO-BREAK SPACE}rows" in text


def test_names_are_escaped(awkward_graph, tmp_path):
    name = "<script>alert('$x$')</script> & \"$\\frac{\"" + "x" * 80
    partition(replace(awkward_graph(0), name=name), 2, tmp_path / "out")
    write_report(tmp_path / "out", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text and text.count("&lt;script&gt;alert(&#39;$x$&#39;)&lt;/script&gt; &amp; &#34;") == 2
    Page(text)


@pytest.mark.parametrize("parts, lines", [(1, 0), (2, 2), (17, 17), (130, 44)])
def test_the_heat_map_of_few_and_many_parts(awkward_graph, tmp_path, parts, lines):
    graph = awkward_graph(0, nodes=140, edges=600)
    partition(graph, parts, tmp_path / "out", owner=np.arange(graph.num_nodes) % parts)
    rows = np.zeros((132, 132), int)
    numbers = write_report(tmp_path / "out", tmp_path / "report.html")
    rows[:parts, :parts] = numbers["traffic"]["rows"]
    if lines < parts:
        rows = rows.reshape(44, 3, 44, 3).sum(axis=(1, 3))
    random_pair = numbers["random"]["volume"] / max(parts * (parts - 1), 1) * (9 if lines < parts else 1)
    darkest = max(rows.max(), round(random_pair))
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    shades = [attributes["fill-opacity"] for tag, attributes in page.tags if "fill-opacity" in attributes]
    assert shades == [f"{max(number / darkest, 0.05):.2f}" for number in rows[rows > 0]]
    assert ("3 by 3 parts" in text) == (1 < lines < parts)
    assert len(page.tables[1]) == parts + 1
    if parts == 1:
        assert "nothing is sent" in text
    else:
        numbers = re.search(r'<g class="inside[^"]*">(.*)</g>', text)[1].count("<text")
        assert numbers == (parts * (parts - 1) if parts <= 16 else 0)


def test_words_of_judgement(shards):
    numbers = count_shards(shards, read_manifest(shards))

    def lead(share, parts=4, largest=1.5, balance=1.0):
        quality = {**numbers["quality"], "max_copies_factor": largest, "edge_balance": balance}
        of_random = {**numbers["of_random"], "volume": share}
        text = page({**numbers, "parts": parts, "quality": quality, "of_random": of_random})
        return " ".join(re.sub(r"<.*?>", "", re.search(r'<p class="lead">(.*?)</p>', text, re.DOTALL)[1]).split())

    assert lead(0.1234) == (
        "This cut sends 12.3 % of the rows that a random cut sends. Its largest part holds 38 % of the nodes; an even "
        "share is 25 %. The edges, which are the work, are spread evenly."
    )
    assert "sends as many rows as a random cut: it found no communities that would save some." in lead(1.0)
    assert "1.30 times as many rows as a random cut: it is a bad cut." in lead(1.3)
    assert lead(None).startswith("No row is sent between parts, and a random cut would send none either.")
    assert "holds 80 % of the nodes (an even share is 25 %), so cutting the graph saves little memory. The" in lead(
        0.5, largest=3.2
    )
    assert lead(0.5, balance=1.4).endswith(
        "The busiest part has 1.40 times its share of the edges, so the other parts wait for it."
    )
    assert lead(0.5, balance=2.0).endswith(
        "2.00 times its share of the edges, so the other parts are idle much of the time."
    )
    assert lead(None, parts=1) == (
        "There is one part, which holds the whole graph: nothing is sent, and nothing is held twice."
    )


@pytest.mark.parametrize("cut, other", [("edge", "vertex"), ("vertex", "edge")])
def test_how_to_see_both_cuts(awkward_graph, tmp_path, cut, other):
    partition(awkward_graph(0), 2, tmp_path / "out", cut=cut)
    text = " ".join(page(count_shards(tmp_path / "out", read_manifest(tmp_path / "out"))).split())
    assert f"No {other} cut was made. To compare both, partition with <code>--cut auto</code>" in text


def test_numbers_for_people():
    shares = (0, 0.0001, 0.0004, 0.0005, 0.0567, 0.125, 0.1996, 0.3149, 1, 12.5)
    texts = "0, less than 0.1, less than 0.1, 0.1, 5.7, 12.5, 20, 31, 100, 1,250"
    assert [percent(share).replace("\N{NO-BREAK SPACE}%", "") for share in shares] == texts.split(", ")
    counts = (0, 9_999, 10_000, 999_999, 1_000_000, 9_940_000, 25_000_000, 3_000_000_000)
    assert [short(count) for count in counts] == ["0", "9,999", "10k", "999k", "1.0M", "9.9M", "25M", "3.0G"]
    assert [seconds(number) for number in (0.016589, 12.345, 1234.5)] == ["0.0166", "12.3", "1,234"]


# ---- what can go wrong -----------------------------------------------------------------------------------------------


def test_what_exists_is_kept_without_force(shards, tmp_path):
    for name in ("report.html", "report.json"):
        (tmp_path / name).write_text("precious")
        with pytest.raises(InputError, match=f"{name} exists; choose another file, or replace it with force .--force."):
            write_report(shards, tmp_path / "report.html")
        assert (tmp_path / name).read_text() == "precious"
        (tmp_path / name).unlink()
    (tmp_path / "report.html").write_text("old")
    write_report(shards, tmp_path / "report.html", force=True)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_bad_places_are_refused(shards, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for out, message in [
        (tmp_path / "report.pdf", "does not end in .html"),
        (tmp_path / "report", "does not end in .html"),
        (tmp_path / "file" / "report.html", "not a writable directory"),
        (tmp_path / "folder.html", "is a directory; choose a file"),
        (
            shards / ".." / shards.name / "manifest.html",
            "manifest.json describes the shards, and a report must not replace it",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            write_report(shards, out, force=True)
    assert read_manifest(shards)["parts"] == 3


def test_shards_that_are_damaged_or_absent(shards, tmp_path):
    path = shards / "part1" / "structure.safetensors"
    bad = bytearray(path.read_bytes())
    bad[-1] ^= 1
    path.write_bytes(bad)
    with pytest.raises(InputError, match="structure.safetensors is damaged"):
        write_report(shards, tmp_path / "report.html")
    with pytest.raises(InputError, match="holds no shards"):
        write_report(tmp_path / "nowhere", tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_write_that_fails_leaves_nothing(shards, tmp_path):
    write_report(shards, tmp_path / "report.html")
    sizes = {suffix: (tmp_path / f"report{suffix}").stat().st_size for suffix in (".html", ".json")}
    most = max(sizes, key=sizes.get)
    for suffix in sizes:
        (tmp_path / f"report{suffix}").unlink()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(InputError, match=f"cannot write .*report{most}: File too large; choose another place"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[most] - 1, limit[1]))
        try:
            write_report(shards, tmp_path / "report.html")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_a_link_leads_to_is_replaced(shards, tmp_path):
    (tmp_path / "report.html").symlink_to(tmp_path / "real.html")
    write_report(shards, tmp_path / "report.html")
    assert (tmp_path / "report.html").is_symlink() and (tmp_path / "real.html").read_text().startswith("<!")


def test_what_a_killed_report_left_is_removed_by_the_next(shards, tmp_path):
    code = (
        "from dgl_gt.partition.system.output_checks import temporary_name; print(temporary_name('report.json', 'file'))"
    )
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / name).write_bytes(b"half")
    write_report(shards, tmp_path / "new" / "report.html")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.html", "report.json"]
