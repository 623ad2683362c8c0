"""Accuracy and ROC-AUC over rows that lie on several ranks; every rank gets the same number."""

from __future__ import annotations

import torch
from scipy.stats import rankdata

from dgl_gt.comm.group import Comm
from partition.errors import InputError


def accuracy(logits: torch.Tensor, labels: torch.Tensor, comm: Comm) -> float:
    """Share of rows whose largest logit is the label; logits (n_i, classes), labels (n_i,)."""
    counts = torch.tensor([int((logits.argmax(1) == labels).sum()), len(labels)], dtype=torch.int64)
    right, rows = comm.all_reduce(counts).tolist()
    return right / rows


def roc_auc(logits: torch.Tensor, labels: torch.Tensor, comm: Comm) -> float:
    """Area under the ROC curve of class 1 by the rank-sum formula (Hanley and McNeil 1982), ties counted half.

    ``logits`` (n_i, 2), ``labels`` (n_i,) of 0 and 1. Rank 0 alone gathers the rows.
    """
    is_positive = labels == 1
    counts = torch.tensor([int(is_positive.sum()), int((~is_positive).sum())])
    positives, negatives = comm.all_reduce(counts).tolist()
    if not positives or not negatives:
        raise InputError(
            "ROC-AUC needs rows of both classes in every split; choose the metric accuracy or other splits"
        )
    scores = comm.gather_rows((logits[:, 1] - logits[:, 0]).double(), to=0)
    gathered = comm.gather_rows(is_positive, to=0)
    area = torch.zeros(1, dtype=torch.float64)  # of rank 0, which is the only one to add something
    if scores is not None:
        rank_sum = rankdata(torch.cat(scores).cpu().numpy())[torch.cat(gathered).cpu().numpy()].sum()
        area[0] = (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
    return float(comm.all_reduce(area)[0])


METRIC_FUNCTIONS = {"accuracy": accuracy, "roc_auc": roc_auc}


def choose_metric(name: str, classes: int) -> str:
    """Resolve ``auto``: ROC-AUC for two classes, else accuracy."""
    if name == "roc_auc" and classes != 2:
        raise InputError(f"metric is roc_auc but there are {classes} classes; it is for two, choose accuracy")
    if name == "auto":
        return "roc_auc" if classes == 2 else "accuracy"
    return name
