"""Whole training runs with all dropouts on: the same losses at any number of ranks and with any strategy."""

from functools import partial

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import load_graph, partition
from dgl_gt.train import predict
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

# heads: a multiple of 2 and of 3, for the strategy of that name
CONFIG = read_config(
    epochs=30, layers=3, hidden=24, heads=6, dropout=0.3, attention_dropout=0.2, lr=0.01, patience=0, seed=5
)
STRATEGIES = [("halo", 1), ("halo", 2), ("gather", 1), ("heads", 1), ("ring", 1), ("mirror", 1)]


@pytest.fixture(autouse=True)
def one_thread():
    """As the ranks have: on small graphs threads that wait for each other slow a step down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train_on_rank(rank, folder, runs):
    """Of each (strategy, depth, overlap, config): losses, validations, bytes of an epoch that all ranks send."""
    results = []
    for strategy, depth, overlap, config in runs:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth, overlap=overlap)
        result = train(sg, config)
        results.append((result.losses, result.validations, result.exchanged_bytes_per_epoch))
    return results


def train_everywhere(graph, parts, folder, runs):
    """What :func:`train_on_rank` gives, which must be the same on every rank."""
    partition(graph, parts, folder / "edge", halo_depth=2)
    partition(graph, parts, folder / "vertex", cut="vertex")
    first, *others = run_ranks(parts, train_on_rank, folder, runs)
    assert all(other == first for other in others)
    return first


def in_one_process(graph, folder, config):
    """Losses and validations on one part, without torch.distributed."""
    partition(graph, 1, folder / "one", force=True)
    result = train(dgl_gt.load(folder / "one"), config)
    return result.losses, result.validations


def same(losses, expected, what, epochs=None):
    """Of all epochs, or of as many as the run had."""
    assert len(losses) == (epochs or len(expected))
    np.testing.assert_allclose(losses, expected[: len(losses)], rtol=1e-4, atol=0, err_msg=what)


def differ(losses, expected, what):
    """Not by rounding."""
    assert np.abs(np.subtract(losses, expected)).max() > 1e-2 * np.max(expected), what


@pytest.mark.parametrize("parts", [1, slow(2), 3])
def test_losses_are_those_of_one_process(awkward_graph, tmp_path, parts):
    """Every epoch's, with each strategy, with and without overlap; and training goes on in earnest.

    All epochs on two ranks; on one, where nothing travels, and on three, fewer.
    """
    graph = awkward_graph(7)
    losses, _ = in_one_process(graph, tmp_path, CONFIG)
    assert losses[-1] < 0.8 * losses[0] and len(losses) == 30
    few, many = (CONFIG.changed(epochs=epochs) for epochs in (3, {1: 3, 2: 30, 3: 10}[parts]))
    runs = [(name, depth, True, many) for name, depth in STRATEGIES]
    runs += [(name, 1, False, few) for name in ("halo", "gather", "ring", "mirror")]
    runs += [(name, 1, True, few) for name in ("halo_kv", *(("local",) * (parts == 1)))]
    for run, (found, _, _) in zip(runs, train_everywhere(graph, parts, tmp_path, runs), strict=True):
        same(found, losses, f"{parts} ranks, {run[:3]}", run[3].epochs)


def test_layers_computed_again_give_the_same_run(awkward_graph, tmp_path):
    """``keep_exchanges`` sends as many bytes as ``none``, ``full`` more: each layer's forward exchange again."""
    graph = awkward_graph(8)
    config = CONFIG.changed(epochs=4)
    modes = ("none", "full", "keep_exchanges")
    runs = [
        (name, depth, True, config.changed(activation_checkpoint=mode)) for name, depth in STRATEGIES for mode in modes
    ]
    results = iter(train_everywhere(graph, 2, tmp_path, runs))
    expected, _ = in_one_process(graph, tmp_path, config)
    for name, depth in STRATEGIES:
        (none, _, none_bytes), (repeat, _, repeat_bytes), (keep, _, keep_bytes) = (next(results) for _ in modes)
        for losses in (none, repeat, keep):
            same(losses, expected, f"{name}, depth {depth}")
        assert 0 < none_bytes == keep_bytes < repeat_bytes < 2 * none_bytes, (name, depth)


def predict_on_rank(rank, folder, depths):
    """Probabilities of every node, of an untrained model of one layer, with each halo depth."""
    torch.manual_seed(0)
    model = GraphTransformer(5, 8, 3, layers=1, heads=2)
    found = [predict(model, dgl_gt.load(folder / "edge", "halo", depth)) for depth in depths]
    return None if rank else [probability for _, probability in found]


def test_more_hops_of_halo_than_layers(awkward_graph, tmp_path):
    """The rows that no layer reads are left out, in training and in prediction."""
    graph = awkward_graph(9)
    config = CONFIG.changed(epochs=3, layers=1)
    expected, _ = in_one_process(graph, tmp_path, config)
    [(found, _, exchanged_bytes)] = train_everywhere(graph, 2, tmp_path, [("halo", 2, True, config)])
    same(found, expected, "depth 2, one layer")
    assert exchanged_bytes == 0
    one, two = run_ranks(2, predict_on_rank, tmp_path, (1, 2))[0]
    np.testing.assert_allclose(two, one, atol=1e-6)


def test_another_seed_is_another_run(awkward_graph, tmp_path):
    graph = awkward_graph(7)
    config = CONFIG.changed(epochs=3)
    other, same_again = config.changed(seed=6), config.changed()
    train_here = partial(in_one_process, graph, tmp_path)
    assert train_here(config) == train_here(same_again)
    differ(train_here(other)[0], train_here(config)[0], "another seed")


def test_tolokers(real_graph, tmp_path):
    """30 epochs on a real graph, in one process and on two ranks; fewer with mirrors."""
    graph = load_graph(real_graph("tolokers"))
    config = CONFIG.changed(layers=2, hidden=32, heads=4, lr=3e-3)
    losses, validations = in_one_process(graph, tmp_path, config)
    assert losses[-1] < 0.9 * losses[0]
    runs = [("halo", 1, True, config), ("mirror", 1, True, config.changed(epochs=5))]
    for run, (found, metrics, _) in zip(runs, train_everywhere(graph, 2, tmp_path, runs), strict=True):
        same(found, losses, f"tolokers, {run[0]}", run[3].epochs)
        np.testing.assert_allclose(metrics, validations[: len(metrics)], atol=1e-3)
