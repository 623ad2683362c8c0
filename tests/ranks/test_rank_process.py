"""A rank's own process: the environment that it takes, how it joins the others, and how it ends."""

import os
import sys

import pytest
import torch

from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.ranks import launcher_link, rank_process
from dgl_gt.ranks.launcher_link import Launcher


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards") / "shards"
    partition("sample:communities?nodes=400&features=8", 2, directory)
    return directory


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"RANK": "0"}, "which makes this process one of several ranks, but WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "but MASTER_PORT is not set; start ranks with"),
        (
            {"RANK": "first", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            "RANK is 'first', WORLD_SIZE '2' and MASTER_PORT '29500' in the environment",
        ),
    ],
)
def test_half_of_a_launchers_environment_is_refused(shards, monkeypatch, capsys, values, message):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert main(["train", str(shards)]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["train", "SHARDS"], ["calibrate", "--out", "new.yaml"]], ids=["train", "calibrate"]
)
def test_another_number_of_ranks_than_torchrun_started_is_refused(shards, monkeypatch, capsys, tmp_path, command):
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", 29500)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(rank_process, "join_group", lambda *_: 0)
    monkeypatch.chdir(tmp_path)
    words = [str(shards) if word == "SHARDS" else word for word in command]
    assert main([*words, "--nproc", "3"]) == 2
    assert "--nproc is 3, but torchrun has started 2 ranks; leave --nproc out" in capsys.readouterr().err


@pytest.fixture
def ended(monkeypatch):
    """Exit codes that a rank ends itself with; joining the others and telling the launcher are left out."""
    codes = []

    def end(code):
        codes.append(code)
        raise EndedHere

    monkeypatch.setattr(rank_process.os, "_exit", end)
    monkeypatch.setattr(rank_process, "STOPPING", ())
    monkeypatch.setattr(rank_process, "join_group", lambda *_: 0)
    monkeypatch.setattr(Launcher, "report", lambda *_, **__: None)
    monkeypatch.setattr(rank_process.dist, "FileStore", lambda *_: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    return codes


class EndedHere(BaseException):
    """In place of the end of this process."""


def test_a_rank_that_has_finished_is_not_ended_over_an_error_in_leaving(ended, monkeypatch):
    def leave():
        raise RuntimeError("the others have gone")

    monkeypatch.setattr(rank_process, "leave_group", leave)
    with pytest.raises(RuntimeError, match="the others have gone"):
        rank_process.run(lambda: "result", Launcher(1, 2, 3, 0))
    assert ended == []


@pytest.mark.parametrize(("given", "code"), [(None, 0), (143, 143), ("it is over", 1)])
def test_a_rank_that_is_told_to_exit_does_so(ended, monkeypatch, capsys, given, code):
    """Though nobody reads its output any more."""
    monkeypatch.setattr(sys, "stdout", open(os.devnull, "w"))
    sys.stdout.close()
    with pytest.raises(EndedHere):
        rank_process.run(lambda: sys.exit(given), Launcher(1, 2, 3, 0))
    assert ended == [code]
    assert capsys.readouterr().err == ("it is over\n" if isinstance(given, str) else "")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("timeout", [None, 7.0])
def test_ranks_wait_without_end_or_as_long_as_was_asked_for(monkeypatch, backend, timeout):
    asked = {}
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: backend == "nccl")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(
        rank_process.dist, "init_process_group", lambda name, **options: asked.update(options, name=name)
    )
    rank_process.join_group(timeout, store="a launcher's")
    assert asked["name"] == backend
    assert asked["timeout"].total_seconds() == (timeout or 365 * 24 * 3600)


def test_an_allocation_that_fails_is_told_from_a_bug():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 57, dtype=torch.uint8)
    failure = rank_process._failure_of(refused.value)
    assert (failure.kind, failure.text, failure.exit_code) == ("memory", "it asked for 131072.0 TiB at once", 2)
    assert rank_process._failure_of(MemoryError()).text == "an allocation failed"
    bug = rank_process._failure_of(RuntimeError("shapes do not match"))
    assert bug.kind == "error" and bug.text.endswith("RuntimeError: shapes do not match")


@pytest.mark.parametrize(
    ("wanted", "processors", "ranks", "text"),
    [
        ("16", 2, 2, "OMP_NUM_THREADS is 16, but 2 ranks share 2 processors, so threads wait for each other; set"),
        ("2", 1, 1, "OMP_NUM_THREADS is 2, but 1 rank has 1 processor, so"),
        ("1", 2, 4, ""),  # as few as can be
        ("2", 4, 2, ""),
        ("", 4, 2, ""),
        ("2,4", 1, 1, ""),
    ],
)
def test_more_threads_than_processors_are_warned_of(monkeypatch, capsys, wanted, processors, ranks, text):
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setattr(launcher_link, "available_cpus", lambda: processors)
    launcher_link.warn_of_too_many_threads(ranks)
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"dgl-gt: warning: {text}") if text else stderr == ""
