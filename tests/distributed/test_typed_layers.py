"""Layers for typed graphs: ranks have the numbers of the whole graph, gradients too, whatever the cut."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn
from typed import typed_graph

import dgl_gt
from dgl_gt.exchange.local import Local
from dgl_gt.exchange.relations import union_csc
from dgl_gt.nn import HGTLayer, RelationalConv
from dgl_gt.partition import partition

WIDTH, HEADS, TYPES, RELATIONS = 16, 4, 3, 5
WAYS = [("halo", 1), ("halo", 2), ("mirror", 1)]
LAYERS = {
    "hgt": lambda: HGTLayer(WIDTH, WIDTH // HEADS, HEADS, TYPES, RELATIONS, dropout=0.3, use_norm=True),
    "rgcn": lambda: RelationalConv(WIDTH, WIDTH, RELATIONS, "basis", 2, dropout=0.3, activation=torch.tanh),
    "mean": lambda: RelationalConv(WIDTH, WIDTH, RELATIONS, aggregate="mean", layer_norm=True),
}


def whole_view(graph):
    src, dst = (torch.from_numpy(ends).long() for ends in graph.edges())
    ends = []
    for each, begin, end in zip(graph.schema.ends, graph.schema.edge_ptr, graph.schema.edge_ptr[1:]):
        first = graph.schema.node_ptr[each]
        ends.append((src[begin:end] - first[0], dst[begin:end] - first[1]))
    return Local(union_csc(graph.schema, ends), schema=graph.schema)


def run_layers(graph, h, kind):
    """One step's output and gradients: of the rows, and of parameters."""
    torch.manual_seed(0)
    layers = nn.ModuleList(LAYERS[kind]() for _ in range(3)).double()
    dgl_gt.nn.set_dropout_step(layers, 1, 2)
    h = rows = h.double().requires_grad_()
    is_sharded = isinstance(graph, dgl_gt.ShardedGraph)
    for view, layer in zip(graph.views(3) if is_sharded else [graph] * 3, layers):
        h = layer(view, h)
    (h * torch.linspace(-1, 1, WIDTH, dtype=torch.float64)).pow(2).sum().backward()
    if is_sharded:
        graph.comm.sum_gradients(layers.parameters())
    return h.detach(), rows.grad, {name: p.grad.numpy() for name, p in layers.named_parameters()}


def on_rank(rank, folder, h, ways, kinds):
    found = {}
    for strategy, depth in ways:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        for kind in kinds:
            out, grad, parameters = run_layers(sg, h[sg.node_ids], kind)
            found[kind, strategy, depth] = sg.gather(out).numpy(), sg.gather(grad).numpy(), parameters
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
def test_ranks_have_the_numbers_of_the_whole_graph(tmp_path, parts):
    graph = typed_graph(parts)
    partition(graph, parts, tmp_path / "edge", halo_depth=2)
    partition(graph, parts, tmp_path / "vertex", cut="vertex")
    h = torch.randn(graph.num_nodes, WIDTH, generator=torch.Generator().manual_seed(1))
    whole = {kind: run_layers(whole_view(graph), h, kind) for kind in LAYERS}
    for results in run_ranks(parts, on_rank, tmp_path, h, WAYS, list(LAYERS)):
        for (kind, *way), (found, found_grad, found_parameters) in results.items():
            out, grad, parameters = whole[kind]
            exact = {"rtol": 1e-9, "atol": 1e-9 * max(abs(each).max() for each in parameters.values())}
            np.testing.assert_allclose(found, out, rtol=1e-9, atol=1e-11, err_msg=f"{kind} {way}")
            np.testing.assert_allclose(found_grad, grad, **exact, err_msg=f"{kind} {way}")
            for name, each in parameters.items():
                np.testing.assert_allclose(found_parameters[name], each, **exact, err_msg=f"{kind} {way} {name}")
