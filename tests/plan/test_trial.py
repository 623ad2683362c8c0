"""``dgl-gt train --strategy auto``: what is tried, kept and recorded, on two ranks."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from ranks import run_ranks
from selector_cases import profile_values, refused, write_profile

from dgl_gt.cli.main import main
from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.figures.strategies import strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.plan import Candidate, choose, read_profile, tracer_of
from dgl_gt.plan.trial import _to_try
from dgl_gt.run_files.run_record import RunRecord
from dgl_gt.train import read_config
from dgl_gt.train.summary import final_table

ROOT = Path(__file__).parents[2]
CONFIG = read_config(epochs=2, layers=2, hidden=16, heads=4, patience=0)
SIZES = {"layers": 2, "hidden": 16, "heads": 4, "ffn": 2, "features": 12, "classes": 10}
QUICK = ["--epochs", 2, "--hidden", 16, "--heads", 4, "--layers", 2]
TRIAL = {
    "choice",
    "predicted_seconds",
    "measured_seconds",
    "predicted_sent_bytes",
    "measured_sent_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
}


@pytest.fixture
def both(shards):
    """The vertex cut is DIR, the edge cut the other one."""
    return [shards / "vertex", shards / "edge"]


@pytest.fixture
def profile(tmp_path):
    return read_profile(write_profile(tmp_path / "two.yaml"))


def run(*arguments):
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "dgl_gt", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)


# ---- a run, as users start it -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(shards, tmp_path_factory):
    """The record of a run over two ranks, and its directory."""
    folder = tmp_path_factory.mktemp("auto")
    path = write_profile(folder / "two.yaml")
    trial = ["--strategy", "auto", "--profile", path, "--other-cut", shards / "edge"]
    done = run("train", shards / "vertex", *trial, *QUICK, "--out", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder / "run"


def test_the_record_holds_the_plan_and_what_came_of_it(trained, shards):
    record, folder = trained
    on_disk = json.loads((folder / "record.json").read_text())
    assert on_disk.pop("started_by") and on_disk == record
    plan = record["plan"]
    assert set(plan) == {"predicted_choice", "chosen", "choice", "profile", "model", "trials"}
    assert plan["profile"]["kind"] == "measured" and SIZES.items() <= plan["model"].items()
    assert len(plan["trials"]) == 2 and all(set(trial) == TRIAL for trial in plan["trials"])
    for trial in plan["trials"]:
        assert trial["predicted_sent_bytes"] == trial["measured_sent_bytes"]
        assert all(trial[key] > 0 for key in TRIAL - {"choice"} if "sent" not in key)
        assert trial["measured_peak_bytes"] == pytest.approx(trial["predicted_peak_bytes"], rel=0.1)
    assert plan["chosen"] in [trial["choice"] for trial in plan["trials"]]
    assert plan["predicted_choice"]["predicted_seconds"] == min(t["predicted_seconds"] for t in plan["trials"])


def test_the_run_is_that_of_the_choice(trained, shards):
    """On the cut that was chosen; and what was chosen is what was quicker in the trial."""
    record, folder = trained
    choice, trials = record["plan"]["choice"], record["plan"]["trials"]
    assert (record["strategy"], record["depth"]) == (choice["strategy"], choice["depth"])
    assert record["plan"]["chosen"] == min(trials, key=lambda trial: trial["measured_seconds"])["choice"]
    assert record["exchanged_bytes_per_epoch"] == choice["sent_bytes"]
    figures = read_figures(read_manifest(choice["directory"]))
    of_choice = strategy_of(choice["strategy"]), choice["depth"], choice["activation_checkpoint"]
    assert choice["cut"] == figures.cut and choice["sent_bytes"] == tracer_of(CONFIG, 12, 10).of(
        figures, *of_choice
    ).sent_bytes(figures)
    assert f"activation_checkpoint: {choice['activation_checkpoint']}" in (folder / "config.yaml").read_text()


def test_the_other_cut_may_be_chosen(trained, shards):
    """Both that were tried are of it."""
    plan = trained[0]["plan"]
    assert plan["choice"]["cut"] == "edge" and plan["choice"]["directory"] == str(shards / "edge")
    assert all("on the edge cut" in trial["choice"] for trial in plan["trials"])


def test_check_prints_the_errors(trained, here):
    record, folder = trained
    done = here("plan", "--check", folder, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"choice", "figures", "trials"} and found["trials"] == record["plan"]["trials"]
    seconds, sent, tensors, process = found["figures"]
    choice = record["plan"]["choice"]
    assert (seconds["predicted"], seconds["measured"]) == (choice["seconds"], record["seconds_per_epoch"])
    assert (sent["predicted"], sent["measured"], sent["error"]) == (choice["sent_bytes"], choice["sent_bytes"], 0)
    assert tensors["predicted"] == choice["peak_bytes"] and abs(tensors["error"]) < 0.1
    assert (process["predicted"], process["measured"]) == (choice["memory_bytes"], max(record["peak_memory_bytes"]))
    for each in (seconds, tensors, process):
        assert each["error"] == pytest.approx(each["predicted"] / each["measured"] - 1)
    text = here("plan", "--check", folder)
    assert text.returncode == 0 and record["plan"]["chosen"] in text.stdout
    assert f"{tensors['error']:+.1%}" in text.stdout


def test_the_final_table_names_the_plan(trained):
    record = trained[0]
    text = final_table(msgspec.convert(record, RunRecord))
    assert "predicted seconds per epoch" in text and "predicted memory per rank" in text
    for trial in record["plan"]["trials"]:
        assert f"trial of {trial['choice']}" in text


@pytest.mark.parametrize(
    ("modes", "tried"),
    [(["none", "full", "none"], [0, 2]), (["full", "keep_exchanges", "none"], [0, 1]), (["none", "full"], [0])],
)
def test_what_is_tried_loads_no_libraries_that_the_choice_does_without(modes, tried):
    """They stay in memory; only a choice that computes layers again has them."""
    candidates = [Candidate("edge", "halo_h", 1, mode, None) for mode in modes]
    refused = Candidate("edge", "ring", 1, "none", None, refused="too slow")
    plan = SimpleNamespace(choice=candidates[0], candidates=[*candidates, refused])
    assert _to_try(plan) == [candidates[i] for i in tried]


# ---- on ranks -----------------------------------------------------------------------------------------------------


def load_on_rank(rank, calls):
    """Of each (directories, config, profile, options): choice and record, or what was refused."""
    from dgl_gt.partition.errors import InputError
    from dgl_gt.plan.trial import load_fastest

    found = []
    for directories, config, profile, options in calls:
        directories = directories[rank] if isinstance(directories, dict) else directories
        try:
            sg, chosen, record = load_fastest(directories, config, profile, **options)
        except InputError as error:
            found.append(str(error))
        else:
            found.append(((sg.strategy.name, sg.depth, sg.manifest["cut"], chosen), msgspec.to_builtins(record)))
    return found


def test_memory_depth_and_activation_checkpointing_are_kept(both, profile):
    """Whatever is chosen, both ranks choose it, within the bounds; an activation checkpointing that was asked for stays."""
    cuts = [(str(folder), read_figures(read_manifest(folder))) for folder in both]
    candidates = choose(cuts, tracer_of(CONFIG, 12, 10), profile).candidates
    bound = min(each.memory_bytes for each in candidates) - 1
    keep = CONFIG.changed(activation_checkpoint="keep_exchanges")
    calls = [
        (both, CONFIG, profile, {"rank_memory": bound}),
        (both, CONFIG, profile, {"max_depth": 1}),
        (both, keep, read_profile(preset="cpu-10GbE"), {"overlap": False}),
        (both, CONFIG, read_profile(), {}),  # the default, whose memory is what the machine has
    ]
    first, second = run_ranks(2, load_on_rank, calls)
    assert [found[0] for found in first] == [found[0] for found in second]
    for (*_, options), (loaded, record) in zip(calls, first):
        choice = record["choice"]
        assert loaded[:3] == (choice["strategy"], choice["depth"], choice["cut"])
        assert loaded[3].activation_checkpoint == choice["activation_checkpoint"]
        assert replace(loaded[3], activation_checkpoint="none") == CONFIG.changed(strategy=loaded[0], depth=loaded[1])
        assert choice["memory_bytes"] <= options.get("rank_memory", np.inf)
        assert choice["depth"] <= options.get("max_depth", 2)
        assert choice["refused"] is None and len(record["trials"]) <= 2
        for trial in record["trials"]:
            assert trial["predicted_sent_bytes"] == trial["measured_sent_bytes"]
    assert first[0][1]["choice"]["activation_checkpoint"] != "none"  # of so little memory
    _, kept = first[2]
    assert all(trial["choice"].endswith("activation checkpoint keep_exchanges") for trial in kept["trials"])
    assert first[2][1]["profile"] == {"name": "cpu-10GbE", "kind": "datasheet"}
    assert first[3][1]["profile"]["kind"] == "default"


def decide_on_rank(rank, both, profile, seconds):
    """With trials that take so many seconds on this rank: the choice by each rank's own clock would differ."""
    from dgl_gt.plan import trial

    clock = iter(seconds[rank])
    trial._run_trial = lambda candidate, *_: trial.Trial(candidate.title, 0.5, next(clock), 0, 0, 0, 1)
    sg, _, plan = trial.load_fastest(both, CONFIG, profile)
    return sg.strategy.name, sg.depth, plan.chosen, [trial.choice for trial in plan.trials]


@pytest.mark.parametrize("quicker", [0, 1])
def test_rank_0_decides_by_what_it_measured(both, profile, quicker):
    """The quicker of the two in the trial, whatever was predicted."""
    seconds = [[1.0, 2.0], [2.0, 1.0]]
    first, second = run_ranks(2, decide_on_rank, both, profile, seconds[::-1] if quicker else seconds)
    assert first == second
    *_, chosen, tried = first
    assert len(tried) == 2 and chosen == tried[quicker]


def own_profile(rank, paths, profiles):
    """With a profile of its own, and the same shards elsewhere."""
    from dgl_gt.plan import trial

    trial._run_trial = lambda candidate, *_: trial.Trial(candidate.title, 0.5, 1.0, 0, 0, 0, 1)
    sg, _, plan = trial.load_fastest(paths[rank], CONFIG, profiles[rank])
    record = msgspec.to_builtins(plan)
    return record["choice"].pop("directory"), sg.strategy.name, record


def test_rank_0_plans_for_hosts_with_other_profiles(both, profile, tmp_path):
    """Another host's profile would have other candidates tried, or ask all ranks for their memory."""
    elsewhere = [tmp_path / "vertex", tmp_path / "edge"]
    for here, there in zip(both, elsewhere):
        there.symlink_to(here, target_is_directory=True)
    profiles = [profile, read_profile(None, None)]
    first, second = run_ranks(2, own_profile, [both, elsewhere], profiles)
    assert first[1:] == second[1:]
    assert second[0] in map(str, elsewhere) and first[0] in map(str, both)
    assert first[2]["profile"]["kind"] == "measured"


def test_what_is_refused_is_refused_on_both_ranks(both, profile, shards, tmp_path, awkward_graph):
    other = tmp_path / "other"
    partition(awkward_graph(1), 2, other)
    partition(load_graph("sample:communities?nodes=100&features=12"), 1, tmp_path / "one")
    four = read_profile(write_profile(tmp_path / "four.yaml", profile_values(4)))
    missing = tmp_path / "missing"
    calls = [
        (both, CONFIG, profile, {"rank_memory": 1}),
        (both, CONFIG, four, {}),
        ([both[0], other], CONFIG, profile, {}),
        ([both[0], tmp_path / "one"], CONFIG, profile, {}),
        ([both[0], missing], CONFIG, profile, {}),
        (both, CONFIG.changed(split=3), profile, {}),
        ({0: both, 1: [both[0], missing]}, CONFIG, profile, {}),  # on one of two machines
    ]
    messages = [
        "nothing fits ranks of 1 B",
        "is for 4 ranks, and 2 ranks will train",
        f"{other} has 60 nodes",
        "has 1 part, but",
        f"{missing} holds no shards",
        "split is 3",
        f"{missing} holds no shards",
    ]
    for found in run_ranks(2, load_on_rank, calls):
        for text, message in zip(found, messages, strict=True):
            assert isinstance(text, str) and message in text


def test_one_part_alone(tmp_path):
    """On either cut; whatever activation checkpointing is asked for."""
    graph = load_graph("sample:communities?nodes=200&features=12&seed=0")
    for cut in ("edge", "vertex"):
        partition(graph, 1, tmp_path / cut, cut=cut)
    alone = read_profile(write_profile(tmp_path / "one.yaml", profile_values(1)))
    configs = [
        CONFIG.changed(activation_checkpoint=activation_checkpoint)
        for activation_checkpoint in ("none", "keep_exchanges", "full")
    ]
    calls = [([tmp_path / cut], config, alone, {}) for cut in ("edge", "vertex") for config in configs]
    for (directories, config, *_), ((strategy, *_, chosen), record) in zip(calls, *run_ranks(1, load_on_rank, calls)):
        assert strategy == {"edge": "local", "vertex": "mirror"}[directories[0].name]
        assert config.activation_checkpoint in ("none", chosen.activation_checkpoint)
        assert [trial["measured_sent_bytes"] for trial in record["trials"]] == [0] * len(record["trials"])


# ---- bad input ----------------------------------------------------------------------------------------------------


def test_what_is_for_auto_alone_is_refused_without_it(here, shards, tmp_path):
    path = write_profile(tmp_path / "two.yaml")
    for option, value in (
        ("--profile", path),
        ("--preset", "8xH100"),
        ("--rank-memory", "4GiB"),
        ("--max-depth", 2),
        ("--other-cut", shards / "vertex"),
    ):
        for strategy in ([], ["--strategy", "ring"]):
            refused(
                here("train", shards / "edge", *strategy, option, value),
                f"{option} needs --strategy auto; add that option",
            )


def test_bad_options_are_refused_before_ranks_start(here, shards, tmp_path):
    (tmp_path / "exists").mkdir()
    bad = write_profile(tmp_path / "bad.yaml", profile_values(latency_s=-1.0))
    for options, message in (
        (["--preset", "nope"], "preset is 'nope'; it must be one of"),
        (["--profile", bad], "latency_s is -1.0"),
        (["--profile", tmp_path / "none.yaml"], "no such file"),
        (["--preset", "8xH100", "--profile", bad], "give one"),
        (["--out", tmp_path / "exists"], "exists"),
        (["--heads", 5], "hidden is 16; it must be a multiple of heads (5)"),
    ):
        refused(here("train", shards / "edge", "--strategy", "auto", *QUICK, *options), message)
    text = refused(here("train", shards / "edge", "--strategy", "auto", "--rank-memory", "lots"), "lots", lines=None)
    assert "write it as 4GiB" in text


def command_on_rank(rank, commands):
    """Exit code, standard output and standard error of commands, as a rank that a launcher started."""
    from dgl_gt.ranks import rank_process as rank_module

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    os.environ["LOCAL_RANK"] = str(rank)
    rank_module.join_group, rank_module.leave_group, rank_module.REPORT_WAIT_S = (lambda *_: rank), (lambda: None), 0.0
    found = []
    for words in commands:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = main([str(word) for word in words])
        found.append((code, out.getvalue(), err.getvalue()))
    return found


def test_what_only_ranks_can_tell_is_said_once(shards, tmp_path, awkward_graph):
    """In one line, by rank 0; nothing is written."""
    partition(awkward_graph(1), 2, tmp_path / "other")
    four = write_profile(tmp_path / "four.yaml", profile_values(4))
    cases = [
        (["--rank-memory", "2MiB"], "nothing fits ranks of 2.0 MiB"),
        (["--profile", four], "is for 4 ranks, and 2 ranks will train"),
        (["--other-cut", tmp_path / "other"], "has 60 nodes, but"),
        (["--other-cut", tmp_path / "missing"], "holds no shards"),
    ]
    before = sorted(tmp_path.iterdir())
    common = ["train", shards / "edge", "--strategy", "auto", *QUICK, "--out", tmp_path / "run"]
    commands = [[*common, *options] for options, _ in cases]
    for (options, message), first, second in zip(cases, *run_ranks(2, command_on_rank, commands), strict=True):
        refused(subprocess.CompletedProcess(options, *first), message)
        assert second == (2, "", "")
    assert sorted(tmp_path.iterdir()) == before
