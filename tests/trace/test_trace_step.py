"""Traces of training steps: bytes as ranks count them, memory as they measure it, for models that no formula knows."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from expected_bytes import Sizes, step_bytes
from ranks import run_ranks
from torch import nn

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.selector import StepTraces, choose, read_profile, report_costs
from dgl_gt.trace.live_tensors import step_peak_bytes
from dgl_gt.trace.stand_in import make_layout
from dgl_gt.trace.trace_step import trace_step
from partition import from_edges, partition
from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.vertex_cut import make_vertex_cut
from partition.errors import InputError
from partition.shards.counts import read_figures
from partition.shards.layout import Layout

FEATURES, CLASSES = 20, 7
MODEL = Sizes(2, 32, 4)
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
    model = GraphTransformer(FEATURES, MODEL.hidden, CLASSES, MODEL.layers, MODEL.heads, ffn=2)
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


def edge_step(sg):
    """A transformer whose layers update the rows of edges."""
    model = GraphTransformer(FEATURES, 32, CLASSES, 3, 4, edge_feats=2, edge_hidden=8, edge_update=True)
    edges = sg.edata["weight"].float()
    return step_of(sg, model, lambda: model(sg, sg.ndata["feat"], edge_feat=edges))


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


@pytest.mark.parametrize(("strategy", "depth"), WAYS)
def test_bytes_and_passes_over_edges(shards, strategy, depth):
    """Memory, and modes of activation checkpointing, are compared with ranks in test_predicted_memory.py."""
    figures = read_figures(dgl_gt.partition.read_manifest(shards / ("vertex" if strategy == "mirror" else "edge")))
    trace = trace_step(transformer_step, strategy, depth, figures.parts, *COLUMNS)
    sent, _ = step_bytes(figures, MODEL, strategy, depth)
    assert trace.sent_bytes(figures) == sent.sum()
    parts = figures.parts
    calls = {"halo_h": 2, "halo_kv": 2, "gather": 2 * (parts - 1), "heads": 4, "ring": 3 * (parts - 1), "mirror": 6}
    assert len(trace.positions("begin")) == (MODEL.layers * calls[strategy] if depth == 1 else 0)
    if depth == 1:
        assert passes_over_edges(trace, figures) == pytest.approx(3 * MODEL.layers * MODEL.heads * figures.edges.sum())


def passes_over_edges(trace, figures) -> float:
    """Passes over each edge by each head, summed over edges and ranks: a layer has one forward and two backward."""
    edges = trace.sizes_of(figures)[:, trace.positions("edges")].sum(axis=0)
    return edges @ [event.what[0] * event.what[3] for event in trace.events if event.kind == "edges"]


@pytest.mark.parametrize("make_step", [gat_step, sage_step, edge_step])
def test_models_that_no_formula_knows(shards, make_step):
    if make_step is not edge_step:
        pytest.importorskip("dgl", exc_type=ImportError)
    costs = report_costs(make_step, shards / "edge")
    found = run_ranks(len(costs.peak_bytes), measured, shards / "edge", make_step, "halo")
    assert costs.sent_bytes == sum(sent for _, sent in found)
    assert max(costs.peak_bytes) == pytest.approx(max(peak for peak, _ in found), rel=0.1)
    assert 0 < costs.time.attention_s < costs.time.total_s


@pytest.fixture
def cuts(shards):
    return [(shards / cut, read_figures(dgl_gt.partition.read_manifest(shards / cut))) for cut in ("edge", "vertex")]


def test_the_candidates_for_a_step_of_ones_own(cuts):
    """With the bytes that ranks send; test_predicted_memory.py measures the memory of such steps."""
    plan = choose([(None, figures) for _, figures in cuts], transformer_step, read_profile(), max_depth=2)
    assert plan.model == {"step": "transformer_step"} and {each.strategy for each in plan.candidates} == {
        s for s, _ in WAYS
    }
    for each in plan.candidates:
        figures = cuts[each.cut == "vertex"][1]
        sent, _ = step_bytes(figures, MODEL, each.strategy, each.depth)
        assert each.sent_bytes == sent.sum()
        assert each.seconds > 0 and sum(each.peak_bytes_by_term.values()) <= each.peak_bytes
    assert 0 < plan.one_rank_seconds < len(cuts[0][1].owned) * plan.choice.seconds * 2


def test_modes_of_a_step_of_ones_own(cuts):
    """Traced with the mode as the second argument, where none does not fit."""
    traces = StepTraces(transformer_step, activation_checkpoints=("none", "full"))
    plan = choose(cuts[:1], traces, read_profile(), strategies=("halo_h",))
    assert [each.activation_checkpoint for each in plan.candidates] == ["none"]
    least = choose(cuts[:1], traces, read_profile(), strategies=("halo_h",), rank_memory=plan.choice.memory_bytes - 1)
    assert least.choice.activation_checkpoint == "full" and least.choice.seconds > plan.choice.seconds
    assert [each.activation_checkpoint for each in least.candidates] == ["full", "none"]


def test_strategies_that_a_step_does_not_use_are_no_candidates(cuts):
    """A convolution over ``sg.pull`` runs alike with all; a vertex cut has no block."""
    pytest.importorskip("dgl", exc_type=ImportError)
    plan = choose(cuts, gat_step, read_profile())
    refused = {each.strategy: each.refused for each in plan.candidates if each.refused}
    assert plan.choice.strategy == "halo_h" and plan.runner_up is None
    assert all("runs as with halo_h" in refused.pop(each) for each in ("halo_kv", "gather", "heads", "ring"))
    assert "a vertex cut has no block" in refused.pop("mirror") and not refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cuts: (cuts, 3), "step is 3; it must be a function that makes a training step"),
        (lambda cuts: (cuts, all_pairs), "does not grow linearly"),
        (lambda cuts: (cuts, lambda sg: 3), "make_step returned 3"),
    ],
    ids=["no step", "not linear", "no function"],
)
def test_choices_that_cannot_be_made(cuts, change, message):
    with pytest.raises(InputError, match=message):
        choose(*change(cuts), read_profile())


def test_one_part_alone(graph, tmp_path):
    partition(graph, 1, tmp_path / "one")
    costs = report_costs(transformer_step, tmp_path / "one", "local")
    assert costs.sent_bytes == 0 and costs.time.exchange_s == 0
    ((peak, sent),) = run_ranks(1, measured, tmp_path / "one", transformer_step, "local")
    assert costs.peak_bytes == pytest.approx([peak], rel=0.03) and sent == 0


@pytest.mark.parametrize("parts", [3, 20])
def test_many_ranks(graph, parts):
    """The made-up parts of many ranks are small, and the traces still tell all counts apart; no size is below 0."""
    edge = Layout(graph, make_edge_cut(graph, parts), 2).figures
    vertex = Layout(graph, make_vertex_cut(graph, parts, by_metis=False)).figures
    for strategy, depth in [("halo_h", 1), ("halo_h", 2), ("gather", 1), ("ring", 1), ("mirror", 1)]:
        figures = vertex if strategy == "mirror" else edge
        trace = trace_step(transformer_step, strategy, depth, parts, *COLUMNS)
        sizes = trace.sizes_of(figures)
        assert trace.sent_bytes(figures) == step_bytes(figures, MODEL, strategy, depth)[0].sum()
        for kind in ("product", "rows", "edges", "begin"):
            assert sizes[:, trace.positions(kind)].min(initial=0) > -1e-3
        if depth == 1:
            assert passes_over_edges(trace, figures) == pytest.approx(3 * MODEL.layers * MODEL.heads * edge.edges.sum())


def test_halos_of_several_hops(graph):
    """No hop of the made-up parts is empty; with two hops, five layers need two exchanges besides the stored halo."""

    def deep_step(sg):
        made = GraphTransformer(FEATURES, 16, CLASSES, 5, 2, ffn=2)
        return step_of(sg, made, lambda: made(sg.blocks(5, from_held=True), sg.srcdata["feat"]))

    for parts in (2, 5):
        figures = Layout(graph, make_edge_cut(graph, parts), 5).figures
        for depth, exchanges in ((2, 2), (5, 0)):
            trace = trace_step(deep_step, "halo_h", depth, parts, *COLUMNS)
            sent, _ = step_bytes(figures, Sizes(5, 16, 2), "halo_h", depth)
            assert trace.sent_bytes(figures) == sent.sum() and len(trace.positions("begin")) == 2 * exchanges
            assert (trace.peak_bytes(figures) > 4 * 16 * 5 * figures.owned).all()


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


def test_a_trace_leaves_no_mark(shards):
    """Neither on the generator of random numbers nor on the garbage collector."""
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    gc.disable()
    try:
        report_costs(transformer_step, shards / "edge")
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert torch.rand(1) == expected


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
    for cut in ("edge", "vertex"):
        with pytest.raises(InputError, match=message):
            report_costs(make_step, shards / cut)


def test_a_step_without_operations_costs_its_shard_alone(shards):
    costs = report_costs(lambda sg: lambda: None, shards / "edge")
    assert costs.time.total_s == costs.sent_bytes == 0 and min(costs.peak_bytes) > 0 and "one step" in str(costs)


def test_what_is_no_profile_is_refused(shards):
    with pytest.raises(InputError, match="profile is 'mine.yaml'; it must be a Profile"):
        report_costs(transformer_step, shards / "edge", profile="mine.yaml")


def test_shards_that_cannot_have_the_strategy(shards):
    with pytest.raises(InputError, match="use mirror"):
        report_costs(transformer_step, shards / "vertex", "ring")


@pytest.mark.parametrize("strategy", ["halo", "gather", "ring"])
def test_any_strategy_on_one_part(graph, tmp_path, strategy):
    """Counts that are always zero there are left out."""
    partition(graph, 1, tmp_path / "one")
    costs = report_costs(transformer_step, tmp_path / "one", strategy)
    assert costs.sent_bytes == 0 and costs.peak_bytes[0] > 0


@pytest.mark.parametrize(("strategy", "depth", "parts"), [("halo_h", 12, 2), ("halo_h", 12, 16), ("mirror", 1, 200)])
def test_made_up_graphs_for_many_hops_or_parts(strategy, depth, parts):
    figures = make_layout(strategy, depth, parts, 0, *COLUMNS).figures
    assert figures.parts == parts and figures.copies_by_hop[0].min() > 0


def test_the_memory_that_a_model_of_dgl_keeps_is_told_by_its_structure(graph):
    """It is the same for each row and edge, whatever the number of parts."""
    pytest.importorskip("dgl", exc_type=ImportError)
    found = [trace_step(sage_step, "halo_h", 1, parts, *COLUMNS) for parts in (2, 3, 20)]
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


def test_modes_that_a_traced_step_cannot_have(cuts):
    with pytest.raises(InputError, match="activation_checkpoints is 'full'; it must be one of none"):
        choose(cuts, transformer_step, read_profile(), activation_checkpoints=("full",))


def test_a_step_that_needs_several_ranks(cuts):
    def make_step(sg):
        if sg.comm.world_size < 2:
            raise ValueError("it needs ranks")
        return transformer_step(sg)

    plan = choose(cuts[:1], make_step, read_profile())
    assert plan.one_rank_seconds is None and plan.choice.seconds > 0


def test_more_hops_than_made_up_graphs_have():
    with pytest.raises(InputError, match="a halo of 90 hops in 2 parts cannot be traced; choose fewer hops"):
        make_layout("halo_h", 90, 2, 0, *COLUMNS)
