"""What the tests of traces share: models, the steps that train them, and what a rank measures of a step."""

import torch
from expected_bytes import Sizes
from torch import nn

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.plan.watch import step_peak_bytes

FEATURES, CLASSES = 20, 7
MODEL = Sizes(2, 32, 4)
COLUMNS = {"feat": ("float32", (FEATURES,)), "label": ("int64", ())}, {"weight": ("float64", (2,))}
WAYS = [("halo_h", 1), ("halo_kv", 1), ("gather", 1), ("heads", 1), ("ring", 1), ("mirror", 1), ("halo_h", 2)]


def transformer_step(sg, mode="none"):
    """A graph transformer over ``sg.views``."""
    model = GraphTransformer(FEATURES, MODEL.hidden, CLASSES, MODEL.layers, MODEL.heads, ffn=2)
    model = apply_activation_checkpoint(model, mode)
    feat = (sg.srcdata if sg.depth > 1 else sg.ndata)["feat"]
    return step_of(sg, model, lambda: model(sg.taking_held_rows(), feat))


def step_of(sg, model, forward):
    """A function that trains the model by one step, on the cross entropy of all nodes."""
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


def all_pairs(sg):
    """A step whose operations grow with the square of the rows, which no trace can tell."""
    model = nn.Linear(FEATURES, CLASSES)
    feat = sg.ndata["feat"]
    return step_of(sg, model, lambda: (feat @ feat.T) @ model(feat))


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
