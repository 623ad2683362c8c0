"""Runs within a memory bound: the method that they take, and the bounds and disks that they refuse."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from memory_cases import SAMPLE, Said, bound, npz, run, sizes_of

from dgl_gt.cli.main import main
from dgl_gt.partition import partition, pipeline, read_manifest, verify
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.memory_bound import METHOD_NAMES, METHODS, estimate_needs

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize("cut", [None, "vertex", "auto"])
def test_a_bound_decides_the_method(nothing_is_small, cut):
    npz(edges=20_000)
    needs = {method: bound("graph.npz", method, cut=cut) for method in METHODS}
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


@pytest.mark.parametrize("options", [{"cut": "edge"}, {"halo_depth": 2}, {"max_imbalance": 1.2}])
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


def test_a_graph_in_memory_is_expanded(awkward_graph, nothing_is_small):
    graph = awkward_graph(1)
    need = estimate_needs(sizes_of(graph, 3), "expansion").memory_bytes
    manifest = partition(graph, 3, "out", memory=need)
    assert (manifest["method"], manifest["cut"]) == ("expansion", "vertex")
    with pytest.raises(InputError, match="neighbour expansion"):
        partition(graph, 3, "small", memory=need - 1)


@pytest.mark.parametrize("addition", ["self_loops", "undirected"])
def test_additions_are_made_by_expansion_but_not_to_a_stream(nothing_is_small, addition):
    index = np.array([np.arange(299), np.arange(1, 300)])
    npz(edge_index=np.tile(index, 40))
    manifest = partition(
        "graph.npz", 2, "out", memory=bound("graph.npz", "expansion", **{addition: True}), **{addition: True}
    )
    assert manifest["method"] == "expansion"
    assert manifest["edges"] == 299 * 40 + {"self_loops": 300, "undirected": 299 * 40}[addition]
    with pytest.raises(InputError, match=rf"{addition} \(--.*\) cannot be added to a graph that is streamed.*--memory"):
        partition("graph.npz", 2, "small", memory=bound("graph.npz", "streaming"), **{addition: True})
    assert not os.path.exists("small")


@pytest.mark.parametrize("options", [[], ["--assignment-only"]])
def test_a_vertex_cut_is_advised_where_it_helps(options, capfd):
    npz(nodes=20, edges=30)
    asked = ["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", "1MiB", "--cut", "edge"]
    assert main([*asked, *options]) == 2
    assert ("vertex cut" in capfd.readouterr().err) == (not options)


def test_options_are_named_as_they_are_typed(capfd):
    npz(nodes=20, edges=30)
    added = ["--undirected", "--self-loops", "--encode", "degree"]
    assert main(["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", "1MiB", *added]) == 2
    assert "--undirected, --self-loops, --encode cannot be added" in capfd.readouterr().err


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
    with pytest.raises(InputError, match=f"parts is {parts};|into {parts} parts"):
        partition("graph.npz", parts, "out", memory=1 << 40)


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
    assert "wrote text (cut by streaming) in" in capsys.readouterr().out


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


@pytest.mark.parametrize("method", ["expansion", "streaming"])
def test_rank_memory_with_a_bound_on_memory(nothing_is_small, method):
    npz(edges=20_000)
    memory = bound("graph.npz", method)
    with pytest.raises(InputError, match="the vertex cut needs about"):
        partition("graph.npz", 2, "out", memory=memory, rank_memory=1000)
    assert os.listdir() == ["graph.npz"]
    assert partition("graph.npz", 2, "out", memory=memory, rank_memory=1 << 40)["method"] == method


def test_disks_without_room_are_refused_before_the_work(monkeypatch):
    npz()
    disk = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=1000))
    with pytest.raises(InputError, match="out needs .* of disk"):
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
