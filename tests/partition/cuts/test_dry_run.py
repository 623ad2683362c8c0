"""``--dry-run``: what each method would need and which one would be used, and nothing is written."""

import os

import numpy as np
import pytest
from memory_cases import SAMPLE, bound, npz, run

from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.partition.memory_bound import METHODS

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize("source", [SAMPLE, "graph.npz"])
def test_dry_run(capsys, source):
    npz()
    before = os.listdir()
    code, made, _ = run(capsys, "partition", source, "--parts", 3, "--dry-run")
    assert code == 0 and set(made) == {
        "nodes",
        "edges",
        "parts",
        "method",
        "estimates",
        "left_out",
        "notes",
        "disk_free_bytes",
        "shares",
    }
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


@pytest.mark.parametrize("options", [["--halo-depth", "2"], ["--max-imbalance", "1.2"]])
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
