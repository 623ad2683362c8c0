"""Too little memory is refused before training, with what would fit."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import dgl_gt
from dgl_gt.partition import InputError, load_graph, partition, read_figures, read_manifest
from dgl_gt.partition.figures.strategies import HALO, LOCAL, MIRROR
from dgl_gt.plan import planned_step
from dgl_gt.plan.planned_step import check_memory
from dgl_gt.train import read_config

CONFIG = read_config(layers=3, hidden=32, heads=4)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("memory") / "shards"
    partition(load_graph("sample:communities?nodes=400&features=8"), 1, directory)
    return directory


@pytest.fixture
def with_memory(monkeypatch):
    """A function: bytes that a rank may use."""
    return lambda available: monkeypatch.setattr(planned_step, "available_rank_memory", lambda _: available)


def test_a_run_that_fits_is_not_even_predicted(shards, monkeypatch):
    monkeypatch.setattr(planned_step, "tracer_of", lambda *_: pytest.fail("predicted"))
    check_memory(shards, dgl_gt.load(shards), CONFIG)


def test_what_would_fit_is_named(shards, with_memory, monkeypatch):
    """Layers that are computed again need less; the process itself counts as nothing here."""
    real = planned_step.read_profile
    monkeypatch.setattr(planned_step, "read_profile", lambda *_: _without_process(real(None, None)))
    monkeypatch.setattr(planned_step, "memory_factor", lambda: 1.0)
    sg, least = dgl_gt.load(shards), None
    for mib in (8, 4, 3, 2, 1.5, 1, 0.75, 0.5):
        with_memory(int(mib * 2**20))
        try:
            check_memory(shards, sg, CONFIG)
        except InputError as error:
            least = str(error)
            break
    assert "a training step is predicted to need" in least and "MiB for tensors on this rank, and" in least
    assert "--activation-checkpoint full is predicted to fit" in least


def _without_process(profile):
    import msgspec

    return msgspec.structs.replace(profile, process_bytes=0, checkpointing_bytes=0.0)


def test_nothing_fits(shards, with_memory):
    with_memory(1 << 16)
    with pytest.raises(InputError, match="are free; nothing fits ranks of 64.0 KiB"):
        check_memory(shards, dgl_gt.load(shards), CONFIG)


def test_the_rough_bound_is_above_the_prediction(shards):
    from dgl_gt.partition.shards.counts import read_figures
    from dgl_gt.partition.shards.manifest import read_manifest
    from dgl_gt.plan.planned_step import tracer_of

    figures = read_figures(read_manifest(shards))
    for config in (CONFIG, read_config(layers=6, hidden=64, norm="batch", ffn=4, dropout=0.5, attention_dropout=0.1)):
        trace = tracer_of(config, figures.features).of(figures, LOCAL, 1, "none")
        assert trace.peak_bytes(figures).max() < planned_step._rough_bytes(figures, config)


@pytest.mark.parametrize("policy", ["int8", "stale=auto,int8"])
def test_what_a_policy_keeps_counts_and_advice_goes_with_it(tmp_path, monkeypatch, policy):
    partition(load_graph("sample:communities?nodes=400&features=8&degree=100"), 2, tmp_path / "two")
    figures = read_figures(read_manifest(tmp_path / "two"))
    config = read_config(layers=3, hidden=64, heads=4, policy=policy)
    traces, exact = planned_step.tracer_of(config, 8), config.changed(policy="exact")
    sg = SimpleNamespace(strategy=HALO, depth=1, comm=SimpleNamespace(rank=1), stream=None)
    needed = [planned_step._needed_bytes(traces, figures, sg, each) for each in (exact, config)]
    assert needed[1] > needed[0] + 400 * 4 * 64
    real = planned_step.read_profile
    monkeypatch.setattr(planned_step, "read_profile", lambda *_: _without_process(real(None, None)))
    advice = planned_step._what_fits(tmp_path / "two", figures, traces, 10**9, planned_step.policy_of(config))
    assert advice.split()[1] in ("halo_h", "halo_kv") and "is predicted to fit" in advice
    assert planned_step._what_fits(tmp_path / "two", figures, traces, 1000, planned_step.policy_of(config)).startswith(
        "nothing fits"
    )


def test_samples_of_edges_are_never_skipped(tmp_path, monkeypatch):
    """The rough bound knows no policies, so a small model with ten samples of many edges is predicted nevertheless."""
    partition(load_graph("sample:communities?nodes=800&features=8&degree=200"), 2, tmp_path / "two", cut="vertex")
    manifest = read_manifest(tmp_path / "two")
    config = CONFIG.changed(layers=1, hidden=8, heads=2, policy="alone,edges=0.9")
    comm = SimpleNamespace(rank=0, all_reduce=lambda tensor, op: tensor, raising_together=nullcontext)
    sg = SimpleNamespace(strategy=MIRROR, depth=1, comm=comm, manifest=manifest, stream=None)
    rough = planned_step._rough_bytes(read_figures(manifest), config)
    monkeypatch.setattr(planned_step, "available_rank_memory", lambda _: 5 * rough)
    needed = planned_step._needed_bytes(
        planned_step.tracer_of(config, 8), read_figures(manifest), sg, config.changed(policy="alone")
    )
    assert needed < 5 * rough
    with pytest.raises(InputError, match="a training step is predicted to need"):
        check_memory(tmp_path / "two", sg, config)
