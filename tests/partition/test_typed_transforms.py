"""Reverse relations, self-loops, encodings and links of typed graphs."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, convert, encode, from_relations, load_graph, partition, read_manifest, verify
from dgl_gt.partition.relations import relations_of
from dgl_gt.partition.transforms.link_split import split_links

RATES, BACK, KNOWS, LIKES = (
    ("user", "rates", "item"),
    ("item", "rev_rates", "user"),
    ("user", "knows", "user"),
    ("user", "likes", "user"),
)
COUNTS = {"user": 5, "item": 4, "shop": 2}


def graph_of(edges, edge_data=None, **more):
    return from_relations(COUNTS, edges, edge_data=edge_data, **more)


def pairs(graph, key):
    edges = relations_of(graph)[graph.schema.relations[graph.schema.relation(key)]]
    return list(zip(edges.src.tolist(), edges.dst.tolist()))


def test_reverse_relations_with_their_data():
    edges = {
        RATES: ([0, 4, 4], [3, 0, 0]),
        KNOWS: ([0], [1]),
        LIKES: ([2, 3, 1], [3, 2, 1]),
        ("item", "at", "shop"): ([], []),
    }
    data = {
        RATES: {
            "stars": np.array([5, 1, 2]),
            "label": np.array([1, 0, 1]),
            "train_mask": np.array([True, False, False]),
        }
    }
    graph = load_graph(graph_of(edges, data), undirected=True)
    assert [str(each) for each in graph.schema.edges] == [
        *(",".join(each) for each in edges),
        *("item,rev_rates,user", "user,rev_knows,user", "shop,rev_at,item"),  # likes is symmetric
    ]
    assert pairs(graph, BACK) == [(3, 0), (0, 4), (0, 4)] and pairs(graph, "rev_knows") == [(1, 0)]
    assert pairs(graph, "rates") == [(0, 3), (4, 0), (4, 0)] and pairs(graph, "likes") == [(2, 3), (3, 2), (1, 1)]
    assert {key: value.tolist() for key, value in graph.edge_data.items() if "rev" in key} == {
        "item,rev_rates,user/stars": [5, 1, 2]
    }
    assert graph.edge_data["user,rates,item/label"].tolist() == [1, 0, 1]
    again = load_graph(graph, undirected=True)
    assert again.schema == graph.schema


@pytest.mark.parametrize("edges", [([3, 0], [0, 4]), ([0, 3], [4, 0])])
def test_a_relation_that_is_the_reverse_already_is_kept(edges):
    graph = graph_of({RATES: ([0, 4], [3, 0]), ("item", "by", "user"): edges})
    assert load_graph(graph, undirected=True).schema == graph.schema


def test_a_reverse_whose_name_is_taken_is_refused():
    with pytest.raises(InputError, match="item,rev_rates,user"):
        load_graph(graph_of({RATES: ([0, 4], [3, 0]), BACK: ([3], [0])}), undirected=True)


def test_parallel_edges_count_for_a_reverse():
    graph = graph_of({RATES: ([0, 0], [1, 1]), ("item", "by", "user"): ([1], [0])})
    assert "item,rev_rates,user" in map(str, load_graph(graph, undirected=True).schema.edges)


def test_self_loops_are_added_within_a_type():
    graph = graph_of(
        {RATES: ([0], [3]), KNOWS: ([0, 1], [1, 1])}, {KNOWS: {"w": np.array([2.0, 4.0])}, RATES: {"n": np.array([1])}}
    )
    looped = load_graph(graph, self_loops=True, self_loop_fill="mean")
    assert pairs(looped, "knows") == [(0, 1), (1, 1), (0, 0), (2, 2), (3, 3), (4, 4)] and pairs(looped, "rates") == [
        (0, 3)
    ]
    assert looped.edge_data["user,knows,user/w"].tolist() == [2, 4, 0, 0, 0, 0]
    with pytest.raises(InputError, match="user,knows,user.*w"):
        load_graph(graph, self_loops=True)
    with pytest.raises(InputError, match="no relation within"):
        load_graph(graph_of({RATES: ([0], [3])}), self_loops=True)


@pytest.mark.parametrize("options", [{"undirected": True, "reverse_kind": True}, {"expander": 2}, {"virtual_nodes": 1}])
def test_what_typed_graphs_do_not_have(options, tmp_path):
    with pytest.raises(InputError, match=[*options][-1]):
        partition(graph_of({RATES: ([0], [3])}), 2, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_encodings_are_of_the_union(tmp_path):
    graph = encode(graph_of({RATES: ([0, 4], [3, 0]), KNOWS: ([0], [1])}), "degree,laplacian=2,shortest_path=2")
    plain = encode(load_graph(np.stack(graph.edges()), num_nodes=11), "degree,laplacian=2,shortest_path=2")
    for each in ("degree", "laplacian"):
        assert np.array_equal(graph.node_data[each], plain.node_data[each])
    manifest = partition(
        graph_of({RATES: ([0, 4], [3, 0])}), 2, tmp_path / "out", encode="degree,shortest_path=2", cut="vertex"
    )
    verify(tmp_path / "out", manifest)


@pytest.fixture
def shop():
    rng = np.random.default_rng(0)
    keys = rng.choice(30 * 20, 200, replace=False)
    rates, knows = (keys // 20, keys % 20), rng.integers(0, 30, (2, 60))
    edges = {KNOWS: (*knows,), RATES: rates, BACK: rates[::-1]}
    return from_relations({"user": 30, "item": 20}, edges, edge_data={RATES: {"stars": keys % 5}})


def link_sets(graph):
    """The pairs of each set, as numbers within the types."""
    ptr, ends = graph.schema.node_ptr, graph.schema.ends[graph.schema.relation(graph.links.relation)]
    found = {}
    for name, each in graph.links.pairs.items():
        local = each.astype(int) - ptr[ends][:, None]
        assert (local >= 0).all() and (local < np.diff(ptr)[ends][:, None]).all(), name
        found[name] = set(map(tuple, local.T.tolist()))
    return found


def test_links_of_a_relation_leave_it_and_its_reverse(shop):
    graph = split_links(shop, "0.8,0.1,0.1", 0, "user,rates,item")
    sets = link_sets(graph)
    assert [len(sets[name]) for name in ("train", "val", "test", "val_neg", "test_neg")] == [160, 20, 20, 20, 20]
    all_links = set(pairs(shop, "rates"))
    assert (
        sets["train"] | sets["val"] | sets["test"] == all_links and not (sets["val_neg"] | sets["test_neg"]) & all_links
    )
    assert set(pairs(graph, "rates")) == sets["train"] == {(u, i) for i, u in pairs(graph, "rev_rates")}
    assert pairs(graph, "knows") == pairs(shop, "knows") and not graph.links.is_undirected
    stars = dict(zip(pairs(shop, "rates"), shop.edge_data["user,rates,item/stars"].tolist()))
    assert [stars[each] for each in pairs(graph, "rates")] == graph.edge_data["user,rates,item/stars"].tolist()


def test_links_within_a_type(shop):
    graph = split_links(
        load_graph(graph_of({KNOWS: ([0, 1, 2, 3], [1, 2, 3, 4]), RATES: ([0], [1])}), undirected=True),
        "0.5,0.25,0.25",
        0,
        "knows",
    )
    sets = link_sets(graph)
    assert set(pairs(graph, "knows")) == sets["train"] == {(v, u) for u, v in pairs(graph, "rev_knows")}
    assert len(pairs(graph, "rates")) == 1 and not graph.links.is_undirected
    both = graph_of({KNOWS: ([0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]), RATES: ([0], [1])})
    graph = split_links(both, "0.4,0.3,0.3", 0, "knows")
    assert graph.links.is_undirected and len(pairs(graph, "knows")) == 2


def test_links_by_masks_and_by_a_file(shop, tmp_path):
    first = pairs(shop, "rates")
    masks = {f"{each}_mask": np.isin(np.arange(200), chosen) for each, chosen in (("val", [0, 1]), ("test", [2]))}
    edges = {key: each[:2] for key, each in relations_of(shop).items()}
    by_mask = split_links(from_relations(shop.schema.nodes, edges, edge_data={RATES: masks}), "masks", 0, "rates")
    assert link_sets(by_mask)["val"] == set(first[:2]) and first[2] not in pairs(by_mask, "rates")
    assert first[2][::-1] not in pairs(by_mask, "rev_rates") and not by_mask.edge_data
    spare = [(u, i) for u in range(30) for i in range(20) if (u, i) not in set(first)]
    np.savez(
        tmp_path / "split.npz",
        val_edge=np.array(spare[:2]).T,
        test_edge=np.array(spare[2:5]).T,
        val_neg=np.array(spare[5:7]).T,
    )
    by_file = split_links(shop, str(tmp_path / "split.npz"), 0, "rates")
    assert link_sets(by_file)["val"] == set(spare[:2]) and link_sets(by_file)["train"] == set(first)
    np.savez(tmp_path / "split.npz", val_edge=np.array([[29, 20]]), test_edge=np.array([spare[0]]))
    with pytest.raises(InputError, match="node 20"):
        split_links(shop, str(tmp_path / "split.npz"), 0, "rates")
    edges[BACK] = ([spare[0][1]], [spare[0][0]])
    np.savez(tmp_path / "split.npz", val_edge=np.array([spare[0]]), test_edge=np.array([spare[1]]))
    with pytest.raises(InputError, match="item,rev_rates,user are links"):
        split_links(from_relations(shop.schema.nodes, edges), str(tmp_path / "split.npz"), 0, "rates")


def test_links_in_shards(shop, tmp_path, capfd):
    manifest = partition(shop, 3, tmp_path / "out", link_split="0.8,0.1,0.1", relation="rates")
    assert manifest["links"]["relation"] == [*RATES] and manifest["links"]["pairs"]["val"] == 20
    assert [count for *_, count in manifest["schema"]["edges"]] == [60, 160, 160]
    verify(tmp_path / "out", read_manifest(tmp_path / "out"))
    links = load_file(tmp_path / "out/links.safetensors")
    assert (links["val"][0] < 30).all() and (links["val"][1] >= 30).all()
    convert(shop, tmp_path / "shop.npz")
    command = [
        "partition",
        str(tmp_path / "shop.npz"),
        "--parts",
        "2",
        "--out",
        str(tmp_path / "cli"),
        "--link-split",
        "0.8,0.1,0.1",
    ]
    assert main([*command, "--relation", "user,rates,item"]) == 0
    assert "user,rates,item" in capfd.readouterr().out
    for more, words in (
        ([], ["user,rates,item", "--relation"]),
        (["--relation", "buys"], ["'buys'", "user,rates,item"]),
    ):
        assert main([*command, "--force", *more]) == 2
        said = capfd.readouterr().err
        assert all(word in said for word in words), said
    assert main([*command[:6], "--force", "--relation", "rates"]) == 2
    assert "--link-split" in capfd.readouterr().err
    with pytest.raises(InputError, match="relation"):
        partition("sample:communities?nodes=100", 2, tmp_path / "plain", link_split="0.8,0.1,0.1", relation="rates")
