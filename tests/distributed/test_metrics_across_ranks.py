"""Metrics and predictions over rows that lie on several ranks, gathered at rank 0 alone."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.comm.group import Comm
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError
from dgl_gt.train import predict
from dgl_gt.train.metrics import roc_auc


def judge(rank, scores, labels, folder):
    """The area under the curve of all rows, of labels all alike, what prediction gave, and rows of others received."""
    comm, received = Comm(), []
    exchange = comm.all_to_all
    comm.all_to_all = lambda into, *given: received.append(len(into)) or exchange(into, *given)
    mine = slice(rank, 1 if rank == 0 else None, 2)  # rank 0 has one row
    logits = torch.stack([torch.zeros_like(scores[mine]), scores[mine]], 1)
    area = roc_auc(logits, labels[mine], comm)
    try:
        roc_auc(logits, torch.zeros_like(labels[mine]), comm)
        refused = None
    except InputError as error:
        refused = str(error)
    torch.manual_seed(rank)  # as if the ranks had read different files
    found = predict(GraphTransformer(5, 8, 3, 1, 2), dgl_gt.load(folder))
    return area, refused, found, received


def test_rank_0_alone_gathers(awkward_graph, tmp_path):
    graph = awkward_graph(3)
    partition(graph, 2, tmp_path / "shards")
    generator = np.random.default_rng(1)
    scores, labels = generator.integers(0, 6, 41).astype(np.float32), generator.integers(0, 2, 41)
    used = [0, *range(1, 41, 2)]  # ties are frequent
    positive, negative = (scores[used][labels[used] == label] for label in (1, 0))
    pairs = [(a > b) + (a == b) / 2 for a in positive for b in negative]
    results = run_ranks(2, judge, torch.from_numpy(scores), torch.from_numpy(labels), tmp_path / "shards")
    for area, refused, _, _ in results:
        assert area == pytest.approx(np.mean(pairs))
        assert refused.startswith("a split has 0 positive") and "ROC-AUC" in refused
    (_, _, predicted, received), (_, _, nothing, none) = results
    torch.manual_seed(0)
    partition(graph, 1, tmp_path / "whole")
    with dgl_gt.load(tmp_path / "whole") as sg:
        expected = predict(GraphTransformer(5, 8, 3, 1, 2), sg)
    assert nothing is None and np.allclose(predicted[1], expected[1], rtol=0, atol=1e-5)
    assert received == [len(used)] * 2 and none == [0, 0]
