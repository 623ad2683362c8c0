"""Bytes and seconds, against counts made by sets, and the choice between cuts."""

import dataclasses
import json

import numpy as np
import pytest

from partition import load_graph, partition
from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.vertex_cut import make_vertex_cut
from partition.graph import from_edges
from partition.predict.model import Model
from partition.predict.step_time import Speeds, step_seconds
from partition.predict.traffic import exchange_traffic, step_bytes
from partition.shards.layout import Layout

MODEL = Model(layers=2, hidden=6, heads=3, itemsize=8)


def mesh(side=40):
    node = np.arange(side * side).reshape(side, side)
    ends = [(node[:, 1:], node[:, :-1]), (node[1:], node[:-1])]
    src, dst = (np.concatenate([pair[i].ravel() for pair in ends]) for i in (0, 1))
    return from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), side * side)


def test_bytes_of_an_edge_cut_are_its_halo_counted_by_sets(awkward_graph):
    graph = awkward_graph(4)
    cut = make_edge_cut(graph, 3)
    owner = np.empty(graph.num_nodes, int)
    for part in range(3):
        owner[cut.order[cut.ptr[part] : cut.ptr[part + 1]]] = part
    src, dst = graph.indices, graph.destinations()
    pulled = {(int(s), int(owner[d])) for s, d in zip(src, dst) if owner[s] != owner[d]}
    received = [sum(part == i for _, part in pulled) for i in range(3)]
    sent = [sum(owner[s] == i for s, _ in pulled) for i in range(3)]
    figures = Layout(graph, cut).figures
    for strategy, width in (("halo_h", 6), ("halo_kv", 12)):
        traffic = exchange_traffic(figures, MODEL, strategy)
        assert traffic.sent.tolist() == traffic.received_back.tolist() == [width * 8 * count for count in sent]
        assert traffic.received.tolist() == traffic.sent_back.tolist() == [width * 8 * count for count in received]
        assert step_bytes(figures, MODEL, strategy) == 2 * 2 * width * 8 * len(pulled)


def test_bytes_of_a_vertex_cut_are_its_mirrors_counted_by_sets(awkward_graph):
    graph = awkward_graph(4)
    cut = make_vertex_cut(graph, 3)
    master = np.empty(graph.num_nodes, int)
    for part in range(3):
        master[cut.order[cut.ptr[part] : cut.ptr[part + 1]]] = part
    out, back = set(), set()
    for s, d, part in zip(graph.indices.tolist(), graph.destinations().tolist(), cut.edge_part.tolist()):
        out |= {(node, part) for node in (s, d) if master[node] != part}
        back |= {(d, part)} if master[d] != part else set()
    traffic = exchange_traffic(Layout(graph, cut).figures, MODEL)
    row, result = 6 * 8, 6 * 8 + 3 * 8  # log-sum-exps of float64 are float64
    for rank in range(3):
        mirrors, homecoming = (sum(part == rank for _, part in pairs) for pairs in (out, back))
        sent, returns = (sum(master[node] == rank for node, _ in pairs) for pairs in (out, back))
        assert traffic.sent[rank] == traffic.received_back[rank] == row * sent + result * homecoming
        assert traffic.received[rank] == traffic.sent_back[rank] == row * mirrors + result * returns


def test_seconds_grow_with_what_they_are_made_of(awkward_graph):
    figures, speeds = Layout(awkward_graph(4), make_edge_cut(awkward_graph(4), 3)).figures, Speeds()
    first = step_seconds(figures, MODEL, speeds)
    assert step_seconds(figures, dataclasses.replace(MODEL, layers=4), speeds) == pytest.approx(2 * first)
    for name in ("link_bytes_per_s", "flops_per_s", "gather_bytes_per_s"):
        slower = dataclasses.replace(speeds, **{name: getattr(speeds, name) / 2})
        assert step_seconds(figures, MODEL, slower) > first
    # By hand: with a link alone that costs, the slowest rank's bytes.
    free = Speeds(link_bytes_per_s=10.0, latency_s=0.0, flops_per_s=np.inf, gather_bytes_per_s=np.inf)
    traffic = exchange_traffic(figures, MODEL)
    slowest = (np.maximum(traffic.sent, traffic.received) + np.maximum(traffic.sent_back, traffic.received_back)).max()
    assert step_seconds(figures, MODEL, free) == pytest.approx(2 * slowest / 10)


def test_one_part_moves_nothing(awkward_graph):
    for make in (make_edge_cut, make_vertex_cut):
        traffic = exchange_traffic(Layout(awkward_graph(0), make(awkward_graph(0), 1)).figures, MODEL)
        assert traffic.sent.tolist() == [0] and traffic.total_bytes == 0


def test_auto_takes_the_edge_cut_of_a_mesh(tmp_path):
    manifest = partition(mesh(), 4, tmp_path / "out", cut="auto", speeds=Speeds(link_bytes_per_s=2.5e7))
    assert manifest["cut"] == manifest["choice"]["cut"] == "edge"
    assert [candidate["cut"] for candidate in manifest["choice"]["candidates"]] == ["vertex", "edge"]


@pytest.mark.parametrize("name", ["email_enron", "tolokers"])
def test_auto_takes_the_vertex_cut_of_graphs_with_hubs(real_graph, tmp_path, name):
    graph = load_graph(real_graph(name))
    manifest = partition(graph, 4, tmp_path / "out", cut="auto", speeds=Speeds(link_bytes_per_s=2.5e7))
    assert manifest["cut"] == "vertex"
    times = {candidate["cut"]: candidate["predicted_seconds"] for candidate in manifest["choice"]["candidates"]}
    assert times["vertex"] < times["edge"]
    assert "a step is predicted to take" in manifest["choice"]["reason"]


def test_auto_on_the_command_line(tmp_path, capsys):
    from partition.cli import main

    graph = mesh(12)
    np.savez(tmp_path / "g.npz", edge_index=np.stack([graph.indices, graph.destinations()]), num_nodes=graph.num_nodes)
    base = ["partition", str(tmp_path / "g.npz"), "--parts", "2", "--cut", "auto"]
    assert main([*base, "--out", str(tmp_path / "a"), "--json", "--link-gbit", "0.2", "--hidden", "64"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["choice"]["speeds"]["link_bytes_per_s"] == 2.5e7 and result["choice"]["model"]["hidden"] == 64
    assert main([*base, "--out", str(tmp_path / "b")]) == 0
    assert "chosen: a step is predicted to take" in capsys.readouterr().out
    for wrong in (["--link-gbit", "0"], ["--hidden", "0"], ["--cut", "corner"]):
        with pytest.raises(SystemExit, match="2"):
            main([*base, "--out", str(tmp_path / "c"), *wrong])


def test_partitioning_training_and_planning_assume_one_model():
    """So that --cut auto and a plan answer for the model that is trained."""
    from dgl_gt.train.config import TrainConfig

    config, model = TrainConfig(), Model()
    assert [getattr(config, key) for key in ("layers", "hidden", "heads", "ffn")] == [
        getattr(model, key) for key in ("layers", "hidden", "heads", "ffn")
    ]
