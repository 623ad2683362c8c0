"""The choice of cut and strategy for a training step of a user's own."""

import msgspec
import pytest
from expected_bytes import step_bytes
from selector_cases import profile_values, write_profile
from traced_steps import MODEL, WAYS, all_pairs, gat_step, transformer_step

import dgl_gt
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan import Tracer, choose, read_profile


@pytest.fixture
def cuts(shards):
    return [(shards / cut, read_figures(dgl_gt.partition.read_manifest(shards / cut))) for cut in ("edge", "vertex")]


def test_the_candidates_for_a_step_of_ones_own(cuts):
    """With the bytes that ranks send; test_predicted_memory.py measures the memory of such steps."""
    plan = choose([(None, figures) for _, figures in cuts], transformer_step, read_profile(), max_depth=2)
    assert plan.model == {"step": "transformer_step"} and {each.strategy for each in plan.candidates} == {
        s for s, _ in WAYS
    }
    for each in plan.candidates:
        figures = cuts[each.cut == "vertex"][1]
        sent, _ = step_bytes(figures, MODEL, each.strategy, each.depth)
        assert each.sent_bytes == sent.sum()
        assert each.seconds > 0 and sum(each.peak_bytes_by_term.values()) <= each.peak_bytes
    assert 0 < plan.one_rank_seconds < len(cuts[0][1].owned) * plan.choice.seconds * 2


def test_hosts_of_the_profile_add_a_mesh(cuts, tmp_path):
    """With the bytes that ranks send; two parts do not fill several hosts of two."""
    profile = read_profile(write_profile(tmp_path / "hosts.yaml", profile_values(ranks=None)))
    (_, figures), _ = cuts
    plan = choose(cuts, transformer_step, profile)
    meshes = [each for each in plan.candidates if each.strategy.startswith("mesh")]
    assert [each.strategy for each in meshes] == (["mesh=2"] if figures.parts == 4 else [])
    for each in meshes:
        sent, _ = step_bytes(figures, MODEL, "mesh=2")
        assert each.sent_bytes == sent.sum() and each.seconds > 0 and each.title == "mesh=2 on the edge cut"
    with pytest.raises(InputError, match="mesh needs the number of ranks on each host"):
        choose(cuts, transformer_step, profile, strategies=("mesh",))


def test_modes_of_a_step_of_ones_own(cuts):
    """Traced with the mode as the second argument, where none does not fit."""
    traces = Tracer(transformer_step, activation_checkpoints=("none", "full"))
    profile = msgspec.structs.replace(read_profile(), checkpointing_bytes=0.0)  # more than this step keeps
    plan = choose(cuts[:1], traces, profile, strategies=("halo_h",))
    assert [each.activation_checkpoint for each in plan.candidates] == ["none"]
    least = choose(cuts[:1], traces, profile, strategies=("halo_h",), rank_memory=plan.choice.memory_bytes - 1)
    assert least.choice.activation_checkpoint == "full" and least.choice.seconds > plan.choice.seconds
    assert [each.activation_checkpoint for each in least.candidates] == ["full", "none"]


def test_strategies_that_a_step_does_not_use_are_no_candidates(cuts):
    """A convolution over ``sg.pull`` runs alike with all; a vertex cut has no block."""
    pytest.importorskip("dgl", exc_type=ImportError)
    strategies = ("halo_h", "halo_kv", "gather", "heads", "ring", "mirror")
    strategies += ("mesh=2",) if cuts[0][1].parts == 4 else ()
    plan = choose(cuts, gat_step, read_profile(), strategies=strategies)
    refused = {each.strategy: each.refused for each in plan.candidates if each.refused}
    assert plan.choice.strategy == "halo_h" and plan.runner_up is None
    assert all("runs as with halo_h" in refused.pop(each) for each in ("halo_kv", "gather", "heads", "ring"))
    assert "runs as with halo_h" in refused.pop("mesh=2", "runs as with halo_h")
    assert "a vertex cut has no block" in refused.pop("mirror") and not refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cuts: (cuts, 3), "step is 3; it must be a function that makes a training step"),
        (lambda cuts: (cuts, all_pairs), "does not grow linearly"),
        (lambda cuts: (cuts, lambda sg: 3), "make_step returned 3"),
    ],
    ids=["no step", "not linear", "no function"],
)
def test_choices_that_cannot_be_made(cuts, change, message):
    with pytest.raises(InputError, match=message):
        choose(*change(cuts), read_profile())


def test_modes_that_a_traced_step_cannot_have(cuts):
    with pytest.raises(InputError, match="activation_checkpoints is 'full'"):
        choose(cuts, transformer_step, read_profile(), activation_checkpoints=("full",))


def test_a_step_that_needs_several_ranks(cuts):
    def make_step(sg):
        if sg.comm.world_size < 2:
            raise ValueError("it needs ranks")
        return transformer_step(sg)

    plan = choose(cuts[:1], make_step, read_profile())
    assert plan.one_rank_seconds is None and plan.choice.seconds > 0
