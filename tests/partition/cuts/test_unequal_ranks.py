"""Cuts for ranks and links that differ: shares, parts on ranks, and nodes that move where links are slow."""

import json

import numpy as np
import pytest
import yaml
from search_cases import compiled, pulled, random_graph
from streamed_cases import check_shards, listing, saved
from unequal_ranks import profile_of, slow_pair, two_hosts

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, default_costs, from_edges, load_graph, partition, read_figures, read_manifest
from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.figures.mapping import Mapping, best_mapping
from dgl_gt.partition.shards.layout import Layout

pytestmark = [compiled, pytest.mark.usefixtures("in_an_empty_folder")]
SAMPLE = "sample:communities?nodes=600&seed=1"


def chain_of_communities(bridges=(40, 4, 40), size=60, seed=0):
    """Dense groups of nodes, each joined with the next one by so many edges."""
    rng, groups = np.random.default_rng(seed), len(bridges) + 1
    src, dst = (rng.integers(0, size, groups * size * 8) for _ in range(2))
    group = np.repeat(np.arange(groups), size * 8)
    first = np.repeat(np.arange(groups - 1), bridges)
    bridge = [rng.integers(0, size, len(first)) + size * (first + end) for end in (0, 1)]
    src, dst = np.concatenate([src + size * group, bridge[0]]), np.concatenate([dst + size * group, bridge[1]])
    return from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), groups * size)


# ---- vertex cuts have shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_metis", [True, False])
@pytest.mark.parametrize("weights", [[1, 3], [2, 1, 1], [1, 2, 3, 4]])
def test_vertex_cuts_have_unequal_shares(weights, by_metis):
    graph, parts = load_graph(SAMPLE), len(weights)
    cut = make_vertex_cut(graph, parts, target_weights=weights, by_metis=by_metis)
    shares = np.array(weights) / sum(weights)
    np.testing.assert_allclose(cut.shares, shares)
    edges = np.bincount(cut.edge_part, minlength=parts) / graph.num_edges
    assert (edges <= 1.06 * shares).all() and np.corrcoef(edges, shares)[0, 1] > 0.8
    figures = Layout(graph, cut).figures
    np.testing.assert_allclose(figures.shares, shares)
    assert np.corrcoef(figures.owned, shares)[0, 1] > 0.8, "masters follow"


def test_equal_weights_change_nothing():
    graph = load_graph(SAMPLE)
    plain, weighted = (make_vertex_cut(graph, 3, target_weights=weights) for weights in (None, [2, 2, 2]))
    np.testing.assert_array_equal(plain.edge_part, weighted.edge_part)
    np.testing.assert_array_equal(plain.order, weighted.order)


def test_streamed_parts_have_shares_and_ranks(tmp_path, streaming):
    arrays = listing(5)
    profile = profile_of((3.0, 1.0, 1.0), slow_pair(3, 0, 1))
    made = partition(saved(tmp_path, arrays), 3, "out", memory=1 << 40, profile=profile)
    check_shards(tmp_path / "out", arrays, 3)
    assert made["method"] == "streaming" and made["mapping"]["shares"] == "rank speeds"
    assert sorted(made["shares"]) == pytest.approx(sorted(profile.target_weights()))


# ---- parts on ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["edge", "vertex"])
def test_a_mapped_cut_is_the_same_cut_with_other_numbers(kind):
    graph, ranks = load_graph(SAMPLE), np.array([2, 0, 1])
    make = make_edge_cut if kind == "edge" else make_vertex_cut
    cut = make(graph, 3, target_weights=[1, 2, 3])
    mapped = cut.mapped(Mapping("p", "equal", "swaps", ranks.tolist(), 1.0, 1.0, 1.0))
    before, after = Layout(graph, cut).figures, Layout(graph, mapped).figures
    for name in ("owned", "edges", "near_edges", "shares", "sent_by_hop", "returned"):
        np.testing.assert_array_equal(getattr(after, name)[ranks], getattr(before, name), name)
    np.testing.assert_array_equal(after.received_rows[np.ix_(ranks, ranks)], before.received_rows)
    assert mapped.mapping.rank_of_part == ranks.tolist() and cut.mapping is None


@pytest.mark.parametrize("cut", ["edge", "vertex", "auto"])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_shards_for_a_profile(cut, parts):
    speeds = [1.0, 2.0, 1.0, 4.0][:parts]
    profile = profile_of(speeds, slow_pair(parts, 0, 1) if parts > 1 else None)
    made = partition(SAMPLE, parts, "out", cut=cut, profile=profile)
    assert read_manifest("out") == made
    if parts == 1:
        return
    mapping, figures = made["mapping"], read_figures(made)
    assert mapping["search"] == "all orders" and mapping["shares"] == "rank speeds" and mapping["profile"] == "by hand"
    assert mapping["predicted_s"] <= mapping["mapped_s"] <= mapping["unmapped_s"]
    assert mapping["predicted_s"] == pytest.approx(default_costs().step_seconds(figures, profile), rel=1e-6)
    assert sorted(figures.shares) == pytest.approx(sorted(profile.target_weights()))
    if made["cut"] == "vertex":
        assert best_mapping(figures, default_costs(), profile).rank_of_part == list(range(parts)), "it is the best"
    if cut == "auto":
        seconds = {each["cut"]: each["predicted_seconds"] for each in made["choice"]["candidates"]}
        assert seconds[made["cut"]] == min(seconds.values()) == pytest.approx(mapping["predicted_s"])
        assert made["choice"]["profile"] == "by hand"


@pytest.mark.parametrize("attempts", [1, 3])
def test_groups_that_exchange_rows_share_a_host(attempts):
    graph, profile = chain_of_communities(), profile_of([1.0] * 4, two_hosts(4))
    cut = make_edge_cut(graph, 4, profile=profile, attempts=attempts)
    rank = np.repeat(np.arange(4), np.diff(cut.ptr))[cut.new_ids()]
    group = np.arange(graph.num_nodes) // 60
    hosts = [np.bincount(rank[group == each] % 2, minlength=2).argmax() for each in range(4)]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3], "the narrow bridge is between hosts"
    assert cut.mapping.predicted_s < cut.mapping.unmapped_s or cut.mapping.rank_of_part == [0, 1, 2, 3]


def test_nodes_move_off_a_slow_link():
    graph, profile = (
        load_graph("sample:communities?nodes=3000&seed=2"),
        profile_of([1.0] * 4, slow_pair(4, 2, 3, slow=3e7)),
    )
    cut, plain = make_edge_cut(graph, 4, profile=profile), make_edge_cut(graph, 4)
    assert cut.mapping.predicted_s < 0.95 * cut.mapping.mapped_s
    found, before = (Layout(graph, each).figures for each in (cut, plain))
    assert found.received_rows[2, 3] < before.received_rows[2, 3]
    assert (found.owned / before.owned).max() < 1.3, "parts stay even"


def test_bounds_that_are_asked_for_hold():
    graph, profile = load_graph(SAMPLE), profile_of((1.0, 2.0, 1.0), slow_pair(3, 0, 2))
    made = partition(graph, 3, "out", profile=profile, max_imbalance=1.2)
    assert max(made["quality"][f"{kind}_balance"] for kind in ("node", "edge", "train")) <= 1.2 + 1e-9


# ---- the search with prices ----------------------------------------------------------------------------------------


def price_of_all(graph, owner, prices):
    return sum(int(prices[part, owner[node]]) for node, part in pulled(graph, owner))


@pytest.mark.parametrize("seed", range(12))
def test_the_priced_search_ends_where_no_move_helps(seed):
    """The price of every move is the difference of two full counts: no single move is cheaper than where it ends."""
    graph, rng, parts = random_graph(seed), np.random.default_rng(seed), 2 + seed % 3
    prices = rng.integers(1, 50, (parts, parts))
    start = rng.integers(0, parts, graph.num_nodes).astype(np.int32)
    owner, ones = start.copy(), np.ones((graph.num_nodes, 1), np.int64)
    limits = {"floors": np.zeros((parts, 1), np.int64), "capacities": np.full((parts, 1), graph.num_nodes)}
    search = {"weights": ones, **limits, "sweeps": 50, "temperature": 0.0, "seed": seed, "prices": prices}
    native.refine(graph.indptr, graph.indices, **search, owner=owner)
    found = price_of_all(graph, owner, prices)
    assert found <= price_of_all(graph, start, prices)
    for node in range(graph.num_nodes):
        for part in range(parts):
            other = owner.copy()
            other[node] = part
            assert price_of_all(graph, other, prices) >= found


def test_equal_prices_are_no_prices():
    graph, owner = random_graph(3), np.random.default_rng(0).integers(0, 3, 50).astype(np.int32)
    owner, found = owner[: random_graph(3).num_nodes], []
    for prices, unit in ((None, 1), (np.full((3, 3), 4), 4)):
        trial, ones = owner.copy(), np.ones((graph.num_nodes, 1), np.int64)
        limits = {"floors": np.zeros((3, 1), np.int64), "capacities": np.full((3, 1), graph.num_nodes)}
        search = {"weights": ones, **limits, "sweeps": 10, "temperature": 0.5 * unit, "seed": 1, "prices": prices}
        native.refine(graph.indptr, graph.indices, **search, owner=trial)
        found.append(trial)
    np.testing.assert_array_equal(*found)


def test_prices_are_one_for_each_pair_of_parts():
    graph = random_graph(3)
    limits = {"floors": np.zeros((2, 1), np.int64), "capacities": np.full((2, 1), 99)}
    search = {"weights": np.ones((graph.num_nodes, 1), np.int64), **limits, "sweeps": 1, "temperature": 0.0, "seed": 0}
    owner = np.zeros(graph.num_nodes, np.int32)
    with pytest.raises(ValueError):
        native.refine(graph.indptr, graph.indices, **search, owner=owner, prices=np.ones((3, 3), np.int64))


def test_links_that_are_alike_start_no_search():
    said, graph = [], load_graph(SAMPLE)
    links = slow_pair(3, 0, 1, rate=1e8, slow=0.6e8)
    cut = make_edge_cut(graph, 3, profile=profile_of([1.0] * 3, links), progress=said.append)
    assert cut.mapping.predicted_s == cut.mapping.mapped_s and not any("on links" in str(stage) for stage in said)


# ---- the command -----------------------------------------------------------------------------------------------------


def written(profile, **changes):
    values = {key: value for key, value in (profile.as_dict() | changes).items() if value is not None}
    with open("p.yaml", "w") as file:
        yaml.dump(json.loads(json.dumps(values)), file)  # without aliases
    text = (
        open("p.yaml")
        .read()
        .replace("'32'", "32")
        .replace("'64'", "64")
        .replace("'128'", "128")
        .replace("'256'", "256")
    )
    open("p.yaml", "w").write(text.replace("'4608000'", "4608000").replace("'46080000'", "46080000"))
    return "p.yaml"


def test_the_command_says_what_it_did(capsys):
    path = written(profile_of((1.0, 3.0), slow_pair(2, 0, 1)))
    asked = ["partition", SAMPLE, "--parts", "2", "--profile", path]
    assert main([*asked, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shares"] == pytest.approx([0.25, 0.75])
    assert main([*asked, "--dry-run"]) == 0 and "shares of the parts: 0.250, 0.750" in capsys.readouterr().out
    assert main([*asked, "--out", "out"]) == 0
    out = capsys.readouterr().out
    assert (
        "ranks of p.yaml: parts of 25.0%, 75.0%" in out
        and "predicted step:" in out
        and "(found by trying all orders)" in out
    )
    assert main(["inspect", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mapping"]["profile"] == "p.yaml"
    assert main(["partition", SAMPLE, "--parts", "2", "--preset", "8xA100", "--out", "even", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["mapping"]
    assert made["shares"] == "equal" and made["profile"] == "8xA100"


REFUSED = [
    (["--parts", "3"], {}, "profile p.yaml is for 2 ranks, and 3 ranks will train: run `dgl-gt calibrate --nproc 3`"),
    (["--parts", "2", "--target-weights", "1,2"], {}, "--target-weights and a profile (p.yaml) are given"),
    (["--parts", "2", "--preset", "8xA100"], {}, "a profile (p.yaml) and a preset (8xA100) are given; give one"),
    (["--parts", "2"], {"link_bytes_per_s": None}, "profile p.yaml: it has no link_bytes_per_s; add it"),
    (["--parts", "2"], {"link_bytes_per_s": [[1e9]]}, "link_bytes_per_s must be 2 lists of as many positive numbers"),
    (["--parts", "2"], {"link_bytes_per_s": [[1e9, 0], [1, 1]]}, "link_bytes_per_s is"),
    (["--parts", "2"], {"memory_bytes": [1e9]}, "memory_bytes has 1 figure"),
    (["--parts", "2"], {"speed": 3}, "unknown key 'speed'"),
]


@pytest.mark.parametrize("how", [["--out", "out"], ["--dry-run"]])
@pytest.mark.parametrize("options, changes, message", REFUSED, ids=[each[2] for each in REFUSED])
def test_refused_in_one_line_before_any_work(capsys, options, changes, message, how):
    path = written(profile_of((1.0, 2.0)), **changes)
    assert main(["partition", "nowhere.npz", *options, "--profile", path, *how]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize("options", [["--profile", "none.yaml"], ["--preset", "9xA100"]])
def test_profiles_that_are_not_there(capsys, options):
    assert main(["partition", SAMPLE, "--parts", "2", "--out", "out", *options]) == 2
    assert options[1] in capsys.readouterr().err


def test_refused_in_python():
    owner = np.zeros(600, int)
    with pytest.raises(InputError, match="owner and a profile"):
        partition(SAMPLE, 2, "out", profile=profile_of(), owner=owner)
    with pytest.raises(InputError, match="profile is 'two.yaml'"):
        partition(SAMPLE, 2, "out", profile="two.yaml")
