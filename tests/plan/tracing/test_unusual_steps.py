"""Steps of which the recording needs care: many ranks, compiled modules, numbers of heads, masks without a row."""

import pytest
import torch
from torch import nn

from dgl_gt.nn import GraphTransformer
from dgl_gt.partition.figures.strategies import HALO, Count, strategy_of
from dgl_gt.plan.tracing import record_trace

FEATURES, CLASSES = 20, 7
NODE_DATA = {"feat": ("float32", (FEATURES,)), "label": ("int64", ())}


def step_of(sg, model, forward, rows=slice(None)):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        at = rows() if callable(rows) else rows
        nn.functional.cross_entropy(forward()[at], sg.ndata["label"][at], reduction="sum").backward()
        sg.comm.sum_gradients(model.parameters())
        optimizer.step()

    return step


def transformer_step(heads):
    def make_step(sg):
        model = GraphTransformer(FEATURES, 4 * heads, CLASSES, 1, heads)
        return step_of(sg, model, lambda: model(sg, sg.ndata["feat"]))

    return make_step


@pytest.mark.parametrize("strategy", ["halo_kv", "mirror"])
def test_many_ranks_of_which_some_have_dense_pieces(strategy):
    """There the kernel copies rows, which is part of its pass over edges."""
    trace = record_trace(transformer_step(8), strategy_of(strategy), 1, 48, NODE_DATA, {})
    assert "edges" in {event.kind for event in trace.events}


@pytest.mark.parametrize("ranks", [5, 6])
def test_ranks_that_share_few_heads(ranks):
    trace = record_trace(transformer_step(ranks), strategy_of("heads"), 1, ranks, NODE_DATA, {})
    assert len(trace.positions("begin")) == 4


def test_a_compiled_module():
    """Its operations are recorded one by one, as without torch.compile."""
    names = []
    for compiled in (False, True):

        def make_step(sg, compiled=compiled):
            model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
            run = torch.compile(model, backend="eager") if compiled else model
            return step_of(sg, model, lambda: run(sg.ndata["feat"]))

        trace = record_trace(make_step, HALO, 1, 2, NODE_DATA, {})
        names.append([event.what for event in trace.events])
    assert names[0] == names[1]


@pytest.mark.parametrize(("masks", "parts", "read"), [(4, 2, "m2"), (5, 2, "m0"), (5, 6, "m0")])
def test_a_mask_that_selects_no_row_of_a_made_up_part(masks, parts, read):
    """What it selects is freed as 0 bytes."""

    def make_step(sg):
        model = nn.Linear(FEATURES, CLASSES)
        return step_of(sg, model, lambda: model(sg.ndata["feat"]), rows=lambda: sg.ndata[read])

    columns = NODE_DATA | {f"m{number}": ("bool", ()) for number in range(masks)}
    trace = record_trace(make_step, HALO, 1, parts, columns, {})
    assert Count("selected", mask=read) in trace.counts
