"""Layers and exchanges on a GPU, with nccl and one rank, as on the CPU; without a GPU the same with gloo. No DGL."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dgl_gt
from dgl_gt.partition import partition

for package in ("msgspec", "safetensors", "scipy", "yaml"):  # a machine for `make gpu` may have torch alone
    pytest.importorskip(package, reason=f"layers and exchanges need {package}")

from dgl_gt.nn import GATConv, GraphTransformer, set_dropout_step  # noqa: E402

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
TOLERANCE = 2e-4  # of the largest value: float32, summed in another order
WIDTH, CLASSES = 5, 3


def make_model(device, **options):
    torch.manual_seed(0)
    model = GraphTransformer(WIDTH, 16, CLASSES, layers=2, heads=4, **options)
    set_dropout_step(model, 0, 0)
    return model.to(device)


def outputs_and_gradients(model, graph, feat, ids=slice(None)):
    """Output and gradients of the parameters, float32 on the CPU, for a weighting of the output by id and column."""
    out = model(graph, feat)
    weights = torch.linspace(-1, 2, out.numel(), device=out.device).view_as(out)[ids]
    (out * weights).sum().backward()
    return [each.detach().cpu() for each in (out, *(parameter.grad for parameter in model.parameters()))]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE * max(1.0, float(other.abs().max())))


def csc_of(graph):
    return dgl_gt.CSC.build(torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), graph.num_nodes)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3, "attention_dropout": 0.3}], ids=["plain", "dropout"])
def test_a_model_gives_the_numbers_of_the_cpu(awkward_graph, options):
    graph = awkward_graph(0)
    feat, csc = torch.from_numpy(graph.node_data["feat"]), csc_of(graph)
    expected = outputs_and_gradients(make_model("cpu", **options), csc, feat)
    same(outputs_and_gradients(make_model(DEVICE, **options), csc.to(DEVICE), feat.to(DEVICE)), expected)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_gat_layer_gives_the_numbers_of_the_cpu(awkward_graph, dropout):
    graph, made = awkward_graph(0), []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        layer = GATConv(WIDTH, 8, 4, attn_drop=dropout, allow_zero_in_degree=True)
        layer.dropout_seed = 1
        feat = torch.from_numpy(graph.node_data["feat"]).to(device)
        made.append(outputs_and_gradients(layer.to(device), csc_of(graph).to(device), feat))
    same(*made[::-1])


@pytest.fixture
def one_rank(tmp_path):
    backend = "nccl" if ON_GPU else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("strategy", ["local", "halo", "gather", "heads", "ring"])
def test_a_strategy_gives_the_numbers_of_the_cpu(awkward_graph, tmp_path, one_rank, strategy):
    pytest.importorskip("pymetis", reason="partitioning needs pymetis")
    graph = awkward_graph(1)
    partition(graph, 1, tmp_path / "shards")
    expected = outputs_and_gradients(make_model("cpu"), csc_of(graph), torch.from_numpy(graph.node_data["feat"]))
    with dgl_gt.load(tmp_path / "shards", strategy=strategy) as sg:
        assert sg.device.type == DEVICE and sg.to(DEVICE) is sg
        model = make_model(DEVICE)
        out, *gradients = outputs_and_gradients(model, sg, sg.ndata["feat"], sg.node_ids)
        sg.comm.sum_gradients(model.parameters())
        same([parameter.grad.cpu() for parameter in model.parameters()], gradients)  # the sum over one rank
        same([sg.gather(out.to(sg.device)).cpu(), *gradients], expected)
        np.testing.assert_array_equal(sg.comm.all_reduce(torch.arange(3, device=sg.device)).cpu(), np.arange(3))
