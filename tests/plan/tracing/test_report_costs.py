"""``report_costs``: what it prints, that it leaves no mark, and the steps and shards that it refuses."""

import gc

import pytest
import torch
from torch import nn
from traced_steps import CLASSES, FEATURES, all_pairs, step_of, transformer_step

from dgl_gt.partition import partition
from dgl_gt.partition.errors import InputError
from dgl_gt.plan import report_costs


def test_a_trace_leaves_no_mark(shards):
    """Neither on the generator of random numbers nor on the garbage collector."""
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    gc.disable()
    try:
        report_costs(transformer_step, shards / "edge")
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert torch.rand(1) == expected


def test_the_table_and_the_dict(shards):
    costs = report_costs(transformer_step, shards / "vertex")
    text, values = str(costs), costs.as_dict()
    for words in ("matrix products", "exchanges", "one step", "mirror of depth 1 sends", "profile default"):
        assert words in text
    assert values["seconds"] == costs.time.total_s and values["time"]["products_s"] > 0
    assert costs.as_dict()["sent_bytes"] == costs.sent_bytes


def test_rows_gathered_in_a_step_of_a_mesh(graph, tmp_path):
    """Gathering sends rows to rank 0 alone, whose traced exchange receives none."""

    def gathering_step(sg):
        step = transformer_step(sg)
        return lambda: (step(), sg.gather(sg.ndata["feat"]))

    partition(graph, 4, tmp_path / "four")
    assert report_costs(gathering_step, tmp_path / "four", "mesh=2").sent_bytes > 0


def rows_that_data_select(sg):
    model = nn.Linear(FEATURES, CLASSES)
    rows = torch.arange(sg.num_nodes()) % 64 < 32

    def forward():
        out = model(sg.ndata["feat"])
        return out.index_add(0, rows.nonzero()[:, 0], out[rows])

    return step_of(sg, model, forward)


def other_operations(sg):
    model = nn.Linear(FEATURES, CLASSES)
    return step_of(sg, model, lambda: model(sg.ndata["feat"]) * 2 if sg.num_nodes() % 2 else model(sg.ndata["feat"]))


@pytest.mark.parametrize(
    ("make_step", "message"),
    [
        (all_pairs, "the size of aten::.* does not grow linearly with the rows and edges"),
        (rows_that_data_select, "the size of aten::.* does not grow linearly"),
        (other_operations, "does different operations on different parts, from about aten::"),
        (3, "make_step is 3"),
        (lambda sg: 3, "make_step returned 3; it must return a function"),
    ],
)
def test_steps_that_cannot_be_traced_are_refused(shards, make_step, message):
    for cut in ("edge", "vertex"):
        with pytest.raises(InputError, match=message):
            report_costs(make_step, shards / cut)


def test_a_step_without_operations_costs_its_shard_alone(shards):
    costs = report_costs(lambda sg: lambda: None, shards / "edge")
    assert costs.time.total_s == costs.sent_bytes == 0 and min(costs.peak_bytes) > 0 and "one step" in str(costs)


def test_what_is_no_profile_is_refused(shards):
    with pytest.raises(InputError, match="profile is 'mine.yaml'"):
        report_costs(transformer_step, shards / "edge", profile="mine.yaml")


def test_shards_that_cannot_have_the_strategy(shards):
    with pytest.raises(InputError, match="use mirror"):
        report_costs(transformer_step, shards / "vertex", "ring")
