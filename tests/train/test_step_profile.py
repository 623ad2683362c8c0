"""``train --timeline``: traces of one step, its timeline, and what costs nothing without it."""

import gzip
import json

import pytest
from ranks import run_ranks

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.train import read_config, step_profile, train_and_save
from dgl_gt.train.step_profile import RankRecording, steps_of_ranks

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = read_config(layers=2, hidden=8, heads=2, epochs=5, patience=0, dropout=0.3, evaluate_every=4)


@pytest.fixture
def sg(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    return dgl_gt.load(tmp_path / "shards")


def profiled_on_rank(rank, folder, strategy):
    sg = dgl_gt.load(folder / "shards", strategy)
    record = train_and_save(sg, QUICK, folder / "run", timeline=True)[1]
    assert sg.comm.recorder is None
    return record.losses, train_and_save(sg, QUICK, folder / "plain")[1].losses


def names_in_trace(path):
    with gzip.open(path, "rt") as file:
        return {each["name"] for each in json.load(file)["traceEvents"] if each.get("cat") == "user_annotation"}


@pytest.mark.parametrize(("strategy", "name"), [("halo", "halo_h"), ("ring", "ring"), ("heads", "heads")])
def test_the_time_line_adds_up_on_every_rank(awkward_graph, tmp_path, strategy, name):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    for losses, without in run_ranks(2, profiled_on_rank, tmp_path, strategy):
        assert losses == without  # to the last bit
    found = json.loads((tmp_path / "run" / "timeline.json").read_text())
    assert found["epoch"] == 3 and found["strategy"] == name and len(found["ranks"]) == 2
    for each in found["ranks"]:
        spans = each["spans"]
        assert spans[0]["start"] == 0 and spans[-1]["end"] == pytest.approx(each["seconds"])
        for one, after in zip(spans, spans[1:]):
            assert one["start"] < one["end"] == pytest.approx(after["start"], abs=1e-6)
        for kind in ("compute", "exchange", "wait"):
            total = sum(span["end"] - span["start"] for span in spans if span["kind"] == kind)
            assert each[f"{kind}_s"] == pytest.approx(total)
        assert sum(each[f"{kind}_s"] for kind in ("compute", "exchange", "wait")) == pytest.approx(each["seconds"])
        names = {span["name"] for span in spans if span["kind"] == "compute"}
        assert {"layers.0", "layers.1", "layers.1, backward", "the optimiser"} <= names
    # on one of the ranks: the times of two ranks agree only as far as both left the barrier at the same moment
    assert any(span["kind"] == "exchange" for each in found["ranks"] for span in each["spans"])
    first, second = ({span["name"] for span in each["spans"] if span["kind"] != "compute"} for each in found["ranks"])
    assert f"layers.0 / {name} / exchange of rows" in first | second
    for rank in range(2):
        names = names_in_trace(tmp_path / "run" / f"profile-rank{rank}.json.gz")
        assert {f"layers.1 / {name}", f"layers.1, backward / {name}"} <= names
        assert f"layers.1 / {name} / exchange of rows" in names
        assert f"layers.1, backward / {name} / exchange of rows" in names


def test_the_profile_stays_when_the_model_is_replaced(sg, tmp_path, monkeypatch):
    """Also in a run that goes on, whose own third step takes its place; a new run removes it."""
    train_and_save(sg, QUICK.changed(checkpoint_every=2), tmp_path / "run", timeline=True)
    names = {each.name for each in (tmp_path / "run").iterdir()}
    assert {"timeline.json", "profile-rank0.json.gz", "model.safetensors"} <= names
    (tmp_path / "run" / "profile-rank7.json.gz").write_bytes(b"of a rank that is no more")
    (tmp_path / "run" / ".timeline.json.file-left").write_bytes(b"of a process that was killed while it wrote")
    longer = QUICK.changed(epochs=9)
    train_and_save(sg, longer, tmp_path / "run", resume=True, timeline=True)
    assert json.loads((tmp_path / "run" / "timeline.json").read_text())["epoch"] == 7
    assert not (tmp_path / "run" / "profile-rank7.json.gz").exists()
    monkeypatch.setattr(step_profile, "profile", lambda **_: pytest.fail("it profiled"))
    train_and_save(sg, QUICK, tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "timeline.json").exists()


def test_a_short_run_profiles_its_last_step(sg, tmp_path):
    train_and_save(sg, QUICK.changed(epochs=2), tmp_path / "run", timeline=True)
    assert json.loads((tmp_path / "run" / "timeline.json").read_text())["epoch"] == 2


def test_a_run_that_ends_early_says_that_nothing_was_profiled(sg, tmp_path, capsys):
    config = QUICK.changed(lr=1e-6, patience=1, evaluate_every=1, dropout=0.0)
    record = train_and_save(sg, config, tmp_path / "run", timeline=True)[1]
    assert record.epochs == 2
    assert "no step was profiled: the run ended before epoch 3" in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_costs_a_warning(sg, tmp_path, monkeypatch, capsys):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step_profile.tempfile, "TemporaryDirectory", full)
    train_and_save(sg, QUICK, tmp_path / "run", timeline=True)
    assert "the trace of a step was not written" in capsys.readouterr().err
    assert (tmp_path / "run" / "timeline.json").exists()
    assert not (tmp_path / "run" / "profile-rank0.json.gz").exists()


def test_it_needs_a_run_directory(tmp_path, capsys):
    assert main(["train", str(tmp_path), "--timeline"]) == 2
    assert "--timeline needs --out DIR, the directory of the run; add that option" in capsys.readouterr().err


def recording(started, blocked, senders=(0, 1), seconds=10.0, copies=()):
    each = {"name": "x", "started": started, "senders": list(senders), "blocked": blocked}
    return RankRecording([(0.0, "a"), (5.0, "b")], [each], list(copies), seconds)


def kinds(rank):
    return [(each.kind, each.name, each.start, each.end) for each in rank.spans]


def test_a_rank_waits_until_the_last_one_arrives():
    early, late = steps_of_ranks([recording(1.0, (2.0, 9.0)), recording(7.0, (7.5, 9.0))])
    assert kinds(early) == [
        ("compute", "a", 0.0, 2.0),
        ("wait", "x", 2.0, 7.0),
        ("exchange", "x", 7.0, 9.0),
        ("compute", "b", 9.0, 10.0),
    ]
    assert (early.compute_s, early.wait_s, early.exchange_s) == (3.0, 5.0, 2.0)
    assert [each[:2] for each in kinds(late)] == [
        ("compute", "a"),
        ("compute", "b"),
        ("exchange", "x"),
        ("compute", "b"),
    ]


def test_a_rank_waits_for_those_alone_whose_rows_it_needs():
    early, _ = steps_of_ranks([recording(1.0, (2.0, 3.0), senders=()), recording(7.0, (7.5, 9.0), senders=(0,))])
    assert early.wait_s == 0 and early.exchange_s == 1.0


def test_copies_of_rows_are_no_computing():
    (alone,) = steps_of_ranks(
        [recording(1.0, (2.0, 3.0), (), copies=[(4.5, 5.5, "a / read"), (9.0, 10.0, "b / write")])]
    )
    assert [(each.kind, each.start, each.end) for each in alone.spans if each.kind != "compute"] == [
        ("exchange", 2.0, 3.0),
        ("file", 4.5, 5.5),
        ("file", 9.0, 10.0),
    ]
    assert (alone.compute_s, alone.file_s) == (7.0, 2.0)


def test_an_exchange_that_ended_before_anybody_waited_for_it_takes_no_time():
    (alone,) = steps_of_ranks([recording(1.0, None, senders=())])
    assert kinds(alone) == [("compute", "a", 0.0, 5.0), ("compute", "b", 5.0, 10.0)]
