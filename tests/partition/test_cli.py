import argparse
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, console, partition
from dgl_gt.partition.command_options import self_loop_fill

SAMPLE = "sample:communities?nodes=400&seed=1"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_partition_and_inspect_agree(capsys):
    assert main(["partition", SAMPLE, "--parts", "3", "--out", "shards", "--json"]) == 0
    out, err = capsys.readouterr()
    made = json.loads(out)
    assert "METIS" in err
    keys = {
        "nodes",
        "edges",
        "parts",
        "cut",
        "method",
        "choice",
        "mapping",
        "quality",
        "peak_memory_bytes",
        "seconds",
        "left_out",
        "notes",
        "isolated_nodes",
        "types",
    }
    assert set(made) == keys | {"encodings", "transforms", "links", "compute_balance"}
    assert made["choice"] is None
    assert set(made["quality"]) == {
        "cut_ratio",
        "volume",
        "halo",
        "replication_factor",
        "max_copies_factor",
        "node_balance",
        "edge_balance",
        "train_balance",
    }
    assert (made["nodes"], made["parts"], made["cut"]) == (400, 3, "edge")
    assert made["peak_memory_bytes"] > 10 << 20
    assert main(["inspect", "shards", "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert all(inspected[key] == made[key] for key in ("nodes", "edges", "parts", "cut", "quality"))


def test_what_is_left_out_is_named_and_no_escape_sequence_is_printed(capsys):
    name = "\x1b[31mred.csv"
    Path(name).write_text("src,dst,\x1b[31mkind\n0,1,a\n1,0,b\n")
    for options in (["--out", "shards"], ["--dry-run"]):
        assert main(["partition", name, "--parts", "2", *options]) == 0
        out, err = capsys.readouterr()
        assert "left out: edge data \\x1b[31mkind (text)\n" in err
        assert out.startswith("\\x1b[31mred.csv: 2 nodes") and "\x1b" not in out + err
        assert main(["partition", name, "--parts", "2", *options, "--json", "--force"]) == 0
        assert json.loads(capsys.readouterr().out)["left_out"] == ["edge data \x1b[31mkind (text)"]
    assert main(["inspect", "shards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == ["edge data \x1b[31mkind (text)"]
    Path("many.txt").write_text(" ".join("01" * 20) + "\n")
    main(["partition", "many.txt", "--parts", "1", "--dry-run"])
    assert "and 28 more" in capsys.readouterr().err


@pytest.mark.parametrize(("cut", "extra"), [("edge", "cut ratio"), ("vertex", "mirrors")])
def test_the_table_names_every_figure_and_begins_with_what_costs(capsys, cut, extra):
    """A cut of most edges may send few rows, so the volume comes before the cut ratio."""
    main(["partition", SAMPLE, "--parts", "2", "--cut", cut, "--out", "shards"])
    made = capsys.readouterr().out
    main(["inspect", "shards"])
    for out in (made, capsys.readouterr().out):
        assert all(word in out for word in ("owned nodes", "edges", "size", {"edge": "halo nodes"}.get(cut, "mirrors")))
        figures = re.findall(r"^([a-z ]+?) +[\d,.]+%?  \D", out, re.MULTILINE)
        assert figures[:3] == ["volume", extra, "replication"]
        assert {"largest part", "node balance", "edge balance"} <= set(figures)


@pytest.mark.parametrize("name", ["cora", "email_enron", "ogbl_ddi_train"])
@pytest.mark.parametrize("parts", [2, 4, 7])
def test_real_graphs(real_graph, capsys, name, parts):
    assert main(["partition", str(real_graph(name)), "--parts", str(parts), "--out", "shards", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["parts"] == parts and 1 < made["quality"]["replication_factor"] < parts
    assert main(["inspect", "shards"]) == 0


def npz(**changes):
    """Write a valid graph file of four nodes, with changes to its arrays."""
    good = {
        "edge_index": np.array([[0, 1, 2], [1, 2, 3]]),
        "num_nodes": 4,
        "directed": False,
        "x": np.ones((4, 2), np.float32),
        "y": np.array([0, 1, 0, 1]),
        "train_mask": np.array([1, 1, 0, 0], bool),
        "val_mask": np.array([0, 0, 1, 0], bool),
        "test_mask": np.array([0, 0, 0, 1], bool),
    }
    np.savez("graph.npz", **{**good, **changes})
    return "graph.npz"


BAD = {
    "missing file": (lambda: "nowhere.npz", "nowhere.npz"),
    "unknown data set": (lambda: "dgl:corra", "corra"),
    "unknown kind": (lambda: "graph.parquet", "graph.parquet"),
    "not a zip": (lambda: Path("bad.npz").write_bytes(b"rubbish") and "bad.npz", "bad.npz"),
    "id out of range": (lambda: npz(num_nodes=3), "outside 0..2"),
    "negative id": (lambda: npz(edge_index=np.array([[0, -1], [1, 2]])), "-1"),
    "NaN": (lambda: npz(x=np.full((4, 2), np.nan, np.float32)), "NaN"),
    "overlapping masks": (lambda: npz(val_mask=np.array([1, 0, 0, 0], bool)), "overlap"),
    "empty mask": (lambda: npz(test_mask=np.zeros(4, bool)), "selects no node"),
    "unlabelled training node": (lambda: npz(y=np.array([-1, 1, 0, 1])), "no label"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sources(capsys, case):
    make, message = BAD[case]
    before = make() and set(os.listdir())
    assert main(["partition", make(), "--parts", "2", "--out", "shards"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("dgl-gt: error: ")
    assert set(os.listdir()) == before


@pytest.mark.parametrize("parts", ["0", "-3", "401"])
def test_impossible_numbers_of_parts(capsys, parts):
    assert main(["partition", SAMPLE, "--parts", parts, "--out", "shards"]) == 2
    said = capsys.readouterr().err
    assert f"parts is {parts};" in said or f"into {parts} parts" in said
    assert os.listdir() == []


def test_an_existing_directory_needs_force(capsys):
    arguments = ["partition", SAMPLE, "--parts", "2", "--out", "shards"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert os.listdir() == ["shards"]


def test_a_place_that_cannot_be_written_to(capsys):
    Path("file").write_text("")
    assert main(["partition", SAMPLE, "--parts", "2", "--out", "file/shards"]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_run_leaves_nothing_that_looks_complete(how, code):
    source = "sample:communities?nodes=30000&seed=0"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "dgl_gt", "partition", source, "--parts", "64", "--out", "shards"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    for line in process.stderr:
        if line.startswith("reading the graph"):  # printed when METIS starts
            break
    time.sleep(0.3)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == code
    left = os.listdir()
    assert "shards" not in left
    assert how == signal.SIGKILL or left == []
    assert main(["partition", SAMPLE, "--parts", "2", "--out", "shards"]) == 0
    assert os.listdir() == ["shards"], "the next run removes what a killed one left"


def test_stdout_is_json_even_where_libraries_print():
    """METIS prints on stdout when a star is cut into single nodes; DGL prints in a new home directory."""
    Path("star.txt").write_text("".join(f"0 {i}\n" for i in range(1, 20)))
    dgl = pytest.importorskip("dgl")
    dgl.save_graphs("g.bin", [dgl.rand_graph(30, 90)])
    env = {key: value for key, value in os.environ.items() if key != "DGLBACKEND"}
    env |= {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": os.getcwd()}
    for source, parts in (("star.txt", 20), ("g.bin", 2)):
        command = [
            sys.executable,
            "-m",
            "dgl_gt",
            "partition",
            source,
            "--parts",
            str(parts),
            "--out",
            "s",
            "--json",
        ]
        done = subprocess.run([*command, "--force"], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["parts"] == parts
    assert ".dgl" not in os.listdir()


def test_no_part_is_empty_where_there_are_nodes_enough(capsys):
    Path("star.txt").write_text("".join(f"0 {i}\n" for i in range(1, 20)))
    assert main(["partition", "star.txt", "--parts", "20", "--out", "shards"]) == 0
    assert json.loads(Path("shards/manifest.json").read_text())["ptr"] == list(range(21))


@pytest.mark.parametrize(
    ("arguments", "message"), [(dict(parts="2"), "parts is '2'"), (dict(parts=2, seed=2**31), "seed is")]
)
def test_wrong_types_from_python(arguments, message):
    with pytest.raises(InputError, match=message):
        partition(SAMPLE, out="shards", **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--halo-depth", "1000000"], "--halo-depth is 1000000; it must be a whole number from 1 to 100"),
        (["--halo-depth", "1000000", "--dry-run"], "--halo-depth is 1000000; it must be a whole number from 1 to 100"),
        (["--max-imbalance", "0.5"], "--max-imbalance is 0.5 for"),
        (["--target-weights", "/dev/zero"], "'/dev/zero' is not a readable file of numbers"),
        (["--target-weights", "1,2,3"], "--target-weights are [1.0, 2.0, 3.0]"),
        (["--skip", "a,,b"], "--skip is 'a,,b'"),
        (["--features", "a\nb"], r"--features is 'a\nb'"),
        (["--features", "f0\rf1"], r"--features is 'f0\rf1'"),
        (["--features", "f" * 140_000], "--features is 'ffff"),  # more than csv takes
        (["--attempts", str(10**30)], "must be a whole number from 1 to 10,000"),
    ],
)
def test_what_options_may_be(capsys, options, message):
    """Messages name the option, not the Python argument."""
    assert main(["partition", SAMPLE, "--parts", "2", "--out", "shards", *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last and "_" not in last.replace("sample:", "")
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--halo-depth", "1e22"], "argument --halo-depth: invalid int value: '1e22'"),
        (["--attempts", "many"], "argument --attempts: invalid int value: 'many'"),
        (["--memory", "much"], "argument --memory: 'much' is not an amount of memory"),
    ],
)
def test_numbers_that_options_do_not_take(capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        main(["partition", SAMPLE, "--parts", "2", "--out", "shards", *options])
    last = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2 and message in last and len(last) < 200


def test_fills_of_edge_data_of_any_name():
    assert self_loop_fill("a=b=zero,c=1") == {"a=b": "zero", "c": 1} and self_loop_fill("mean") == "mean"


def test_one_of_each(capsys):
    """Counts of one are written without a plural."""
    Path("\u00e9.csv").write_text("0,1\n")
    assert main(["partition", "\u00e9.csv", "--parts", "1", "--out", "shards"]) == 0
    assert capsys.readouterr().out.startswith("\u00e9.csv: 2 nodes, 1 edge, 1 part, edge cut\n")


def test_a_name_that_the_terminal_cannot_show(capsys, monkeypatch):
    Path("\u00e9.csv").write_text("0,1\n")
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    assert main(["partition", "\u00e9.csv", "--parts", "1", "--out", "shards"]) == 0
    assert ascii_only.buffer.getvalue().startswith(rb"\xe9.csv: 2 nodes")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("pass num_nodes (--num-nodes), or raise memory (--memory)", "pass --num-nodes, or raise --memory"),
        ("choose cut='edge' (--cut edge)", "choose --cut edge"),
        ("g.npz: num_nodes must be one value", "g.npz: num_nodes must be one value"),
        ("rank_memory is 3; it must be at least 4", "--rank-memory is 3; it must be at least 4"),
        ("parts is 0; make 1 part or more parts", "--parts is 0; make 1 part or more parts"),
        ("the number of parts is 0", "the number of parts is 0"),
        ("dir/rank_memory.npz (--memory) is lost", "dir/rank_memory.npz (--memory) is lost"),
        ("halo_depth is 3 (--cut edge)", "halo_depth is 3 (--cut edge)"),
    ],
)
def test_messages_name_options(message, shown):
    """Recommended arguments become options always; others only if they were given."""
    args = argparse.Namespace(parts=0, rank_memory=3, num_nodes=None, memory=None, halo_depth=None)
    assert console._with_option_names(message, args) == shown


def test_progress_prints_a_line_at_the_end_of_each_stage(capsys):
    with console.Stages() as progress:
        for stage in ("reading", "reading", "writing"):
            progress(stage)
            before = capsys.readouterr().err if stage == "reading" else ""
            assert before == ""
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["reading", "writing"]
    assert all(line.endswith(" 0.0 s") for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parts", str(10**20)], "choose 1 to 400 parts"),
        (["--parts", str(10**10)], "choose 1 to 400 parts"),
        (["--parts", "2", "--seed", "-5"], "--seed is -5; it must be a whole number"),
        (["--parts", "2", "--out", "x" * 300], "File name too long; choose another place"),
        (["--parts", "2", "--random-features", "9" * 400], "--random-features is 999"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(capsys, options, message):
    assert main(["partition", SAMPLE, "--dry-run", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_beside_a_directory_that_may_not_be_searched(capsys, monkeypatch):
    def exists(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", exists)
    assert main(["partition", SAMPLE, "--parts", "2", "--dry-run", "--out", "secret/shards"]) == 2
    assert "Permission denied; choose another place" in capsys.readouterr().err


def test_too_many_parts_are_not_blamed_on_a_memory_bound(capsys):
    arguments = ["partition", SAMPLE, "--parts", "401", "--out", "shards", "--memory", "1MiB"]
    assert main(arguments) == 2
    assert "choose 1 to 400 parts" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["partition", "inspect", "report"])
def test_json_has_no_infinity(capsys, command):
    """JSON has no number that is infinite."""
    made = ["partition", SAMPLE, "--parts", "2", "--cut", "auto", "--out", "shards", "--json"]
    assert main(made) == 0
    if command != "partition":
        capsys.readouterr()
        assert main([command, "shards", "--json", *(["-o", "r.html"] if command == "report" else [])]) == 0

    def refuse(name):
        raise AssertionError(f"JSON has no {name}")

    for text in (capsys.readouterr().out, *(path.read_text() for path in Path().glob("**/*.json"))):
        found = json.loads(text, parse_constant=refuse)
    assert found["choice"]["profile"] == "default"
