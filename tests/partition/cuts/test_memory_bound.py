"""Memory bounds: the estimates, the method that is chosen, and the runs that follow."""

import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from partition import default_costs, load_graph, partition, pipeline, read_manifest, verify
from partition.cli import main
from partition.cuts import memory_bound
from partition.cuts.edge_cut import EdgeCut
from partition.cuts.memory_bound import (
    METHOD_NAMES,
    METHODS,
    SourceSizes,
    choose_method,
    estimate_needs,
    measure_source,
)
from partition.cuts.vertex_cut import make_vertex_cut
from partition.errors import InputError
from partition.graph import from_edges
from partition.shards.cut_selection import check_memory, choose_cut
from partition.shards.layout import Layout
from partition.sources import numpy_file
from partition.sources.load import open_source
from partition.system import mapped_arrays
from partition.system.units import parse_size, size

ROOT = Path(__file__).parents[3]
SAMPLE = "sample:communities?nodes=400&seed=1"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- amounts of memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("123456", 123456),
        ("5b", 5),
        ("5 B", 5),
        ("2k", 2048),
        ("2KiB", 2048),
        ("2kb", 2000),
        ("500MB", 500_000_000),
        ("500 MB", 500_000_000),
        ("500M", 500 << 20),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("4G", 4 << 30),
        ("  4 GB ", 4_000_000_000),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
        ("1e3", 1000),
        ("1e3MB", 1_000_000_000),
        ("2t", 2 << 40),
        ("2TiB", 2 << 40),
        ("2TB", 2_000_000_000_000),
        (str(2**52 + 1), 2**52 + 1),
    ],
)
def test_amounts_of_memory(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "-1", "-4GiB", "0", "0GiB", "0.4", "nan", "inf", "infGiB", "1e400", "4PiB", "4XB", "4bb", "4ib"]
    + ["4 G B", "4GiBs", "four", "4,5GB", "0x10", "1GiB 2MiB", "9e18k", "9223372036854775808", "4/2", "4GiB\n5"],
)
def test_no_amounts_of_memory(text):
    with pytest.raises(InputError, match="is not an amount of memory; write it as 4GiB, 500MB or a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize("count", [1, 1023, 1024, 1536, 5 << 20, 7 << 30, 3 << 40])
def test_what_is_printed_can_be_given(count):
    assert parse_size(size(count)) == pytest.approx(count, rel=0.05)


# ---- estimates ---------------------------------------------------------------------------------------------------


def sizes(**changes):
    figures = dict(nodes=10**6, edges=10**7, parts=8, undirected_edges=5 * 10**6, node_bytes=400, edge_bytes=16)
    return SourceSizes(**{**figures, "loaded_bytes": 0, "is_graph": False, **changes})


GROWING = ("nodes", "edges", "undirected_edges", "node_bytes", "edge_bytes", "loaded_bytes")


@pytest.mark.parametrize("method", METHODS)
def test_estimates_grow_with_all_that_costs(method):
    for start in (sizes(), sizes(nodes=100, edges=50, undirected_edges=25), sizes(nodes=10**9, edges=10**10)):
        before = estimate_needs(start, method)
        assert min(before.memory_bytes, before.disk_bytes) > 0 and before.seconds > 0
        for key in GROWING:
            after = estimate_needs(replace(start, **{key: 3 * getattr(start, key) + 10**7}), method)
            assert after.memory_bytes >= before.memory_bytes and after.disk_bytes >= before.disk_bytes
            assert after.seconds >= before.seconds
        for pair in (dict(nodes=2 * 10**9, edges=2 * 10**10), dict(loaded_bytes=1 << 40)):
            assert estimate_needs(replace(start, **pair), method).memory_bytes > before.memory_bytes


def test_large_graphs_need_most_by_metis_and_least_by_streaming():
    for start in (sizes(), sizes(nodes=10**8, edges=10**9, undirected_edges=5 * 10**8)):
        metis, expansion, streaming = (estimate_needs(start, method).memory_bytes for method in METHODS)
        assert metis > expansion > streaming


def npz(name="graph.npz", nodes=300, edges=2000, seed=0, save=np.savez, **changes):
    rng = np.random.default_rng(seed)
    arrays = {"edge_index": rng.integers(0, nodes, (2, edges)), "num_nodes": nodes, **changes}
    save(name, **{key: value for key, value in arrays.items() if value is not None})
    return name


def once(pairs):
    """Return undirected edges, each from the larger to the smaller id."""
    return np.stack([pairs.max(axis=0), pairs.min(axis=0)])


def test_sizes_of_a_source(monkeypatch):
    index = np.array([[3, 2, 2, 5], [1, 2, 0, 5]])
    columns = {"x": np.ones((9, 3), np.float32), "train_mask": np.arange(9) < 4, "edge_data_w": np.ones((4, 2))}
    npz(edge_index=index, num_nodes=9, directed=False, **columns)
    found = measure_source(open_source("graph.npz"), 2)
    assert (found.nodes, found.edges, found.parts, found.is_graph) == (9, 6, 2, False)
    assert found.undirected_edges in range(2, 5)
    assert (found.node_bytes, found.edge_bytes) == (13, 16)
    assert found.loaded_bytes == index.nbytes + 9 * 13 + 4 * 16
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(numpy_file, "SMALLEST_BYTES", 1)
    assert measure_source(open_source("graph.npz"), 2) == replace(found, loaded_bytes=0)


def test_sizes_of_a_graph_in_memory(awkward_graph):
    graph = awkward_graph(0)
    found = measure_source(graph, 3)
    assert found.is_graph and (found.nodes, found.edges, found.parts) == (60, 300, 3)
    assert (found.node_bytes, found.edge_bytes) == (5 * 4 + 8 + 3, 4 * 8)
    arrays = (graph.indptr, graph.indices, graph.edge_ids, *graph.node_data.values(), *graph.edge_data.values())
    assert found.loaded_bytes == sum(array.nbytes for array in arrays)
    assert measure_source(from_edges([], [], 4), 1).edges == 0


def test_what_metis_sees_is_estimated_from_a_sample():
    rng = np.random.default_rng(0)
    pairs = once(rng.integers(0, 10**6, (2, 30_000)))
    npz("both.npz", nodes=10**6, edge_index=np.concatenate([pairs, pairs[::-1]], axis=1))
    npz("one.npz", nodes=10**6, edge_index=pairs)
    npz("half.npz", nodes=10**6, edge_index=np.concatenate([pairs, pairs[::-1, ::2]], axis=1))
    assert measure_source(open_source("both.npz"), 2).undirected_edges == pytest.approx(30_000, rel=0.02)
    assert measure_source(open_source("one.npz"), 2).undirected_edges == pytest.approx(30_000, rel=0.02)
    assert measure_source(open_source("half.npz"), 2).undirected_edges == pytest.approx(30_000, rel=0.1)


@pytest.mark.parametrize("name", ["cora", "email_enron", "tolokers"])
def test_sizes_of_real_graphs(real_graph, name):
    source, graph = open_source(real_graph(name)), load_graph(real_graph(name))
    found, loaded = measure_source(source, 2), measure_source(graph, 2)
    assert (found.nodes, found.edges) == (loaded.nodes, loaded.edges) == (graph.num_nodes, graph.num_edges)
    assert found.node_bytes == loaded.node_bytes == sum(value[:1].nbytes for value in graph.node_data.values())
    assert loaded.undirected_edges == pytest.approx(found.undirected_edges, rel=0.05)


# ---- the choice --------------------------------------------------------------------------------------------------


def test_the_first_method_within_the_bound_is_chosen():
    start = sizes()
    needs = {method: estimate_needs(start, method).memory_bytes for method in METHODS}
    for cut in (None, "vertex", "auto"):
        assert choose_method(start, None, cut) == "metis"
        assert choose_method(start, 1 << 50, cut) == "metis"
        for method, lower in zip(METHODS, (*METHODS[1:], None)):
            assert choose_method(start, needs[method], cut) == method
            if lower:
                assert choose_method(start, needs[method] - 1, cut) == lower
        with pytest.raises(InputError, match="too small: the least that works is about .* \\(streaming\\)"):
            choose_method(start, needs["streaming"] - 1, cut)


def test_an_edge_cut_needs_metis():
    start = sizes()
    need = estimate_needs(start, "metis").memory_bytes
    assert choose_method(start, need, "edge") == "metis" and choose_method(start, None, "edge") == "metis"
    with pytest.raises(InputError) as caught:
        choose_method(start, need - 1, "edge")
    message = str(caught.value)
    assert "(METIS)" in message and "vertex cut" in message and "\n" not in message
    for method in METHODS[1:]:
        assert (
            f"{METHOD_NAMES[method]} needs about {-(-estimate_needs(start, method).memory_bytes // 2**20)} MiB"
            in message
        )


def test_a_graph_in_memory_cannot_be_streamed():
    start = sizes(is_graph=True)
    need = estimate_needs(start, "expansion").memory_bytes
    assert choose_method(start, need, None) == "expansion"
    with pytest.raises(InputError, match="\\(neighbour expansion\\)"):
        choose_method(start, need - 1, None)


def test_streaming_is_not_offered_for_a_graph_in_memory():
    with pytest.raises(InputError) as caught:
        choose_method(sizes(is_graph=True), 1, "edge")
    assert "streaming" not in str(caught.value)


LEAST = re.compile(r"the least that works is about ([\d.]+ \w+) ")


@pytest.mark.parametrize("cut", [None, "edge", "vertex"])
@pytest.mark.parametrize("is_graph", [False, True])
def test_the_least_that_the_message_names_works(cut, is_graph):
    for nodes, edges in itertools.product((10**3, 12_345, 10**6, 10**8), (10**4, 54_321, 10**7, 3 * 10**9)):
        start = sizes(nodes=nodes, edges=edges, undirected_edges=edges // 2, is_graph=is_graph)
        with pytest.raises(InputError) as caught:
            choose_method(start, 1, cut)
        least = parse_size(LEAST.search(str(caught.value)).group(1))
        chosen = choose_method(start, least, cut)
        assert estimate_needs(start, chosen).memory_bytes <= least <= 1.06 * estimate_needs(start, chosen).memory_bytes


def test_the_least_that_a_real_message_names_works(capsys):
    npz()
    assert main(["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", "1MB"]) == 2
    least = LEAST.search(capsys.readouterr().err).group(1)
    assert main(["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", least]) == 0
    assert os.path.exists("out/manifest.json")


@pytest.mark.parametrize("cut", [None, "edge", "vertex"])
def test_more_parts_are_advised_where_they_help(cut):
    for start in (sizes(), sizes(node_bytes=0, edge_bytes=0), sizes(parts=1), sizes(parts=64)):
        with pytest.raises(InputError) as caught:
            choose_method(start, 1, cut)

        def least(parts, start=start):
            allowed = METHODS[:1] if cut == "edge" else METHODS
            return min(estimate_needs(replace(start, parts=parts), method).memory_bytes for method in allowed)

        helps = any(least(start.parts * more) < 0.95 * least(start.parts) for more in (2, 4, 16))
        assert helps or "make more parts" not in str(caught.value)


# ---- the pipeline ------------------------------------------------------------------------------------------------


class Said:
    """A progress callback that keeps the stages."""

    def __init__(self):
        self.stages = []

    def __call__(self, stage, *_):
        self.stages.append(stage)


def bound(source, method, parts=2, additions=None, **options):
    return estimate_needs(
        measure_source(open_source(source, **options), parts, **(additions or {})), method
    ).memory_bytes


@pytest.fixture
def nothing_is_small(monkeypatch):
    """Without the slice of a stream, methods need more memory in the same order on small graphs as on large ones."""
    monkeypatch.setattr(memory_bound, "_SLICE_BYTES", 0)


@pytest.mark.parametrize("cut", [None, "vertex", "auto"])
def test_a_bound_decides_the_method(nothing_is_small, cut):
    npz(edges=20_000)
    needs = {method: bound("graph.npz", method) for method in METHODS}
    assert needs["metis"] > needs["expansion"] > needs["streaming"]
    for method in METHODS:
        said = Said()
        manifest = partition("graph.npz", 2, method, cut=cut, memory=needs[method], progress=said)
        assert manifest["method"] == read_manifest(method)["method"] == method
        assert any(METHOD_NAMES[method] in stage and ("within" in stage or "exceeds" in stage) for stage in said.stages)
        assert manifest["cut"] == "vertex" or (method == "metis" and cut != "vertex")
        if method != "metis":
            assert not any(stage.startswith("METIS,") for stage in said.stages)
            assert any("METIS needs about" in stage and "vertex cut by" in stage for stage in said.stages)
        assert (manifest["choice"] is not None) == (cut == "auto")
        if cut == "auto":
            assert len(manifest["choice"]["candidates"]) == (2 if method == "metis" else 1)
            assert manifest["choice"]["cut"] == manifest["cut"] and manifest["choice"]["reason"]
        verify(method, manifest)
    with pytest.raises(InputError, match="a memory bound of .* is too small"):
        partition("graph.npz", 2, "out", cut=cut, memory=needs["streaming"] - 1)
    assert not os.path.exists("out")


def test_without_a_bound_nothing_changes():
    assert partition(SAMPLE, 2, "out", memory=None, rank_memory=None)["method"] == "metis"
    assert partition(SAMPLE, 2, "bound", memory=1 << 40)["files"] == read_manifest("out")["files"]


@pytest.mark.parametrize(
    "options", [{"cut": "edge"}, {"halo_depth": 2}, {"max_imbalance": 1.2}, {"target_weights": [1, 2]}]
)
def test_edge_cuts_with_too_little_memory_are_refused(options):
    npz(edges=20_000)
    need = bound("graph.npz", "metis")
    with pytest.raises(
        InputError, match="\\(METIS\\); raise memory .*, or make a vertex cut: neighbour expansion needs"
    ):
        partition("graph.npz", 2, "out", memory=need - 1, **options)
    assert os.listdir() == ["graph.npz"]


@pytest.mark.parametrize("memory", [0, -5, "4GiB", 1.5])
@pytest.mark.parametrize("name", ["memory", "rank_memory"])
def test_bounds_of_wrong_kinds(name, memory):
    npz(nodes=20, edges=30)
    with pytest.raises(InputError, match=f"^{name} is {memory!r}; it must be "):
        partition("graph.npz", 1, "out", **{name: memory})


def test_a_graph_in_memory_is_expanded(awkward_graph):
    graph = awkward_graph(1)
    need = estimate_needs(measure_source(graph, 3), "expansion").memory_bytes
    manifest = partition(graph, 3, "out", memory=need)
    assert (manifest["method"], manifest["cut"]) == ("expansion", "vertex")
    with pytest.raises(InputError, match="neighbour expansion"):
        partition(graph, 3, "small", memory=need - 1)


@pytest.mark.parametrize("addition", ["self_loops", "undirected"])
def test_additions_are_made_by_expansion_but_not_to_a_stream(nothing_is_small, addition):
    index = np.array([np.arange(299), np.arange(1, 300)])
    npz(edge_index=np.tile(index, 40))
    manifest = partition(
        "graph.npz", 2, "out", memory=bound("graph.npz", "expansion", additions={addition: True}), **{addition: True}
    )
    assert manifest["method"] == "expansion"
    assert manifest["edges"] == 299 * 40 + {"self_loops": 300, "undirected": 299}[addition]
    with pytest.raises(InputError, match=f"{addition} cannot be added to a graph that is streamed.*--memory"):
        partition("graph.npz", 2, "small", memory=bound("graph.npz", "streaming"), **{addition: True})
    assert not os.path.exists("small")


@pytest.mark.parametrize(
    ("bad", "message"), [(-50, "-50 is outside"), (2**40, str(2**40)), (2**63 - 1, str(2**63 - 1))]
)
def test_impossible_ids_with_a_bound(bad, message):
    """``num_nodes`` is stated, or an id so large is refused before anything is measured."""
    npz(edge_index=np.array([[0, 2, 4], [1, bad, 3]]), num_nodes=5)
    with pytest.raises(InputError, match=message):
        partition("graph.npz", 2, "out", memory=1 << 40)


@pytest.mark.parametrize("parts", [0, 301])
def test_impossible_numbers_of_parts_with_a_bound(parts):
    npz()
    with pytest.raises(InputError, match="choose 1 to 300 parts"):
        partition("graph.npz", parts, "out", memory=1 << 40)


# ---- the command line --------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    """Run a command with ``--json``; return its exit code, its JSON or None, and stderr."""
    try:
        code = main([*map(str, arguments), "--json"])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out) if out else None, err


def test_memory_on_the_command_line(capsys, nothing_is_small):
    npz(edges=20_000)
    for method in METHODS:
        amount = bound("graph.npz", method)
        code, made, err = run(capsys, "partition", "graph.npz", "--parts", 2, "--out", method, "--memory", amount)
        assert code == 0 and made["method"] == method and made["cut"] == ("edge" if method == "metis" else "vertex")
        assert f"{METHOD_NAMES[method]}" in err
        code, inspected, _ = run(capsys, "inspect", method)
        assert code == 0 and inspected["method"] == method
    main(["partition", "graph.npz", "--parts", "2", "--out", "text", "--memory", str(bound("graph.npz", "streaming"))])
    assert "wrote text by streaming in" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["much", "-4GiB", "0", "4 PB"])
@pytest.mark.parametrize("option", ["--memory", "--rank-memory"])
def test_amounts_refused_on_the_command_line(capsys, option, text):
    code, made, err = run(capsys, "partition", SAMPLE, "--parts", 2, "--out", "out", f"{option}={text}")
    assert (code, made) == (2, None) and f"argument {option}: {text!r} is not an amount of memory" in err
    assert os.listdir() == []


def test_too_little_memory_on_the_command_line(capsys):
    npz()
    code, made, err = run(capsys, "partition", "graph.npz", "--parts", 2, "--out", "out", "--memory", "1MB")
    assert (code, made) == (2, None) and "a memory bound of" in err.splitlines()[-1]
    assert os.listdir() == ["graph.npz"]


@pytest.mark.parametrize("source", [SAMPLE, "graph.npz"])
def test_dry_run(capsys, source):
    npz()
    before = os.listdir()
    code, made, _ = run(capsys, "partition", source, "--parts", 3, "--dry-run")
    assert code == 0 and set(made) == {"nodes", "edges", "parts", "method", "estimates", "left_out", "disk_free_bytes"}
    manifest = partition(source, 3, "out")
    assert (made["nodes"], made["edges"], made["parts"]) == (manifest["nodes"], manifest["edges"], 3)
    assert made["method"] == "metis" and set(made["estimates"]) <= set(METHODS)
    for each in made["estimates"].values():
        assert set(each) == {"memory_bytes", "disk_bytes", "seconds"} and min(each.values()) > 0
    assert sorted(os.listdir()) == sorted([*before, "out"])
    assert main(["partition", source, "--parts", "3", "--dry-run", "--out", "elsewhere"]) == 0
    text = capsys.readouterr().out
    assert "METIS (would be used)" in text and "nothing is written" in text and "peak memory" in text
    assert not os.path.exists("elsewhere")


def test_dry_run_agrees_with_the_run(capsys, nothing_is_small):
    npz(edges=20_000)
    for method in METHODS:
        asked = ["partition", "graph.npz", "--parts", 2, "--memory", bound("graph.npz", method)]
        code, planned, _ = run(capsys, *asked, "--dry-run")
        assert code == 0 and planned["method"] == method
        code, made, _ = run(capsys, *asked, "--out", method)
        assert code == 0 and made["method"] == planned["method"]


def test_dry_run_does_not_offer_to_stream_what_is_in_memory(capsys):
    code, made, _ = run(capsys, "partition", SAMPLE, "--parts", 2, "--dry-run")
    assert code == 0 and "streaming" not in made["estimates"]


@pytest.mark.parametrize("options", [["--halo-depth", "2"], ["--max-imbalance", "1.2"], ["--target-weights", "1,2"]])
def test_dry_run_chooses_none_where_the_run_refuses(capsys, options):
    npz(edges=20_000)
    asked = ["partition", "graph.npz", "--parts", 2, "--memory", bound("graph.npz", "expansion"), *options]
    assert run(capsys, *asked, "--out", "out")[0] == 2
    code, planned, _ = run(capsys, *asked, "--dry-run")
    assert code == 0 and planned["method"] is None and set(planned["estimates"]) == set(METHODS)


@pytest.mark.parametrize("parts", [0, -1, 301])
def test_dry_run_of_impossible_numbers_of_parts(capsys, parts):
    npz()
    code, made, err = run(capsys, "partition", "graph.npz", "--parts", parts, "--dry-run")
    assert (code, made) == (2, None) and "parts" in err


def test_dry_run_counts_what_is_to_be_added(capsys):
    index = np.array([np.arange(299), np.arange(1, 300)])
    npz(edge_index=np.tile(index, 400))
    asked = ["partition", "graph.npz", "--parts", 2]
    _, plain, _ = run(capsys, *asked, "--dry-run")
    added = ["--random-features", "5000", "--self-loops"]
    code, planned, _ = run(capsys, *asked, *added, "--dry-run")
    assert code == 0
    assert planned["estimates"]["metis"]["disk_bytes"] > plain["estimates"]["metis"]["disk_bytes"] + 4 * 5000 * 300


def test_out_is_needed_but_for_a_dry_run(capsys):
    code, _, err = run(capsys, "partition", SAMPLE, "--parts", 2)
    assert code == 2 and "--out is missing" in err and os.listdir() == []


def test_dry_run_of_a_bad_source(capsys):
    code, made, err = run(capsys, "partition", "nowhere.npz", "--parts", 2, "--dry-run")
    assert (code, made) == (2, None) and "nowhere.npz: no such file" in err


# ---- memory of a training rank -----------------------------------------------------------------------------------


def test_the_choice_is_among_those_that_fit(awkward_graph):
    graph = awkward_graph(0)
    shares, order = np.full(2, 0.5), np.arange(graph.num_nodes, dtype=np.int32)
    edge = Layout(graph, EdgeCut(order, np.array([0, 30, 60]), shares))
    layouts = [Layout(graph, make_vertex_cut(graph, 2, by_metis=False)), edge]
    seen = set()
    default = default_costs()
    slow = {cut: msgspec.structs.replace(default.of(cut), calls=1e6) for cut in ("edge", "vertex")}
    for costs in (default, *(msgspec.structs.replace(default, **{cut: each}) for cut, each in slow.items())):
        free = choose_cut(layouts, costs)
        needs = {each["cut"]: each["rank_memory_bytes"] for each in free["candidates"]}
        seconds = {each["cut"]: each["predicted_seconds"] for each in free["candidates"]}
        assert free["cut"] == min(seconds, key=seconds.get)
        (smaller, less), (larger, more) = sorted(needs.items(), key=lambda item: item[1])
        seen.add(free["cut"] == larger)
        assert less < more
        assert choose_cut(layouts, costs, more)["cut"] == free["cut"]
        for bound in (less, more - 1):
            tight = choose_cut(layouts, costs, bound)
            assert tight["cut"] == smaller
            assert f"the {larger} cut does not fit: its largest part needs about {size(more)}" in tight["reason"]
        assert choose_cut(layouts, costs, less - 1)["cut"] == smaller
    assert True in seen, "a bound overruled the prediction"
    for layout in layouts:
        figures = layout.figures
        need = needs[figures.cut]
        check_memory(figures, costs, need, is_only=True)
        check_memory(figures, costs, None, is_only=True)
        for is_only, found in ((True, f"the {figures.cut} cut does not fit"), (False, "no cut fits")):
            with pytest.raises(InputError, match=f"{found} .* cut needs about {re.escape(size(need))}"):
                check_memory(figures, costs, need - 1, is_only=is_only)


def test_rank_memory(capsys):
    npz(edges=3000, x=np.ones((300, 20), np.float32))
    candidates = partition("graph.npz", 2, "probe", cut="auto")["choice"]["candidates"]
    needs = {each["cut"]: each["rank_memory_bytes"] for each in candidates}
    smaller, less = min(needs.items(), key=lambda item: item[1])
    for cut, need in (("vertex", needs["vertex"]), ("auto", less)):
        asked = ["partition", "graph.npz", "--parts", 2, "--cut", cut]
        code, made, err = run(capsys, *asked, "--out", "out", "--rank-memory", need - 1)
        assert (code, made) == (2, None) and sorted(os.listdir()) == ["graph.npz", "probe"]
        named = smaller if cut == "auto" else cut
        message = err.splitlines()[-1]
        found = "no cut fits" if cut == "auto" else f"the {cut} cut does not fit"
        assert f"{found} ranks of" in message and f"the {named} cut needs about {size(need)}" in message
        assert ("--cut auto" in message) == (cut != "auto")
    code, made, _ = run(capsys, *asked, "--out", "out", "--rank-memory", less)
    assert code == 0 and made["cut"] == made["choice"]["cut"] == smaller


@pytest.mark.parametrize("method", ["expansion", "streaming"])
def test_rank_memory_with_a_bound_on_memory(nothing_is_small, method):
    npz(edges=20_000)
    memory = bound("graph.npz", method)
    with pytest.raises(InputError, match="the vertex cut needs about"):
        partition("graph.npz", 2, "out", memory=memory, rank_memory=1000)
    assert os.listdir() == ["graph.npz"]
    assert partition("graph.npz", 2, "out", memory=memory, rank_memory=1 << 40)["method"] == method


# ---- neighbour expansion without METIS ---------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 54])
@pytest.mark.parametrize("seed", [0, 1])
def test_expansion_alone_is_a_vertex_cut(awkward_graph, seed, parts):
    graph, said = awkward_graph(seed), Said()
    cut = make_vertex_cut(graph, parts, seed=seed, by_metis=False, progress=said)
    assert not any("METIS" in stage for stage in said.stages)
    assert sorted(cut.order.tolist()) == list(range(graph.num_nodes)) and cut.parts == parts
    assert cut.ptr[0] == 0 and cut.ptr[-1] == graph.num_nodes and (np.diff(cut.ptr) >= 0).all()
    edges_of = np.bincount(cut.edge_part, minlength=parts)
    assert len(edges_of) == parts and edges_of.max() <= np.ceil(1.05 * graph.num_edges / parts)
    assert cut.edge_part.min() >= 0
    master = np.repeat(np.arange(parts), np.diff(cut.ptr))[cut.new_ids()]
    held = {(node, part) for ends in (graph.indices, graph.destinations()) for node, part in zip(ends, cut.edge_part)}
    touched = {node for node, _ in held}
    assert all((node, master[node]) in held for node in touched), "a master holds edges of its node"
    again = make_vertex_cut(graph, parts, seed=seed, by_metis=False)
    assert (again.order == cut.order).all() and (again.edge_part == cut.edge_part).all()


def test_expansion_alone_of_graphs_with_hardly_an_edge():
    for pairs in ([], [(0, 1)], [(2, 2)]):
        src, dst = np.array(pairs, int).reshape(-1, 2).T
        cut = make_vertex_cut(from_edges(src, dst, 6), 3, by_metis=False)
        assert np.diff(cut.ptr).max() <= 3 and len(cut.edge_part) == len(pairs)


def test_expansion_alone_is_nearly_as_good(real_graph):
    graph, parts = load_graph(real_graph("email_enron")), 4
    figures = {}
    for by_metis in (True, False):
        cut = make_vertex_cut(graph, parts, by_metis=by_metis)
        keys = [ends * np.int64(parts) + cut.edge_part for ends in (graph.indices, graph.destinations())]
        copies = np.bincount(np.unique(np.concatenate(keys)) % parts, minlength=parts)
        figures[by_metis] = copies.max(), copies.sum()
    (largest, all_copies), (best_largest, best_all) = figures[False], figures[True]
    assert all_copies <= 1.05 * best_all and largest <= 1.8 * best_largest, "its first parts hold more copies"


def test_rows_of_expansion_alone_lie_in_its_order(real_graph):
    graph = load_graph(real_graph("amazon_computer"))
    cut = make_vertex_cut(graph, 2, by_metis=False)
    in_order, by_id = cut.new_ids().astype(int), np.empty(graph.num_nodes, int)
    for begin, end in zip(cut.ptr, cut.ptr[1:]):
        by_id[np.sort(cut.order[begin:end])] = np.arange(begin, end)
    src, dst = graph.indices, graph.destinations()
    inner = (in_order[src] < cut.ptr[1]) == (in_order[dst] < cut.ptr[1])
    near, near_by_id = ((np.abs(row[src] - row[dst]) < 1000)[inner].mean() for row in (in_order, by_id))
    assert near > 1.4 * near_by_id


# ---- estimates against runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS[1:])
def test_disk_of_streaming_and_of_expansion(monkeypatch, method):
    """The directory is fullest with the shards and a stream's edge files, which lie in it until the end."""
    monkeypatch.setattr(pipeline, "choose_method", lambda *_: method)
    monkeypatch.setattr(pipeline, "check_memory_bound", lambda *_: None)
    npz(nodes=2000, edges=60_000, x=np.ones((2000, 8), np.float32))
    fullest = []

    def look(*_):
        fullest.append(sum(path.stat().st_size for path in Path().glob(".out*/**/*") if path.is_file()))

    manifest = partition("graph.npz", 4, "out", memory=1, progress=look)
    shards = sum(each["bytes"] for each in manifest["files"].values())
    buckets = 12 * 60_000 if method == "streaming" else 0
    assert max(fullest) >= buckets + shards / 2
    disk = estimate_needs(measure_source(open_source("graph.npz"), 4), method).disk_bytes
    assert 0.8 < disk / (shards + buckets) < 1.25


FORCED = """
import sys
from partition import pipeline
from partition.cli import main
pipeline.choose_method = lambda *_: sys.argv[1]
pipeline.check_memory_bound = lambda *_: None
sys.exit(main(sys.argv[2:]))
"""


def test_estimates_against_runs():
    """Peak memory of whole processes; the graph is so small that the interpreter is half of the smallest peak."""
    nodes, edges, parts = 100_000, 1_000_000, 4
    rng = np.random.default_rng(0)
    src = rng.integers(0, nodes, edges)
    near, far = (src + rng.integers(1, 200, edges)) % nodes, (nodes * rng.random(edges) ** 3).astype(int)
    index = np.stack([src, np.where(rng.random(edges) < 0.8, near, far)])
    npz("big.npz", nodes, edge_index=index, x=rng.random((nodes, 64), dtype=np.float32))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ratios = {}
    for method in METHODS:
        asked = ["partition", "big.npz", "--parts", str(parts), "--out", method, "--memory", "1GiB", "--json"]
        command = [sys.executable, "-c", FORCED, method, *asked]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)
        assert made["method"] == method
        ratios[method] = made["peak_memory_bytes"] / bound("big.npz", method, parts)
    assert all(0.6 < ratio < 1.3 for ratio in ratios.values()), ratios


def test_a_bound_holds_for_text_that_is_streamed():
    """The peak is that of the whole process, as the kernel counts it; the text is read in several blocks."""
    ends = np.random.default_rng(0).integers(0, 50_000, (100_000, 2)).tolist()
    with gzip.open("g.csv.gz", "wt", compresslevel=1) as file:
        file.write("\n".join(f"{u},{v}" for u, v in ends * 15) + "\n")
    found = sizes(nodes=50_000, edges=1_500_000, parts=4, node_bytes=0, edge_bytes=0, loaded_bytes=12_000_000)
    bound_mib = -(-estimate_needs(found, "streaming").memory_bytes // (1 << 20))
    code = (
        "import sys; from partition import cli; from partition.system.memory import peak_memory_bytes\n"
        "code = cli.main(sys.argv[1:]); print(peak_memory_bytes(), file=sys.stderr); sys.exit(code)"
    )
    asked = [sys.executable, "-c", code, "partition", "g.csv.gz", "--parts", "4", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*asked, "--memory", f"{bound_mib}MiB"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) <= bound_mib << 20


def test_what_reading_took_counts():
    found = sizes(nodes=1000, edges=1000, undirected_edges=500)
    assert choose_method(found, 400 << 20, None) == choose_method(found, 400 << 20, None, 300 << 20) == "metis"
    with pytest.raises(InputError, match=r"too small: the least that works is about 400 MiB"):
        choose_method(found, 390 << 20, None, 320 << 20)


def test_a_number_without_a_unit_is_asked_about():
    with pytest.raises(InputError, match=r"a memory bound of 4 B is too small \(did you mean 4GiB\?\): the least"):
        choose_method(sizes(), 4, None)


def test_a_cut_whose_largest_part_is_too_large_to_write_is_refused(monkeypatch):
    monkeypatch.setattr(memory_bound, "_INTERPRETER_BYTES", 0)
    x = np.ones((2000, 64), np.float32)
    source = np.repeat([0], 4000), np.arange(4000) % 1999 + 1
    npz("hub.npz", nodes=2000, edge_index=np.stack(source), x=x)
    found = measure_source(open_source("hub.npz"), 40)
    bound = estimate_needs(found, "streaming").memory_bytes
    monkeypatch.setattr(memory_bound, "_SLICE_BYTES", 0)
    memory_bound.check_memory_bound(found, "streaming", bound, 2.0, 1.1)
    with pytest.raises(
        InputError,
        match="its largest part holds 90.00 times its share of the rows, and 1.10 times .* make more parts, or raise",
    ):
        memory_bound.check_memory_bound(found, "streaming", bound // 40, 90.0, 1.1)


def test_disks_without_room_are_refused_before_the_work(monkeypatch):
    npz()
    disk = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=1000))
    with pytest.raises(InputError, match="out needs .* of disk, and its disk has 1000 B left; free space, or choose"):
        partition("graph.npz", 2, "out")
    assert not Path("out").exists()


def test_a_bound_is_no_more_than_what_is_available(monkeypatch):
    monkeypatch.setattr(pipeline, "available_memory_bytes", lambda: 0)
    monkeypatch.setattr(pipeline, "resident_memory_bytes", lambda: 50 << 20)
    npz()
    said = Said()
    with pytest.raises(InputError, match="a memory bound of 50.0 MiB is too small: the least that works"):
        partition("graph.npz", 2, "out", memory=1 << 30, progress=said)
    assert "only 50.0 MiB of 1.0 GiB are available" in said.stages
