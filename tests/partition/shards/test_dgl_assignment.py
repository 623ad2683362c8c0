"""An edge cut as the part of each node, in the files that DGL's dispatch and GraphStorm read."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, load_graph, partition
from dgl_gt.partition.graph import from_edges

GRAPH = "sample:communities?nodes=300"


def parts_of(directory, node_type="_N"):
    return np.array((directory / f"{node_type}.txt").read_text().split("\n")[:-1], int)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("more", [{}, {"memory": 2**32}, {"attempts": 3, "self_loops": True}])
def test_it_is_the_cut_of_shards(tmp_path, parts, more):
    shards = partition(GRAPH, parts, tmp_path / "shards", cut="edge", seed=3, **more)
    found = partition(GRAPH, parts, tmp_path / "out", assignment_only=True, seed=3, **more)
    owner = parts_of(tmp_path / "out")
    for part in range(parts):
        ids = load_file(tmp_path / f"shards/part{part}/structure.safetensors")["node_ids"]
        assert (owner[ids[: shards["per_part"][part]["owned"]]] == part).all()
    assert len(owner) == 300 and {*owner.tolist()} == {*range(parts)}
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"_N.txt", "partition_meta.json"}
    meta = json.loads((tmp_path / "out/partition_meta.json").read_text())
    assert meta == {"version": "1.0.0", "num_parts": parts, "algo_name": "metis", "made_by": "dgl-gt"}
    assert all(found[key] == shards[key] for key in ("nodes", "edges", "quality", "ptr", "seed", "method"))


def test_owners_that_are_given_and_an_empty_part(tmp_path):
    owner = np.array([2, 0, 2, 0])
    partition(from_edges([0, 1], [1, 2], 4), 3, tmp_path / "out", owner=owner, assignment_only=True)
    assert parts_of(tmp_path / "out").tolist() == owner.tolist()


def test_nodes_with_names_and_a_type(tmp_path):
    (tmp_path / "g.csv").write_text("src,dst\nann,bob\nbob,cat x\n")
    partition(tmp_path / "g.csv", 2, tmp_path / "out", assignment_only=True)
    names = (tmp_path / "out/node_names.txt").read_text().split("\n")
    assert names == ["ann", "bob", "cat x", ""] and len(parts_of(tmp_path / "out")) == 3
    named = replace(from_edges([0, 1], [1, 2]), node_type="my movie")
    partition(named, 2, tmp_path / "typed", assignment_only=True)
    assert len(parts_of(tmp_path / "typed", "my movie")) == 3
    partition(named, 2, tmp_path / "typed", assignment_only=True, force=True)


@pytest.mark.parametrize("name", ["a/b", "..", ".a", "", "a\n", "a\0", "node_names", "n" * 101])
def test_types_that_name_no_file(tmp_path, name):
    graph = replace(load_graph(GRAPH), node_type=name)
    with pytest.raises(InputError, match="calls its nodes"):
        partition(graph, 2, tmp_path / "out", assignment_only=True)
    assert not (tmp_path / "out").exists()
    assert partition(graph, 2, tmp_path / "shards")["nodes"] == 300


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cut", "vertex"], ["--assignment-only", "edge cuts"]),
        (["--cut", "auto"], ["--assignment-only", "edge cuts"]),
        (["--encode", "degree"], ["--encode", "--assignment-only"]),
        (["--expander", "2"], ["--expander"]),
        (["--virtual-nodes", "1"], ["--virtual-nodes"]),
        (["--link-split", "0.8,0.1,0.1"], ["--link-split"]),
        (["--memory", "100MiB"], ["METIS"]),
    ],
)
def test_options_that_are_refused(tmp_path, capfd, options, words):
    source = "sample:communities?nodes=20000&features=1"
    assert main(["partition", source, "--parts", "2", "--assignment-only", "--out", str(tmp_path / "o"), *options]) == 2
    said = capfd.readouterr().err
    assert all(word in said for word in words) and not (tmp_path / "o").exists()


def test_the_command(tmp_path, capfd):
    given = ["partition", GRAPH, "--parts", "2", "--out", str(tmp_path / "out")]
    assert main([*given, "--format", "dgl"]) == 2 and "--assignment-only" in capfd.readouterr().err
    assert main([*given, "--assignment-only", "--format", "dgl"]) == 0
    assert "cut ratio" in (printed := capfd.readouterr().out) and "size" not in printed
    assert main([*given, "--assignment-only"]) == 2 and "--force" in capfd.readouterr().err
    assert main([*given, "--force"]) == 2 and "does not hold shards" in capfd.readouterr().err
    assert main([*given, "--assignment-only", "--force", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["quality"]["cut_ratio"] > 0
    (tmp_path / "out/notes.md").write_text("mine")
    assert main([*given, "--assignment-only", "--force"]) == 2 and "notes.md" in capfd.readouterr().err
    assert main(["inspect", str(tmp_path / "out")]) == 2
    with pytest.raises(InputError, match="assignment_only is 1"):
        partition(GRAPH, 2, tmp_path / "new", assignment_only=1)
