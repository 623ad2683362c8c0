"""Whole training runs, one process against 1 to 4 ranks: gradients, losses, parameters, predictions."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import load_graph, partition
from dgl_gt.train.config import read_config
from dgl_gt.train.loop import take_step
from dgl_gt.train.tasks.classification import NodeClassification

EPOCHS = 20


def new_model(in_dim, classes, dtype):
    torch.manual_seed(0)
    model = GraphTransformer(in_dim, 16, classes, layers=2, heads=4).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def gradients(model):
    return {name: parameter.grad.double().numpy().copy() for name, parameter in model.named_parameters()}


def parameters(model):
    return {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}


def one_process(graph, dtype):
    """Plain single-process training on a DGLGraph, with nothing of ours but the model."""
    import dgl

    src, dst = np.empty((2, graph.num_edges), np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    g = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes)
    feat = torch.from_numpy(graph.node_data["feat"]).to(dtype)
    label = torch.from_numpy(graph.node_data["label"])
    mask = graph.node_data["train_mask"]
    train = torch.from_numpy(mask[:, 0] if mask.ndim == 2 else mask)
    model, optimizer = new_model(feat.shape[1], int(label.max()) + 1, dtype)
    losses, first = [], None
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(g, feat)[train], label[train])
        loss.backward()
        first = first or gradients(model)
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        return first, losses, parameters(model), model(g, feat).double().numpy()


DTYPES = (torch.float64, torch.float32)


def on_rank(rank, directory):
    return {dtype: in_dtype(directory, dtype) for dtype in DTYPES}


def in_dtype_of(task, dtype):
    """The task with features of another dtype."""
    inputs = task.evaluated.inputs
    rows = replace(task.evaluated, inputs=replace(inputs, feat=inputs.feat.to(dtype)))
    return replace(task, evaluated=rows, trained=rows)


def in_dtype(directory, dtype):
    sg = dgl_gt.load(directory)
    task = in_dtype_of(NodeClassification.read(sg, read_config()), dtype)
    model, optimizer = new_model(task.sizes["in_dim"], task.out_dim, dtype)
    losses, first = [], None
    for step in range(EPOCHS):
        losses.append(take_step(model, task, sg.comm, optimizer, step))
        first = first or gradients(model)
    with torch.no_grad():
        return first, losses, parameters(model), sg.gather(model(sg, task.evaluated.inputs.feat)).double().numpy()


def compare(expected, results, dtype):
    (grads, losses, params, predictions), exact = expected, dtype == torch.float64
    norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
    for first, rank_losses, rank_params, rank_predictions in (of_rank[dtype] for of_rank in results):
        if exact:
            for name, grad in grads.items():
                assert np.linalg.norm(first[name] - grad) <= 1e-9 * norm, name
                if not name.endswith(
                    "k_proj.bias"
                ):  # its gradient is zero but for rounding, which Adam turns into steps
                    np.testing.assert_allclose(rank_params[name], params[name], rtol=0, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(rank_losses, losses, rtol=1e-8 if exact else 1e-4)
        np.testing.assert_allclose(rank_predictions, predictions, rtol=0, atol=1e-6 if exact else 1e-3)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
@pytest.mark.parametrize("empty", [False, True])
def test_awkward_graphs(awkward_graph, tmp_path, parts, empty):
    """Isolated nodes, hubs, parallel edges, self-loops, directed edges; with METIS's parts, or one of them empty."""
    graph = awkward_graph(parts)
    owner = np.random.default_rng(0).integers(0, parts, graph.num_nodes) % max(parts - 1, 1) if empty else None
    partition(graph, parts, tmp_path / "shards", owner=owner)
    results = run_ranks(parts, on_rank, tmp_path / "shards")
    for dtype in DTYPES:
        compare(one_process(graph, dtype), results, dtype)


@pytest.fixture(scope="module")
def tolokers_runs(tmp_path_factory):
    """Two functions: the run of one process in a dtype, and those of so many ranks in all dtypes; each made once."""

    def on_ranks(path, parts):
        shards = tmp_path_factory.mktemp("tolokers") / "shards"
        partition(load_graph(path), parts, shards)
        return run_ranks(parts, on_rank, shards)

    alone = functools.cache(lambda path, dtype: one_process(load_graph(path), dtype))
    return alone, functools.cache(on_ranks)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tolokers(real_graph, tolokers_runs, parts, dtype):
    alone, on_ranks = tolokers_runs
    path = real_graph("tolokers")
    compare(alone(path, dtype), on_ranks(path, parts), dtype)
