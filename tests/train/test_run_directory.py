"""Whose a run directory is: ranks that start again, other runs in the same place, and files of the user's in it."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

import dgl_gt
from dgl_gt.cli import train as train_command
from dgl_gt.cli.main import main
from dgl_gt.train import TrainConfig, load_model, run_directory, train_and_save
from dgl_gt.train.launcher_link import starter_name
from dgl_gt.train.run_directory import RunDirectory, checkpoints_in, is_left_by
from partition import InputError, partition
from partition.system import atomic_write
from partition.system.temporary_names import process_name

QUICK = TrainConfig(layers=1, hidden=8, heads=2, epochs=12, patience=0, dropout=0.3, lr=0.02, warmup=2)
STARTED_AGAIN = {"force": False, "resume": "if_possible"}


@pytest.fixture
def sg(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as loaded:
        yield loaded


@pytest.fixture
def killed(sg, tmp_path):
    """The directory of a run that ended after epoch 9 of 12, as a kill leaves it, with a checkpoint after epoch 8."""
    run = tmp_path / "run"

    def stop(epoch, *_):
        if epoch == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK, run, checkpoint_every=4, on_epoch=stop)
    return run


def of_another(run):
    """Let the run in a directory be one whose ranks another process started."""
    record = json.loads((run / "record.json").read_text()) | {"started_by": "another"}
    (run / "record.json").write_text(json.dumps(record))


def test_what_the_command_asks_for_when_ranks_start_again(monkeypatch):
    usual = {"resume": False, "force": False, "tensorboard": False, "profile_step": False, "on_nan": "stop"}
    args = SimpleNamespace(checkpoint_every=None, **usual)
    assert not train_command._options_of_run(args)["resume"]
    monkeypatch.setattr(train_command, "restarts", lambda: 1)
    assert train_command._options_of_run(args).items() >= STARTED_AGAIN.items()


def test_ranks_that_start_again_take_up_their_own_run(sg, killed, capsys):
    assert json.loads((killed / "record.json").read_text())["started_by"] == starter_name()
    assert train_and_save(sg, QUICK, killed, **STARTED_AGAIN)[1]["finished"]
    assert "going on after epoch 8 of 12" in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [True, False])
def test_ranks_that_start_again_leave_another_run_alone(sg, killed, is_there):
    """torchrun starts them again although the first rank refused to replace that run."""
    of_another(killed)
    if not is_there:
        for path in checkpoints_in(killed):
            path.unlink()
    weights = (killed / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="exists; choose another directory, or replace it with --force"):
        train_and_save(sg, QUICK, killed, **STARTED_AGAIN)
    assert len(checkpoints_in(killed)) == 2 * is_there and (killed / "model.safetensors").read_bytes() == weights


def test_with_force_the_checkpoints_of_another_run_are_not_taken_up(sg, killed, capsys):
    of_another(killed)
    train_and_save(sg, QUICK, killed, force=True, resume="if_possible")
    assert "going on" not in capsys.readouterr().err


@pytest.mark.parametrize("resume", [1, "yes", None])
def test_what_resume_may_be(sg, tmp_path, resume):
    with pytest.raises(InputError, match=r"resume is .*; it must be True, False or 'if_possible'"):
        train_and_save(sg, QUICK, tmp_path / "run", resume=resume)


def test_ranks_that_start_again_before_anything_was_written_begin(sg, tmp_path):
    assert train_and_save(sg, QUICK, tmp_path / "run", **STARTED_AGAIN)[1]["finished"]


def test_a_rank_that_is_killed_when_all_is_written_starts_again_and_ends(sg, tmp_path):
    _, record = train_and_save(sg, QUICK, tmp_path / "run", checkpoint_every=5)
    assert "started_by" not in record and is_left_by(tmp_path / "run", starter_name())
    again = train_and_save(sg, QUICK, tmp_path / "run", **STARTED_AGAIN)[1]
    assert again["finished"] and again["losses"] == record["losses"]


def test_a_directory_that_was_moved_aside_is_put_back_before_it_is_looked_at(sg, killed, capsys):
    """As after a kill in the middle of a replacement, on a file system that cannot exchange two names."""
    dead = os.fork()
    if not dead:
        os._exit(0)
    name = process_name(dead)
    os.waitpid(dead, 0)
    killed.rename(killed.parent / f".{killed.name}.replaced-{name}-abcdef")
    train_and_save(sg, QUICK, killed, **STARTED_AGAIN)
    assert "going on after epoch 8 of 12" in capsys.readouterr().err


def test_ranks_that_start_again_without_a_checkpoint_begin_in_the_directory_they_made(sg, tmp_path):
    """A file of the user's, such as the output of the job, is there already; the lines of the first epochs are not."""
    run = tmp_path / "run"

    def stop(epoch, *_):
        if epoch == 3:
            (run / "slurm.out").write_text("waiting")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK, run, on_epoch=stop)
    assert not checkpoints_in(run) and len((run / "metrics.jsonl").read_text().splitlines()) >= 3
    with pytest.raises(InputError, match="holds no checkpoint"):
        train_and_save(sg, QUICK, run, resume=True)
    record = train_and_save(sg, QUICK, run, **STARTED_AGAIN)[1]
    assert record["losses"] == train_and_save(sg, QUICK, tmp_path / "other")[1]["losses"]
    assert [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [*range(1, 13)]
    assert (run / "slurm.out").read_text() == "waiting"


def test_a_run_that_may_not_replace_another_leaves_its_checkpoints_alone(sg, killed, tmp_path, monkeypatch):
    """The other one began in the same directory a moment later."""
    monkeypatch.setattr("dgl_gt.train.run.check_target", lambda *_, **__: None)
    with pytest.raises(InputError, match="created by another process|exists"):
        train_and_save(sg, QUICK, killed)
    assert len(checkpoints_in(killed)) == 2


def test_a_finished_run_that_goes_on_is_unfinished_until_it_ends(sg, tmp_path):
    """Also where no later epoch is better than the model that is there."""
    run, longer = tmp_path / "run", replace(QUICK, epochs=30, lr=1e-9)
    train_and_save(sg, replace(QUICK, lr=1e-9), run, checkpoint_every=6)
    weights = (run / "model.safetensors").read_bytes()
    seen = []

    def look(epoch, *_):
        config, record = (run / "config.yaml").read_text(), json.loads((run / "record.json").read_text())
        seen.append((record["finished"], "epochs: 30\n" in config, record["started_by"] == starter_name()))
        load_model(run)
        if epoch == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, longer, run, resume=True, on_epoch=look)
    assert set(seen) == {(False, True, True)} and (run / "model.safetensors").read_bytes() == weights
    assert json.loads((run / "record.json").read_text())["finished"] is False


def test_a_new_run_forgets_checkpoints_before_its_first_epoch(sg, killed):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK, killed, force=True, on_epoch=stop)
    assert checkpoints_in(killed) == []


def test_files_of_the_user_stay_beside_the_run(sg, tmp_path):
    """Such as the output of a job, which another process still writes; the mode of a file stays as well."""
    run, log = tmp_path / "run", None

    def add(epoch, *_):
        nonlocal log
        if epoch == 1:
            log = (run / "slurm.out").open("a")
            (run / "slurm.out").chmod(0o600)
            (run / "plots").mkdir()
            (run / "plots" / "a.txt").write_text("a")
            (run / "link").symlink_to("plots")
            os.mkfifo(run / ".pipe")
        if epoch >= 1:
            print(epoch, file=log, flush=True)

    train_and_save(sg, QUICK, run, checkpoint_every=5, on_epoch=add)
    print("end", file=log, flush=True)
    assert (run / "slurm.out").read_text().split() == [*map(str, range(1, 12)), "end"]
    assert (run / "slurm.out").stat().st_mode & 0o777 == 0o600
    assert (run / "plots" / "a.txt").read_text() == "a" and (run / "link").is_symlink() and (run / ".pipe").exists()
    load_model(run)
    again, _ = train_and_save(sg, QUICK, run, resume=True)
    assert len(again.losses) == 12 and (run / "plots" / "a.txt").exists()
    with pytest.raises(InputError, match="besides a model, so --force will not replace it"):
        train_and_save(sg, QUICK, run, force=True)


@pytest.mark.parametrize("exchanges", [True, False], ids=["in one step", "in two steps"])
def test_files_that_appear_while_a_model_is_written_stay(sg, tmp_path, monkeypatch, exchanges):
    """A new file, one in a folder, and one that an editor saves under another name and renames."""
    run = tmp_path / "run"
    train_and_save(sg, QUICK, run)
    (run / "plots").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("run/notes.txt", "run/plots/a.txt", "run/file", "other/of_another.txt"):
        (tmp_path / name).write_text("old")
    (run / "link").symlink_to(run / "plots")
    flush = atomic_write._flush

    def flush_slowly(folder):
        flush(folder)
        (run / "late.txt").write_text("late")
        (run / "plots" / "late.txt").write_text("late")
        (run / "new").write_text("new")
        (run / "new").rename(run / "notes.txt")
        (run / "link").unlink()
        (run / "link").symlink_to(tmp_path / "other")
        (run / "second link").symlink_to(tmp_path / "other")
        (run / "plots" / "empty").mkdir()
        (run / "file").unlink()
        (run / "file").mkdir()

    monkeypatch.setattr(atomic_write, "_flush", flush_slowly)
    if not exchanges:
        monkeypatch.setattr(atomic_write, "_exchange", lambda *_: False)
    directory = RunDirectory(run, is_ours=True)
    with directory.replaced() as folder:
        (folder / "record.json").write_text("{}")
    texts = {str(each.relative_to(run)): each.read_text() for each in run.rglob("*.txt")}
    assert texts == {"notes.txt": "new", "plots/a.txt": "old", "late.txt": "late", "plots/late.txt": "late"}
    assert not [name for name in os.listdir(run.parent) if name.startswith(".")]
    assert (run / "plots" / "empty").is_dir() and (run / "file").is_dir()
    assert os.listdir(tmp_path / "other") == ["of_another.txt"]
    assert {os.readlink(run / name) for name in ("link", "second link")} == {str(tmp_path / "other")}


def test_changes_that_cannot_be_moved_are_not_lost(sg, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    train_and_save(sg, QUICK, run)

    def fail(*_):
        raise OSError(5, "Input/output error")

    directory = RunDirectory(run, is_ours=True)
    with directory.replaced() as folder:
        (folder / "record.json").write_text("{}")
        (run / "late.txt").write_text("late")
        keep = run_directory._others_in
        monkeypatch.setattr(run_directory, "_keep", lambda *_: None)
        monkeypatch.setattr(run_directory, "_move_change", fail)
    (rescued,) = tmp_path.glob("run.not-moved-*")
    assert (rescued / "late.txt").read_text() == "late" and keep(run) == []
    assert f"they are in {rescued}" in capsys.readouterr().err


def test_predictions_beside_the_run_do_not_keep_it_from_going_on(sg, killed, tmp_path):
    shards = str(tmp_path / "shards")
    assert main(["predict", shards, "--model", str(killed), "--out", str(killed / "predictions.npz")]) == 0
    settings = ["--layers", "1", "--hidden", "8", "--heads", "2", "--epochs", "12", "--patience", "0"]
    settings += ["--dropout", "0.3", "--lr", "0.02", "--warmup", "2"]
    assert main(["train", shards, *settings, "--out", str(killed), "--resume"]) == 0
    assert (killed / "predictions.npz").is_file()
