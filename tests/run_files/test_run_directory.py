"""Whose a run directory is: ranks that start again, other runs in the same place, and files of the user's in it."""

import json
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import dgl_gt
from dgl_gt.cli import train as train_command
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition
from dgl_gt.partition.system import atomic_write
from dgl_gt.partition.system.output_checks import process_name
from dgl_gt.ranks.launcher_link import starter_name
from dgl_gt.run_files import run_directory
from dgl_gt.run_files.run_directory import RunDirectory, checkpoints_in
from dgl_gt.run_files.tensor_file import MODEL_FILE
from dgl_gt.train import load_model, read_config, store, train_and_save

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = read_config(layers=1, hidden=8, heads=2, epochs=12, patience=0, dropout=0.3, lr=0.02, warmup=2)
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
        train_and_save(sg, QUICK.changed(checkpoint_every=4), run, on_epoch=stop)
    return run


def of_another(run):
    """Let the run in a directory be one whose ranks another process started."""
    record = json.loads((run / "record.json").read_text()) | {"started_by": "another"}
    (run / "record.json").write_text(json.dumps(record))


def test_what_the_command_asks_for_when_ranks_start_again(monkeypatch):
    args = SimpleNamespace(resume=False, force=False, tensorboard=False, timeline=False)
    assert not train_command._options_of_run(args)["resume"]
    monkeypatch.setattr(train_command, "restarts", lambda: 1)
    assert train_command._options_of_run(args).items() >= STARTED_AGAIN.items()


def test_ranks_that_start_again_take_up_their_own_run(sg, killed, capsys):
    assert json.loads((killed / "record.json").read_text())["started_by"].startswith(starter_name())
    assert train_and_save(sg, QUICK, killed, **STARTED_AGAIN)[1].finished
    assert "resuming after epoch 8 of 12" in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [True, False])
def test_ranks_that_start_again_leave_another_run_alone(sg, killed, is_there):
    """torchrun starts them again although the first rank refused to replace that run."""
    of_another(killed)
    if not is_there:
        for path in checkpoints_in(killed):
            path.unlink()
    weights = (killed / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="exists; choose another directory, or replace it with force .--force."):
        train_and_save(sg, QUICK, killed, **STARTED_AGAIN)
    assert len(checkpoints_in(killed)) == 2 * is_there and (killed / "model.safetensors").read_bytes() == weights


def test_with_force_the_checkpoints_of_another_run_are_not_taken_up(sg, killed, capsys):
    of_another(killed)
    train_and_save(sg, QUICK, killed, force=True, resume="if_possible")
    assert "going on" not in capsys.readouterr().err


@pytest.mark.parametrize("resume", [1, "yes", None])
def test_what_resume_may_be(sg, tmp_path, resume):
    with pytest.raises(InputError, match="resume is .*"):
        train_and_save(sg, QUICK, tmp_path / "run", resume=resume)


def test_ranks_that_start_again_before_anything_was_written_begin(sg, tmp_path):
    assert train_and_save(sg, QUICK, tmp_path / "run", **STARTED_AGAIN)[1].finished


def test_a_rank_that_is_killed_when_all_is_written_starts_again_and_ends(sg, tmp_path):
    _, record = train_and_save(sg, QUICK.changed(checkpoint_every=5), tmp_path / "run")
    again = train_and_save(sg, QUICK, tmp_path / "run", **STARTED_AGAIN)[1]
    assert again.finished and again.losses == record.losses


def test_a_directory_that_was_moved_aside_is_put_back_before_it_is_looked_at(sg, killed, capsys):
    """As after a kill in the middle of a replacement, on a file system that cannot exchange two names."""
    dead = os.fork()
    if not dead:
        os._exit(0)
    name = process_name(dead)
    os.waitpid(dead, 0)
    killed.rename(killed.parent / f".{killed.name}.replaced-{name}-abcdef")
    train_and_save(sg, QUICK, killed, **STARTED_AGAIN)
    assert "resuming after epoch 8 of 12" in capsys.readouterr().err


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
    assert record.losses == train_and_save(sg, QUICK, tmp_path / "other")[1].losses
    assert [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [*range(1, 13)]
    assert (run / "slurm.out").read_text() == "waiting"


def test_a_run_that_may_not_replace_another_leaves_its_checkpoints_alone(sg, killed, tmp_path, monkeypatch):
    """The other one began in the same directory a moment later."""
    monkeypatch.setattr("dgl_gt.train.store.check_target", lambda *_, **__: None)
    with pytest.raises(InputError, match="created by another process|exists"):
        train_and_save(sg, QUICK, killed)
    assert len(checkpoints_in(killed)) == 2


def test_a_finished_run_that_goes_on_is_unfinished_until_it_ends(sg, tmp_path):
    """Also where no later epoch is better than the model that is there."""
    run, longer = tmp_path / "run", QUICK.changed(epochs=30, lr=1e-9)
    train_and_save(sg, QUICK.changed(lr=1e-9, checkpoint_every=6), run)
    weights = (run / "model.safetensors").read_bytes()
    seen = []

    def look(epoch, *_):
        config, record = (run / "config.yaml").read_text(), json.loads((run / "record.json").read_text())
        seen.append((record["finished"], "epochs: 30\n" in config, record["started_by"].startswith(starter_name())))
        load_model(run)
        if epoch == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, longer, run, resume=True, on_epoch=look)
    assert set(seen) == {(False, True, True)} and (run / "model.safetensors").read_bytes() == weights
    assert json.loads((run / "record.json").read_text())["finished"] is False


def test_a_new_run_forgets_the_checkpoints_of_an_earlier_one_though_it_is_stopped_at_once(sg, killed):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK, killed, force=True, on_epoch=stop)
    assert checkpoints_in(killed) == []


def test_a_new_run_that_is_killed_before_its_first_epoch_leaves_nothing_to_go_on_from(sg, killed):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK, killed, force=True, on_start=stop)
    with pytest.raises(InputError, match="holds no checkpoint"):
        train_and_save(sg, QUICK, killed, resume=True)


def test_a_run_that_fails_before_it_has_a_model_leaves_the_earlier_one(sg, killed):
    files = {path: path.read_bytes() for path in killed.iterdir() if not path.name.startswith("checkpoint")}

    def stop(epoch, *_):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK.changed(evaluate_every=5), killed, force=True, on_epoch=stop)
    assert files == {path: path.read_bytes() for path in killed.iterdir()}
    train_and_save(sg, QUICK.changed(evaluate_every=5), killed, force=True)
    assert len((killed / "metrics.jsonl").read_text().splitlines()) == 12


def test_ranks_that_start_again_may_train_for_more_epochs(sg, killed, capsys):
    assert len(train_and_save(sg, QUICK.changed(epochs=14), killed, **STARTED_AGAIN)[1].losses) == 14
    assert "resuming after epoch 8 of 14" in capsys.readouterr().err


def test_a_model_later_than_the_checkpoint_keeps_its_record(sg, killed):
    """As after a kill between them."""
    record = json.loads((killed / "record.json").read_text())
    model = killed / "model.safetensors"
    values, state = MODEL_FILE.unpack(model.read_bytes())
    model.write_bytes(MODEL_FILE.pack(values | {"best_epoch": 12}, state))
    (killed / "record.json").write_text(json.dumps(record | {"best_epoch": 12}))

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, QUICK.changed(epochs=20), killed, resume=True, on_start=stop)
    found = json.loads((killed / "record.json").read_text())
    assert found["best_epoch"] == 12 and found["finished"] is False
    assert "epochs: 20\n" in (killed / "config.yaml").read_text()


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

    train_and_save(sg, QUICK.changed(checkpoint_every=5), run, on_epoch=add)
    print("end", file=log, flush=True)
    assert (run / "slurm.out").read_text().split() == [*map(str, range(1, 12)), "end"]
    assert (run / "slurm.out").stat().st_mode & 0o777 == 0o600
    assert (run / "plots" / "a.txt").read_text() == "a" and (run / "link").is_symlink() and (run / ".pipe").exists()
    load_model(run)
    again, _ = train_and_save(sg, QUICK, run, resume=True)
    assert len(again.losses) == 12 and (run / "plots" / "a.txt").exists()
    with pytest.raises(InputError, match="besides a model, so --force will not replace it"):
        train_and_save(sg, QUICK, run, force=True)


def test_files_that_appear_while_a_model_is_written_stay(sg, tmp_path, monkeypatch):
    """Whatever they are, and in a directory that the user has made read-only, too."""
    run = tmp_path / "run"
    train_and_save(sg, QUICK, run)
    (run / "data").mkdir()
    (run / "data" / "a.txt").write_text("a")
    (run / "data").chmod(0o555)
    write = atomic_write.new_file

    @contextmanager
    def write_slowly(path, **options):
        with write(path, **options) as file:
            yield file
            (run / f"late {path.name}").symlink_to("data")

    monkeypatch.setattr(run_directory, "new_file", write_slowly)
    before = (run / "data").stat().st_ino
    RunDirectory(run, is_ours=True).write({"model.safetensors": b"new", "record.json": b"{}"})
    assert (run / "model.safetensors").read_bytes() == b"new" and (run / "data" / "a.txt").read_text() == "a"
    assert {"late model.safetensors", "late record.json"} <= set(os.listdir(run))
    assert (run / "data").stat().st_ino == before and set(os.listdir(tmp_path)) == {"run", "shards"}


def test_a_kill_between_two_files_leaves_a_model_that_can_be_read(tmp_path, monkeypatch):
    """The model is the newer one, and the run goes on from its checkpoint."""
    run = tmp_path / "run"
    write = run_directory.new_file
    partition("sample:communities?nodes=300&seed=0", 1, tmp_path / "learnable")
    sg = dgl_gt.load(tmp_path / "learnable")

    def killed(path, **options):
        if path.name == "config.yaml":
            raise SystemExit(137)
        return write(path, **options)

    def epoch_of_the_model():
        return MODEL_FILE.unpack((run / "model.safetensors").read_bytes())[0]["best_epoch"]

    monkeypatch.setattr(store, "_MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(store, "_MAX_WRITING_SHARE", 1e9)
    monkeypatch.setattr(run_directory, "new_file", killed)
    with pytest.raises(SystemExit):
        train_and_save(sg, QUICK.changed(checkpoint_every=1), run)
    assert epoch_of_the_model() > json.loads((run / "record.json").read_text())["best_epoch"]
    load_model(run)
    monkeypatch.undo()
    full = train_and_save(sg, QUICK, tmp_path / "other")[1]
    assert train_and_save(sg, QUICK, run, resume=True)[1].losses == full.losses
    ours, theirs = (load_model(folder).state_dict() for folder in (run, tmp_path / "other"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_another_run_from_the_same_process_is_not_taken_for_one_that_starts_again(sg, tmp_path, awkward_graph):
    """As in a notebook, where one process starts all runs: with other settings, or on another graph."""
    train_and_save(sg, QUICK, tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    partition(awkward_graph(1, nodes=70), 1, tmp_path / "others")
    with dgl_gt.load(tmp_path / "others") as other:
        for of, config in ((sg, QUICK.changed(hidden=4)), (other, QUICK)):
            with pytest.raises(InputError, match="exists; choose another directory"):
                train_and_save(of, config, tmp_path / "run", **STARTED_AGAIN)
            assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_ranks_that_start_again_may_choose_another_activation_checkpoint(sg, tmp_path):
    """As --strategy auto may, from timings and from the memory that is free."""
    train_and_save(sg, QUICK.changed(checkpoint_every=100), tmp_path / "run")
    for path in checkpoints_in(tmp_path / "run"):
        path.unlink()
    config = QUICK.changed(activation_checkpoint="full")
    assert train_and_save(sg, config, tmp_path / "run", **STARTED_AGAIN)[1].finished


def test_predictions_beside_the_run_do_not_keep_it_from_going_on(sg, killed, tmp_path):
    shards = str(tmp_path / "shards")
    assert main(["predict", shards, "--model", str(killed), "--out", str(killed / "predictions.npz")]) == 0
    settings = ["--layers", "1", "--hidden", "8", "--heads", "2", "--epochs", "12", "--patience", "0"]
    settings += ["--dropout", "0.3", "--lr", "0.02", "--warmup", "2"]
    assert main(["train", shards, *settings, "--out", str(killed), "--resume"]) == 0
    assert (killed / "predictions.npz").is_file()
