"""Checkpoints in this process, on one part: what goes on from one, what is refused, and what is kept."""

import json
import resource
import signal
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import dgl_gt
from dgl_gt.partition import InputError, from_edges, partition
from dgl_gt.run_files import run_directory
from dgl_gt.run_files.run_directory import MetricsLog, check_can_resume, checkpoints_in
from dgl_gt.run_files.run_record import RunRecord
from dgl_gt.run_files.tensor_file import CHECKPOINT_FILE
from dgl_gt.train import ModelFactory, load_model, loop, read_config, store, train_and_save
from dgl_gt.train.run_state import data_digest

QUICK = read_config(layers=1, hidden=8, heads=2, epochs=12, patience=0, dropout=0.3, lr=0.02, warmup=2)
POLYNORMER = {"architecture": "gnn", "score": "additive", "global_attention": "polynormer"}
CASES = {
    "adamw": {},
    "adam, decay": {"optimizer": "adam", "weight_decay": 0.01},
    "cosine": {"schedule": "cosine", "attention_dropout": 0.2},
    "plateau": {"schedule": "plateau", "patience": 12},
    "batch norm": {"norm": "batch"},
    "bf16": {"precision": "bf16"},
    "early stopping": {"patience": 6, "lr": 0.2},
    "every third epoch": {"evaluate_every": 3},
    "first phase": {"local_epochs": 7, **POLYNORMER},
    "second phase": {"local_epochs": 3, "schedule": "plateau", "patience": 12, **POLYNORMER},
}


@pytest.fixture
def sg(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    return dgl_gt.load(tmp_path / "shards")


@pytest.fixture
def stopped(sg, tmp_path):
    """A run of twelve epochs of which the checkpoints after 3 and 6 are left, and its record."""
    _, record = train_and_save(sg, QUICK.changed(checkpoint_every=3), tmp_path / "run")
    last = checkpoints_in(tmp_path / "run")
    assert [each.name for each in last] == ["checkpoint-000009.safetensors", "checkpoint-000006.safetensors"]
    return tmp_path / "run", record


def same_run(found: RunRecord, expected: RunRecord):
    """The same numbers to the last bit."""
    for name in ("losses", "validations", "metric", "best_epoch"):
        assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_goes_on_equals_one_that_was_not_interrupted(sg, tmp_path, case):
    config = QUICK.changed(**CASES[case])
    full, record = train_and_save(sg, config.changed(checkpoint_every=5), tmp_path / "run")
    assert len(record.losses) == 12 or case == "early stopping" and 5 < len(record.losses) < 12
    (tmp_path / "run" / "checkpoint-000010.safetensors").unlink(missing_ok=True)
    seen = []
    again, resumed = train_and_save(
        sg, config, tmp_path / "run", resume=True, on_epoch=lambda epoch, *_: seen.append(epoch)
    )
    assert seen[0] == 5
    same_run(resumed, record)
    for name, value in full.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    assert json.loads((tmp_path / "run" / "record.json").read_text())["finished"] is True


class Own(torch.nn.Module):
    """A user's model, whose dropout draws from torch's generator."""

    def __init__(self, in_dim, classes):
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(in_dim, classes), torch.nn.Dropout(0.5)

    def forward(self, sg, feat):
        return self.layer(self.dropout(feat))


def test_a_users_model_goes_on_with_the_random_numbers_that_it_would_have_drawn(sg, tmp_path):
    factory, config = ModelFactory("own:Own", Own), read_config(epochs=8, patience=0)
    _, record = train_and_save(sg, config.changed(checkpoint_every=4), tmp_path / "run", factory=factory)
    torch.manual_seed(99)
    same_run(train_and_save(sg, config, tmp_path / "run", resume=True, factory=factory)[1], record)
    with pytest.raises(
        InputError, match="belongs to another run: .*model_factory was .*own:Own.* and is now .*own:Other"
    ):
        train_and_save(sg, config, tmp_path / "run", resume=True, factory=ModelFactory("own:Other", Own))


def test_more_epochs_than_at_first(sg, stopped):
    folder, record = stopped
    _, longer = train_and_save(sg, QUICK.changed(epochs=15, patience=90), folder, resume=True)
    assert longer.losses[:12] == record.losses and len(longer.losses) == 15


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.5}, "belongs to another run: lr was 0.02 and is now 0.5"),
        ({"hidden": 16, "seed": 3}, "hidden was 8 and is now 16"),
        ({"schedule": "cosine"}, "schedule was 'constant' and is now 'cosine'"),
        ({"epochs": 5}, "epochs is 5"),
    ],
    ids=["lr", "hidden", "schedule", "epochs"],
)
def test_other_settings_are_refused(sg, stopped, changes, message):
    before = sorted(each.name for each in stopped[0].iterdir())
    with pytest.raises(InputError, match=message):
        train_and_save(sg, QUICK.changed(**changes), stopped[0], resume=True)
    assert sorted(each.name for each in stopped[0].iterdir()) == before


@pytest.mark.parametrize("changed", ["label", "train_mask", "edges"])
def test_other_data_are_refused(awkward_graph, stopped, tmp_path, changed):
    graph = awkward_graph(0)
    if changed == "edges":
        graph = awkward_graph(1)
        graph.node_data.update(awkward_graph(0).node_data)
    else:
        graph.node_data[changed] = np.roll(graph.node_data[changed], 1)
    partition(graph, 1, tmp_path / "other")
    with pytest.raises(InputError, match=f"belongs to another run: data: {changed} was '.*' and is now '"):
        train_and_save(dgl_gt.load(tmp_path / "other"), QUICK, stopped[0], resume=True)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def shorten_history(path):
    """Change the values and keep the checksum."""
    content = path.read_bytes()
    path.write_bytes(content.replace(b'epoch\\": 9', b'epoch\\": 8', 1))
    assert path.read_bytes() != content


def empty(path):
    path.write_bytes(b"")


def other_format(path):
    save_file({"a": torch.zeros(2)}, path)


def another_shape(path, kind):
    """Give a tensor of this kind another shape, with a checksum that fits."""
    values, tensors = CHECKPOINT_FILE.unpack(path.read_bytes())
    name = next(name for name in tensors if name.startswith(kind))
    path.write_bytes(CHECKPOINT_FILE.pack(values, tensors | {name: torch.zeros(1, 0)}))


def one_less(path, kind):
    """Leave out a tensor of this kind, with a checksum that fits."""
    values, tensors = CHECKPOINT_FILE.unpack(path.read_bytes())
    del tensors[next(name for name in tensors if name.startswith(kind))]
    path.write_bytes(CHECKPOINT_FILE.pack(values, tensors))


@pytest.mark.parametrize(
    "damage", [truncate, flip, shorten_history, empty, other_format], ids=lambda each: each.__name__
)
def test_a_damaged_checkpoint_is_passed_over(sg, stopped, capsys, damage):
    folder, record = stopped
    damage(folder / "checkpoint-000009.safetensors")
    seen = []
    same_run(train_and_save(sg, QUICK, folder, resume=True, on_epoch=lambda epoch, *_: seen.append(epoch))[1], record)
    assert seen[0] == 6
    err = capsys.readouterr().err
    assert "checkpoint-000009.safetensors" in err and "looking for an earlier checkpoint" in err


@pytest.mark.parametrize("damage", [another_shape, one_less], ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", ["model/", "best/", "optimizer/"])
def test_tensors_that_do_not_fit_are_refused(sg, stopped, kind, damage):
    folder, _ = stopped
    damage(folder / "checkpoint-000009.safetensors", kind)
    with pytest.raises(InputError, match="checkpoint-000009.safetensors does not fit this run"):
        train_and_save(sg, QUICK, folder, resume=True)


def test_without_a_whole_checkpoint_nothing_goes_on(sg, stopped, tmp_path):
    for path in checkpoints_in(stopped[0]):
        truncate(path)
    with pytest.raises(InputError, match="holds no whole checkpoint, "):
        train_and_save(sg, QUICK, stopped[0], resume=True)
    for path in checkpoints_in(stopped[0]):
        path.unlink()
    with pytest.raises(InputError, match="holds no checkpoint, so there is nothing to go on from"):
        check_can_resume(stopped[0])
    with pytest.raises(InputError, match="holds no checkpoint"):
        check_can_resume(tmp_path / "nothing")


@pytest.mark.parametrize("part", ["history", "schedule", "epoch", "identity"])
def test_values_that_fit_their_checksum_and_nothing_else_are_refused(sg, stopped, part):
    path = stopped[0] / "checkpoint-000009.safetensors"
    values, tensors = CHECKPOINT_FILE.unpack(path.read_bytes())
    path.write_bytes(CHECKPOINT_FILE.pack(values | {part: {"odd": 1}}, tensors))
    with pytest.raises(InputError, match="checkpoint-000009.safetensors"):
        train_and_save(sg, QUICK, stopped[0], resume=True)


def test_a_checkpoint_has_no_pickle_and_needs_no_class_of_ours(stopped):
    tensors = load_file(stopped[0] / "checkpoint-000009.safetensors")
    assert {name.partition("/")[0] for name in tensors} == {"model", "best", "optimizer", "random"}


@pytest.fixture
def signalled(monkeypatch):
    """A function: (signal, epoch) -> training in which that signal comes in the middle of that epoch."""

    def at(number, epoch):
        real = loop.take_step

        def step(*args, **more):
            if args[4] == epoch:
                signal.raise_signal(number)
            return real(*args, **more)

        monkeypatch.setattr(loop, "take_step", step)
        return lambda: monkeypatch.setattr(loop, "take_step", real)

    return at


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143), (signal.SIGHUP, SystemExit, 129)],
)
def test_a_signal_lets_the_epoch_end_and_leaves_a_checkpoint(sg, tmp_path, signalled, capsys, number, error, code):
    _, record = train_and_save(sg, QUICK, tmp_path / "full")
    undo, before = signalled(number, 4), signal.getsignal(number)
    with pytest.raises(error) as stopped:
        train_and_save(sg, QUICK, tmp_path / "run")
    assert code is None or stopped.value.code == code
    assert signal.getsignal(number) is before
    assert [each.name for each in checkpoints_in(tmp_path / "run")] == ["checkpoint-000005.safetensors"]
    assert load_model(tmp_path / "run").in_dim == 5
    assert "stopped after epoch 5; --resume goes on from" in capsys.readouterr().err
    undo()
    same_run(train_and_save(sg, QUICK, tmp_path / "run", resume=True)[1], record)


def test_a_stop_before_the_first_evaluation_leaves_a_checkpoint_without_a_model(sg, tmp_path, signalled):
    config = QUICK.changed(evaluate_every=6)
    undo = signalled(signal.SIGTERM, 1)
    with pytest.raises(SystemExit):
        train_and_save(sg, config, tmp_path / "run")
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == [
        "checkpoint-000002.safetensors",
        "config.yaml",
        "metrics.jsonl",
        "record.json",
    ]
    with pytest.raises(InputError, match="holds no model"):
        load_model(tmp_path / "run")
    undo()
    assert train_and_save(sg, config, tmp_path / "run", resume=True)[1].epochs == 12


def test_a_full_disk_costs_one_checkpoint(sg, tmp_path, monkeypatch, capsys):
    """The disk is full while the one after epoch 6 is written: training goes on, and the one before stays whole."""
    real = run_directory.new_file

    @contextmanager
    def new_file(path, **options):
        with real(path, **options) as file:
            if path.name == "checkpoint-000006.safetensors":
                raise OSError(28, "No space left on device")
            yield file

    monkeypatch.setattr(run_directory, "new_file", new_file)
    train_and_save(sg, QUICK.changed(epochs=8, checkpoint_every=3), tmp_path / "run")
    assert [each.name for each in checkpoints_in(tmp_path / "run")] == ["checkpoint-000003.safetensors"]
    err = capsys.readouterr().err
    assert "no checkpoint after epoch 6: cannot write" in err and "the last one is checkpoint-000003" in err


def test_a_new_run_replaces_an_old_one_with_its_checkpoints(sg, stopped):
    with pytest.raises(InputError, match="exists"):
        train_and_save(sg, QUICK, stopped[0])
    train_and_save(sg, QUICK.changed(epochs=2), stopped[0], force=True)
    assert sorted(each.name for each in stopped[0].iterdir()) == [
        *("config.yaml", "metrics.jsonl", "model.safetensors", "record.json")
    ]
    assert len(lines_of(stopped[0])) == 2


def test_the_digest_is_of_the_contents(awkward_graph, tmp_path):
    """The same for another order of nodes on disk, and another one for another order of the features."""
    graph = awkward_graph(3)
    partition(graph, 1, tmp_path / "one")
    graph.node_data["feat"] = np.ascontiguousarray(graph.node_data["feat"][:, ::-1])
    partition(graph, 1, tmp_path / "two")
    one, two = (data_digest(dgl_gt.load(tmp_path / name), ["feat", "label"]) for name in ("one", "two"))
    assert [name for name in one if one[name] != two[name]] == ["feat"]


def test_the_digest_stays_what_it_was(tmp_path):
    """Else no run could be resumed from a checkpoint of an earlier version."""
    node_data = {"feat": np.arange(12, dtype=np.float32).reshape(6, 2), "label": np.arange(6)}
    partition(from_edges([0, 1, 2, 3, 4], [1, 2, 3, 4, 0], 6, node_data), 1, tmp_path / "one")
    found = data_digest(dgl_gt.load(tmp_path / "one"), ["feat", "label"])
    digests = {"edges": "363a65d040a821d2", "feat": "8a388127aec98f5f", "label": "4dfa553d09f45290"}
    assert found == {"number of nodes": 6, "number of edges": 5, **digests}


def test_intervals():
    found = [read_config(checkpoint_every=text).checkpoints.interval for text in ("50", 50, "10m", "2h")]
    assert found == [(50, None), (50, None), (None, 600), (None, 7200)]
    for text in ("0", True, "-5", "1.5", "10 m", "often", "5d", ""):
        with pytest.raises(InputError, match=f"checkpoint_every is {text!r}"):
            read_config(checkpoint_every=text)


def test_checkpoints_by_time(sg, tmp_path, monkeypatch):
    """Rank 0's clock says when; here each epoch takes ten seconds of it."""
    clock = [0.0]

    def pass_time(*_):
        clock[0] += 10.0

    monkeypatch.setattr(store, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    train_and_save(sg, QUICK.changed(epochs=9, checkpoint_every="25s"), tmp_path / "run", on_epoch=pass_time)
    assert len(checkpoints_in(tmp_path / "run")) == 2


def test_what_a_killed_writer_left_is_removed(sg, stopped, monkeypatch):
    """A run that is replaced or goes on is not disturbed by it."""
    left = stopped[0] / ".checkpoint-000004.safetensors.file-left"
    left.write_bytes(b"half")
    monkeypatch.setattr(run_directory, "leftovers", lambda folder, stem, purpose: [left])
    check_can_resume(stopped[0])
    train_and_save(sg, QUICK.changed(epochs=14, checkpoint_every=2), stopped[0], resume=True)
    assert not left.exists()


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_numbers_of_each_epoch(sg, stopped):
    """One line each, also for the epochs that are trained again."""
    folder, record = stopped
    lines = lines_of(folder)
    assert [each["epoch"] for each in lines] == list(range(1, 13))
    assert [each["loss"] for each in lines] == record.losses
    assert [each["validation"] for each in lines] == record.validations
    assert [each["lr"] for each in lines] == [0.01] + [0.02] * 11
    assert all(each["nodes_per_s"] == pytest.approx(60 / each["seconds"]) for each in lines)
    assert all(len(each["peak_memory_bytes"]) == 1 and each["exchanged_bytes"] == 0 for each in lines)
    train_and_save(sg, QUICK.changed(epochs=14), folder, resume=True)
    again = lines_of(folder)
    assert [each["epoch"] for each in again] == list(range(1, 15))
    assert again[:9] == lines[:9] and [each["loss"] for each in again[:12]] == record.losses


def test_numbers_that_come_before_the_directory_are_kept(sg, tmp_path):
    train_and_save(sg, QUICK.changed(evaluate_every=5), tmp_path / "run")
    assert [each["epoch"] for each in lines_of(tmp_path / "run")] == list(range(1, 13))
    assert [each["validation"] is None for each in lines_of(tmp_path / "run")] == [
        n not in (5, 10, 12) for n in range(1, 13)
    ]


def test_a_full_disk_leaves_whole_lines(tmp_path, capsys):
    """And lines that could not be written are written later, once."""
    log, limit = MetricsLog(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    log.add({"epoch": 1}, True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
    try:
        log.add({"epoch": 2}, True)
        log.add({"epoch": 3}, True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [each["epoch"] for each in lines_of(tmp_path)] == [1]
    log.add({"epoch": 4}, True)
    assert [each["epoch"] for each in lines_of(tmp_path)] == [1, 2, 3, 4]
    assert capsys.readouterr().err.count("warning: cannot write") == 1


def test_tensorboard(sg, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, record = train_and_save(sg, QUICK, tmp_path / "run", tensorboard=True)
    found = EventAccumulator(str(tmp_path / "run"))
    found.Reload()
    assert [each.value for each in found.Scalars("loss")] == pytest.approx(record.losses)
    peaks = [each.value for each in found.Scalars("peak_memory_bytes/rank0")]
    assert len(peaks) == 12 and peaks[-1] == pytest.approx(record.peak_memory_bytes[0], rel=0.1)
    train_and_save(sg, QUICK, tmp_path / "run", force=True)


def test_without_tensorboard_it_is_refused_before_training(sg, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="--tensorboard needs the package tensorboard"):
        train_and_save(sg, QUICK, tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_edge_features_are_part_of_the_data(awkward_graph, tmp_path):
    config = QUICK.changed(epochs=6, edge_features="weight")
    graph = awkward_graph(0)
    partition(graph, 1, tmp_path / "shards")
    _, record = train_and_save(dgl_gt.load(tmp_path / "shards"), config.changed(checkpoint_every=4), tmp_path / "run")
    same_run(train_and_save(dgl_gt.load(tmp_path / "shards"), config, tmp_path / "run", resume=True)[1], record)
    graph.edge_data["weight"] = np.roll(graph.edge_data["weight"], 1, 0)
    partition(graph, 1, tmp_path / "other")
    with pytest.raises(InputError, match="data: edge data weight was"):
        train_and_save(dgl_gt.load(tmp_path / "other"), config, tmp_path / "run", resume=True)
