"""Every strategy against one process: outputs, every gradient, and bytes against formulas."""

from itertools import product

import numpy as np
import pytest
import torch
from expected_bytes import Sizes, step_bytes
from ranks import run_ranks
from slow_case import slow
from whole_graph import csc_of

import dgl_gt
from dgl_gt.exchange.shard import read_shard
from dgl_gt.nn import GraphTransformer, GraphTransformerLayer, apply_activation_checkpoint, set_dropout_step
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import NAMES
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.shards.counts import read_figures

LAYERS, HIDDEN, HEADS, DEPTH = 3, 24, 12, 3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-5}


def run_model(graph, feat, bias, dtype, dropout=0.3, activation_checkpoint="none", hidden=HIDDEN, heads=HEADS):
    """One step's output, feature gradient, bias gradient and parameter gradients, all dropouts on."""
    torch.manual_seed(0)
    model = GraphTransformer(5, hidden, 3, LAYERS, heads, dropout=dropout, attention_dropout=dropout).to(dtype)
    apply_activation_checkpoint(model, activation_checkpoint)
    set_dropout_step(model, 11, 4)
    feat = feat.to(dtype, copy=True).requires_grad_()
    bias = None if bias is None else bias.to(dtype, copy=True).requires_grad_()
    out = model(graph, feat, bias)
    (out * torch.linspace(-1, 1, 3, dtype=dtype)).pow(2).sum().backward()
    if isinstance(graph, dgl_gt.ShardedGraph):
        graph.comm.sum_gradients(model.parameters())
    parameters = {name: parameter.grad.double().numpy() for name, parameter in model.named_parameters()}
    return out.detach(), feat.grad, None if bias is None else bias.grad, parameters


def run_case(directory, strategy, depth, overlap, feat, bias, dtype, **options):
    """Results in the user's order, and what was counted: sent and received bytes."""
    sg = dgl_gt.load(directory, strategy, depth, overlap=overlap)
    assert str(sg).endswith(f"strategy={sg.strategy.name!r}, depth={depth})")
    if depth == 2:  # the last layer is alone behind an exchange, which it overlaps as one hop does
        assert sg.views(LAYERS)[-1] is sg.view
    own_bias = None if bias is None else bias[sg.edge_ids]
    out, feat_grad, bias_grad, parameters = run_model(sg, feat[sg.node_ids], own_bias, dtype, **options)
    counted = sg.comm.sent_bytes, sg.comm.received_bytes
    if bias is not None:
        edges = torch.cat(sg.comm.gather_rows(sg.edge_ids))
        rows = torch.cat(sg.comm.gather_rows(bias_grad))
        bias_grad = torch.empty_like(rows).index_copy_(0, edges, rows).double().numpy()
    nodes = [sg.gather(x).double().numpy() for x in (out, feat_grad)]
    return (*nodes, bias_grad, parameters), counted, sg.strategy.name


def on_rank(rank, folder, cases, feat, bias, options):
    results = []
    for strategy, depth, overlap, dtype, with_bias in cases:
        directory = folder / ("vertex" if strategy == "mirror" else "edge")
        given = bias if with_bias else None
        results.append(run_case(directory, strategy, depth, overlap, feat, given, dtype, **options))
    return results


def compare(expected, found, dtype, case):
    gradients = expected[3]
    largest = max(abs(grad).max() for grad in gradients.values())
    for name, one, other, scale in zip(
        ("output", "feature gradient", "bias gradient"),
        expected,
        found,
        (float(expected[0].abs().max()), largest, largest),
    ):
        if one is not None:
            allowed = TOLERANCE[dtype] * scale
            np.testing.assert_allclose(other, one.double().numpy(), rtol=0, atol=allowed, err_msg=f"{case} {name}")
    for name, grad in gradients.items():
        np.testing.assert_allclose(
            found[3][name], grad, rtol=0, atol=TOLERANCE[dtype] * largest, err_msg=f"{case} {name}"
        )


def all_cases(parts):
    names = [name for name in NAMES if name != "local" or parts == 1]
    cases = [(name, 1, overlap, dtype, True) for name, overlap, dtype in product(names, (True, False), TOLERANCE)]
    cases += [("halo", depth, True, dtype, True) for depth, dtype in product((2, 3), TOLERANCE)]
    cases.append(("halo", 2, False, torch.float64, True))
    cases += [(name, 1, True, torch.float32, False) for name in names]
    cases += [(name, 1, True, torch.float64, False) for name in names if name in ("halo_h", "mirror")]
    return cases + [("halo", depth, True, torch.float32, False) for depth in (2, 3)]


def make_shards(graph, parts, folder, owner=None):
    partition(graph, parts, folder / "vertex", cut="vertex")
    return partition(graph, parts, folder / "edge", owner=owner, halo_depth=DEPTH)


def check_everywhere(graph, parts, folder, owner=None, cases=None, **options):
    make_shards(graph, parts, folder, owner)
    cases = cases or all_cases(parts)
    feat = torch.randn(graph.num_nodes, 5, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(graph.num_edges, options.get("heads", HEADS), generator=torch.Generator().manual_seed(2))
    sizes = {name: options[name] for name in ("hidden", "heads") if name in options}
    expected = {
        (dtype, with_bias): run_model(csc_of(graph), feat, bias if with_bias else None, dtype, **sizes)
        for dtype, with_bias in {(case[3], case[4]) for case in cases}
    }
    for rank, results in enumerate(run_ranks(parts, on_rank, folder, cases, feat, bias, options)):
        for case, (found, counted, name) in zip(cases, results, strict=True):
            compare(expected[case[3], case[4]], found, case[3], f"{parts} ranks, rank {rank}, {case}:")
            if not case[4] and not options:
                check_bytes(folder, name, case, rank, counted)


def check_bytes(folder, name, case, rank, counted):
    """Without bias: forward and backward, all layers. The first exchange of a deep halo is not spared here."""
    manifest = dgl_gt.partition.read_manifest(folder / ("vertex" if name == "mirror" else "edge"))
    sizes = Sizes(LAYERS, HIDDEN, HEADS, case[3].itemsize)
    sent, received = step_bytes(read_figures(manifest), sizes, name, case[1], from_held=False)
    assert counted == (sent[rank], received[rank]), (case, name, rank)


@pytest.mark.parametrize("parts", [1, slow(2), 3, 4])
def test_awkward_graphs(awkward_graph, tmp_path, parts):
    """Directed, with isolated nodes, hubs, parallel edges and self-loops; parts by METIS."""
    check_everywhere(awkward_graph(parts), parts, tmp_path)


@pytest.mark.parametrize("parts", [slow(2), 3, 4])
def test_random_parts_and_an_empty_one(awkward_graph, tmp_path, parts):
    graph = awkward_graph(parts + 10)
    owner = np.random.default_rng(parts).integers(0, parts - 1, graph.num_nodes)
    check_everywhere(graph, parts, tmp_path, owner)


@pytest.mark.parametrize("name", ["no halo", "no edges", "one rank has all"])
def test_nothing_to_exchange(tmp_path, name):
    """Two rings of nodes, one a rank; a graph without edges; all nodes on one rank of three."""
    ring = np.arange(6)
    src = np.concatenate([ring, ring + 6]) if name != "no edges" else np.empty(0, int)
    dst = np.concatenate([(ring + 1) % 6, (ring + 1) % 6 + 6]) if name != "no edges" else np.empty(0, int)
    owner = np.repeat([0, 1], 6) if name != "one rank has all" else np.full(12, 2)
    check_everywhere(from_edges(src, dst, 12), 3 if name == "one rank has all" else 2, tmp_path, owner)


@pytest.mark.parametrize("activation_checkpoint", ["full", "keep_exchanges"])
def test_layers_computed_again_in_backward(awkward_graph, tmp_path, activation_checkpoint):
    cases = [(name, 1, True, torch.float64, True) for name in NAMES if name != "local"]
    cases += [("halo", 2, True, torch.float64, True), ("halo", 1, False, torch.float64, True)]
    check_everywhere(awkward_graph(3), 3, tmp_path, cases=cases, activation_checkpoint=activation_checkpoint)


@pytest.mark.parametrize("parts", [1, slow(2), 3, 4])
def test_rows_whose_heads_lie_side_by_side(awkward_graph, tmp_path, parts):
    """Eight heads of four numbers in float32: such rows are projected, travel, and are attended to."""
    graph, names = awkward_graph(parts), [name for name in NAMES if parts == 1 or name != "local"]
    cases = [
        (name, 1, overlap, torch.float32, overlap)
        for name, overlap in product(names, (True, False))
        if name != "heads" or 8 % parts == 0
    ]
    cases += [("halo", 2, True, torch.float32, True)]
    check_everywhere(graph, parts, tmp_path, cases=cases, hidden=32, heads=8)


def with_a_hook_on_one_rank(rank, folder, feat):
    """Outputs and gradients of a layer with each strategy; rank 0 looks at its keys, and so has them one after the other."""
    results = []
    for name in NAMES:
        if name == "local":
            continue
        torch.manual_seed(0)
        layer = GraphTransformerLayer(32, 32, 8, dropout=0, attn_dropout=0)
        if rank == 0:
            layer.attn.k_proj.register_forward_hook(lambda *_: None)
        sg = dgl_gt.load(folder / ("vertex" if name == "mirror" else "edge"), name)
        own = feat[sg.node_ids].requires_grad_()
        out = layer(sg, own)
        out.pow(3).sum().backward()
        results.append([sg.gather(x).detach().numpy() for x in (out, own.grad)])
    return results


def test_ranks_that_lay_out_their_rows_differently_understand_each_other(awkward_graph, tmp_path):
    graph = awkward_graph(2)
    make_shards(graph, 2, tmp_path)
    feat = torch.randn(graph.num_nodes, 32, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    layer, leaf = GraphTransformerLayer(32, 32, 8, dropout=0, attn_dropout=0), feat.clone().requires_grad_()
    out = layer(csc_of(graph), leaf)
    out.pow(3).sum().backward()
    for results in run_ranks(2, with_a_hook_on_one_rank, tmp_path, feat):
        for found in results:
            for one, other in zip(found, (out.detach(), leaf.grad), strict=True):
                np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=1e-4 * float(other.abs().max()))


class QueryNorm(torch.nn.Module):
    """A projection with a norm, which stays in float32 under autocast."""

    def __init__(self, projection):
        super().__init__()
        self.projection = projection

    def forward(self, h):
        return torch.nn.functional.layer_norm(self.projection(h).float(), (HIDDEN,))


def under_autocast(rank, folder, feat):
    """The output of a layer with QK-norm, with each strategy."""
    torch.manual_seed(0)
    layer = GraphTransformerLayer(HIDDEN, HIDDEN, HEADS, dropout=0, attn_dropout=0)
    layer.attn.q_proj = QueryNorm(layer.attn.q_proj)
    results = []
    for name in NAMES:
        if name != "local":
            sg = dgl_gt.load(folder / ("vertex" if name == "mirror" else "edge"), name)
            with torch.autocast("cpu", torch.bfloat16):
                results.append(sg.gather(layer(sg, feat[sg.node_ids])).float().detach().numpy())
    return results


def test_a_projection_that_leaves_autocast_runs_with_every_strategy(awkward_graph, tmp_path):
    graph = awkward_graph(3)
    make_shards(graph, 2, tmp_path)
    feat = torch.randn(graph.num_nodes, HIDDEN, generator=torch.Generator().manual_seed(1))
    for first, *others in run_ranks(2, under_autocast, tmp_path, feat):
        for other in others:
            np.testing.assert_allclose(other, first, atol=0.1)


@pytest.mark.parametrize(
    ("cut", "strategy", "name"),
    [("edge", None, "halo_h"), ("edge", "halo", "halo_h"), ("edge", "halo_kv", "halo_kv"), ("vertex", None, "mirror")],
)
def test_a_strategy_has_its_name_from_the_start(awkward_graph, tmp_path, cut, strategy, name):
    """Plain ``halo`` is ``halo_h``, before the first exchange and after it."""
    graph = awkward_graph(4)
    make_shards(graph, 1, tmp_path)
    sg = dgl_gt.load(tmp_path / cut, strategy)
    assert sg.strategy.name == name
    GraphTransformer(5, HIDDEN, 3, LAYERS, HEADS)(sg, sg.ndata["feat"])
    assert sg.strategy.name == name


def test_the_default_device_of_torch_changes_nothing(awkward_graph, tmp_path):
    """Shards are read to the CPU, and so are the arrays and seeds that are made of them."""
    graph = awkward_graph(5)
    partition(graph, 1, tmp_path / "one", halo_depth=2)
    partition(graph, 2, tmp_path / "two", owner=np.arange(graph.num_nodes) % 2, halo_depth=2)
    model = GraphTransformer(5, HIDDEN, 3, LAYERS, HEADS, dropout=0.3, attention_dropout=0.3)

    def results():
        set_dropout_step(model, 0, 0)
        for strategy, depth in (("halo", 2), ("heads", 1), ("gather", 1)):
            sg = dgl_gt.load(tmp_path / "one", strategy, depth)
            yield model(sg, sg.ndata["feat"])
        plan = read_shard(tmp_path / "two", 0, 2).send_plan(2)
        yield from (plan.send_rows, plan.order)

    expected = list(results())
    with torch.device("meta"):
        found = list(results())
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
