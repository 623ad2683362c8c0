"""What ``dgl-gt plan`` and ``dgl-gt calibrate`` refuse, in one line."""

import numpy as np
import pytest
import yaml
from selector_cases import GRAPH, profile_values, refused, write_profile

from dgl_gt.partition import from_edges, load_graph, partition
from dgl_gt.partition.figures.profile import PRESETS
from dgl_gt.partition.shards.manifest import read_manifest, write_manifest


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
        (["--seed", "1"], [f"--seed is only for a graph, and {both[0]} holds shards"]),
        (["--seed", "0"], ["--seed is only for a graph"]),
        (["--undirected"], ["--undirected is only for a graph"]),
        (["--self-loops"], ["--self-loops is only for a graph"]),
        (["--random-features", "8"], ["--random-features is only for a graph"]),
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
        (["--world-size", "0"], "'0' is not allowed; give a whole number from 1"),
        (["--world-size", "2,0"], "'0' is not allowed; give a whole number from 1"),
        (["--world-size", "-4"], "'-4' is not allowed; give a whole number from 1"),
        (["--world-size", "two"], "'two' is not a list of numbers of ranks"),
        (["--world-size", "2,,4"], "'2,,4' is not a list of numbers of ranks"),
        (["--world-size", "2.5"], "'2.5' is not a list of numbers of ranks"),
        (["--rank-memory", "lots"], "'lots' is not an amount of memory; write it as 4GiB, 500MB or a number of bytes"),
        (["--rank-memory", "0"], "'0' is not an amount of memory"),
        (["--rank-memory", "-1GiB"], "'-1GiB' is not an amount of memory"),
        (["--rank-memory", "nan"], "'nan' is not an amount of memory"),
        (["--rank-memory", "4 parsecs"], "'4 parsecs' is not an amount of memory"),
        (["--max-depth", "0"], "'0' is not allowed; give a whole number from 1"),
        (["--classes", "-1"], "'-1' is not allowed; give a whole number from 1"),
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


def test_settings_have_the_bounds_of_training(here, both):
    """0 is a feed-forward width: that of a model without the network."""
    refused(here("plan", *both, "--layers", 0), "--layers is 0; it must be a whole number from 1 to 1,000", lines=None)
    assert here("plan", both[0], "--ffn", 0, "--hidden", 16, "--heads", 4).returncode == 0


def test_sources_that_do_not_belong_together(here, both, shards, tmp_path, awkward_graph):
    from dgl_gt.partition import partition

    other = tmp_path / "other"
    partition(awkward_graph(1), 2, other)
    refused(here("plan", both[0], other), f"{other} has 60 nodes, but {both[0]} has 1,000", lines=None)
    partition(load_graph(GRAPH), 1, tmp_path / "alone")
    refused(here("plan", both[0], tmp_path / "alone"), f"{tmp_path / 'alone'} has 1 part, but", lines=None)
    refused(here("plan", both[0], GRAPH), f"{GRAPH} is not a shard directory; give only shard directories")
    refused(here("plan", GRAPH, both[0], "--world-size", 2), f"{GRAPH} is not a shard directory; give")


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
    refused(here("plan", tmp_path / "no-quality"), "no-quality", "quality")
    refused(here("plan", both[1], tmp_path / "no-quality"), "quality")
    refused(here("plan", tmp_path / "no-shares"), "shares")
    refused(here("plan", tmp_path / "edited"), "damaged or was edited")


def test_calibrate_refuses_its_file_before_it_measures(here, tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    refused(here("calibrate", "--out", tmp_path / "mine.yaml"), "mine.yaml exists", "--force")
    refused(here("calibrate", "--out", tmp_path, "--force"), "is a directory")
    refused(here("calibrate", "--out", tmp_path / "mine.yaml" / "new.yaml"), "is not a writable directory")
    refused(here("calibrate", "--out", tmp_path / "new.yaml", "--nproc", 100_000), "--nproc is 100000; it must be from")
    refused(here("calibrate"), "--out", lines=None)
    refused(
        here("calibrate", "--out", tmp_path / "new.yaml", "--nproc", 0),
        "'0' is not allowed; give a whole number from 1",
        lines=None,
    )
    assert (tmp_path / "mine.yaml").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
