"""The metrics by name: how their values are shown and compared, in a module without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricKind:
    """A metric by which models are compared, and how it is shown."""

    name: str
    title: str
    is_share: bool = True  # shown in percent
    lower_is_better: bool = False

    def text(self, value: float) -> str:
        """The value for people."""
        return f"{value:.2%}" if self.is_share else f"{value:.4g}"

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one."""
        return value < than if self.lower_is_better else value > than


METRICS = {
    each.name: each
    for each in (
        MetricKind("accuracy", "accuracy"),
        MetricKind("roc_auc", "ROC-AUC"),
        MetricKind("f1_micro", "micro F1"),
        MetricKind("f1_macro", "macro F1"),
        MetricKind("f1_micro_topk", "micro F1 of the top labels"),
        MetricKind("average_precision", "average precision"),
        MetricKind("mae", "MAE", is_share=False, lower_is_better=True),
        MetricKind("rmse", "RMSE", is_share=False, lower_is_better=True),
        MetricKind("r2", "R2", is_share=False),
        MetricKind("mrr", "MRR"),
        MetricKind("reconstruction", "reconstruction loss", is_share=False, lower_is_better=True),
    )
}


def shown_metric(name: str) -> MetricKind:
    """How a metric is shown; one of a user's function by the name of the function."""
    if is_hits(name):
        return MetricKind(name, name.replace("hits", "Hits"))
    return METRICS.get(name) or MetricKind(name, name.rpartition(":")[2], is_share=False)


def is_ranking(metric: str) -> bool:
    """Whether a metric ranks each link among pairs that are none."""
    return metric == "mrr" or is_hits(metric)


def is_hits(metric: str) -> bool:
    """Whether a metric is Hits@K, such as ``hits@20``."""
    return bool(re.fullmatch(r"hits@[1-9]\d{0,8}", metric))
