"""Traces of training steps: bytes as ranks count them, memory as they measure it, for models that no formula knows."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import nn

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.selector import report_costs
from dgl_gt.trace.live_tensors import step_peak_bytes
from dgl_gt.trace.stand_in import stand_in
from dgl_gt.trace.trace_step import trace_step
from partition import from_edges, partition
from partition.errors import InputError
from partition.predict.model import Model
from partition.predict.step_memory import step_memory
from partition.predict.traffic import step_traffic
from partition.shards.counts import read_figures

FEATURES, CLASSES = 20, 7
MODEL = Model(2, 32, 4, 2, features=FEATURES, classes=CLASSES)
COLUMNS = {"feat": ("float32", (FEATURES,)), "label": ("int64", ())}, {"weight": ("float64", (2,))}
WAYS = [("halo_h", 1), ("halo_kv", 1), ("gather", 1), ("heads", 1), ("ring", 1), ("mirror", 1), ("halo_h", 2)]


@pytest.fixture(scope="module")
def graph():
    """Half of the edges near, half anywhere, some of them from hubs, and isolated nodes at the end."""
    rng = np.random.default_rng(0)
    nodes, edges = 3000, 30_000
    src, dst = rng.integers(0, nodes, (2, edges))
    src[: edges // 2] = (dst[: edges // 2] + rng.integers(-30, 30, edges // 2)) % nodes
    src[-edges // 20 :] = rng.integers(0, 5, edges // 20)
    data = {"feat": rng.standard_normal((nodes, FEATURES)), "label": rng.integers(0, CLASSES, nodes)}
    data["feat"] = data["feat"].astype(np.float32)
    return from_edges(src, dst, nodes, data, {"weight": rng.standard_normal((edges, 2))})


@pytest.fixture(scope="module", params=[2, 4])
def shards(request, graph, tmp_path_factory):
    """A directory with an edge cut and a vertex cut."""
    folder = tmp_path_factory.mktemp("cuts")
    partition(graph, request.param, folder / "edge", halo_depth=2)
    partition(graph, request.param, folder / "vertex", cut="vertex")
    return folder


def transformer_step(sg, mode="none"):
    model = GraphTransformer(FEATURES, MODEL.hidden, CLASSES, MODEL.layers, MODEL.heads, ffn=MODEL.ffn)
    model = apply_activation_checkpoint(model, mode)
    feat = (sg.srcdata if sg.depth > 1 else sg.ndata)["feat"]
    return step_of(sg, model, lambda: model(sg.blocks(MODEL.layers, from_held=True), feat))


def step_of(sg, model, forward):
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward(), sg.ndata["label"], reduction="sum").backward()
        sg.comm.sum_gradients(model.parameters())
        optimizer.step()

    step.model = model
    return step


def gat_step(sg):
    """DGL's GATConv over ``sg.pull``, two layers."""
    from dgl.nn import GATConv

    first = GATConv(FEATURES, 8, 4, activation=nn.functional.elu, allow_zero_in_degree=True)
    second = GATConv(32, CLASSES, 1, allow_zero_in_degree=True)

    def forward():
        h = first(sg.block, sg.pull(sg.ndata["feat"])).flatten(1)
        return second(sg.block, sg.pull(h)).mean(1)

    return step_of(sg, nn.ModuleList([first, second]), forward)


def sage_step(sg):
    """DGL's SAGEConv with a head of three layers."""
    from dgl.nn import SAGEConv

    model = nn.ModuleList(
        [SAGEConv(FEATURES, 48, "mean"), SAGEConv(48, 48, "mean"), nn.Linear(48, 96), nn.Linear(96, CLASSES)]
    )

    def forward():
        h = sg.ndata["feat"]
        for layer in model[:2]:
            h = layer(sg.block, sg.pull(h)).relu()
        return model[3](model[2](h).relu())

    return step_of(sg, model, forward)


def measured(rank, folder, make_step, strategy):
    """Peak bytes of this rank's tensors, and bytes that it sends, in one step.

    gloo's threads may release tensors late, so the lowest peak of three steps counts.
    """
    sg = dgl_gt.load(folder, strategy)
    step = make_step(sg)
    step()
    before = sg.comm.sent_bytes
    peaks = [step_peak_bytes(sg, step.model, sg.ndata["feat"], step) for _ in range(3)]
    return min(peaks), (sg.comm.sent_bytes - before) // 3


@pytest.mark.parametrize("mode", ["none", "keep_exchanges", "full"])
@pytest.mark.parametrize(("strategy", "depth"), WAYS)
def test_bytes_and_memory_are_those_of_the_formulas(shards, strategy, depth, mode):
    """The formulas are compared with counted bytes and measured memory in test_predicted_memory.py."""
    figures = read_figures(dgl_gt.partition.read_manifest(shards / ("vertex" if strategy == "mirror" else "edge")))
    trace = trace_step(lambda sg: transformer_step(sg, mode), strategy, depth, figures.parts, *COLUMNS)
    traffic = step_traffic(figures, MODEL, strategy, depth, mode)
    assert trace.sent_bytes(figures) == sum(each.total_bytes for each in traffic)
    expected = step_memory(figures, MODEL, strategy, depth, mode).total
    assert trace.peak_bytes(figures) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("make_step", [gat_step, sage_step])
def test_models_that_no_formula_knows(shards, make_step):
    pytest.importorskip("dgl", exc_type=ImportError)
    costs = report_costs(make_step, shards / "edge")
    found = run_ranks(len(costs.peak_bytes), measured, shards / "edge", make_step, "halo")
    assert costs.sent_bytes == sum(sent for _, sent in found)
    assert max(costs.peak_bytes) == pytest.approx(max(peak for peak, _ in found), rel=0.1)
    assert 0 < costs.time.attention_s < costs.time.total_s


def test_one_part_alone(graph, tmp_path):
    partition(graph, 1, tmp_path / "one")
    costs = report_costs(transformer_step, tmp_path / "one", "local")
    assert costs.sent_bytes == 0 and costs.time.exchange_s == 0
    expected = step_memory(read_figures(dgl_gt.partition.read_manifest(tmp_path / "one")), MODEL, "local").total
    assert costs.peak_bytes == pytest.approx(expected, rel=0.06)


def test_many_ranks():
    """The made-up parts of 64 ranks are smaller, and a step on them sends to all."""
    sg, figures = stand_in("gather", 1, 64, 0, *COLUMNS)
    transformer_step(sg)()
    assert sg.comm.sent_bytes and figures.parts == 64


def test_the_table_and_the_dict(shards):
    costs = report_costs(transformer_step, shards / "vertex")
    text, values = str(costs), costs.as_dict()
    for words in ("matrix products", "exchanges", "one step", "mirror of depth 1 sends", "profile default"):
        assert words in text
    assert values["seconds"] == costs.time.total_s and values["time"]["products_s"] > 0
    assert costs.as_dict()["sent_bytes"] == costs.sent_bytes


def all_pairs(sg):
    model = nn.Linear(FEATURES, CLASSES)
    feat = sg.ndata["feat"]
    return step_of(sg, model, lambda: (feat @ feat.T) @ model(feat))


def rows_that_data_select(sg):
    model = nn.Linear(FEATURES, CLASSES)
    rows = torch.arange(sg.num_nodes()) % 64 < 32

    def forward():
        out = model(sg.ndata["feat"])
        return out.index_add(0, rows.nonzero()[:, 0], out[rows])

    return step_of(sg, model, forward)


def other_operations(sg):
    model = nn.Linear(FEATURES, CLASSES)
    return step_of(sg, model, lambda: model(sg.ndata["feat"]) * 2 if sg.num_nodes() % 2 else model(sg.ndata["feat"]))


@pytest.mark.parametrize(
    ("make_step", "message"),
    [
        (all_pairs, "the size of aten::.* does not grow linearly with the rows and edges"),
        (rows_that_data_select, "the size of aten::.* does not grow linearly"),
        (other_operations, "does other operations on one part than on another, from about aten::"),
        (3, "make_step is 3; it must be a function"),
        (lambda sg: 3, "make_step returned 3; it must return a function"),
    ],
)
def test_steps_that_cannot_be_traced_are_refused(shards, make_step, message):
    with pytest.raises(InputError, match=message):
        report_costs(make_step, shards / "edge")


def test_a_step_without_operations_costs_its_shard_alone(shards):
    costs = report_costs(lambda sg: lambda: None, shards / "edge")
    assert costs.time.total_s == costs.sent_bytes == 0 and min(costs.peak_bytes) > 0 and "one step" in str(costs)


def test_what_is_no_profile_is_refused(shards):
    with pytest.raises(InputError, match="profile is 'mine.yaml'; it must be a Profile"):
        report_costs(transformer_step, shards / "edge", profile="mine.yaml")


def test_shards_that_cannot_have_the_strategy(shards):
    with pytest.raises(InputError, match="use mirror"):
        report_costs(transformer_step, shards / "vertex", "ring")
