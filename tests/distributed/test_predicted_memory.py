"""What partition.step_memory predicts, against tensors counted on ranks; and the bytes of steps that exchange again."""

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.trace.live_tensors import step_peak_bytes
from partition import from_edges, partition
from partition.predict.model import Model
from partition.predict.step_memory import step_memory
from partition.predict.strategies import ACTIVATION_CHECKPOINTS
from partition.predict.traffic import step_traffic
from partition.shards.counts import read_figures

CLASSES = 7
MODELS = [Model(3, 32, 4, 2, features=20, classes=CLASSES), Model(2, 48, 12, 1, features=20, classes=CLASSES)]


def graph(nodes=3000, edges=30_000):
    """Half of the edges near, half anywhere, some of them from hubs."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, nodes, (2, edges))
    src[: edges // 2] = (dst[: edges // 2] + rng.integers(-30, 30, edges // 2)) % nodes
    src[-edges // 20 :] = rng.integers(0, 5, edges // 20)
    data = {"feat": rng.standard_normal((nodes, 20)).astype(np.float32), "label": rng.integers(0, CLASSES, nodes)}
    return from_edges(src, dst, nodes, data, {"weight": rng.standard_normal((edges, 2))})


def measured(rank, folder, ways):
    """Peak bytes and bytes sent of a step of each (cut, strategy, depth, model, activation_checkpoint)."""
    results = []
    for cut, strategy, depth, model, activation_checkpoint in ways:
        sg = dgl_gt.load(folder / cut, strategy, depth)
        sizes = model.features, model.hidden, model.classes, model.layers, model.heads
        network = apply_activation_checkpoint(GraphTransformer(*sizes, ffn=model.ffn), activation_checkpoint)
        optimizer = torch.optim.AdamW(network.parameters())
        feat = (sg.srcdata if depth > 1 else sg.ndata)["feat"]

        def step(sg=sg, network=network, optimizer=optimizer, feat=feat, layers=model.layers):
            optimizer.zero_grad()
            logits = network(sg.blocks(layers, from_held=True), feat)
            torch.nn.functional.cross_entropy(logits, sg.ndata["label"], reduction="sum").backward()
            sg.comm.sum_gradients(network.parameters())
            optimizer.step()

        step()
        before = sg.comm.sent_bytes
        peak_bytes = step_peak_bytes(sg, network, feat, step)
        results.append((peak_bytes, sg.comm.sent_bytes - before))
    return results


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_memory_within_a_tenth_and_bytes_exact(tmp_path, parts):
    cuts = {"edge": partition(graph(), parts, tmp_path / "edge", halo_depth=3)}
    names = [("edge", "local", 1)]
    if parts > 1:
        cuts["vertex"] = partition(graph(), parts, tmp_path / "vertex", cut="vertex")
        names = [("edge", name, 1) for name in ("halo_h", "halo_kv", "gather", "heads", "ring")]
        names += [("vertex", "mirror", 1), ("edge", "halo_h", 2), ("edge", "halo_h", 3)]
    ways = [
        (*name, model, activation_checkpoint)
        for name in names
        for model in MODELS
        for activation_checkpoint in ACTIVATION_CHECKPOINTS
    ]
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
        predicted = step_memory(figures[cut], model, strategy, depth, activation_checkpoint).total
        peaks, sent = np.array([of_rank[number] for of_rank in found]).T
        peaks = peaks_of[way] = np.minimum(peaks, peaks_of.get(way, peaks))
        traffic = step_traffic(figures[cut], model, strategy, depth, activation_checkpoint)
        expected = sum((each.sent + each.sent_back for each in traffic), np.zeros(parts, int))
        assert sent.tolist() == expected.tolist(), (strategy, depth, activation_checkpoint)
        error = predicted.max() / peaks.max() - 1
        if abs(error) > 0.1:
            yield way, round(float(error), 3)
