"""What is chosen, against every way to train tried by hand; what is refused, and the words."""

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from selector_cases import MadeUpTraces, every_way, half_speed, profile_values, write_profile

from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import LOCAL, NAMES, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.units import format_bytes, parse_size
from dgl_gt.plan import choose, read_profile, select
from dgl_gt.plan.trace import traced_time

STEPS = {
    "small": MadeUpTraces(0),
    "wide": MadeUpTraces(1, width=128, heads=8),
    "odd heads, one hop": MadeUpTraces(2, width=24, heads=3, max_depth=1),
}
SLOW_LINK = [[1e12, 1e6], [1e6, 1e12]]
PROFILES = {
    "even": profile_values(),
    "slow link": profile_values(link_bytes_per_s=SLOW_LINK, latency_s=1e-3, overlap=0.9),
    "slow ranks": profile_values(products={64: 1e8}, stream_bytes_per_s=1e8),
    "uneven": {**half_speed(), "process_bytes": [1e6, 3e6]},
}


@pytest.fixture(scope="module")
def cuts(shards):
    return [(name, read_figures(read_manifest(shards / name))) for name in ("edge", "vertex")]


@pytest.fixture
def profile(tmp_path):
    """A function: values -> Profile."""

    def make(values=None, **changes):
        return read_profile(write_profile(tmp_path / "profile.yaml", values or profile_values(**changes)))

    return make


@pytest.fixture
def few_nodes(awkward_graph):
    """A function: parts -> figures of an edge cut of 60 nodes, two hops deep, made without METIS."""

    def make(parts, depth=2):
        graph = awkward_graph(3)
        return Layout(graph, make_edge_cut(graph, parts, owner=np.arange(graph.num_nodes) % parts), depth).figures

    return make


def way(candidate):
    return candidate.directory, candidate.strategy, candidate.depth, candidate.activation_checkpoint


# ---- the choice ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_depth", [None, 1])
@pytest.mark.parametrize("values", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_quickest_is_chosen_of_all_ways(cuts, profile, step, values, max_depth):
    """Every way is a candidate, with the figures of its trace; as all fit, without activation checkpointing."""
    profile = profile(values)
    ways = every_way(cuts, step, profile, max_depth)
    expected = {each: figures for each, figures in ways.items() if each[3] == "none"}
    plan = choose(cuts, step, profile, max_depth=max_depth)
    fitting = [each for each in plan.candidates if not each.refused]
    for each in fitting:
        assert (each.seconds, each.sent_bytes, each.memory_bytes) == expected[way(each)]
        assert 0 < each.peak_bytes <= each.memory_bytes and sum(each.peak_bytes_by_term.values()) <= each.memory_bytes
        terms = dict(each.seconds_by_term)
        assert sum(terms.values()) - 2 * terms["hidden_s"] == pytest.approx(each.seconds)
    assert {way(each) for each in fitting} == expected.keys() and len(fitting) == len(expected)
    seconds = [each.seconds for each in fitting]
    assert seconds == sorted(seconds)
    assert plan.choice.seconds == min(figures[0] for figures in expected.values())
    assert plan.choice == fitting[0] and plan.runner_up == fitting[1]
    assert plan.load_options == {"strategy": plan.choice.strategy, "depth": plan.choice.depth}


def test_figures_of_ranks_and_links_decide(cuts, profile):
    """Each of these has a best of its own."""
    picks = {way(choose(cuts, step, profile(values)).choice) for values in PROFILES.values() for step in STEPS.values()}
    assert len(picks) >= 3


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_pick_changes_as_memory_tightens(cuts, profile, step):
    """At every bound between two candidates it is the quickest that fits; below the least nothing is."""
    profile = profile(process_bytes=[1e6, 2e6])
    ways = every_way(cuts, step, profile)
    picks, bounds = [], sorted({figures[2] for figures in ways.values()}, reverse=True)
    for bound in bounds:
        plan = choose(cuts, step, profile, rank_memory=bound)
        fitting = [figures for figures in ways.values() if figures[2] <= bound]
        assert plan.choice.seconds == min(figures[0] for figures in fitting)
        assert plan.choice.memory_bytes <= bound
        runnable = [each for each in plan.candidates if each.memory_bytes is not None]
        assert {way(each)[:3] for each in runnable} == {each[:3] for each in ways}
        assert all((each.memory_bytes > bound) == bool(each.refused) for each in runnable)
        refused = [each for each in runnable if each.refused]
        assert all(each.refused == f"needs {format_bytes(each.memory_bytes)} on its largest rank" for each in refused)
        if not picks or picks[-1] != way(plan.choice):
            picks.append(way(plan.choice))
    assert len(picks) >= 3 and len({activation_checkpoint for *_, activation_checkpoint in picks}) >= 2
    with pytest.raises(select.NothingFits) as stopped:
        choose(cuts, step, profile, rank_memory=bounds[-1] - 1)
    assert stopped.value.least_bytes == bounds[-1]
    enough = parse_size(re.search(r"--rank-memory (\S+)\)", str(stopped.value))[1])
    assert bounds[-1] <= enough < bounds[-1] + 2**20
    assert choose(cuts, step, profile, rank_memory=bounds[-1]).choice.memory_bytes == bounds[-1]


def test_ranks_with_a_tight_bound_take_memory_anew(few_nodes, profile):
    """Where twice the tensors fit, or an allocator keeps memory, they take none."""

    cut, step = [("cut", few_nodes(1))], MadeUpTraces(width=4096, modes=("none",))

    def chosen(bound=None, **changes):
        slow = profile(ranks=1, process_bytes=0, page_byte_s=1e-9, **changes)
        return choose(cut, step, slow, rank_memory=bound).choice

    def pages_s(*args, **changes):
        return chosen(*args, **changes).seconds_by_term["pages_s"]

    least = chosen().memory_bytes
    assert pages_s(least) > 0 == pages_s(2 * least) == pages_s()
    assert pages_s(2 * least - 1, memory_factor=1.5) == 0


def test_each_rank_is_held_to_its_own_memory(few_nodes, profile):
    """Ranks of unequal memory with parts of unequal size: fits one way round, and not the other."""
    figures = few_nodes(2, depth=1)
    step = STEPS["wide"]
    need = [int(each) for each in step.of(figures, strategy_of("gather"), 1).peak_bytes(figures)]
    few, many = sorted(range(2), key=need.__getitem__)
    assert need[few] < need[many]

    def gather(memory):
        plan = choose([(None, figures)], step, profile(memory_bytes=memory, process_bytes=0.0))
        return next(each for each in plan.candidates if way(each)[1::2] == ("gather", "none"))

    enough = [float(each) for each in need]
    assert gather(enough).refused is None and gather(enough).memory_bytes == need[many]
    enough[few] += 1e9
    enough[many] -= 1
    assert (
        gather(enough).refused
        == f"needs {format_bytes(need[many])} on rank {many}, which has {format_bytes(enough[many])}"
    )
    enough[many] = 10.0  # so little that nothing fits, while the other rank has plenty
    with pytest.raises(
        select.NothingFits, match=rf"comes nearest and needs .* on rank {many}, which has 10 B"
    ) as stopped:
        gather(enough)
    assert "--rank-memory" not in str(stopped.value) and "--target-weights" in str(stopped.value)


def test_memory_of_the_profile_bounds_too(cuts, profile):
    """That of the rank that has least, where none is given."""
    step = STEPS["small"]
    least = min(figures[2] for figures in every_way(cuts, step, profile()).values())
    assert choose(cuts, step, profile(memory_bytes=[least, least])).choice.memory_bytes == least
    with pytest.raises(select.NothingFits):
        choose(cuts, step, profile(memory_bytes=[least - 1, least - 1]))
    assert choose(cuts, step, profile(memory_bytes=[least - 1, 10]), rank_memory=10**9).choice


def test_the_least_that_is_named_may_be_had(cuts, profile):
    """Where deep halos are not wanted, their memory is no advice."""
    step = MadeUpTraces(0, deep_share=1e-3)
    with pytest.raises(select.NothingFits) as stopped:
        choose(cuts, step, profile(), rank_memory=1, max_depth=1)
    assert choose(cuts, step, profile(), rank_memory=stopped.value.least_bytes, max_depth=1).choice
    with pytest.raises(select.NothingFits, match="depth 2"):
        choose(cuts, step, profile(), rank_memory=1)


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_one_part_runs_alone(awkward_graph, profile, cut):
    graph = awkward_graph(3)
    figures = Layout(graph, (make_edge_cut if cut == "edge" else make_vertex_cut)(graph, 1)).figures
    plan = choose([("one", figures)], STEPS["small"], profile(ranks=1))
    assert plan.choice.strategy == {"edge": "local", "vertex": "mirror"}[cut]
    assert [each.activation_checkpoint for each in plan.candidates] == ["none"] and plan.choice.sent_bytes == 0
    plan = choose([("one", figures)], STEPS["small"], profile(ranks=1), rank_memory=plan.choice.memory_bytes - 1)
    assert {each.activation_checkpoint for each in plan.candidates} == {"none", "full"}  # there is no exchange to keep


@pytest.mark.parametrize("activation_checkpoint", ["none", "keep_exchanges", "full"])
@pytest.mark.parametrize("parts", [1, 2])
def test_only_the_wanted_activation_checkpointing(few_nodes, profile, parts, activation_checkpoint):
    plan = choose(
        [("few", few_nodes(parts))],
        STEPS["small"],
        profile(ranks=parts),
        activation_checkpoints=(activation_checkpoint,),
    )
    assert {each.activation_checkpoint for each in plan.candidates if not each.refused} == {activation_checkpoint}


def test_libraries_that_activation_checkpointing_loads_take_memory(few_nodes, profile):
    cuts = [("few", few_nodes(2))]
    for mode, more in (("none", 0), ("keep_exchanges", 5e6), ("full", 5e6)):
        options = {"activation_checkpoints": (mode,), "strategies": ("halo_h",), "max_depth": 1}
        without, with_libraries = (
            choose(cuts, STEPS["small"], each, **options).choice.memory_bytes
            for each in (profile(), msgspec.structs.replace(profile(), checkpointing_bytes=5e6))
        )
        assert with_libraries == without + more


# ---- what cannot be chosen ----------------------------------------------------------------------------------------


def test_what_cannot_run_is_kept_with_the_reason(few_nodes, profile):
    plan = choose([("few", few_nodes(2))], MadeUpTraces(heads=3), profile(), max_depth=1)
    (heads,) = (each for each in plan.candidates if each.strategy == "heads")
    assert "heads is 3, which 2 ranks cannot share evenly" in heads.refused and heads.seconds is None
    assert {each.depth for each in plan.candidates} == {1}
    listed = plan.as_dict()["candidates"]
    assert [each["refused"] for each in listed].count(None) < len(listed) == len(plan.candidates)
    is_refused = [bool(each.refused) for each in plan.candidates]
    assert is_refused == sorted(is_refused)  # those that fit come first


def test_only_the_wanted_strategies(cuts, profile):
    plan = choose(cuts, STEPS["small"], profile(), strategies=("halo_kv", "ring"))
    assert {each.strategy for each in plan.candidates} == {"halo_kv", "ring"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategies": ("halos",)}, "strategies is 'halos'; it must be one of halo, local"),
        ({"strategies": ()}, "strategies is (); it must be a tuple of one name or more"),
        ({"strategies": ("mirror",)}, "no strategy of mirror runs on the edge cut"),
        ({"activation_checkpoints": ("some",)}, "activation_checkpoints is 'some'; it must be one of none"),
        ({"activation_checkpoints": "full"}, "activation_checkpoints is 'full'; it must be a tuple"),
    ],
)
def test_names_are_checked(cuts, profile, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        choose(cuts[:1], STEPS["small"], profile(), **options)


def test_a_step_must_be_one(cuts, profile):
    with pytest.raises(InputError, match="step is 3; it must be a function that makes a training step"):
        choose(cuts, 3, profile())


def test_cuts_must_be_of_one_graph(shards, cuts, few_nodes, profile):
    edge = cuts[0]
    for other, message in (
        (few_nodes(2), "has 60 nodes, but edge has 1,000"),
        (few_nodes(3), "has 3 parts, but edge has 2"),
        (replace(edge[1], edges_by_hop=np.array([[2, 0], [3, 0]])), "has 5 edges, but edge has"),
    ):
        with pytest.raises(InputError, match=f"^other {message}"):
            choose([edge, ("other", other)], STEPS["small"], profile())


def test_a_profile_of_other_ranks_is_refused(cuts, profile):
    with pytest.raises(InputError, match="is for 4 ranks, and 2 ranks will train"):
        choose(cuts, STEPS["small"], profile(ranks=4))


def test_a_profile_with_figures_of_each_of_other_ranks_is_refused(cuts, tmp_path):
    """In the same words, though its memory has four figures, too."""
    values = half_speed(4) | {"memory_bytes": [1e9] * 4, "process_bytes": [1e6] * 4}
    with pytest.raises(InputError, match="is for 4 ranks, and 2 ranks will train"):
        choose(cuts, STEPS["small"], read_profile(write_profile(tmp_path / "four.yaml", values)))


def test_no_cut_is_refused(profile):
    with pytest.raises(ValueError, match="no cut is given"):
        choose([], STEPS["small"], profile())


@pytest.mark.parametrize(("name", "value"), [("rank_memory", 0), ("rank_memory", -5), ("max_depth", 0)])
def test_bounds_are_checked(cuts, profile, name, value):
    with pytest.raises(InputError, match=f"{name} is {value}"):
        choose(cuts, STEPS["small"], profile(), **{name: value})


# ---- in words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("last", [1, 2])  # of the edge cut's ways; of all
def test_the_reason_names_both_and_the_margin(cuts, profile, values, last):
    plan = choose(cuts[:last], STEPS["wide"], profile(values))
    best, second = plan.choice, plan.runner_up
    assert plan.reason.startswith(f"{best.title}: a step is predicted to take {best.seconds:.3g} s")
    for candidate in (best, second):
        assert candidate.strategy in candidate.title and f"on the {candidate.cut} cut" in candidate.title
        assert ("depth" in candidate.title) == (candidate.depth > 1)
        assert ("activation checkpoint" in candidate.title) == (candidate.activation_checkpoint != "none")
    found = re.search(rf"; {re.escape(second.title)} takes (\S+)% longer", plan.reason)
    assert float(found[1]) / 100 == pytest.approx(second.seconds / best.seconds - 1, abs=6e-4)
    for term in ("products", "rows", "edges", "exchange"):
        assert term in plan.reason
    assert "but" not in plan.reason  # nothing quicker had to be left out


def test_the_reason_names_what_memory_forbids(cuts, profile):
    first = choose(cuts, STEPS["wide"], profile())
    bound = min(each.memory_bytes for each in first.candidates if each.seconds == first.choice.seconds) - 1
    plan = choose(cuts, STEPS["wide"], profile(), rank_memory=bound)
    needed = (
        f"but needs {format_bytes(first.choice.memory_bytes)} on its largest rank, and a rank has {format_bytes(bound)}"
    )
    assert f"{first.choice.title} would take {first.choice.seconds:.3g} s, {needed}" in plan.reason


def test_cuts_of_one_kind_are_told_apart(cuts, profile):
    """By their directories, where both are in the reason under the same name."""
    step = STEPS["small"]
    copies = [("here", cuts[1][1]), ("there", cuts[1][1])]
    plan = choose(copies, step, profile())
    assert plan.choice.title == plan.runner_up.title
    assert "here" in plan.reason and "there" in plan.reason
    assert "here" not in choose(copies[:1], step, profile()).reason


def test_the_only_way_has_no_runner_up(cuts, profile):
    plan = choose(cuts[1:], STEPS["small"], profile())
    assert plan.runner_up is None and "behind" not in plan.reason and len(plan.candidates) == 1


def test_one_rank_alone(few_nodes, profile):
    """What the speed-up is over: the slowest rank with the whole graph."""
    step = STEPS["small"]
    even = {**profile_values()["attention"], "near_column_s": 2e-10}
    for values in (profile_values(attention=even), half_speed()):
        values["attention"]["near_column_s"] = values["attention"]["far_column_s"][1000]
        plan = choose([("few", few_nodes(2))], step, profile(values))
        alone = profile(profile_values(1, attention=even))
        halved = 1 if values["stream_bytes_per_s"] == 1e10 else 2
        figures = few_nodes(1)
        seconds = traced_time(step.of(figures, LOCAL, 1), figures, alone).total_s
        assert plan.one_rank_seconds == pytest.approx(halved * seconds, rel=1e-6)


def test_strategies_are_those_of_partition(cuts, profile):
    """A strategy that partition learns is a candidate without further ado."""
    found = {each.strategy for each in choose(cuts, STEPS["small"], profile()).candidates}
    assert found == set(NAMES) - {"local"}


def test_peaks_are_those_of_the_largest_rank(cuts, profile):
    plan = choose(cuts, STEPS["small"], profile(process_bytes=[1e6, 9e6]))
    edge = cuts[0][1]
    for each in plan.candidates:
        if each.cut == "edge":
            memory = (
                STEPS["small"]
                .of(edge, strategy_of(each.strategy), each.depth, each.activation_checkpoint)
                .peak_bytes(edge)
            )
            assert each.peak_bytes == memory.max()
            assert each.memory_bytes == (memory + [10**6, 9 * 10**6]).max()
