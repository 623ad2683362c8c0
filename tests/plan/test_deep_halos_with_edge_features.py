"""A halo of several hops and edge features together: the selector can choose them, and their memory is checked."""

from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from dgl_gt.partition import InputError, from_edges, partition, read_figures, read_manifest
from dgl_gt.partition.figures.profile import read_profile
from dgl_gt.partition.figures.strategies import HALO
from dgl_gt.plan import choose, planned_step
from dgl_gt.plan.planned_step import tracer_of
from dgl_gt.train import read_config


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 400, (2, 3000))
    feat, weight = rng.random((400, 8), np.float32), rng.random((3000, 3), np.float32)
    directory = tmp_path_factory.mktemp("deep") / "shards"
    partition(from_edges(src, dst, 400, {"feat": feat}, {"weight": weight}), 2, directory, halo_depth=2)
    return directory


@pytest.mark.parametrize("edge_update", [False, True])
def test_they_are_chosen_where_each_exchange_takes_long(shards, edge_update):
    config = read_config(layers=2, hidden=32, heads=4, edge_features="weight", edge_update=edge_update)
    profile = msgspec.structs.replace(read_profile(None, None), latency_s=1.0)
    cuts = [(str(shards), read_figures(read_manifest(shards)))]
    plan = choose(cuts, tracer_of(config, 8), profile, strategies=("halo_h",))
    assert (plan.choice.strategy, plan.choice.depth) == ("halo_h", 2)
    assert [each.refused for each in plan.candidates] == [None, None]


def test_their_memory_is_checked(shards, monkeypatch):
    config = read_config(layers=2, hidden=32, heads=4, edge_features="weight")
    comm = SimpleNamespace(rank=0, all_reduce=lambda tensor, op: tensor, raising_together=nullcontext)
    manifest = read_manifest(shards)
    sg = SimpleNamespace(strategy=HALO, depth=2, comm=comm, manifest=manifest, stream=None)
    monkeypatch.setattr(planned_step, "available_rank_memory", lambda _: 1 << 16)
    monkeypatch.setattr(planned_step, "_what_fits", lambda *_: "advice")  # which traces every strategy
    with pytest.raises(InputError, match="a training step is predicted to need .* and 64.0 KiB are free"):
        planned_step.check_memory(shards, sg, config)
