"""``train --resume-if-possible``, for schedulers that start a command again as it is."""

import json

import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.train import load_model

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = ["--hidden", "8", "--heads", "2", "--layers", "1", "--patience", "0"]


@pytest.fixture
def train(tmp_path):
    partition("sample:communities?nodes=100&features=8", 1, tmp_path / "shards")

    def run(*more) -> int:
        return main(["train", str(tmp_path / "shards"), "--out", str(tmp_path / "run"), *QUICK, *more])

    return run


def losses(folder) -> list[float]:
    return json.loads((folder / "run" / "record.json").read_text())["losses"]


def test_from_a_checkpoint(train, tmp_path):
    again = ["--checkpoint-every", "1", "--resume-if-possible"]
    assert train("--epochs", "3", *again) == 0
    first = losses(tmp_path)
    assert train("--epochs", "5", *again) == 0
    assert losses(tmp_path)[:3] == first and len(losses(tmp_path)) == 5


def test_anew_where_a_run_was_lost_before_its_first_checkpoint(train, tmp_path):
    assert train("--epochs", "3") == 0
    record = tmp_path / "run" / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"finished": False}))  # as the best model's says
    assert train("--epochs", "2", "--resume-if-possible") == 0
    assert len(losses(tmp_path)) == 2 and load_model(tmp_path / "run")


def test_what_it_never_replaces(train, tmp_path, capfd):
    assert train("--epochs", "1") == 0
    assert train("--epochs", "1", "--resume-if-possible") == 2  # a run that has finished
    assert "run" in capfd.readouterr().err
    (tmp_path / "run" / "record.json").unlink()
    assert train("--epochs", "1", "--resume-if-possible") == 2  # something else
    assert train("--epochs", "1", "--resume-if-possible", "--force") == 2
    assert "--resume-if-possible" in capfd.readouterr().err
