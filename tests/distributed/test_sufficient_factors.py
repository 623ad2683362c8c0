"""Gradients that travel as factors: equal to the all-reduce, on any number of ranks, and used where they take fewer bytes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn

import dgl_gt
from dgl_gt.comm import gradient_sum
from dgl_gt.model_config import ARCHITECTURES
from dgl_gt.nn.models import MODELS
from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.figures.strategies import HALO
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan import trial
from dgl_gt.plan.candidates import Candidate
from dgl_gt.plan.planned_step import tracer_of
from dgl_gt.train.config import read_config
from dgl_gt.train.loop import take_step
from dgl_gt.train.model import build_model
from dgl_gt.train.run import train
from dgl_gt.train.sufficient_factors import SufficientFactors, factored_layers, saves_bytes
from dgl_gt.train.tasks.classification import NodeClassification

WIDE = {"layers": 2, "hidden": 24, "heads": 12, "epochs": 2, "dropout": 0.2, "evaluate_every": 1}
NAMES = ("layers.1.ffn.0", "layers.1.ffn.3", "output")


def few_labels(graph, parts, folder):
    """Shards of which the last part has no training row, or no row at all."""
    owner = np.random.default_rng(parts).integers(0, max(parts - (parts > 2), 1), graph.num_nodes)
    is_training = np.zeros(graph.num_nodes, bool)
    is_training[np.flatnonzero(owner < max(parts - 1, 1))[:5]] = True
    graph.node_data["train_mask"] = is_training
    partition(graph, parts, folder, owner=owner)


def gradients(rank, folder, modes):
    """By mode of activation checkpointing: gradients of a step with factors, and of one without."""
    gradient_sum.BUCKET_BYTES = 4096
    found = []
    for strategy in ("halo_kv", "heads"):
        for mode in modes:
            config = read_config(**WIDE, activation_checkpoint=mode)
            sg = dgl_gt.load(folder, strategy)
            task = NodeClassification.read(sg, config)
            model = build_model(config, 5, 3).double()
            inputs = task.evaluated.inputs
            task = replace(task, trained=replace(task.trained, inputs=replace(inputs, feat=inputs.feat.double())))
            counts = sg.comm.gather_objects(len(task.rows_of_loss))
            factors = SufficientFactors(sg.comm, model, NAMES, task.rows_of_loss, counts)
            of_model = []
            for each in (factors, None):
                take_step(model, task, sg.comm, torch.optim.SGD(model.parameters(), lr=0.0), 1, factors=each)
                of_model.append({name: p.grad.numpy().copy() for name, p in model.named_parameters()})
                assert all(parameter.requires_grad for parameter in model.parameters())
            found.append((counts, *of_model))
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
def test_equal_to_the_all_reduce(awkward_graph, tmp_path, parts):
    few_labels(awkward_graph(parts), parts, tmp_path / "shards")
    for of_rank in run_ranks(parts, gradients, tmp_path / "shards", ("none", "full", "keep_exchanges")):
        for counts, with_factors, without in of_rank:
            assert counts[-1] == 0 or parts == 1
            largest = max(abs(each).max() for each in without.values())
            assert any(without[f"{name}.weight"].any() for name in NAMES)
            for name, expected in without.items():
                np.testing.assert_allclose(with_factors[name], expected, rtol=0, atol=1e-12 * largest, err_msg=name)


def sizes_of_sums(rank, folder, config, work=train):
    """The numbers that an all-reduce and a gathering of factors move in training, or in other work with its steps."""
    from dgl_gt.comm.group import Comm

    moved = []
    comm_sum, comm_gather = Comm.sum_in_place, Comm.gather_counted
    Comm.sum_in_place = lambda self, total: moved.append(("sum", total.numel())) or comm_sum(self, total)
    Comm.gather_counted = lambda self, rows, counts: (
        moved.append(("factors", *rows.shape)) or comm_gather(self, rows, counts)
    )
    work(dgl_gt.load(folder), config)
    return moved


def try_steps(sg, config):
    """The trial of ``--strategy auto``."""
    trial._measure(sg, Candidate("edge", "halo_h", 1, "none", None), config, None)


def test_the_trainer_uses_them_where_they_take_fewer_bytes(awkward_graph, tmp_path):
    few_labels(awkward_graph(2), 2, tmp_path / "shards")
    config = read_config(**WIDE)
    figures = read_figures(read_manifest(tmp_path / "shards"))
    names = NAMES[:2]  # of the output, 3 x 24 numbers, factors would take more
    assert factored_layers(build_model(config, 5, 3), figures, config) == names
    first, second = run_ranks(2, sizes_of_sums, tmp_path / "shards", config)
    width = 2 * (24 + 48)
    count = sum(p.numel() for p in build_model(config, 5, 3).parameters())
    rest = count - 2 * 24 * 48 - 24 - 48
    assert first == [("factors", 5, width), ("sum", rest)][::-1] * 2
    assert second == [("factors", 0, width), ("sum", rest)][::-1] * 2
    tried = run_ranks(2, sizes_of_sums, tmp_path / "shards", config, try_steps)[0]
    assert set(first) <= set(tried) and ("sum", count) not in tried
    graph = awkward_graph(2)
    graph.node_data["train_mask"] |= True
    partition(graph, 2, tmp_path / "many")
    assert run_ranks(2, sizes_of_sums, tmp_path / "many", config)[0] == [("sum", count)] * 2


def test_a_plan_says_so_and_knows_the_bytes(awkward_graph, tmp_path):
    """The trace's sums are as many bytes as a sum that moves what the rank with most rows moves."""
    few_labels(awkward_graph(3), 3, tmp_path / "shards")
    figures = read_figures(read_manifest(tmp_path / "shards"))
    config = read_config(**WIDE)
    traces = tracer_of(config, 5, 3)
    assert traces.variant(figures) == {"factored": NAMES[:2], "train_rows": 5}
    trace = traces.of(figures, HALO, 1)
    sizes = trace.sizes_of(figures)[:, trace.positions("sum")].max(axis=0)
    rest = sum(p.numel() for p in build_model(config, 5, 3).parameters()) - 2 * 24 * 48 - 24 - 48
    most = int(figures.masked["train_mask"].max())
    assert sorted(sizes)[-2:] == pytest.approx(sorted([4 * rest, 4 * most * 2 * (24 + 48) * 3 / 2]))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, NAMES),
        (
            {"activation": "swiglu", "output": "mlp"},
            ("layers.1.ffn.0.proj", "layers.1.ffn.2", "output.0", "output.1.proj", "output.2"),
        ),
        ({"norm": "batch"}, ("output",)),
        ({"norm": "batch", "norm_first": False}, ("output",)),
        ({"norm_first": False}, NAMES),
        ({"architecture": "gnn"}, ("output",)),
        ({"global_attention": "sgformer"}, ()),
    ],
)
def test_layers_that_compute_each_row_alone(settings, names, awkward_graph, tmp_path):
    """Every gradient behind them is zero outside of the training rows."""
    graph = awkward_graph(4)
    graph.node_data["train_mask"] = np.arange(graph.num_nodes) == 7
    partition(graph, 1, tmp_path / "one")
    config, figures = read_config(**WIDE), read_figures(read_manifest(tmp_path / "one"))
    model = MODELS[ARCHITECTURES[settings.pop("architecture", "transformer")]](5, 24, 3, 2, 12, **settings)
    two = replace(figures.in_one_part(), masked={"train_mask": np.array([1])})
    found = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_full_backward_hook(
                lambda _, __, grads, name=name: found.append(name) if not grads[0][8:].any() else None
            )
    logits = model(dgl_gt.load(tmp_path / "one"), torch.randn(graph.num_nodes, 5, requires_grad=True))
    logits[7].square().sum().backward()
    assert tuple(model.after_attention()) == names
    assert set(names) <= set(found) and factored_layers(model, two, config) == ()
    assert factored_layers(model, two, config.changed(entropy_unlabelled=0.1)) == ()


@pytest.mark.parametrize(
    ("rows", "does"),
    [([3, 3], True), ([700, 0], False), ([340, 340], True), ([345, 345], False), ([9], False), ([0, 0], True)],
)
def test_the_byte_count_decides(rows, does):
    """512 x 1024 weights: on two even ranks fewer than 512 * 1024 / 1536 = 341 rows each."""
    assert saves_bytes(nn.Linear(512, 1024, bias=False), rows) is does
