"""Training on typed graphs: the numbers of one process, and the bytes that a plan predicts."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from typed import typed_graph

import dgl_gt
from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.figures.strategies import strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan.planned_step import tracer_of
from dgl_gt.train import predict, train
from dgl_gt.train.config import TrainConfig

SETTINGS = {"hidden": 16, "heads": 4, "layers": 3, "dropout": 0.2, "epochs": 4, "lr": 0.01}


def config_of(score="dot", **more):
    attention = {"attention_dropout": 0.1} if score != "mean" else {}
    return TrainConfig().changed(**SETTINGS | {"score": score} | attention | more)


def on_rank(rank, folder, ways, scores):
    torch.set_default_dtype(torch.float64)
    found = {}
    for cut, strategy, depth in ways:
        for score in scores:
            with dgl_gt.load(folder / cut, strategy, depth) as sg:
                result = train(sg, config_of(score))
                answer = predict(result.model, sg)
                predictions = None if answer is None else answer.probability
                sent = result.exchanged_bytes_per_epoch
                found[score, cut, depth] = result.losses, result.validation, predictions, sent
    return found


WAYS = {1: [("edge1", "local", 1)]}
MANY = [("edge", "halo", 1), ("edge", "halo", 2), ("vertex", "mirror", 1)]


def predicted_bytes(folder, score, cut, depth):
    figures = read_figures(read_manifest(folder))
    strategy = strategy_of("halo_h" if cut == "edge" else "mirror")
    return tracer_of(config_of(score), figures.features, 3).of(figures, strategy, depth).sent_bytes(figures)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    partition(typed_graph(), 1, folder / "edge1")
    return run_ranks(1, on_rank, folder, WAYS[1], ["dot", "hgt", "mean"])[0]


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_training_has_the_numbers_of_one_process(one_process, tmp_path, parts):
    partition(typed_graph(), parts, tmp_path / "edge", halo_depth=2)
    partition(typed_graph(), parts, tmp_path / "vertex", cut="vertex")
    scores = ["dot", "hgt", "mean"] if parts == 3 else ["dot"]
    found = run_ranks(parts, on_rank, tmp_path, MANY, scores)[0]
    for (score, cut, depth), (losses, validation, probability, sent) in found.items():
        expected = one_process[score, "edge1", 1]
        np.testing.assert_allclose(losses, expected[0], rtol=1e-9, err_msg=f"{score} {cut} {depth}")
        assert validation == expected[1]
        np.testing.assert_allclose(probability, expected[2], rtol=1e-6, atol=1e-9)
        assert len(probability) == 60  # papers alone
        assert 2 * predicted_bytes(tmp_path / cut, score, cut, depth) == sent  # in float64
