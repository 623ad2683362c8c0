"""The loss of a step: its formulas, and that the shares of ranks add up to it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from dgl_gt.train.config import read_config
from dgl_gt.train.task import Batch
from dgl_gt.train.tasks.classification import LabelledRows, NodeClassification

NODES, CLASSES = 12, 3
TRAIN = torch.tensor([0, 2, 3, 7, 11])
LABEL = torch.tensor([0, 1, 1, 0, 2, 2, 1, 1, 0, 0, 2, 0])
LOGITS = torch.randn(NODES, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
ONE_RANK = SimpleNamespace(all_reduce=lambda values: values)


def task(rows=slice(None), num_nodes=NODES, user_rows=None, **settings):
    """The task of a rank that owns some rows of the whole."""
    numbers = torch.arange(NODES)[rows]
    train = torch.nonzero(torch.isin(numbers, TRAIN))[:, 0]
    here = LabelledRows(None, LABEL[rows], {"train": train}, user_rows)
    return NodeClassification.of_rows(
        here, here, {"train": len(TRAIN)}, num_nodes, CLASSES, read_config(**settings), ONE_RANK
    )


def loss(given, logits=LOGITS):
    return given.loss(logits, Batch(None, {"label": given.trained.label}))


def entropy(logits):
    return torch.distributions.Categorical(logits=logits).entropy().mean()


def test_is_the_mean_cross_entropy_by_default():
    expected = functional.cross_entropy(LOGITS[TRAIN], LABEL[TRAIN])
    torch.testing.assert_close(loss(task()), expected)


def test_label_smoothing_is_torchs():
    expected = functional.cross_entropy(LOGITS[TRAIN], LABEL[TRAIN], label_smoothing=0.1)
    torch.testing.assert_close(loss(task(label_smoothing=0.1)), expected)


def test_balanced_weights_give_each_class_the_same_weight():
    weights = task(class_weights="balanced").class_weights
    counts = torch.bincount(LABEL[TRAIN], minlength=CLASSES)
    present = counts > 0
    torch.testing.assert_close(weights * counts, present * len(TRAIN) / present.sum())
    torch.testing.assert_close(weights[LABEL[TRAIN]].mean(), torch.tensor(1.0))


def test_virtual_nodes_are_not_sharpened():
    is_user = torch.ones(NODES, dtype=torch.bool)
    is_user[[1, 4]] = False
    given = task(num_nodes=NODES - 2, user_rows=is_user, entropy_unlabelled=0.5)
    is_other = is_user.clone()
    is_other[TRAIN] = False
    expected = functional.cross_entropy(LOGITS[TRAIN], LABEL[TRAIN]) + 0.5 * entropy(LOGITS[is_other])
    torch.testing.assert_close(loss(given), expected)


def test_entropies_sharpen_unlabelled_rows_and_soften_labelled_ones():
    given = task(entropy_unlabelled=0.5, entropy_labelled=0.25)
    others = torch.isin(torch.arange(NODES), TRAIN, invert=True)
    expected = functional.cross_entropy(LOGITS[TRAIN], LABEL[TRAIN])
    expected = expected + 0.5 * entropy(LOGITS[others]) - 0.25 * entropy(LOGITS[TRAIN])
    torch.testing.assert_close(loss(given), expected)


@pytest.mark.parametrize("cut", [0, 4, 12])
def test_shares_of_ranks_add_up(cut):
    weights = torch.tensor([1.0, 2, 3], dtype=torch.float64)
    settings = {"label_smoothing": 0.1, "entropy_unlabelled": 0.5, "entropy_labelled": 0.25}

    def share(rows):
        return loss(replace(task(rows, **settings), class_weights=weights), LOGITS[rows])

    torch.testing.assert_close(share(slice(cut)) + share(slice(cut, None)), share(slice(None)))
