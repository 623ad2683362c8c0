"""Accuracy and ROC-AUC of rows on several ranks; every rank gets the same number."""

from __future__ import annotations

import torch

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError


def accuracy(logits: torch.Tensor, labels: torch.Tensor, comm: Comm) -> float:
    """Share of rows whose largest logit is the label; logits (n_i, classes), labels (n_i,)."""
    counts = torch.tensor([int((logits.argmax(1) == labels).sum()), len(labels)], dtype=torch.int64)
    right, rows = comm.all_reduce(counts).tolist()
    return right / rows


def roc_auc(logits: torch.Tensor, labels: torch.Tensor, comm: Comm) -> float:
    """Area under the ROC curve of class 1, by the rank-sum formula (Hanley and McNeil 1982); a tie counts half.

    ``logits`` has shape (n_i, 2), and ``labels`` (n_i,) with values 0 and 1. Only rank 0 gathers the rows.
    """
    is_positive = labels == 1
    counts = torch.tensor([int(is_positive.sum()), int((~is_positive).sum())])
    positives, negatives = comm.all_reduce(counts).tolist()
    if not positives or not negatives:
        raise InputError(
            f"a split has {positives} rows of class 1 and {negatives} of class 0, and ROC-AUC needs both; choose the "
            "metric accuracy, or other splits"
        )
    scores = comm.gather_rows((logits[:, 1] - logits[:, 0]).double(), to=0)
    gathered = comm.gather_rows(is_positive, to=0)
    area = torch.zeros(1, dtype=torch.float64)  # only rank 0 adds to it
    if scores is not None:
        from scipy.stats import rankdata  # here, because its import takes a second

        rank_sum = rankdata(torch.cat(scores).cpu().numpy())[torch.cat(gathered).cpu().numpy()].sum()
        area[0] = (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
    return float(comm.all_reduce(area)[0])


METRIC_FUNCTIONS = {"accuracy": accuracy, "roc_auc": roc_auc}


def choose_metric(name: str, classes: int) -> str:
    """Resolve ``auto``: ROC-AUC for two classes, else accuracy."""
    if name == "roc_auc" and classes != 2:
        raise InputError(f"metric is roc_auc, but there are {classes} classes and it needs two; choose accuracy")
    if name == "auto":
        return "roc_auc" if classes == 2 else "accuracy"
    return name
