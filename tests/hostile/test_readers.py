"""Every reader takes any damage to its file: it returns, or refuses the file in words. ``readers.py`` tries 100,000 of them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_cases import write_profile

import dgl_gt
from dgl_gt.partition import InputError, load_graph, partition, read_manifest, verify
from dgl_gt.plan import read_profile
from dgl_gt.report.run_report import read_run
from dgl_gt.run_files.tensor_file import CHECKPOINT_FILE, read_bytes
from dgl_gt.train import load_model, read_config, train_and_save

EDIT = st.tuples(st.sampled_from(["put", "insert", "cut", "drop"]), st.integers(0, 2**20), st.binary(max_size=9))
READERS = {  # of a file: what reads it, given the folder of all files
    "edges.csv": lambda folder: load_graph(folder / "edges.csv"),
    "metis.graph": lambda folder: load_graph(folder / "metis.graph"),
    "graph.npz": lambda folder: load_graph(folder / "graph.npz"),
    "edges.npy": lambda folder: load_graph(folder / "edges.npy"),
    "shards/manifest.json": lambda folder: verify(folder / "shards", read_manifest(folder / "shards")),
    "shards/part0/structure.safetensors": lambda folder: dgl_gt.load(folder / "shards").close(),
    "settings.yaml": lambda folder: read_config(folder / "settings.yaml"),
    "profile.yaml": lambda folder: read_profile(folder / "profile.yaml"),
    "run/config.yaml": lambda folder: read_run(folder / "run"),
    "run/model.safetensors": lambda folder: load_model(folder / "run"),
    "run/record.json": lambda folder: read_run(folder / "run"),
    "run/metrics.jsonl": lambda folder: read_run(folder / "run"),
    "run/checkpoint-000001.safetensors": lambda folder: CHECKPOINT_FILE.unpack(
        read_bytes(folder / "run/checkpoint-000001.safetensors")
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    edges = np.random.default_rng(0).integers(0, 30, (2, 90))
    (folder / "edges.csv").write_text("src,dst,weight\n" + "".join(f"{u},{v},0.5\n" for u, v in edges.T))
    (folder / "metis.graph").write_text("3 2\n2\n1 3\n2\n")
    np.savez(folder / "graph.npz", edge_index=edges, num_nodes=30, x=np.ones((30, 2), np.float32))
    np.save(folder / "edges.npy", edges)
    (folder / "settings.yaml").write_text(
        yaml.safe_dump({"model": {"layers": 2, "norm": "batch"}, "optimizer": {"lr": 0.01}, "epochs": 3})
    )
    write_profile(folder / "profile.yaml")
    partition("sample:communities?nodes=100&features=2", 1, folder / "shards")
    with dgl_gt.load(folder / "shards") as sg:
        config = read_config(layers=1, hidden=4, heads=1, epochs=2, patience=0)
        train_and_save(sg, config.changed(checkpoint_every=1), folder / "run")
    return folder


def damaged(data: bytes, edits) -> bytes:
    for what, at, some in edits:
        at %= len(data) + 1
        if what == "cut":
            data = data[:at]
        else:
            until = {"put": at + len(some), "insert": at, "drop": at + 5}[what]
            data = data[:at] + (b"" if what == "drop" else some) + data[until:]
    return data


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
def test_a_damaged_file_is_read_or_refused_in_words(good, name, edits):
    before = (good / name).read_bytes()
    try:
        (good / name).write_bytes(damaged(before, edits))
        READERS[name](good)
    except InputError as error:
        assert str(error)
    finally:
        (good / name).write_bytes(before)


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(good, name):
    READERS[name](good)


@pytest.mark.needs_dgl
@pytest.mark.slow
def test_the_command_for_many_inputs():
    command = [sys.executable, Path(__file__).with_name("readers.py"), "--inputs", "200", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "200 inputs" in done.stdout and "0 failures" in done.stdout
