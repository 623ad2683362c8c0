"""``dgl-gt plan`` over a graph, which it cuts for one number of ranks or several."""

import numpy as np
import pytest
from selector_cases import GRAPH, SMALL, half_speed, planned, profile_values, refused, write_profile

from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.figures.profile import PRESETS
from dgl_gt.plan import forecast


def test_several_world_sizes(here, tmp_path):
    """A table with a line for each, a PNG, and the same as JSON."""
    pytest.importorskip("matplotlib")
    options = ["plan", GRAPH, "--world-size", "1,2,4", "--preset", "8xH100", *SMALL]
    picture = tmp_path / "new" / "ahead.png"
    done = here(*options, "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and picture.stat().st_size > 5000
    lines = done.stdout.splitlines()
    assert [int(line.split()[0]) for line in lines[2:5]] == [1, 2, 4]
    for word in ("ranks", "strategy", "s / step", "speed-up", "efficiency", "memory / rank"):
        assert word in lines[0]
    assert "real cuts" in lines[-1] and "datasheets" in lines[-1]

    plans = planned(here(*options, "--json"))["plans"]
    assert [each["ranks"] for each in plans] == [1, 2, 4]
    assert [each["choice"]["strategy"] == "local" for each in plans] == [True, False, False]
    assert plans[0]["one_rank_seconds"] == pytest.approx(plans[0]["choice"]["predicted_seconds"])
    memory = [each["choice"]["predicted_peak_bytes"] for each in plans]
    assert memory[0] > memory[1] > memory[2]
    for line, plan in zip(lines[2:5], plans):
        assert {plan["choice"]["cut"], plan["choice"]["strategy"]} <= set(line.split())
        speed_up = plan["one_rank_seconds"] / plan["choice"]["predicted_seconds"]
        assert f"{speed_up:.2f}" in line and f"{speed_up / plan['ranks']:.0%}" in line
        assert {each["cut"] for each in plan["candidates"]} == ({"edge", "vertex"} if plan["ranks"] > 1 else {"edge"})


def test_one_world_size_is_one_plan(here, tmp_path):
    """Of a profile its own number of ranks, with no need to say it; halos as deep as there are layers."""
    path = write_profile(tmp_path / "two.yaml")
    result = planned(here("plan", GRAPH, *SMALL, "--profile", path, "--json"))
    assert result["ranks"] == 2 and result["choice"]["directory"] is None
    assert {each["depth"] for each in result["candidates"]} == {1, 2}
    assert {each["cut"] for each in result["candidates"]} == {"edge", "vertex"}


def test_unequal_ranks_take_unequal_parts(here, tmp_path, monkeypatch):
    """The edge cut that is planned with gives the slow rank half of the work that the other takes."""
    cuts = []

    def spied(graph, parts, **options):
        cuts.append((real(graph, parts, **options), graph))
        return cuts[-1][0]

    real = forecast.make_edge_cut
    monkeypatch.setattr(forecast, "make_edge_cut", spied)
    path = write_profile(tmp_path / "uneven.yaml", half_speed(2, slow=0))
    planned(here("plan", GRAPH, *SMALL, "--self-loops", "--profile", path, "--json"))
    ((cut, graph),) = cuts
    assert np.count_nonzero(graph.destinations() == graph.indices) == graph.num_nodes
    np.testing.assert_allclose(cut.shares, [1 / 3, 2 / 3], rtol=1e-3)
    owner = np.empty(graph.num_nodes, np.int32)
    owner[cut.order] = np.repeat([0, 1], np.diff(cut.ptr))
    steps = make_balance(graph, 2).loads(owner)[:, 0]
    assert 0.28 < steps[0] / steps.sum() < 0.38
    planned(here("plan", GRAPH, *SMALL, "--profile", write_profile(tmp_path / "even.yaml"), "--json"))
    np.testing.assert_allclose(cuts[1][0].shares, 0.5)


def test_a_graph_that_does_not_fit_is_refused_and_sizes_that_fit_are_planned(here, tmp_path):
    graph = "sample:communities?nodes=300&features=1000&seed=0"
    path = write_profile(tmp_path / "any.yaml", profile_values(None, kind="datasheet"))
    options = ["plan", graph, *SMALL, "--layers", 1, "--profile", path]
    candidates = planned(here(*options, "--world-size", 2, "--json"))["candidates"]
    (bound,) = (each["memory_bytes"] for each in candidates if (each["strategy"], each["depth"]) == ("halo_h", 1))
    options += ["--rank-memory", bound]
    refused(here(*options, "--world-size", 1), "nothing fits", "needs the least", "--world-size 2,4,8", lines=None)
    plans = planned(here(*options, "--world-size", "1,2", "--json"))["plans"]  # the sizes that fit are planned
    assert [each["ranks"] for each in plans] == [1, 2] and plans[1]["choice"]["predicted_memory_bytes"] <= bound
    assert plans[0]["choice"] is None and "needs the least" in plans[0]["refused"]
    done = here(*options, "--world-size", "1,2")
    assert done.returncode == 0 and "does not fit" in done.stdout.splitlines()[2]


def test_a_size_beyond_the_nodes_is_refused_before_any_cut(here, monkeypatch):
    monkeypatch.setattr(forecast, "make_edge_cut", lambda *_, **__: pytest.fail("a graph was cut"))
    refused(here("plan", GRAPH, *SMALL, "--world-size", "2,1000000"), "into 1000000 parts", lines=None)


def test_a_size_that_is_named_twice_is_planned_once(here):
    plans = planned(here("plan", GRAPH, *SMALL, "--world-size", "2,1,2", "--json"))["plans"]
    assert [each["ranks"] for each in plans] == [2, 1]


def test_a_profile_of_other_ranks_is_refused_before_any_work(here, tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "load_graph", lambda *_, **__: pytest.fail("the graph was read"))
    path = write_profile(tmp_path / "two.yaml", half_speed())
    done = here("plan", GRAPH, "--profile", path, "--world-size", "2,4")
    refused(done, "is for 2 ranks, and 4 ranks will train", *PRESETS)
