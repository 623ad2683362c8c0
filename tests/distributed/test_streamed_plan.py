"""What plans say of steps part by part against what ranks measure: tensors at the peak, files, and bytes copied."""

from functools import partial

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.exchange.streamed import SPILL_DTYPES
from dgl_gt.nn import GNN, GraphTransformer
from dgl_gt.partition import InputError, from_edges, partition, read_figures, read_manifest
from dgl_gt.partition.figures.strategies import HALO
from dgl_gt.plan.room import figures_with_pieces
from dgl_gt.plan.tracer import Tracer
from dgl_gt.plan.watch import step_peak_bytes

FEATURES, CLASSES, PARTS = 20, 7, 8
WAYS = ["transformer", "wide, one layer", "biases", "edge features", "gcn", "gat"]


def graph(nodes=4000, edges=40_000):
    """Half of the edges near, half anywhere, some of them from hubs; and two nodes without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes - 2, (2, edges))
    src[: edges // 2] = (dst[: edges // 2] + rng.integers(-30, 30, edges // 2)) % (nodes - 2)
    src[-edges // 20 :] = rng.integers(0, 5, edges // 20)
    data = {"feat": rng.standard_normal((nodes, FEATURES)).astype(np.float32), "label": rng.integers(0, CLASSES, nodes)}
    return from_edges(src, dst, nodes, data, {"weight": rng.standard_normal((edges, 1)).astype(np.float32)})


class Step:
    def __init__(self, sg, way):
        self.sg, self.inputs = sg, {}
        match way:
            case "gcn":
                network = GNN(FEATURES, 24, CLASSES, 3, 1, dropout=0.1)
            case "gat":
                network = GNN(FEATURES, 24, CLASSES, 2, 4, score="additive", dropout=0.1)
            case "wide, one layer":
                network = GraphTransformer(FEATURES, 96, CLASSES, 1, 4)
            case "edge features":
                network = GraphTransformer(FEATURES, 24, CLASSES, 2, 4, edge_feats=1, edge_role="key_value")
                self.inputs = {"edge_feat": sg.edata["weight"]}
            case _:
                network = GraphTransformer(FEATURES, 24, CLASSES, 3, 4, dropout=0.1)
        if way == "biases":
            self.bias = torch.nn.Parameter(torch.zeros(4))
            self.inputs = {"attn_bias": None}
        self.network = network
        self.optimizer = torch.optim.AdamW(network.parameters())

    def __call__(self):
        self.optimizer.zero_grad()
        inputs = self.inputs
        if "attn_bias" in inputs:
            inputs = {"attn_bias": self.sg.edata["weight"] * self.bias}
        logits = self.network(self.sg, self.sg.ndata["feat"], **inputs)
        torch.nn.functional.cross_entropy(logits, self.sg.ndata["label"], reduction="sum").backward()
        self.sg.comm.sum_gradients(self.network.parameters())
        self.optimizer.step()


def measured(rank, path, spill, spill_dtype, dealt=None):
    """Of each way: peak bytes, the lowest of three, bytes read and written in a step, of files, and sent."""
    results = []
    for way in WAYS:
        sg = dgl_gt.load(path, spill=spill, spill_dtype=spill_dtype, parts_per_rank=dealt)
        step = Step(sg, way)
        step()
        stream, sent = sg.stream, sg.comm.sent_bytes
        read, written = stream.read_bytes, stream.written_bytes
        peaks = [step_peak_bytes(sg, step.network, sg.ndata["feat"], step) for _ in range(3)]
        copied = [(stream.read_bytes - read) // 3, (stream.written_bytes - written) // 3]
        results.append((min(peaks), *copied, stream.file_bytes, (sg.comm.sent_bytes - sent) // 3))
    return results, figures_with_pieces(sg.manifest)


CASES = [slow(PARTS, 1, "fp32"), (PARTS, 2, "bf16"), slow(PARTS, 3, "fp32"), slow(2, 2, "fp32"), (1, 1, "fp32")]


@pytest.mark.parametrize(("parts", "ranks", "spill_dtype"), CASES)
def test_memory_within_ten_percent_and_bytes_exact(tmp_path, parts, ranks, spill_dtype):
    partition(graph(), parts, tmp_path / "shards")
    check_predictions(tmp_path, ranks, spill_dtype)


def test_predictions_of_a_vertex_cut_that_ranks_share_unevenly(tmp_path):
    partition(graph(), PARTS, tmp_path / "shards", cut="vertex")
    figures = check_predictions(tmp_path, 2, "fp32", [6, 2])
    assert figures.bounds == [0, 6, 8] and figures.owned[0] > 2 * figures.owned[1]


def check_predictions(tmp_path, ranks, spill_dtype, dealt=None):
    (tmp_path / "spill").mkdir()
    found = run_ranks(ranks, measured, tmp_path / "shards", str(tmp_path / "spill"), spill_dtype, dealt)
    figures = found[0][1].with_pieces
    for number, way in enumerate(WAYS):
        trace = Tracer(partial(Step, way=way)).streamed(figures, SPILL_DTYPES[spill_dtype])
        peaks, read, written, files, sent = np.array([of_rank[number] for of_rank, _ in found]).T
        assert trace.copied_bytes(figures).T.tolist() == [read.tolist(), written.tolist()], way
        assert trace.file_bytes(figures).tolist() == files.tolist(), way
        assert trace.sent_bytes(figures) == sent.sum(), way
        np.testing.assert_allclose(trace.peak_bytes(figures), peaks, rtol=0.1, err_msg=way)
    return figures


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_figures_on_ranks_are_those_of_joined_parts(tmp_path, ranks):
    partition(graph(), PARTS, tmp_path / "shards")
    stored = read_figures(read_manifest(tmp_path / "shards"))
    ((_, loaded), *_) = run_ranks(ranks, described, tmp_path / "shards")
    shared = stored.on_ranks(ranks)
    for name in ("owned", "edges_by_hop", "cut_edges", "near_edges", "copies_by_hop", "sent_by_hop", "received_rows"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(loaded, name), err_msg=name)
    assert shared.pieces is stored
    assert HALO.depths(shared, 3) == range(1, 2)


def described(rank, path):
    sg = dgl_gt.load(path)
    return None, read_figures(sg.manifest)


def test_ranks_that_do_not_divide_the_parts(tmp_path):
    partition(graph(), PARTS, tmp_path / "shards")
    with pytest.raises(InputError, match="3 ranks"):
        read_figures(read_manifest(tmp_path / "shards")).on_ranks(3)
