"""``--max-imbalance`` and ``--target-weights`` on the command line."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_relations, partition
from dgl_gt.partition.relations import relations_of

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
SAMPLE = "sample:communities?nodes=400&seed=1"


def run(*options, parts=4):
    return main(["partition", SAMPLE, "--parts", str(parts), "--out", "shards", "--json", *options])


def test_weights_in_a_list_and_in_files(capsys):
    Path("lines.txt").write_text("1\n1\n2\n2\n")
    Path("commas.csv").write_text("1, 1,2,2\n")
    found = []
    for given in (" 1, 1, 2 2", "0.5,0.5,1,1e0", "lines.txt", "commas.csv"):
        assert run("--force", "--target-weights", given) == 0
        manifest = json.loads(Path("shards/manifest.json").read_text())
        assert manifest["shares"] == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
        found.append((manifest["ptr"], manifest["quality"]))
    assert all(each == found[0] for each in found)


def test_as_many_weights_as_there_may_be_parts(capsys):
    """A long list is not taken for a file name, although no file name may be so long."""
    assert run("--target-weights", ",".join(["1.0"] * 70), parts=70) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == 70


@pytest.mark.parametrize("bounds", ["1.4", "edges=1.3,nodes=1.4,train=1.6", " nodes = 1.5 , edges = 1.3 "])
def test_bounds_on_the_command_line(capsys, bounds):
    assert run("--max-imbalance", bounds) == 0
    quality = json.loads(capsys.readouterr().out)["quality"]
    assert quality["edge_balance"] <= 1.4 and quality["node_balance"] <= 1.5


REFUSED = [
    (["--target-weights", "1,2,3"], "--target-weights are [1.0, 2.0, 3.0]; they must be 4 positive numbers"),
    (["--target-weights", "1,0,1,1"], "[1.0, 0.0"),
    (["--target-weights", "1,nan,1,1"], "[1.0, nan"),
    (["--target-weights=-1,1,1,1"], "[-1.0"),
    (["--target-weights", "a,1,1,1"], "--target-weights: 'a,1,1,1'"),
    (["--target-weights", "nowhere.txt"], "'nowhere.txt' is not a readable file"),
    (["--target-weights", ""], "are []"),
    (["--max-imbalance", "0.9"], "is 0.9"),
    (["--max-imbalance", "nan"], "is nan"),
    (["--max-imbalance", "much"], "--max-imbalance: 'much'"),
    (["--max-imbalance", ""], "--max-imbalance"),
    (["--max-imbalance", "edge=1.1"], "'edge'; name one or more of nodes, edges, train"),
    (["--max-imbalance", "edges=1.1,nodes"], "--max-imbalance"),
    (["--max-imbalance", "edges="], "--max-imbalance 'edges='"),
    (["--max-imbalance", "edges=1.1,edges=1.2"], "NAME once"),
    (["--max-imbalance", "edges=1.1, edges=1.2"], "NAME once"),
    (
        ["--max-imbalance", "1.1", "--cut", "vertex"],
        "--max-imbalance applies only to edge cuts; leave it out, or choose --cut edge",
    ),
    (
        ["--max-imbalance", "1.2", "--cut", "auto"],
        "--max-imbalance applies only to edge cuts; leave it out, or choose --cut edge",
    ),
    (["--attempts", "0"], "--attempts is 0; it must be a whole number from 1 to 10,000"),
]


@pytest.mark.parametrize("options, message", REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_refused_on_the_command_line(capsys, options, message):
    assert run(*options) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
    assert os.listdir() == []


def test_a_wrong_bound_does_not_speak_of_files(capsys):
    """Bounds are never read from a file."""
    assert run("--max-imbalance", "much") == 2
    assert "file" not in capsys.readouterr().err


def test_a_bound_that_cannot_be_kept_leaves_nothing(capsys):
    Path("star.txt").write_text("".join(f"{i} 0\n" for i in range(1, 30)))
    arguments = ["partition", "star.txt", "--parts", "2", "--out", "shards", "--max-imbalance", "edges=1.5"]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and "the best has edges 2 (part" in err.replace("2.00", "2") and "bound 1.5" in err
    assert os.listdir() == ["star.txt"]


@pytest.fixture
def two_types():
    """Two communities; nearly all nodes of the second type are in one of them, so a cut between them is uneven."""
    rng = np.random.default_rng(0)
    near = [rng.integers(low, low + 100, (2, 600)) for low in (0, 100)]
    ties = np.stack([rng.integers(0, 40, 120), rng.integers(0, 100, 120)])
    edges = {("a", "to", "a"): np.concatenate(near, axis=1), ("b", "of", "a"): ties}
    return from_relations({"a": 200, "b": 40, "none": 0}, edges)


def test_types_are_kept_even(two_types, tmp_path):
    def share(manifest):
        return max(max(part[0][1] for part in manifest["typed"]["nodes"]) / 20, 1)

    plain = partition(two_types, 2, tmp_path / "plain")
    even = partition(two_types, 2, tmp_path / "even", balance="types")
    assert share(plain) > 1.2 and share(even) <= 1.1
    assert max(part[0][0] for part in even["typed"]["nodes"]) <= 110


def test_weights_of_one_type_are_refused(two_types, tmp_path):
    data = {("b", "of", "a"): {"w": np.ones(120)}}
    edges = {key: each[:2] for key, each in relations_of(two_types).items()}
    graph = from_relations(two_types.schema.nodes, edges, edge_data=data)
    with pytest.raises(InputError, match="b,of,a/w"):
        partition(graph, 2, tmp_path / "out", cut_weights="b,of,a/w")


def test_balance_that_is_refused(two_types, tmp_path, capfd):
    for options, word in (
        ({"balance": "nodes"}, "'nodes'"),
        ({"balance": "types", "max_imbalance": 1.1}, "max_imbalance"),
        ({"balance": "types", "cut": "vertex"}, "edge cuts"),
    ):
        with pytest.raises(InputError, match=word):
            partition(two_types, 2, tmp_path / "out", **options)
    command = ["partition", "sample:communities?nodes=100", "--parts", "2", "--out", str(tmp_path / "out")]
    assert main([*command, "--balance", "types"]) == 2
    assert "--balance" in capfd.readouterr().err
