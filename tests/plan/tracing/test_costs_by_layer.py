"""Costs by layer: which layer an operation belongs to, forward and backward, and the same from real steps."""

import numpy as np
import pytest
import torch
from expected_bytes import Sizes, step_bytes
from ranks import run_ranks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dgl_gt
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.partition import from_edges, partition, read_figures, read_manifest
from dgl_gt.partition.figures.strategies import LOCAL
from dgl_gt.plan import report_costs
from dgl_gt.plan.stand_in import make_layout, stand_in
from dgl_gt.plan.step_costs import LayerCosts, StepCosts, StepTimer
from dgl_gt.plan.trace import TERMS, TracedTime
from dgl_gt.plan.watch import LayerTracker

FEATURES, CLASSES, LAYERS = 6, 3, 2


class Seen(TorchDispatchMode):
    """Inside the block, notes the layer of each matrix product."""

    def __init__(self):
        super().__init__()
        self.products, self.tracker = [], LayerTracker()

    def __enter__(self):
        self.tracker.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self.tracker.__exit__()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.products.append(self.tracker.layer)
        return function(*args, **(kwargs or {}))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(2)])
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x + x @ torch.ones(4, 4))


def test_layers_of_a_model_forward_and_backward():
    """Two products of each linear layer in backward but for the first, whose input needs no gradient."""
    model = Residual()
    with Seen() as seen:
        model(torch.ones(5, 4)).sum().backward()
    forward = ["first", "layers.0", "layers.0", "layers.1", "layers.1", "", "last"]
    backward = ["last"] * 2 + [""] + ["layers.1"] * 4 + ["layers.0"] * 4 + ["first"]
    assert seen.products == [f"Residual 1/{name}" if name else "Residual 1" for name in forward + backward]


def test_modules_that_a_step_calls_by_itself_have_numbers():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    with Seen() as seen:
        for _ in range(2):
            second(first(torch.ones(5, 4))).sum().backward()
        torch.ones(2, 2) @ torch.ones(2, 2)
    names = ["Linear 1", "Linear 2", "Linear 2", "Linear 2", "Linear 1"]
    assert seen.products == [*names, *names, ""]


def test_hooks_are_gone_afterwards():
    model, seen = Residual(), Seen()
    with pytest.raises(ZeroDivisionError), seen:
        raise ZeroDivisionError
    model(torch.ones(5, 4)).sum().backward()
    assert seen.products == []


# ---- costs -------------------------------------------------------------------------------------------------------


class Step:
    """A training step of a graph transformer."""

    def __init__(self, sg, mode="none"):
        self.sg = sg
        self.model = apply_activation_checkpoint(GraphTransformer(FEATURES, 8, CLASSES, LAYERS, 2), mode)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def __call__(self):
        self.optimizer.zero_grad()
        logits = self.model(self.sg, self.sg.ndata["feat"])
        nn.functional.cross_entropy(logits, self.sg.ndata["label"], reduction="sum").backward()
        self.sg.comm.sum_gradients(self.model.parameters())
        self.optimizer.step()


def checkpointed(sg):
    return Step(sg, "full")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("layers")
    data = {"feat": rng.standard_normal((300, FEATURES)).astype(np.float32), "label": rng.integers(0, CLASSES, 300)}
    partition(from_edges(*rng.integers(0, 300, (2, 2000)), 300, data), 2, folder / "edge")
    return folder / "edge"


def on_rank(rank, shards, make_step):
    costs = report_costs(make_step, dgl_gt.load(shards))
    return costs.as_dict(), str(costs)


@pytest.mark.parametrize("make_step", [Step, checkpointed])
def test_predicted_and_measured(shards, make_step):
    alone = report_costs(make_step, shards)
    (found, text), (other, _) = run_ranks(2, on_rank, shards, make_step)
    assert found["layers"] == other["layers"] and found["measured_seconds"] == other["measured_seconds"]
    assert found["measured_sent_bytes"] == found["sent_bytes"] == alone.sent_bytes
    figures, mode = read_figures(read_manifest(shards)), "full" if make_step is checkpointed else "none"
    assert alone.sent_bytes == step_bytes(figures, Sizes(LAYERS, 8, 2), "halo_h", 1, mode)[0].sum()
    names = [each["layer"] for each in found["layers"]]
    assert {"layers.0", "layers.1"} < {each.layer for each in alone.layers} <= set(names)
    by_name = {each["layer"]: each for each in found["layers"]}
    for name in ("layers.0", "layers.1"):
        predicted, measured = by_name[name]["predicted"], by_name[name]["measured"]
        for term in ("products_s", "rows_s", "attention_s", "exchange_s"):
            assert predicted[term] > 0 and measured[term] > 0, (name, term)
        assert by_name[name]["sent_bytes"] == alone.sent_bytes // LAYERS
    assert by_name["loss, optimiser, sums"]["measured"]["gradients_s"] > 0
    for term in set(TERMS) - {"exchange_s", "hidden_s"}:
        assert sum(each.predicted[term] for each in alone.layers) == pytest.approx(getattr(alone.time, term))
    assert sum(sum(each.predicted.values()) for each in alone.layers) == pytest.approx(alone.time.total_s)
    for words in ("layers.1", "measured s", "predicted s", "loss, optimiser, sums", "between operations"):
        assert words in text
    assert "measured s" not in str(alone)


def test_the_clock_runs_for_the_layer_and_the_kind_at_hand(monkeypatch, shards):
    """A clock that ticks each time it is read: an operation takes one tick, and so does what lies between two."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(StepTimer, "_now", lambda self: next(ticks))
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad(), StepTimer(stand_in(make_layout(LOCAL, 1, 1, 0, {}, {}), LOCAL, 1)) as timer:
        model(torch.ones(5, 4) + 1)
    layers = {name: {term: s for term, s in terms.items() if s} for name, terms in timer.layers.items()}
    assert layers["Sequential 1/0"]["products_s"] == 1 and layers["Sequential 1/1"]["rows_s"] >= 1
    assert set(layers["Sequential 1/0"]) <= {"products_s", "rows_s", "other_s"} and "rows_s" in layers[""]


def strategy_refused(rank, shards):
    with pytest.raises(ValueError, match="strategy and depth are those of the ShardedGraph"):
        report_costs(Step, dgl_gt.load(shards), "halo")


def test_a_sharded_graph_has_its_own_strategy(shards):
    run_ranks(2, strategy_refused, shards)


def made_up(measured=True):
    seconds = dict.fromkeys(("products_s", "rows_s", "attention_s", "exchange_s", "gradients_s"), 0.1)
    layers = [LayerCosts(name, seconds, seconds | {"other_s": 0.2} if measured else None, 10) for name in ("a", "b")]
    return StepCosts("halo_h", 1, TracedTime(), 20, [5, 6], "default", layers, 0.9 if measured else None, 20)


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(("name", "start"), [("costs.svg", b"<?xml"), ("costs.png", b"\x89PNG")])
def test_the_picture(tmp_path, measured, name, start):
    pytest.importorskip("matplotlib")
    made_up(measured).plot(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(start)
    with pytest.raises(ValueError, match="exists"):
        made_up().plot(tmp_path / name)
    made_up().plot(tmp_path / name, force=True)


def test_pictures_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"it must end in .png or .svg"):
        made_up().plot(tmp_path / "costs.pdf")
    assert list(tmp_path.iterdir()) == []
