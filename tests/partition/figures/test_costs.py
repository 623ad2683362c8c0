"""Linear costs: seconds, bytes and memory by hand, files, and the choice between cuts."""

import json

import numpy as np
import pytest
from hand_made_costs import hand_made_costs, on_links
from hand_made_figures import edge_figures, vertex_figures
from msgspec.structs import replace

from dgl_gt.cli.main import main
from dgl_gt.partition import default_costs, load_graph, partition, read_costs
from dgl_gt.partition.figures.costs import Costs, PerCount, machine_costs
from dgl_gt.partition.graph import from_edges

HAND = edge_figures(
    owned=[4, 8],
    edges=[[10, 6], [14, 4]],
    halo=[[3, 2], [2, 1]],
    sent=[[2, 1], [3, 2]],
    shares=[1 / 3, 2 / 3],
    cut_edges=[5, 7],
)
SLOW = 4e-8  # seconds per byte at 200 Mbit/s


def mesh(side=40):
    node = np.arange(side * side).reshape(side, side)
    ends = [(node[:, 1:], node[:, :-1]), (node[1:], node[:-1])]
    src, dst = (np.concatenate([pair[i].ravel() for pair in ends]) for i in (0, 1))
    return from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), side * side)


def test_seconds_by_hand():
    """Rank 0 is taken to run at 2/3 of the mean speed, rank 1 at 4/3; both send 5 rows there and back."""
    nothing, one = PerCount(), hand_made_costs(calls=0.0, byte_s=0.0)
    assert replace_all(one, compute_s=PerCount(owned=1.0)).step_seconds(HAND) == pytest.approx(max(4 * 1.5, 8 * 0.75))
    assert replace_all(one, compute_s=PerCount(copies=1.0)).step_seconds(HAND) == pytest.approx(3 * 1.5)
    assert replace_all(one, compute_s=PerCount(edges=1.0)).step_seconds(HAND) == pytest.approx(10 * 1.5)
    assert replace_all(one, compute_s=PerCount(sent=1.0)).step_seconds(HAND) == pytest.approx(2 * 1.5)
    assert replace_all(one, compute_s=PerCount(rank=1.0)).step_seconds(HAND) == pytest.approx(1.5)
    link = replace_all(one, compute_s=nothing, byte_s=0.5, calls=3.0, call_s=2.0)
    assert link.step_seconds(HAND) == pytest.approx((3 + 2) * 16 * 0.5 + 6)
    assert link.sent_bytes(HAND) == 2 * 5 * 16
    most = replace_all(link, sent_bytes=PerCount(sent=16.0))
    assert most.step_seconds(HAND) == pytest.approx(3 * 16 * 0.5 + 6)


def replace_all(costs: Costs, **changes) -> Costs:
    return replace(costs, edge=replace(costs.edge, **changes), vertex=replace(costs.vertex, **changes))


def test_a_vertex_cut_by_hand():
    figures = vertex_figures([4, 5], [9, 7], [3, 2], [2, 3], returned=[1, 2], returns=[2, 1])
    link = replace_all(hand_made_costs(), compute_s=PerCount(returned=1.0, returns=10.0), byte_s=0.0, calls=0.0)
    assert link.step_seconds(figures) == 21 and link.sent_bytes(figures) == 2 * 5 * 16 + 2 * 3 * 24


def test_memory_counts_all_data_of_a_part():
    """Also of halo rows further out than the first hop, which the strategy does not read."""
    costs, plain = hand_made_costs(), [5000 + 300 * 4 + 60 * 3 + 30 * 10, 5000 + 300 * 8 + 60 * 2 + 30 * 14]
    assert costs.rank_memory_bytes(HAND).tolist() == plain
    columns = {"node_data": {"feat": ("float32", (6,)), "a": ("bool", (9,))}, "edge_data": {"b": ("int16", ())}}
    stored = edge_figures([4, 8], [[10, 6], [14, 4]], [[3, 2], [2, 1]], [[2, 1], [3, 2]], **columns)
    data = [(24 + 9) * 9 + 2 * 16, (24 + 9) * 11 + 2 * 18]
    assert costs.rank_memory_bytes(stored).tolist() == [one + more for one, more in zip(plain, data)]


def test_one_part_sends_nothing():
    one = edge_figures([12], [[24]], [[0]], [[0]])
    assert hand_made_costs(compute_s=PerCount()).step_seconds(one) == 0 == hand_made_costs().sent_bytes(one)


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_file_holds_all_of_it(tmp_path):
    costs = hand_made_costs()
    costs.save(tmp_path / "costs.json")
    assert read_costs(tmp_path / "costs.json") == costs
    with pytest.raises(ValueError, match="exists"):
        costs.save(tmp_path / "costs.json")
    replace(costs, profile="other").save(tmp_path / "costs.json", force=True)
    assert read_costs(tmp_path / "costs.json").profile == "other"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.pop("edge"), "missing required field `edge`"),
        (lambda made: made.update(more=1), "unknown field `more`"),
        (lambda made: made.update(format="dgl-gt costs 0"), "Invalid enum value 'dgl-gt costs 0'"),
        (lambda made: made["edge"].update(byte_s=-1.0), r"`float` >= 0.0 - at `\$.edge.byte_s`"),
        (lambda made: made["edge"].update(byte_s="1"), r"got `str` - at `\$.edge.byte_s`"),
        (lambda made: made["edge"]["compute_s"].update(rank=1e40), r"at `\$.edge.compute_s.rank`"),
    ],
)
def test_files_that_are_refused(tmp_path, capsys, change, message):
    path = tmp_path / "costs.json"
    hand_made_costs().save(path)
    made = json.loads(path.read_text())
    change(made)
    path.write_text(json.dumps(made))
    with pytest.raises(ValueError, match=message):
        read_costs(path)
    source = "sample:communities?nodes=100"
    code = main(["partition", source, "--parts", "2", "--out", str(tmp_path / "out"), "--costs", str(path)])
    assert code == 2 and "make such a file with `dgl-gt plan --save-costs FILE`" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"format": NaN}', b"null"])
def test_files_that_hold_something_else(tmp_path, content):
    (tmp_path / "costs.json").write_bytes(content)
    with pytest.raises(ValueError, match="holds no costs of a training step"):
        read_costs(tmp_path / "costs.json")
    with pytest.raises(ValueError, match="no such file"):
        read_costs(tmp_path / "other.json")


def test_costs_of_one_kind_of_cut(tmp_path):
    half = replace(hand_made_costs(), vertex=None)
    graph = mesh(6)
    assert partition(graph, 2, tmp_path / "edge", costs=half, attempts=2)["cut"] == "edge"
    with pytest.raises(ValueError, match="the costs do not cover vertex cuts"):
        partition(graph, 2, tmp_path / "auto", costs=half, cut="auto")
    with pytest.raises(ValueError, match="costs is 'fast'"):
        partition(graph, 2, tmp_path / "auto", costs="fast")
    assert [path.name for path in tmp_path.iterdir()] == ["edge"]


# ---- the choice --------------------------------------------------------------------------------------------------


def test_auto_takes_the_edge_cut_of_a_mesh(tmp_path):
    manifest = partition(mesh(), 4, tmp_path / "out", cut="auto", costs=on_links(SLOW))
    assert manifest["cut"] == manifest["choice"]["cut"] == "edge"
    assert [candidate["cut"] for candidate in manifest["choice"]["candidates"]] == ["vertex", "edge"]


@pytest.mark.parametrize("name", ["email_enron", "tolokers"])
def test_auto_takes_the_vertex_cut_of_graphs_with_hubs(real_graph, tmp_path, name):
    graph = load_graph(real_graph(name))
    manifest = partition(graph, 4, tmp_path / "out", cut="auto", costs=on_links(SLOW))
    assert manifest["cut"] == "vertex"
    times = {candidate["cut"]: candidate["predicted_seconds"] for candidate in manifest["choice"]["candidates"]}
    assert times["vertex"] < times["edge"]
    assert "a step is predicted to take" in manifest["choice"]["reason"]


def test_auto_on_the_command_line(tmp_path, capsys):
    graph = mesh(12)
    np.savez(tmp_path / "g.npz", edge_index=np.stack([graph.indices, graph.destinations()]), num_nodes=graph.num_nodes)
    base = ["partition", str(tmp_path / "g.npz"), "--parts", "2", "--cut", "auto"]
    on_links(SLOW).save(tmp_path / "slow.json")
    seconds = []
    for more in ([], ["--costs", str(tmp_path / "slow.json")]):
        assert main([*base, "--out", str(tmp_path / "shards"), "--force", "--json", *more]) == 0
        choice = json.loads(capsys.readouterr().out)["choice"]
        assert choice["model"]["hidden"] == 64 and choice["profile"] == "default"
        seconds.append([each["predicted_seconds"] for each in choice["candidates"]])
    assert all(slow > fast for fast, slow in zip(*seconds))
    assert main([*base, "--out", str(tmp_path / "b")]) == 0
    assert "chosen: a step is predicted to take" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*base, "--out", str(tmp_path / "c"), "--cut", "corner"])


def test_costs_of_this_machine_are_the_default(tmp_path, monkeypatch, capsys):
    """A hub's in-edges weigh more than half the nodes where edges take all the time."""
    default_costs.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nodes, hub = np.arange(1, 200), np.zeros(199, np.int64)
    np.savez(tmp_path / "g.npz", edge_index=np.stack([nodes, hub]), num_nodes=200)
    command, found = ["partition", str(tmp_path / "g.npz"), "--parts", "2", "--force", "--json"], []
    try:
        for per_edge in (1e-12, 1.0):
            of_edges = hand_made_costs(compute_s=PerCount(owned=1e-6, edges=per_edge))
            machine_costs().parent.mkdir(exist_ok=True)
            of_edges.save(machine_costs(), force=True)
            default_costs.cache_clear()
            assert main([*command, "--out", str(tmp_path / "shards")]) == 0
            found.append(json.loads(capsys.readouterr().out))
            assert default_costs() == of_edges
        machine_costs().write_text("{}")
        default_costs.cache_clear()
        assert main([*command, "--out", str(tmp_path / "shards")]) == 2
        assert str(machine_costs()) in capsys.readouterr().err
    finally:
        default_costs.cache_clear()
    even, uneven = ([each["quality"]["node_balance"], each["compute_balance"]] for each in found)
    assert even[0] < 1.1 > even[1] and uneven[0] > 1.5 and uneven[1] > 1.9


def test_the_default_costs_are_of_both_cuts():
    costs = default_costs()
    assert costs.edge.strategy in ("halo_h", "halo_kv") and costs.vertex.strategy == "mirror"
    assert costs.edge.sent_bytes.copies == costs.edge.sent_bytes.sent > 0 == costs.edge.sent_bytes.returned
