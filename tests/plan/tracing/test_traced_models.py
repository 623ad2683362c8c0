"""Traces of models that no formula knows, beside what ranks count and measure."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import nn
from traced_steps import CLASSES, COLUMNS, FEATURES, gat_step, measured, step_of, transformer_step

from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import HALO
from dgl_gt.plan import report_costs
from dgl_gt.plan.tracing import record_trace


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


def edge_step(sg):
    """A transformer whose layers update the edge embeddings."""
    model = GraphTransformer(FEATURES, 32, CLASSES, 3, 4, edge_feats=2, edge_hidden=8, edge_update=True)
    edges = sg.edata["weight"].float()
    return step_of(sg, model, lambda: model(sg, sg.ndata["feat"], edge_feat=edges))


@pytest.mark.parametrize("make_step", [gat_step, sage_step, edge_step])
def test_models_that_no_formula_knows(shards, make_step):
    if make_step is not edge_step:
        pytest.importorskip("dgl", exc_type=ImportError)
    costs = report_costs(make_step, shards / "edge")
    found = run_ranks(len(costs.peak_bytes), measured, shards / "edge", make_step, "halo")
    assert costs.sent_bytes == sum(sent for _, sent in found)
    assert max(costs.peak_bytes) == pytest.approx(max(peak for peak, _ in found), rel=0.1)
    assert 0 < costs.time.attention_s < costs.time.total_s


def autocast_step(sg):
    """In bfloat16, of which autocast keeps copies of the weights until the forward pass ends."""
    model = GraphTransformer(FEATURES, 32, CLASSES, 2, 4)

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return model(sg, sg.ndata["feat"])

    return step_of(sg, model, lambda: forward().float())


@pytest.mark.parametrize("strategy", ["halo_kv", "ring"])
def test_a_step_in_bfloat16(shards, strategy):
    """Rows travel in two bytes where the strategy sends what was projected."""
    costs = report_costs(autocast_step, shards / "edge", strategy)
    found = run_ranks(len(costs.peak_bytes), measured, shards / "edge", autocast_step, strategy)
    assert (
        costs.sent_bytes
        == sum(sent for _, sent in found)
        == report_costs(transformer_step, shards / "edge", strategy).sent_bytes // 2
    )
    assert max(costs.peak_bytes) == pytest.approx(max(peak for peak, _ in found), rel=0.1)


def masked_step(sg, split=None):
    """A loss of the training nodes alone, as most scripts have it."""
    model, rows = nn.Linear(FEATURES, 512), sg.ndata["train_mask"] if split is None else sg.ndata["splits"][:, split]
    head = nn.Linear(512, CLASSES)
    both, label = nn.ModuleList([model, head]), sg.ndata["label"]
    optimizer = torch.optim.AdamW(both.parameters())

    def step():
        optimizer.zero_grad()
        out = head(model(sg.ndata["feat"][rows]).relu())
        nn.functional.cross_entropy(out, label[rows], reduction="sum").backward()
        sg.comm.sum_gradients(both.parameters())
        optimizer.step()

    step.model = both
    return step


def test_rows_that_a_mask_selects(graph, tmp_path):
    """They are counted when the graph is partitioned, so few training nodes cost little."""
    train_mask = np.arange(graph.num_nodes) % 100 == 0
    masks = {"train_mask": train_mask, "splits": np.stack([train_mask, ~train_mask], axis=1)}
    partition(replace(graph, node_data=graph.node_data | masks), 2, tmp_path / "masked")
    costs = report_costs(masked_step, tmp_path / "masked")
    found = run_ranks(2, measured, tmp_path / "masked", masked_step, "halo")
    assert max(costs.peak_bytes) == pytest.approx(max(peak for peak, _ in found), rel=0.1)
    in_full = report_costs(lambda sg: masked_step(sg, 0), tmp_path / "masked")  # masks of several splits
    assert min(in_full.peak_bytes) > 2 * max(costs.peak_bytes)


def conv_step(sg):
    """An operator with several results is a matrix product, too."""
    model = nn.Conv1d(1, 4, 3, padding=1)
    head = nn.Linear(4 * FEATURES, CLASSES)
    both = nn.ModuleList([model, head])
    return step_of(sg, both, lambda: head(model(sg.ndata["feat"][:, None]).flatten(1)))


def test_operators_with_several_results(shards):
    assert report_costs(conv_step, shards / "edge").time.products_s > 0


def owned_graph_step(sg):
    """DGL's GATConv on ``sg.graph``, which fetches remote rows by itself."""
    from dgl.nn import GATConv

    model = GATConv(FEATURES, CLASSES, 1, allow_zero_in_degree=True)
    return step_of(sg, model, lambda: model(sg.graph, sg.ndata["feat"]).mean(1))


def test_passes_over_the_edges_of_an_owned_graph_count(shards):
    pytest.importorskip("dgl", exc_type=ImportError)
    assert report_costs(owned_graph_step, shards / "edge").time.attention_s > 0


def test_the_memory_that_a_model_of_dgl_keeps_is_told_by_its_structure(graph):
    """It is the same for each row and edge, whatever the number of parts."""
    pytest.importorskip("dgl", exc_type=ImportError)
    found = [record_trace(sage_step, HALO, 1, parts, *COLUMNS) for parts in (2, 3, 20)]
    for trace in found[1:]:
        np.testing.assert_allclose(trace.kept_bytes[1:], found[0].kept_bytes[1:], atol=1e-3)


def other_selections(sg):
    """Masks of edges, unions of masks, and masks of held rows."""
    model = nn.Linear(FEATURES, CLASSES)
    rows = sg.ndata["train_mask"] | sg.ndata["val_mask"]

    def forward():
        held = model(sg.pull(sg.ndata["feat"]))[sg.srcdata["train_mask"]].sum()
        weight = sg.edata["weight"][sg.edata["kept"]].sum().float()
        out = model(sg.ndata["feat"])
        return out + 0 * (out[rows].sum() + held + weight)

    return step_of(sg, model, forward)


def test_other_rows_that_masks_select(graph, tmp_path):
    third = np.arange(graph.num_nodes) % 3
    node_data = graph.node_data | {"train_mask": third == 0, "val_mask": third == 1}
    edge_data = graph.edge_data | {"kept": np.arange(graph.num_edges) % 2 == 0}
    partition(replace(graph, node_data=node_data, edge_data=edge_data), 2, tmp_path / "masked")
    assert report_costs(other_selections, tmp_path / "masked").time.rows_s > 0
