"""What traces predict against what ranks measure: tensors at the peak of a step, and bytes, of every way to train."""

from functools import partial

import numpy as np
import pytest
import torch
from expected_bytes import Sizes, bias_bytes, step_bytes
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.partition import from_edges, partition
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan.tracing import record_trace
from dgl_gt.plan.watch import step_peak_bytes

FEATURES, CLASSES = 20, 7
COLUMNS = {"feat": ("float32", (FEATURES,)), "label": ("int64", ())}, {"weight": ("float64", (2,))}
MODELS = [(Sizes(3, 24, 12), 2), (Sizes(2, 48, 12), 1)]  # and the width of the feed-forward networks


def graph(nodes=3000, edges=30_000):
    """Half of the edges near, half anywhere, some of them from hubs."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes, (2, edges))
    src[: edges // 2] = (dst[: edges // 2] + rng.integers(-30, 30, edges // 2)) % nodes
    src[-edges // 20 :] = rng.integers(0, 5, edges // 20)
    data = {"feat": rng.standard_normal((nodes, FEATURES)).astype(np.float32), "label": rng.integers(0, CLASSES, nodes)}
    return from_edges(src, dst, nodes, data, {"weight": rng.standard_normal((edges, 2))})


class Step:
    """A training step of a graph transformer, with ``edges`` one with edge features and these options."""

    def __init__(self, sg, model, activation_checkpoint, edges=None):
        sizes, ffn = model
        of_edges = {} if edges is None else {"edge_feats": 2, "edge_hidden": 8, **edges}
        network = GraphTransformer(FEATURES, sizes.hidden, CLASSES, sizes.layers, sizes.heads, ffn=ffn, **of_edges)
        self.inputs = {} if edges is None else {"edge_feat": sg.edata["weight"].float()}
        self.sg, self.layers = sg, sizes.layers
        self.network = apply_activation_checkpoint(network, activation_checkpoint)
        self.optimizer = torch.optim.AdamW(network.parameters())
        self.feat = (sg.srcdata if sg.depth > 1 else sg.ndata)["feat"]

    def __call__(self):
        self.optimizer.zero_grad()
        logits = self.network(self.sg.taking_held_rows(), self.feat, **self.inputs)
        torch.nn.functional.cross_entropy(logits, self.sg.ndata["label"], reduction="sum").backward()
        self.sg.comm.sum_gradients(self.network.parameters())
        self.optimizer.step()


def measured(rank, folder, ways):
    """Peak bytes and bytes sent of a step of each (cut, strategy, depth, model, activation_checkpoint)."""
    results = []
    for cut, strategy, depth, model, activation_checkpoint in ways:
        sg = dgl_gt.load(folder / cut, strategy, depth)
        step = Step(sg, model, activation_checkpoint)
        step()
        before = sg.comm.sent_bytes
        peak_bytes = step_peak_bytes(sg, step.network, step.feat, step)
        results.append((peak_bytes, sg.comm.sent_bytes - before))
    return results


@pytest.mark.parametrize("parts", [1, 3, slow(4)])
def test_memory_within_three_percent_and_bytes_exact(tmp_path, parts):
    cuts = {"edge": partition(graph(), parts, tmp_path / "edge", halo_depth=3)}
    names = [("edge", "local", 1)]
    if parts > 1:
        cuts["vertex"] = partition(graph(), parts, tmp_path / "vertex", cut="vertex")
        names = [("edge", name, 1) for name in ("halo_h", "halo_kv", "gather", "heads", "ring")]
        names += [("edge", "mesh=2", 1)] if parts == 4 else []
        names += [("vertex", "mirror", 1), ("edge", "halo_h", 2), ("edge", "halo_h", 3)]
    ways = [
        (*name, MODELS[0], activation_checkpoint) for name in names for activation_checkpoint in ACTIVATION_CHECKPOINTS
    ]
    ways += [(*name, MODELS[1], "none") for name in names]
    figures = {name: read_figures(manifest) for name, manifest in cuts.items()}
    peaks_of = {}
    for _ in range(3):  # gloo's threads may release tensors late: measure again what is too large
        wrong = [*compare(figures, parts, ways, run_ranks(parts, measured, tmp_path, ways), peaks_of)]
        ways = [way for way, _ in wrong]
        if not wrong:
            break
    assert not wrong


def compare(figures, parts, ways, found, peaks_of):
    """Yield each way whose memory is predicted wrongly, and the error; peaks are the lowest of all measurements."""
    for number, way in enumerate(ways):
        cut, strategy, depth, model, activation_checkpoint = way
        make_step = partial(Step, model=model, activation_checkpoint=activation_checkpoint)
        trace = record_trace(make_step, strategy_of(strategy), depth, parts, *COLUMNS)
        predicted = trace.peak_bytes(figures[cut])
        peaks, sent = np.array([of_rank[number] for of_rank in found]).T
        peaks = peaks_of[way] = np.minimum(peaks, peaks_of.get(way, peaks))
        expected, _ = step_bytes(figures[cut], model[0], strategy, depth, activation_checkpoint)
        assert sent.tolist() == expected.tolist(), (strategy, depth, activation_checkpoint)
        assert trace.sent_bytes(figures[cut]) == expected.sum()
        error = predicted.max() / peaks.max() - 1
        if abs(error) > 0.03:
            yield way, round(float(error), 3)


def measured_with_edges(rank, folder, ways):
    """Peak bytes, the lowest of three, and bytes sent of a step of each (depth, activation_checkpoint, options)."""
    results = []
    for depth, activation_checkpoint, edges in ways:
        sg = dgl_gt.load(folder, "halo_h", depth)
        step = Step(sg, MODELS[0], activation_checkpoint, edges)
        step()
        before = sg.comm.sent_bytes
        peaks = [step_peak_bytes(sg, step.network, step.feat, step) for _ in range(3)]
        results.append((min(peaks), (sg.comm.sent_bytes - before) // 3))
    return results


@pytest.mark.parametrize("parts", [slow(2), 3])
def test_deep_halos_with_edge_features(tmp_path, parts):
    """The biases of replicated edges come from their owners, in every layer but the last before an exchange."""
    figures = read_figures(partition(graph(), parts, tmp_path / "edge", halo_depth=3))
    ways = [(2, mode, {}) for mode in ACTIVATION_CHECKPOINTS] + [(2, "none", {"edge_update": True}), (3, "none", {})]
    found = run_ranks(parts, measured_with_edges, tmp_path / "edge", ways)
    for number, (depth, mode, edges) in enumerate(ways):
        trace = record_trace(
            lambda sg: Step(sg, MODELS[0], mode, edges),  # noqa: B023 (called at once)
            strategy_of("halo_h"),
            depth,
            parts,
            *COLUMNS,
        )
        peaks, sent = np.array([of_rank[number] for of_rank in found]).T
        expected, _ = step_bytes(figures, MODELS[0][0], "halo_h", depth, mode)
        expected = expected + bias_bytes(figures, MODELS[0][0], depth, 2 if mode == "full" else 1)
        assert sent.tolist() == expected.tolist(), (depth, mode, edges)
        assert trace.sent_bytes(figures) == expected.sum()
        assert trace.peak_bytes(figures).max() == pytest.approx(peaks.max(), rel=0.05), (depth, mode, edges)


OF_EDGES = [
    {"edge_role": "key_value"},
    {"edge_role": "key_value", "edge_input": "raw", "edge_hidden": 16, "edge_update": True},  # a width that is not read
]


def measured_of_strategies(rank, folder, ways):
    results = []
    for strategy, depth, edges in ways:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        step = Step(sg, MODELS[0], "none", edges)
        step()
        before = sg.comm.sent_bytes
        peaks = [step_peak_bytes(sg, step.network, step.feat, step) for _ in range(3)]
        results.append((min(peaks), (sg.comm.sent_bytes - before) // 3))
    return results


def test_edge_features_in_keys_and_values(tmp_path):
    """Bytes exact and memory within 10 %, with every strategy."""
    figures = {"edge": read_figures(partition(graph(), 2, tmp_path / "edge", halo_depth=2))}
    figures["vertex"] = read_figures(partition(graph(), 2, tmp_path / "vertex", cut="vertex"))
    names = [(name, 1) for name in ("halo_h", "halo_kv", "gather", "heads", "ring", "mirror")] + [("halo_h", 2)]
    ways = [(*name, edges) for name in names for edges in OF_EDGES]
    found = run_ranks(2, measured_of_strategies, tmp_path, ways)
    for number, (strategy, depth, edges) in enumerate(ways):
        make_step = partial(Step, model=MODELS[0], activation_checkpoint="none", edges=edges)
        trace = record_trace(make_step, strategy_of(strategy), depth, 2, *COLUMNS)
        predicted = figures["vertex" if strategy == "mirror" else "edge"]
        peaks, sent = np.array([of_rank[number] for of_rank in found]).T
        assert trace.sent_bytes(predicted) == sent.sum(), (strategy, depth, edges)
        assert trace.peak_bytes(predicted).max() == pytest.approx(peaks.max(), rel=0.1), (strategy, depth, edges)
