"""Metrics on one rank, against their definitions; those of several ranks are the same by other tests."""

import sys

import numpy as np
import pytest
import torch

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError
from dgl_gt.train.metric_kinds import METRICS
from dgl_gt.train.metrics import read_metric

ROWS = 60


def score(name, scores, labels):
    return read_metric(name)[1](torch.as_tensor(scores), torch.as_tensor(labels), Comm())


@pytest.fixture(params=[0, 1])
def several(request):
    """Scores with ties, and labels of which some are unknown; the last column is never positive."""
    rng = np.random.default_rng(request.param)
    labels = np.where(rng.random((ROWS, 4)) < 0.2, -1, rng.integers(0, 2, (ROWS, 4)))
    labels[:, 3] = np.minimum(labels[:, 3], 0)
    return rng.integers(-4, 5, (ROWS, 4)) / 2, labels


def f1(predicted, positive):
    return 2 * (predicted & positive).sum() / max(predicted.sum() + positive.sum(), 1)


def test_f1(several):
    scores, labels = several
    predicted, positive = (scores > 0) & (labels >= 0), labels > 0
    assert score("f1_micro", scores, labels) == pytest.approx(f1(predicted, positive))
    of_each = [f1(predicted[:, each], positive[:, each]) for each in range(4)]
    assert score("f1_macro", scores, labels) == pytest.approx(np.mean(of_each)) and of_each[3] == 0
    apart = scores + np.linspace(0, 0.1, 4)  # no two of a row are equal
    right = 0
    for row, label in zip(apart, labels):
        columns = sorted(np.flatnonzero(label >= 0), key=lambda each: -row[each])
        right += (label[columns[: (label > 0).sum()]] > 0).sum()
    assert score("f1_micro_topk", apart, labels) == pytest.approx(right / positive.sum())


def test_areas_leave_out_labels_of_one_value(several):
    """By pairs of a positive and a negative row; and by the precision at each threshold."""
    scores, labels = several
    areas, precisions = [], []
    for column, label in zip(scores.T[:3], labels.T):
        positive, negative = column[label == 1], column[label == 0]
        pairs = positive[:, None] - negative[None]
        areas.append(((pairs > 0) + 0.5 * (pairs == 0)).mean())
        found = [(column >= each)[label >= 0] for each in sorted(set(column[label >= 0]), reverse=True)]
        is_positive = label[label >= 0] == 1
        recalls = [0, *((each & is_positive).sum() / is_positive.sum() for each in found)]
        precisions.append(np.dot(np.diff(recalls), [(each & is_positive).sum() / each.sum() for each in found]))
    assert score("roc_auc", scores, labels) == pytest.approx(np.mean(areas))
    assert score("average_precision", scores, labels) == pytest.approx(np.mean(precisions))
    with pytest.raises(InputError, match="^a split has 0 positive"):
        score("roc_auc", scores[:, 3:], labels[:, 3:])


def test_errors_of_numbers():
    rng = np.random.default_rng(0)
    values, targets = rng.standard_normal((2, ROWS, 2))
    targets[::7, 0] = np.nan
    error = values - targets
    assert score("mae", values, targets) == pytest.approx(np.nanmean(np.abs(error)))
    assert score("rmse", values, targets) == pytest.approx(np.sqrt(np.nanmean(error**2)))
    expected = 1 - np.nansum(error**2, 0) / np.nansum((targets - np.nanmean(targets, 0)) ** 2, 0)
    assert score("r2", values, targets) == pytest.approx(expected.mean())
    for name in ("mae", "rmse", "r2"):
        assert np.isnan(score(name, np.full((ROWS, 2), np.nan), targets)), "no prediction is no unknown target"
    with pytest.raises(InputError, match="^metric is r2"):
        score("r2", values, np.ones((ROWS, 2)))


def test_which_is_better():
    assert METRICS["rmse"].is_better(1.0, 2.0) and not METRICS["rmse"].is_better(2.0, 2.0)
    assert METRICS["r2"].is_better(-1.0, -2.0) and not METRICS["accuracy"].is_better(float("nan"), 0.5)
    assert (METRICS["rmse"].text(12.3456), METRICS["accuracy"].text(0.5)) == ("12.35", "50.00%")


USERS = """
import torch

def share(scores, labels):
    return (scores.argmax(1) == labels).double().mean()

class Error:  # as those of torchmetrics
    higher_is_better = False
    def __call__(self, values, targets):
        return (values - targets).abs().max()

def fails(scores, labels):
    return 1 / 0
"""


def test_a_function_of_the_users(tmp_path, monkeypatch):
    (tmp_path / "users_metrics.py").write_text(USERS)
    monkeypatch.syspath_prepend(tmp_path)
    rng = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(20, 3, generator=rng), torch.randint(3, (20,), generator=rng)
    assert score("users_metrics:share", scores, labels) == score("accuracy", scores, labels)
    kind, function = read_metric("users_metrics:Error")
    assert kind.lower_is_better and (kind.name, kind.title) == ("users_metrics:Error", "Error")
    assert function(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [3.0]]), Comm()) == 2
    for name, part in (("users_metrics:fails", "ZeroDivisionError"), ("users_metrics:none", "no function none")):
        with pytest.raises(InputError, match=f"--metric is .?{name}.*{part}"):
            score(name, scores, labels)
    sys.modules.pop("users_metrics")
