"""What plans predict of steps on typed graphs against what ranks measure: tensors at the peak, and bytes."""

from functools import partial

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from typed import typed_graph

import dgl_gt
from dgl_gt.nn import HeteroGraphTransformer, apply_activation_checkpoint
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan.tracing import record_trace
from dgl_gt.plan.watch import step_peak_bytes
from dgl_gt.train.around_nodes import EmbeddedModel

PARTS, HIDDEN = 2, 32
TRAINED, WIDTH = "trained rows", 64
OF_EDGES = ("edges", {"edge_feats": {"author,writes,paper": 1}, "edge_kinds": {"paper,cites,paper": 1}})
WAYS = [
    *(("edge", "halo_h", 1, "dot", mode) for mode in ACTIVATION_CHECKPOINTS),
    *(("edge", "halo_h", 1, score, "none") for score in ("hgt", "mean")),
    ("edge", "halo_h", 2, "dot", "none"),
    ("edge", "halo_h", 1, OF_EDGES[0], "none"),
    ("edge", "halo_h", 1, OF_EDGES[0], "full"),
    ("vertex", "mirror", 1, OF_EDGES[0], "none"),
    ("vertex", "mirror", 1, "dot", "none"),
    ("vertex", "mirror", 1, "mean", "full"),
    *((cut, strategy, 1, TRAINED, "none") for cut, strategy in (("edge", "halo_h"), ("vertex", "mirror"))),
]
MORE_WAYS = [
    ("edge", "halo_h", 1, score, mode) for score in ("hgt", "mean") for mode in ACTIVATION_CHECKPOINTS if mode != "none"
]


class Step:
    """A training step of a model for typed graphs on the papers' labels."""

    def __init__(self, sg, score, mode):
        self.feat = {name: sg.nodes[name].data["feat"] for name in sg.ntypes if "feat" in sg.nodes[name].data}
        self.edges = {}
        if score == TRAINED:  # rows of authors, too
            del self.feat["author"]
        widths = {name: self.feat[name].shape[1] if name in self.feat else 0 for name in sg.ntypes}
        without = [name for name in widths if not widths[name]]
        widths |= dict.fromkeys(without, WIDTH if score == TRAINED else 0)
        of_edges = OF_EDGES[1] | {"edge_role": "key_value"} if score == OF_EDGES[0] else {"score": score}
        options = {} if score == TRAINED else of_edges
        network = HeteroGraphTransformer(widths, HIDDEN, 3, 2, 4, relations=sg.canonical_etypes, **options)
        network = EmbeddedModel(network, sg, WIDTH, without) if score == TRAINED else network
        if score == OF_EDGES[0]:
            weight = sg.edges["writes"].data["weight"].unsqueeze(1)
            kinds = sg.edges["cites"].data["kind"].int().unsqueeze(1)
            self.edges = {"edge_feat": {"author,writes,paper": weight}, "edge_kind": {"paper,cites,paper": kinds}}
        self.sg, self.network = sg, apply_activation_checkpoint(network, mode)
        self.optimizer = torch.optim.AdamW(network.parameters())

    def __call__(self):
        self.optimizer.zero_grad()
        logits = self.network(self.sg, self.feat, **self.edges)[self.sg.rows("paper")]
        label = self.sg.nodes["paper"].data["label"]
        torch.nn.functional.cross_entropy(logits, label, reduction="sum").backward()
        self.sg.comm.sum_gradients(self.network.parameters())
        self.optimizer.step()


def measured(rank, folder, ways):
    """Peak bytes, the lowest of three, and bytes sent of a step of each way."""
    results = []
    for cut, strategy, depth, score, mode in ways:
        sg = dgl_gt.load(folder / cut, strategy, depth)
        step = Step(sg, score, mode)
        step()
        before = sg.comm.sent_bytes
        peaks = [step_peak_bytes(sg, step.network, step.feat, step) for _ in range(3)]
        results.append((min(peaks), (sg.comm.sent_bytes - before) // 3))
    return results


@pytest.mark.parametrize("ways", [WAYS, slow(MORE_WAYS)])
def test_memory_within_ten_percent_and_bytes_exact(tmp_path, ways):
    graph = typed_graph(papers=2000, authors=3000, subjects=30, times=80)
    cuts = {
        "edge": partition(graph, PARTS, tmp_path / "edge", halo_depth=2),
        "vertex": partition(graph, PARTS, tmp_path / "vertex", cut="vertex"),
    }
    found = run_ranks(PARTS, measured, tmp_path, ways)
    for number, (cut, strategy, depth, score, mode) in enumerate(ways):
        figures = read_figures(cuts[cut])
        columns = figures.node_data, figures.edge_data, figures.schema
        trace = record_trace(partial(Step, score=score, mode=mode), strategy_of(strategy), depth, PARTS, *columns)
        peaks, sent = np.array([of_rank[number] for of_rank in found]).T
        way = f"{cut} {depth} {score} {mode}"
        assert trace.sent_bytes(figures) == sent.sum(), way
        assert trace.peak_bytes(figures).max() == pytest.approx(peaks.max(), rel=0.1), way
