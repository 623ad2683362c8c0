"""``dgl-gt plan`` and what ``dgl-gt calibrate`` refuses, as a user runs them."""

import json
import re

import numpy as np
import pytest
import yaml
from selector_cases import every_way, half_speed, profile_values, refused, write_profile

from dgl_gt.nn import GraphTransformer
from dgl_gt.selector import forecast, read_profile
from dgl_gt.selector.hardware_profile import PRESETS
from dgl_gt.train import TrainConfig, step_traces
from partition import from_edges, load_graph, partition
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest, write_manifest
from partition.system.units import parse_size

CHOICE = {
    "cut",
    "strategy",
    "depth",
    "activation_checkpoint",
    "directory",
    "predicted_seconds",
    "predicted_sent_bytes",
    "predicted_peak_bytes",
    "predicted_memory_bytes",
    "reason",
}
CANDIDATE = {
    "cut",
    "strategy",
    "depth",
    "activation_checkpoint",
    "directory",
    "seconds",
    "seconds_by_term",
    "sent_bytes",
    "peak_bytes",
    "peak_bytes_by_term",
    "memory_bytes",
    "refused",
    "shortage",
}
GRAPH = "sample:communities?nodes=300&features=12&seed=0"
SMALL = ["--hidden", 16, "--heads", 4, "--layers", 2, "--classes", 10]
SIZES = {"layers": 2, "hidden": 16, "heads": 4, "ffn": 2, "features": 12, "classes": 10}
STEP = TrainConfig(layers=2, hidden=16, heads=4), 12, 10


@pytest.fixture
def both(shards):
    return [shards / "edge", shards / "vertex"]


def planned(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bounded(values, least=1e6, **changes):
    """A profile whose processes take next to nothing."""
    return {**values, "process_bytes": least, **changes}


# ---- shards -------------------------------------------------------------------------------------------------------


def test_the_json_that_is_promised(here, both, tmp_path):
    profile = write_profile(tmp_path / "two.yaml")
    result = planned(here("plan", *both, *SMALL, "--profile", profile, "--json"))
    assert set(result) == {"choice", "candidates", "profile", "model", "ranks", "one_rank_seconds"}
    assert set(result["choice"]) == CHOICE and all(set(each) == CANDIDATE for each in result["candidates"])
    assert (result["ranks"], result["profile"]) == (2, {"name": str(profile), "kind": "measured"})
    assert SIZES.items() <= result["model"].items()
    choice, first = result["choice"], result["candidates"][0]
    for key in ("cut", "strategy", "depth", "activation_checkpoint", "directory"):
        assert choice[key] == first[key]
    for key in ("seconds", "sent_bytes", "peak_bytes", "memory_bytes"):
        assert choice[f"predicted_{key}"] == first[key]
    terms = {"products_s", "rows_s", "attention_s", "exchange_s", "hidden_s", "gradients_s"}
    assert set(first["seconds_by_term"]) == terms
    assert set(first["peak_bytes_by_term"]) == {"kept", "made in the step"}
    assert {each["directory"] for each in result["candidates"]} == set(map(str, both))


def test_the_pick_is_the_quickest_and_changes_with_memory(here, both, tmp_path):
    """Against the traces of all ways; refused below the least, in one line that names it."""
    path = write_profile(tmp_path / "two.yaml")
    cuts = [(str(folder), read_figures(read_manifest(folder))) for folder in both]
    ways = every_way(cuts, step_traces(*STEP), read_profile(path))
    bounds = sorted({figures[2] for figures in ways.values()})
    picks = set()
    for bound in bounds:
        options = ["--profile", path, "--rank-memory", bound, "--json"]
        result = planned(here("plan", *both, *SMALL, *options))
        choice = result["choice"]
        fitting = [figures for figures in ways.values() if figures[2] <= bound]
        assert choice["predicted_seconds"] == min(figures[0] for figures in fitting)
        assert choice["predicted_memory_bytes"] <= bound
        refusals = [each["refused"] for each in result["candidates"] if (each["memory_bytes"] or 0) > bound]
        assert all("on its largest rank" in each for each in refusals)
        picks.add((choice["cut"], choice["strategy"], choice["depth"], choice["activation_checkpoint"]))
    assert len(picks) >= 3
    done = here("plan", *both, *SMALL, "--profile", path, "--rank-memory", bounds[0] - 1)
    message = refused(done, "nothing fits", "partition for more ranks", lines=None)
    named = re.search(r"--rank-memory (\S+)\)", message)[1]
    assert parse_size(named) >= bounds[0]
    planned(here("plan", *both, *SMALL, "--profile", path, "--rank-memory", named, "--json"))
    refused(
        here("plan", *both, *SMALL, "--profile", path, "--rank-memory", bounds[0] - 1, "--json"),
        "nothing fits",
        lines=None,
    )


def test_the_table(here, both, tmp_path):
    """Every candidate that does not fit is there with its reason, then the choice and whose figures these are."""
    path = write_profile(tmp_path / "two.yaml")
    options = [*SMALL[:2], "--heads", 1, "--profile", path]
    everything = planned(here("plan", *both, *options, "--json"))["candidates"]
    options += ["--rank-memory", sorted(each["memory_bytes"] for each in everything if not each["refused"])[3]]
    everything = planned(here("plan", *both, *options, "--json"))["candidates"]
    done = here("plan", *both, *options)
    assert done.returncode == 0 and done.stderr.startswith("tracing steps") and done.stderr.count("\n") == 1
    lines = done.stdout.splitlines()
    header = lines[0].split("  ")
    assert [word.strip() for word in header if word][:5] == [
        "cut",
        "strategy",
        "depth",
        "checkpoint",
        "s / step",
    ]
    rows = lines[2 : lines.index("")]
    assert len(rows) == len(everything)
    shown = sum("on its largest rank" in row for row in rows)
    assert 0 < shown == sum("on its largest rank" in (each["refused"] or "") for each in everything)
    assert sum("heads is 1, which 2 ranks cannot share evenly" in row for row in rows) == 1
    reason = next(line for line in lines if line.startswith("chosen: "))
    assert re.search(r"a step is predicted to take \S+ s \(products \d+%, rows \d+%, edges \d+%, exchange", reason)
    assert re.search(
        r"; \w+ (of depth 2 )?on the (edge|vertex) cut(, activation checkpoint \w+)? is \d+\.\d% behind", reason
    )
    assert lines[-1] == "ranks and links as measured"


@pytest.mark.parametrize(
    ("options", "words", "kind"),
    [
        ([], "no profile or preset given", "default"),
        (["--preset", "8xH100"], "from datasheets", "datasheet"),
        (["--preset", "cpu-10GbE"], "from datasheets", "datasheet"),
    ],
)
def test_whose_figures_these_are_is_said(here, both, options, words, kind):
    done = here("plan", *both, *options)
    assert done.returncode == 0 and words in done.stdout.splitlines()[-1]
    result = planned(here("plan", *both, *options, "--json"))
    assert result["profile"] == {"name": (options or ["", "default"])[1], "kind": kind}


def test_max_depth(here, both):
    result = planned(here("plan", *both, *SMALL, "--max-depth", 1, "--json"))
    assert {each["depth"] for each in result["candidates"]} == {1}


def test_the_model_of_a_config_file_and_options_over_it(here, both, tmp_path):
    (tmp_path / "config.yaml").write_text("hidden: 32\nheads: 4\nlayers: 1\nffn: 3\nepochs: 9\n")
    model = planned(here("plan", *both, "--config", tmp_path / "config.yaml", "--layers", 3, "--json"))["model"]
    found = {key: model[key] for key in ("layers", "hidden", "heads", "ffn", "features")}
    assert found == {"layers": 3, "hidden": 32, "heads": 4, "ffn": 3, "features": 12}
    model = planned(here("plan", *both, "--json"))["model"]
    assert {key: model[key] for key in ("layers", "hidden", "heads", "ffn")} == {
        "layers": 2,
        "hidden": 64,
        "heads": 8,
        "ffn": 2,
    }


# ---- a graph ------------------------------------------------------------------------------------------------------


def test_several_world_sizes(here, one_cluster, tmp_path):
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


def test_one_world_size_is_one_plan(here, one_cluster, tmp_path):
    """Of a profile its own number of ranks, with no need to say it; halos as deep as there are layers."""
    path = write_profile(tmp_path / "two.yaml")
    result = planned(here("plan", GRAPH, *SMALL, "--layers", 3, "--profile", path, "--json"))
    assert result["ranks"] == 2 and result["choice"]["directory"] is None
    assert {each["depth"] for each in result["candidates"]} == {1, 2, 3}
    assert {each["cut"] for each in result["candidates"]} == {"edge", "vertex"}


def test_unequal_ranks_take_unequal_parts(here, one_cluster, tmp_path, monkeypatch):
    """The edge cut that is planned with gives the slow rank half of what the other takes."""
    cuts = []

    def spied(graph, parts, **options):
        cuts.append((real(graph, parts, **options), graph))
        return cuts[-1][0]

    real = forecast.make_edge_cut
    monkeypatch.setattr(forecast, "make_edge_cut", spied)
    path = write_profile(tmp_path / "uneven.yaml", half_speed(2, slow=0))
    planned(here("plan", GRAPH, *SMALL, "--profile", path, "--json"))
    ((cut, graph),) = cuts
    np.testing.assert_allclose(cut.shares, [1 / 3, 2 / 3], rtol=1e-3)
    of_slow = graph.in_degrees()[cut.order[: cut.ptr[1]]].sum() / graph.num_edges
    assert 0.26 < of_slow < 0.4  # where nothing else is asked for, a part has at most 1.1 times its share
    planned(here("plan", GRAPH, *SMALL, "--profile", write_profile(tmp_path / "even.yaml"), "--json"))
    np.testing.assert_allclose(cuts[1][0].shares, 0.5)


def test_a_graph_that_does_not_fit_is_told_how_many_ranks_would_do(here, one_cluster, tmp_path):
    graph = "sample:communities?nodes=300&features=1000&seed=0"
    path = write_profile(tmp_path / "any.yaml", profile_values(None, kind="datasheet"))
    options = ["plan", graph, *SMALL, "--layers", 1, "--profile", path]
    candidates = planned(here(*options, "--world-size", 4, "--json"))["candidates"]
    (bound,) = (each["memory_bytes"] for each in candidates if (each["strategy"], each["depth"]) == ("halo_h", 1))
    options += ["--rank-memory", bound]
    refused(here(*options, "--world-size", 2), "nothing fits", "needs least", "; 4 ranks would do", lines=None)
    plans = planned(here(*options, "--world-size", "2,4", "--json"))["plans"]  # the sizes that fit are planned
    assert [each["ranks"] for each in plans] == [2, 4] and plans[1]["choice"]["predicted_memory_bytes"] <= bound
    assert plans[0]["choice"] is None and "needs least" in plans[0]["refused"]
    done = here(*options[:-1], plans[0]["least_memory_bytes"], "--world-size", "1,2")
    assert done.returncode == 0 and "does not fit" in done.stdout.splitlines()[2]


def test_a_size_beyond_the_nodes_is_refused_before_any_cut(here, monkeypatch):
    monkeypatch.setattr(forecast, "make_edge_cut", lambda *_, **__: pytest.fail("a graph was cut"))
    refused(here("plan", GRAPH, *SMALL, "--world-size", "2,1000000"), "into 1000000 parts", lines=None)


def test_a_size_that_is_named_twice_is_planned_once(here, one_cluster):
    plans = planned(here("plan", GRAPH, *SMALL, "--world-size", "2,1,2", "--json"))["plans"]
    assert [each["ranks"] for each in plans] == [2, 1]


def test_no_number_of_ranks_helps_where_the_process_is_too_large(here, one_cluster, tmp_path, monkeypatch):
    """Which takes no further cuts to say."""
    made = []
    real = forecast.make_edge_cut
    monkeypatch.setattr(forecast, "make_edge_cut", lambda *args, **options: made.append(1) or real(*args, **options))
    done = here("plan", GRAPH, *SMALL, "--world-size", 2, "--rank-memory", "1MiB")
    refused(done, "nothing fits", "no number of ranks would do", lines=None)
    assert len(made) == 1


def test_more_ranks_than_nodes_are_not_tried(here, one_cluster, awkward_graph, monkeypatch):
    monkeypatch.setattr(forecast, "load_graph", lambda *_, **__: awkward_graph(0, nodes=12, edges=120))
    model = GraphTransformer(5, 16, 10, 1, 4)
    fixed = 500_000_000 + 12 * sum(each.numel() for each in model.parameters())  # of any rank: also two moments
    done = here("plan", "any.npz", *SMALL, "--layers", 1, "--world-size", 4, "--rank-memory", fixed + 4000)
    refused(done, "nothing fits", "; 8 ranks would not do either", lines=None)


def test_a_profile_of_other_ranks_is_refused_before_any_work(here, tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "load_graph", lambda *_, **__: pytest.fail("the graph was read"))
    path = write_profile(tmp_path / "two.yaml", half_speed())
    done = here("plan", GRAPH, "--profile", path, "--world-size", "2,4")
    refused(done, "is for 2 ranks, and 4 ranks will train", *PRESETS)


# ---- bad input ----------------------------------------------------------------------------------------------------


def test_bad_options_are_refused(here, both, shards, tmp_path):
    two, four = (write_profile(tmp_path / f"{ranks}.yaml", profile_values(ranks)) for ranks in (2, 4))
    (tmp_path / "typo.yaml").write_text("hiden: 16\n")
    (tmp_path / "picture.png").write_text("mine")
    (tmp_path / "folder.png").mkdir()
    cases = [
        (["--profile", four], ["is for 4 ranks, and 2 ranks will train", "calibrate --nproc 2", *PRESETS]),
        (["--preset", "9xB200"], ["preset is '9xB200'", *PRESETS]),
        (["--preset", "8xH100", "--profile", two], ["give one"]),
        (["--profile", tmp_path / "none.yaml"], ["no such file", "none.yaml"]),
        (["--profile", tmp_path], ["is a directory"]),
        (["--world-size", "4"], ["--world-size is 4", "has 2 parts"]),
        (["--world-size", "2,4"], ["--world-size is 2,4", "has 2 parts"]),
        (["--hidden", "10", "--heads", "4"], ["hidden is 10; it must be a multiple of heads (4)"]),
        (["--config", tmp_path / "typo.yaml"], ["unknown key 'hiden'"]),
        (["--config", tmp_path / "none.yaml"], ["no such file"]),
        (["--plot", tmp_path / "picture.png"], ["picture.png exists", "--force"]),
        (["--plot", tmp_path / "folder.png", "--force"], ["is a directory"]),
        (["--plot", tmp_path / "picture.pgn"], ["must end in .png"]),
        (["--plot", tmp_path / "typo.yaml" / "new.png"], ["is not a writable directory"]),
        (["--check", tmp_path], [f"leave {both[0]} out"]),
        (["--seed", "1"], [f"--seed is for a graph, and {both[0]} is shards"]),
        (["--seed", "0"], ["--seed is for a graph"]),
        (["--undirected"], ["--undirected is for a graph"]),
        (["--random-features", "8"], ["--random-features is for a graph"]),
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for options, messages in cases:
        refused(here("plan", *both, *options), *messages)
        refused(here("plan", *both, *options, "--json"), *messages)
    assert (tmp_path / "picture.png").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--world-size", "0"], "0 is not at least 1"),
        (["--world-size", "2,0"], "0 is not at least 1"),
        (["--world-size", "-4"], "-4 is not at least 1"),
        (["--world-size", "two"], "'two' is not a list of numbers of ranks"),
        (["--world-size", "2,,4"], "'2,,4' is not a list of numbers of ranks"),
        (["--world-size", "2.5"], "'2.5' is not a list of numbers of ranks"),
        (["--rank-memory", "lots"], "'lots' is not an amount of memory; write it as 4GiB, 500MB or a number of bytes"),
        (["--rank-memory", "0"], "'0' is not an amount of memory"),
        (["--rank-memory", "-1GiB"], "'-1GiB' is not an amount of memory"),
        (["--rank-memory", "nan"], "'nan' is not an amount of memory"),
        (["--rank-memory", "4 parsecs"], "'4 parsecs' is not an amount of memory"),
        (["--max-depth", "0"], "0 is not at least 1"),
        (["--layers", "0"], "0 is not at least 1"),
        (["--classes", "-1"], "-1 is not at least 1"),
    ],
)
def test_values_that_cannot_be_parsed(here, both, options, message):
    """argparse shows the usage, then one line."""
    name, value = options
    refused(here("plan", *both, f"{name}={value}"), f"argument {name}: ", message, lines=None)


BAD_PROFILES = [
    ("missing", lambda values: values.pop("latency_s"), "has no latency_s"),
    ("negative", lambda values: values.update(memory_bytes=-1.0), "memory_bytes is -1.0"),
    ("nan", lambda values: values.update(stream_bytes_per_s=float("nan")), "stream_bytes_per_s is nan"),
    ("zero", lambda values: values["attention"].update(near_column_s=0), "attention.near_column_s is 0"),
    ("text", lambda values: values.update(overlap="half"), "overlap is 'half'"),
    ("too long", lambda values: values.update(operation_s=[1e-6] * 3), "operation_s has 3 figures for 2 ranks"),
    ("links", lambda values: values.update(link_bytes_per_s=[[1e9] * 3] * 3), "must be 2 lists"),
    ("kind", lambda values: values.update(kind="guess"), "kind is 'guess'"),
]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in BAD_PROFILES], ids=[c[0] for c in BAD_PROFILES])
def test_bad_profiles_are_refused_in_one_line(here, both, tmp_path, change, message):
    values = yaml.safe_load(yaml.safe_dump(profile_values()))
    change(values)
    path = write_profile(tmp_path / "bad.yaml", values)
    refused(here("plan", *both, "--profile", path), str(path), message)
    refused(here("plan", GRAPH, "--world-size", 2, "--profile", path), str(path), message)  # before the graph is read


def test_sources_that_do_not_belong_together(here, both, shards, tmp_path, awkward_graph):
    from partition import partition

    other = tmp_path / "other"
    partition(awkward_graph(1), 2, other)
    refused(here("plan", both[0], other), f"{other} has 60 nodes and {both[0]} has 1,000", lines=None)
    partition(load_graph(GRAPH), 1, tmp_path / "alone")
    refused(here("plan", both[0], tmp_path / "alone"), f"{tmp_path / 'alone'} has 1 part and", lines=None)
    refused(here("plan", both[0], GRAPH), "one source too many")
    refused(here("plan", GRAPH, both[0], "--world-size", 2), "one source too many")


def test_sources_that_are_missing(here, both, tmp_path):
    refused(here("plan"), "SOURCE is missing")
    refused(here("plan", GRAPH), "--world-size is missing")
    refused(here("plan", tmp_path / "nothing", "--world-size", 2), "does not name a graph", lines=None)
    refused(here("plan", GRAPH, "--world-size", 2, "--random-features", 8), "has features already", lines=None)
    refused(here("plan", GRAPH, "--world-size", 1000), "1000", "300", lines=None)


def test_what_of_a_graph_is_left_out_is_said_in_one_line(here, tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, edge_index=np.array([[0, 1, 2, 3], [1, 2, 3, 0]]), x=np.ones((4, 2), np.float32), names=np.ones(4))
    done = here("plan", path, "--world-size", 1)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "left out" in line.lower()] == [
        "left out: names of graph.npz (unknown key)"
    ]
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("data", [{}, {"feat": np.ones(4, np.float32)}])
def test_a_graph_without_features_that_training_can_use(here, tmp_path, data):
    graph = from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4, data)
    partition(graph, 2, tmp_path / "shards")
    np.savez(tmp_path / "graph.npz", edge_index=np.array([[0, 1], [1, 2]]))
    refused(
        here("plan", tmp_path / "shards"), "has no node data 'feat' of shape (N, F)", "--random-features", lines=None
    )
    done = here("plan", tmp_path / "graph.npz", "--world-size", 1)
    refused(done, "has no node data 'feat' of shape (N, F)", lines=None)
    assert here("plan", tmp_path / "graph.npz", "--world-size", 1, "--random-features", 4).returncode == 0


def test_shards_without_quality_figures_are_refused(here, both, tmp_path):
    """And such as are damaged, or from before there were shares."""
    manifest = read_manifest(both[0])
    for name in ("no-quality", "no-shares", "edited"):
        (tmp_path / name).mkdir()
    plain = {key: value for key, value in manifest.items() if key not in ("checksum", "versions")}
    write_manifest(tmp_path / "no-quality", {key: value for key, value in plain.items() if key != "quality"})
    write_manifest(tmp_path / "no-shares", {key: value for key, value in plain.items() if key != "shares"})
    text = (both[0] / "manifest.json").read_text()
    (tmp_path / "edited" / "manifest.json").write_text(text.replace('"parts": 2', '"parts": 3'))
    refused(here("plan", tmp_path / "no-quality"), "no-quality", "has no field 'quality'; partition the graph again")
    refused(here("plan", both[1], tmp_path / "no-quality"), "has no field 'quality'")
    refused(here("plan", tmp_path / "no-shares"), "has no field 'shares'; partition the graph again")
    refused(here("plan", tmp_path / "edited"), "damaged or was edited")


def record(**changes) -> dict:
    """What a run leaves, as far as --check reads it."""
    choice = {"seconds": 0.5, "sent_bytes": 1000, "peak_bytes": 900, "memory_bytes": 3000}
    trials = [
        {"choice": "a", "predicted_seconds": 0.5, "measured_seconds": 0.4, "measured_peak_bytes": 1000},
        {"choice": "b", "predicted_seconds": 0.6, "measured_seconds": 0.8, "measured_peak_bytes": 500},
    ]
    plan = {"choice": choice, "chosen": "a", "trials": trials}
    run = {"seconds_per_epoch": 0.4, "exchanged_bytes_per_epoch": 1000, "peak_memory_bytes": [2000, 2500]}
    return {**run, "plan": {**plan, **changes}}


def test_check_compares_what_was_predicted_with_what_was_measured(here, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record()))
    for run in (path, tmp_path):
        found = planned(here("plan", "--check", run, "--json"))
        assert [each["predicted"] for each in found["figures"]] == [0.5, 1000, 900, 3000]
        assert [each["measured"] for each in found["figures"]] == [0.4, 1000, 1000, 2500]
        np.testing.assert_allclose([each["error"] for each in found["figures"]], [0.25, 0, -0.1, 0.2])
    done = here("plan", "--check", path)
    assert done.returncode == 0
    for words in ("seconds per epoch", "exchanged bytes", "tensors", "process", "+25.0%", "-10.0%", "+20.0%", "-25.0%"):
        assert words in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--plot", "x.png"),
        ("--profile", "x.yaml"),
        ("--world-size", "2"),
        ("--seed", "0"),
        ("--classes", "3"),
        ("--force",),
    ],
    ids=" ".join,
)
def test_check_takes_no_options_of_a_plan(here, tmp_path, options):
    (tmp_path / "record.json").write_text(json.dumps(record()))
    refused(here("plan", "--check", tmp_path, *options), f"compares the run {tmp_path} only; leave {options[0]} out")


def test_check_of_cuts_of_one_kind(here, tmp_path):
    """Both trials may have the same name; the seconds predicted tell them apart."""
    run = record(chosen="b")
    run["plan"]["trials"][0]["choice"] = "b"
    run["plan"]["choice"]["seconds"] = 0.6
    (tmp_path / "record.json").write_text(json.dumps(run))
    tensors = planned(here("plan", "--check", tmp_path, "--json"))["figures"][2]
    assert tensors["measured"] == 500


def test_check_of_what_is_no_run(here, tmp_path):
    files = {
        "no-plan.json": (json.dumps({"strategy": "ring"}), "holds no plan; train with --strategy auto"),
        "list.json": ("[1, 2]", "holds no plan"),
        "null.json": (json.dumps(record() | {"plan": None}), "holds no plan"),
        "text.json": ("not json", "is not valid JSON"),
        "number.json": (json.dumps({"plan": 3}), "holds a plan that cannot be read"),
        "half.json": (json.dumps({"plan": record()["plan"]}), "holds a plan that cannot be read"),
        "text-figures.json": (json.dumps(record() | {"seconds_per_epoch": "0.5"}), "holds a plan that cannot be read"),
        "huge.json": (json.dumps(record() | {"peak_memory_bytes": [10**400]}), "holds a plan that cannot be read"),
        "deep.json": ("[" * 100_000, "is not valid JSON"),
        "early.json": (json.dumps(record() | {"finished": False}), "is the record of a run that ended early"),
        "other.json": (json.dumps(record(chosen="c")), "holds a plan that cannot be read"),
    }
    for name, (content, message) in files.items():
        (tmp_path / name).write_text(content)
        refused(here("plan", "--check", tmp_path / name), name, message)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    refused(here("plan", "--check", tmp_path / "binary.json"), "not a text file")
    refused(here("plan", "--check", tmp_path / "nothing"), "no such file")
    refused(here("plan", "--check", "n" * 5000), "File name too long")
    zero = record()
    zero["plan"]["trials"][1]["measured_seconds"] = 0
    (tmp_path / "zero.json").write_text(json.dumps(zero))
    assert here("plan", "--check", tmp_path / "zero.json").returncode == 0
    refused(here("plan", "--check", tmp_path), "record.json")


def test_calibrate_refuses_its_file_before_it_measures(here, tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    refused(here("calibrate", "--out", tmp_path / "mine.yaml"), "mine.yaml exists", "--force")
    refused(here("calibrate", "--out", tmp_path, "--force"), "is a directory")
    refused(here("calibrate", "--out", tmp_path / "mine.yaml" / "new.yaml"), "is not a writable directory")
    refused(here("calibrate", "--out", tmp_path / "new.yaml", "--nproc", 100_000), "--nproc is 100000; it must be from")
    refused(here("calibrate"), "--out", lines=None)
    refused(here("calibrate", "--out", tmp_path / "new.yaml", "--nproc", 0), "0 is not at least 1", lines=None)
    assert (tmp_path / "mine.yaml").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
