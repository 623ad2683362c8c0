"""Training in bfloat16: the same losses with every strategy on 1 to 4 ranks, bytes as predicted, half of float32's."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.plan.planned_step import tracer_of
from dgl_gt.train.config import read_config
from dgl_gt.train.inputs import read_inputs
from dgl_gt.train.run import train

CONFIG = read_config(
    layers=2, hidden=16, heads=4, dropout=0.2, attention_dropout=0.1, epochs=8, patience=0, precision="bf16"
)
WAYS = [("halo_h", 1), ("halo_kv", 1), ("halo_h", 2), ("gather", 1), ("heads", 1), ("ring", 1), ("mirror", 1)]


def ways_on(parts):
    return (
        [("local", 1)] if parts == 1 else [way for way in WAYS if way[0] != "heads" or CONFIG.model.heads % parts == 0]
    )


def on_rank(rank, folder, ways, config):
    """Losses and bytes of a run with each strategy."""
    found = {}
    for strategy, depth in ways:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        result = train(sg, config)
        found[strategy, depth] = result.losses, result.exchanged_bytes_per_epoch
        assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
        assert read_inputs(sg, config.task.inputs).feat.dtype == torch.float32
    return found


def make_shards(graph, parts, folder):
    partition(graph, parts, folder / "edge", halo_depth=2)
    partition(graph, parts, folder / "vertex", cut="vertex")
    return folder


@pytest.fixture(scope="module")
def graph(awkward_graph):
    return awkward_graph(5)


@pytest.fixture(scope="module")
def alone(graph, tmp_path_factory):
    """The losses of one process in both precisions."""
    folder = make_shards(graph, 1, tmp_path_factory.mktemp("alone"))
    return {
        precision: run_ranks(1, on_rank, folder, ways_on(1), CONFIG.changed(precision=precision))[0]["local", 1][0]
        for precision in ("fp32", "bf16")
    }


def test_one_process_stays_near_float32(alone):
    np.testing.assert_allclose(alone["bf16"], alone["fp32"], rtol=2e-2)
    assert alone["bf16"] != alone["fp32"]


@pytest.mark.parametrize("parts", [slow(2), 3, slow(4)])
def test_every_strategy_has_one_process_losses(graph, alone, tmp_path, parts):
    folder = make_shards(graph, parts, tmp_path)
    results = run_ranks(parts, on_rank, folder, ways_on(parts), CONFIG)
    assert all(result == results[0] for result in results)
    figures = {cut: read_figures(read_manifest(folder / cut)) for cut in ("edge", "vertex")}
    for (strategy, depth), (losses, sent_bytes) in results[0].items():
        np.testing.assert_allclose(losses, alone["bf16"], rtol=2e-2, err_msg=strategy)
        of_cut = figures["vertex" if strategy == "mirror" else "edge"]
        predicted, in_float32 = (
            tracer_of(CONFIG.changed(precision=precision), of_cut.features)
            .of(of_cut, strategy_of(strategy), depth, "none")
            .sent_bytes(of_cut)
            for precision in ("bf16", "fp32")
        )
        assert sent_bytes == predicted, strategy
        if strategy != "mirror":  # which sends log-sum-exp in float32
            assert 2 * sent_bytes == in_float32, strategy
