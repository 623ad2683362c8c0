"""Commands that run part by part: chosen by memory, refused before any work, and ended in the middle."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ranks import run_ranks
from test_merged_parts import SETTINGS

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import InputError, partition, read_figures, read_manifest
from dgl_gt.plan import choose, planned_step, read_profile, report_costs, room, tracer_of
from dgl_gt.plan.planned_step import check_memory
from dgl_gt.run_files.run_directory import checkpoints_in
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

pytestmark = pytest.mark.usefixtures("rank_here")

PARTS = 8
QUICK = ["--epochs", "4", "--layers", "2", "--hidden", "16", "--heads", "4", "--patience", "0"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("spilled") / "eight"
    partition("sample:communities?nodes=4000&features=32", PARTS, directory)
    return directory


@pytest.fixture
def spill(tmp_path):
    (tmp_path / "spill").mkdir()
    return tmp_path / "spill"


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


# ---- chosen ----


@pytest.mark.slow
def test_auto_takes_what_fits_and_names_spill(shards, spill, tmp_path, capfd):
    """The bound is one that only a step part by part keeps."""
    wide = ["--hidden", "64", "--heads", "4", "--layers", "2"]
    assert main(["plan", str(shards), "--world-size", "2", "--json", *wide]) == 0
    free = json.loads(capfd.readouterr().out)
    assert (free["ranks"], free["choice"]["parts"], free["choice"]["spilled"]) == (2, PARTS, False)
    full = [each for each in free["candidates"] if each["activation_checkpoint"] == "none"]
    bound = min(each["memory_bytes"] for each in full)
    for _ in range(20):  # until nothing in memory fits
        bound = int(0.99 * bound)
        assert main(["plan", str(shards), "--world-size", "2", "--json", *wide, "--rank-memory", str(bound)]) == 0
        choice = json.loads(capfd.readouterr().out)["choice"]
        if choice["spilled"]:
            break
    assert (
        choice["spilled"] and choice["predicted_memory_bytes"] <= bound and choice["predicted_file_bytes"]["read"] > 0
    )
    auto = ["train", str(shards), "--parts-per-rank", "4", "--strategy", "auto", "--rank-memory", str(bound)]
    auto += ["--epochs", "1", *wide]
    assert main(auto) == 2
    assert "--spill DIR" in capfd.readouterr().err
    assert main([*auto, "--spill", str(spill), "--out", str(tmp_path / "run"), "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)["plan"]
    assert plan["choice"]["spilled"] and plan["choice"]["parts"] == PARTS and plan["choice"]["ranks"] == 2
    (trial,) = plan["trials"]
    assert trial["measured_peak_bytes"] == pytest.approx(trial["predicted_peak_bytes"], rel=0.1)
    assert not os.listdir(spill)


def test_a_graph_is_cut_into_as_many_parts_as_fit(capfd):
    """Each bound is a little less than what was chosen before needs."""
    plan = ["plan", "sample:communities?nodes=8000&features=16", "--world-size", "1", "--hidden", "128", "--json"]
    found, bound = {}, 2**30
    while main([*plan, "--rank-memory", str(bound)]) == 0:
        choice = json.loads(capfd.readouterr().out)["choice"]
        assert choice["predicted_memory_bytes"] <= bound
        found.setdefault(choice["parts"], choice["spilled"])
        bound = choice["predicted_memory_bytes"] - 8 * 2**20
    assert "nothing fits" in capfd.readouterr().err
    assert list(found) == sorted(found) and len(found) > 2
    assert all(spilled for parts, spilled in found.items() if parts > 1)


def test_joined_parts_take_every_strategy(shards):
    figures, step = read_figures(read_manifest(shards)), tracer_of(read_config(hidden=8, layers=1, heads=2), 32, 3)
    joined, equal = (
        {each.strategy for each in choose([(None, each)], step, read_profile()).candidates if not each.refused}
        for each in (figures.on_ranks(2), figures)
    )
    assert joined >= equal - {"heads"}  # which 8 ranks of two heads lack
    assert "heads" in joined


def test_graphics_processors_have_no_files(capfd):
    """A bound that nothing keeps in memory, and layers part by part do."""
    plan = ["plan", "sample:communities?nodes=2000&features=8", "--world-size", "2", "--preset"]
    for preset, bound in (("8xH100", 955), ("cpu-10GbE", 269)):
        main([*plan, preset, "--rank-memory", f"{bound}MiB"])
        out, err = capfd.readouterr()
        assert ("part by part" in out + err) == (preset == "cpu-10GbE")


# ---- refused ----


def test_activation_checkpointing_beside_it(shards, spill):
    with pytest.raises(InputError, match="activation_checkpoint is full"):
        train(dgl_gt.load(shards, spill=spill), read_config(**SETTINGS | {"activation_checkpoint": "full"}))


def test_numbers_of_ranks_and_parts(shards, capfd):
    for options, named in (
        (["--parts-per-rank", "3"], "--parts-per-rank is 3"),
        (["--parts-per-rank", "4", "--nproc", "4"], "--parts-per-rank is 4"),
        (["--parts-per-rank", "16"], "--parts-per-rank is 16"),
        (["--nproc", "9"], "--nproc is 9"),
    ):
        assert main(["train", str(shards), *QUICK, *options]) == 2
        assert named in capfd.readouterr().err
    for size in ("3", "16", "2,3"):
        assert main(["plan", str(shards), "--world-size", size]) == 2
        assert f"--world-size is {size}" in capfd.readouterr().err


def test_a_directory_that_cannot_be_written(shards, tmp_path, capfd):
    profile = tmp_path / "profile.yaml"
    for verb in (["train", str(shards), *QUICK, "--nproc", "2"], ["calibrate", "--quick", "--out", str(profile)]):
        assert main([*verb, "--spill", "/proc"]) == 2
        assert "/proc" in capfd.readouterr().err
    assert not profile.exists()


def test_costs_are_those_of_steps_in_memory(shards, spill):
    with pytest.raises(InputError, match="spill"):
        report_costs(lambda sg: lambda: None, dgl_gt.load(shards, spill=spill))


def test_no_room_on_the_disk(shards, spill, monkeypatch):
    config, sg = read_config(**SETTINGS | {"hidden": 24}), dgl_gt.load(shards, spill=spill)
    check_memory(shards, sg, config)
    for module in (planned_step, room):
        monkeypatch.setattr(module, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=2**20)))
    with pytest.raises(InputError, match="spill is .* 1.0 MiB are free"):
        check_memory(shards, sg, config)


def test_no_memory_for_the_largest_part(shards, spill, monkeypatch):
    monkeypatch.setattr(planned_step, "available_rank_memory", lambda _: 2**20)
    sg = dgl_gt.load(shards, spill=spill)
    with pytest.raises(InputError, match="predicted to need .* into more parts"):
        check_memory(shards, sg, read_config(**SETTINGS))


class Other(torch.nn.Module):
    """A model that is no sequence of layers."""

    def __init__(self, in_dim, classes):
        super().__init__()
        self.linear = torch.nn.Linear(in_dim, classes)

    def forward(self, graph, feat):
        return self.linear(feat)


class Around(torch.nn.Module):
    def __init__(self, in_dim, classes):
        super().__init__()
        self.inner = GraphTransformer(in_dim, 8, classes, 2, 2)

    def forward(self, graph, feat):
        return 2 * self.inner(graph, feat)


def test_models_of_users(shards, spill, capfd, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")])
    )
    train = ["train", str(shards), "--nproc", "1", "--epochs", "1", "--spill", str(spill), "--model-factory"]
    assert main([*train, "test_spilled_runs:Other"]) == 2
    assert "Other" in capfd.readouterr().err
    assert main([*train, "test_spilled_runs:Around"]) == 0


def test_parameters_that_nothing_reads_get_no_gradient(shards, spill):
    found = []
    for where in (None, spill):
        sg = dgl_gt.load(shards, spill=where)
        model = GraphTransformer(32, 8, 3, 2, 2)
        model.unread = torch.nn.Parameter(torch.ones(3))
        model(sg, sg.ndata["feat"]).sum().backward()
        found.append([name for name, each in model.named_parameters() if each.grad is None])
    assert found[0] == found[1] == ["unread"]


# ---- ended in the middle ----


def with_a_full_disk(rank, path, spill):
    """The second file of rank 1 finds no room."""
    sg, allocate, sizes = dgl_gt.load(path, spill=spill), os.posix_fallocate, []

    def full(file, offset, size):
        sizes.append(size)
        if rank == 1 and len(sizes) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, offset, size)

    os.posix_fallocate = full
    with pytest.raises((InputError, dgl_gt.RankError)) as caught:
        train(sg, read_config(**SETTINGS))
    return len(sizes), str(caught.value)


def test_the_disk_fills_up_while_it_runs(shards, spill):
    (_, theirs), (count, own) = run_ranks(2, with_a_full_disk, shards, str(spill))
    assert count == 2 and str(spill) in own and "No space left" in own
    assert theirs and not os.listdir(spill)


def test_killed_while_it_runs_and_resumed_on_half_the_ranks(shards, spill, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    options = ["--spill", str(spill), "--checkpoint-every", "1", *QUICK, "--epochs"]
    command = [
        sys.executable,
        "-m",
        "dgl_gt",
        "train",
        str(shards),
        "--parts-per-rank",
        "2",
        "--out",
        str(out),
        *options,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "400"], stderr=subprocess.DEVNULL, start_new_session=True, env=environment)
    try:
        until = time.monotonic() + 120
        while len(checkpoints_in(out)) < 2:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not os.listdir(spill)
    done = len(losses(out))
    main(["train", str(shards), "--parts-per-rank", "4", "--out", str(out), *options, str(done + 3), "--resume"])
    main(["train", str(shards), "--nproc", "1", "--out", str(whole), *QUICK, "--epochs", str(done + 3)])
    np.testing.assert_allclose(losses(out), losses(whole), rtol=1e-4)
    assert not os.listdir(spill)


def test_a_run_of_rounded_rows_goes_on_with_them(shards, spill, tmp_path, capfd):
    command = ["train", str(shards), "--nproc", "1", "--spill", str(spill), "--out", str(tmp_path / "run"), *QUICK]
    command += ["--checkpoint-every", "1"]
    assert main([*command, "--spill-dtype", "bf16"]) == 0
    more = [*command, "--epochs", "6", "--resume"]
    assert main(more) == 2
    assert "spill_dtype was 'bf16' and is now 'absent'" in capfd.readouterr().err
    assert main([*more, "--spill-dtype", "bf16"]) == 0
