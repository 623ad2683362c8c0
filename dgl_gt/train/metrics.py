"""Metrics of rows on several ranks; every rank gets the same number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError

from .metric_kinds import METRICS, MetricKind, is_hits, shown_metric
from .user_function import cause_of, find_function

_Metric = Callable[[Tensor, Tensor, Comm], float]


def accuracy(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """Share of rows whose largest score is the label; scores (n_i, classes), labels (n_i,)."""
    right, rows = _sums(comm, (scores.argmax(1) == labels).sum(), len(labels))
    return right / rows


def roc_auc(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """Area under the ROC curve, by the rank-sum formula (Hanley and McNeil 1982); a tie counts half.

    With labels (n_i,), scores (n_i, 2) are logits of classes 0 and 1. With labels (n_i, L), below 0 where unknown, it is
    the mean over the labels that have both values. Only rank 0 gathers the rows.
    """
    if labels.dim() == 1:
        scores, labels = (scores[:, 1] - scores[:, 0])[:, None], labels[:, None]
    return _mean_over_labels("ROC-AUC", _area, scores, labels, comm)


def average_precision(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """Mean over labels of the average precision: the mean of the precision at each positive row, equal scores as one.

    ``scores`` and ``labels`` (n_i, L), below 0 where unknown; labels without both values are left out.
    """
    return _mean_over_labels("average precision", _average_precision, scores, labels, comm)


def f1_micro(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """F1 of all labels together; a label is predicted where its score is above 0. ``labels`` (n_i, L), below 0 unknown.

    Labels (n_i,) are classes, of which the one with the largest score is predicted.
    """
    right, predicted, positive = _counts_of_labels(scores, labels, comm).sum(1).tolist()
    return 2 * right / max(predicted + positive, 1)


def f1_macro(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """The mean over labels, or classes, of F1, which is 0 for a label that is neither there nor predicted."""
    right, predicted, positive = _counts_of_labels(scores, labels, comm)
    return float((2 * right / (predicted + positive).clamp(min=1)).double().mean())


def f1_micro_topk(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """F1 of all labels together, where each row is given as many labels as it has (Perozzi et al., arXiv:1403.6652)."""
    positive = labels > 0
    place = scores.masked_fill(labels < 0, -torch.inf).argsort(1, descending=True).argsort(1)
    is_given = place < positive.sum(1, keepdim=True)
    right, positives = _sums(comm, (is_given & positive).sum(), positive.sum())
    return right / max(positives, 1)


def mae(values: Tensor, targets: Tensor, comm: Comm) -> float:
    """Mean absolute error; both (n_i, T), with NaN among targets that are unknown."""
    error = (values - targets).double()
    known = ~targets.isnan()
    total, count = _sums(comm, error[known].abs().sum(), known.sum())
    return total / count


def rmse(values: Tensor, targets: Tensor, comm: Comm) -> float:
    """The root of the mean squared error; both (n_i, T), with NaN among targets that are unknown."""
    error = (values - targets).double()
    known = ~targets.isnan()
    total, count = _sums(comm, error[known].square().sum(), known.sum())
    return (total / count) ** 0.5


def r2(values: Tensor, targets: Tensor, comm: Comm) -> float:
    """The mean over the T columns of 1 - squared errors / squared deviations from the column's mean; both (n_i, T)."""
    values, targets = values.double(), targets.double()
    known = ~targets.isnan()
    zeros = torch.zeros_like(targets)
    count, total = comm.all_reduce(
        torch.stack([known.sum(0).double(), torch.where(known, targets, zeros).sum(0)]).cpu()
    )
    mean = (total / count).to(targets.device)
    squares = [torch.where(known, (targets - each).square(), zeros).sum(0) for each in (values, mean, zeros)]
    errors, deviations, sizes = comm.all_reduce(torch.stack(squares).cpu())
    varies = deviations > 1e-12 * sizes  # less is rounding
    if not varies.any():
        raise InputError("metric is r2, and the targets of a split are all equal; choose rmse or mae, or other splits")
    return float((1 - errors[varies] / deviations[varies]).mean())


def mrr(scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """Mean over links of 1 / rank among the pairs that are none and itself; in a tie the mean of best and worst rank.

    ``scores`` (n_i, 1) with labels of 0 and 1, (n_i, 1): each link is ranked among all pairs that are none. Or (n_i, 1 + K):
    a link in each row, first, and K pairs among which it alone is ranked.
    """
    return _mean_over_links(lambda rank, _: 1 / rank, scores, labels, comm)


def hits(count: int, scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """Share of links that score above the ``count``-th best pair that is none (Hu et al., arXiv:2005.00687).

    ``scores`` and labels as for :func:`mrr`; in rows, links whose rank is at most ``count``, which counts ties as there.
    """
    return _mean_over_links(
        lambda rank, not_below: not_below < count if scores.shape[1] == 1 else rank <= count, scores, labels, comm
    )


def _mean_over_links(function: Callable, scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """The mean over links of a function of their ranks, and of how many pairs that are none score as high."""
    if scores.shape[1] > 1:
        link, others = scores[:, :1], scores[:, 1:]
        above, not_below = (~(others <= link)).sum(1), (~(others < link)).sum(1)  # NaN is last
        total, count = _sums(comm, function(1 + (above + not_below) / 2, not_below).double().sum(), len(scores))
        return total / count
    gathered, found = [comm.gather_rows(each[:, 0], to=0) for each in (scores.double(), labels)], 0.0
    with comm.together():
        if comm.rank == 0:
            import numpy as np

            score, label = (torch.cat(each).cpu().numpy() for each in gathered)
            negative = np.sort(score[label == 0])
            counts = (len(negative) - np.searchsorted(negative, score[label > 0], side) for side in ("right", "left"))
            above, not_below = map(torch.from_numpy, counts)
            found = float(function(1 + (above + not_below) / 2, not_below).double().mean())
    return comm.broadcast_object(found)


_FUNCTIONS: dict[str, _Metric] = {
    each.__name__: each
    for each in (accuracy, roc_auc, average_precision, f1_micro, f1_macro, f1_micro_topk, mae, rmse, r2, mrr)
}


def read_metric(name: str) -> tuple[MetricKind, _Metric]:
    """A metric and its function, of the package or of the user's."""
    if is_hits(name):
        return shown_metric(name), partial(hits, int(name.partition("@")[2]))
    return (METRICS[name], _FUNCTIONS[name]) if name in METRICS else _users(name)


def _users(name: str) -> tuple[MetricKind, _Metric]:
    """A function of the user's, or a class as those of torchmetrics; it runs on rank 0, on the rows of all ranks."""
    function: Any = find_function(name, "--metric")
    lower = getattr(function, "higher_is_better", True) is False

    def of_all_rows(scores: Tensor, labels: Tensor, comm: Comm) -> float:
        gathered = [comm.gather_rows(each, to=0) for each in (scores, labels)]
        value = 0.0
        with comm.together():
            if comm.rank == 0:
                rows = [torch.cat(each).cpu() for each in gathered]
                try:
                    value = float(function()(*rows) if isinstance(function, type) else function(*rows))
                except Exception as error:  # whatever the user's function raises
                    raise InputError(f"--metric is {name}, which failed: {cause_of(error)}; correct it") from error
        return comm.broadcast_object(value)

    return replace(shown_metric(name), lower_is_better=lower), of_all_rows


def _sums(comm: Comm, *values) -> list[float]:
    """The sums over ranks of numbers."""
    return comm.all_reduce(torch.tensor([float(each) for each in values], dtype=torch.float64)).tolist()


def _counts_of_labels(scores: Tensor, labels: Tensor, comm: Comm) -> Tensor:
    """Of each label, or class, the rows that are rightly predicted, predicted, and positive, int64 (3, L)."""
    if labels.dim() == 1:  # classes
        scores, labels = (one_hot(each, scores.shape[1]) for each in (scores.argmax(1), labels))
    known, positive = labels >= 0, labels > 0
    predicted = (scores > 0) & known
    return comm.all_reduce(torch.stack([each.sum(0) for each in (predicted & positive, predicted, positive)]).cpu())


def _mean_over_labels(title: str, function: Callable, scores: Tensor, labels: Tensor, comm: Comm) -> float:
    """The mean of a function of scores and positives, over the labels that have positive and negative rows."""
    counts = comm.all_reduce(torch.stack([(labels > 0).sum(0), (labels == 0).sum(0)]).cpu())
    usable = (counts > 0).all(0).nonzero().flatten()
    if not len(usable):
        raise InputError(
            f"a split has {int(counts[0].sum())} positive and {int(counts[1].sum())} negative labels, and {title} needs both of "
            "one label; choose another metric, or other splits"
        )
    gathered = comm.gather_rows(scores.double(), to=0), comm.gather_rows(labels, to=0)
    found = torch.zeros(1, dtype=torch.float64)  # only rank 0 adds to it
    if gathered[0] is not None:
        all_scores, all_labels = (torch.cat(each).cpu() for each in gathered)
        columns = [(all_scores[:, each], all_labels[:, each]) for each in usable.tolist()]
        found[0] = sum(function(score[label >= 0].numpy(), label[label >= 0].numpy() > 0) for score, label in columns)
    return float(comm.all_reduce(found)[0]) / len(usable)


def _area(scores, is_positive) -> float:
    from scipy.stats import rankdata  # here, because its import takes a second

    positives = int(is_positive.sum())
    rank_sum = rankdata(scores)[is_positive].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * (len(scores) - positives)))


def _average_precision(scores, is_positive) -> float:
    import numpy as np

    order = np.argsort(-scores, kind="stable")
    last = np.r_[np.diff(scores[order]) != 0, True]  # of equal scores
    found, rows = np.cumsum(is_positive[order])[last], np.flatnonzero(last) + 1
    return float((np.diff(found, prepend=0) * found / rows).sum() / found[-1])
