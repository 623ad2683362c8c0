"""Links that are held out of a graph: no edge tells of them, and what is given is checked."""

from dataclasses import replace

import numpy as np
import pytest

from dgl_gt.partition import InputError, partition, read_manifest, verify
from dgl_gt.partition.graph import LINK_SETS, from_edges
from dgl_gt.partition.shards.files import read_links
from dgl_gt.partition.shards.manifest import LINKS
from dgl_gt.partition.transforms.link_split import split_links


def random_graph(undirected, seed=0, **data):
    """Parallel edges, self-loops, nodes without edges; directed graphs have some edges both ways."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 40, (2, 200))
    src, dst = (np.r_[src, dst[:30]], np.r_[dst, src[:30]]) if not undirected else (np.r_[src, dst], np.r_[dst, src])
    return from_edges(src, dst, 45, edge_data={"number": np.arange(len(src))}, **data)


def pairs_of(graph, both_ways=True):
    src, dst = graph.edges()
    found = set(zip(src.tolist(), dst.tolist()))
    return found | {(b, a) for a, b in found} if both_ways else found


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_no_edge_tells_of_a_held_out_link(undirected, seed):
    graph = random_graph(undirected, seed)
    split = split_links(graph, "0.6,0.2,0.2", seed)
    links, kept = split.links, pairs_of(split)
    sets = {name: [tuple(each) for each in links.pairs[name].T.tolist()] for name in LINK_SETS}
    assert links.is_undirected is undirected
    for name in ("val", "test"):
        assert sets[name] and not kept & {*sets[name]}
        assert len(sets[f"{name}_neg"]) == len(sets[name])
        assert not {*sets[f"{name}_neg"]} & pairs_of(graph, both_ways=undirected)
    assert all(a != b for pairs in sets.values() for a, b in pairs)
    whole = {pair for pair in pairs_of(graph, both_ways=False) if pair[0] != pair[1]}
    positive = [pair for name in LINK_SETS[:3] for pair in sets[name]]
    assert len({*positive}) == len(positive)
    assert {*positive} | ({(b, a) for a, b in positive} if undirected else set()) == whole
    both = len({tuple(sorted(each)) for each in whole})
    assert len({tuple(sorted(each)) for each in sets["val"]}) == round(0.2 * both)


def test_edges_that_stay_keep_their_data_and_order():
    graph = random_graph(True)
    split = split_links(graph, "0.6,0.2,0.2", 0)
    src, dst = graph.edges()
    kept = split.edge_data["number"]
    assert (np.diff(kept) > 0).all() and len(kept) == split.num_edges < graph.num_edges
    for mine, whole in zip(split.edges(), (src, dst)):
        assert (mine == whole[kept]).all()
    assert {*np.flatnonzero(src == dst)} <= {*kept}


def test_a_seed_gives_one_split():
    one, same, other = (split_links(random_graph(True), "0.6,0.2,0.2", seed).links.pairs for seed in (0, 0, 1))
    assert all((one[name] == same[name]).all() for name in LINK_SETS)
    assert one["val"].tolist() != other["val"].tolist()


def masked_graph(**changes):
    """0 - 1 is of validation, 1 - 2 of test, in both directions."""
    masks = {"val_mask": [1, 1, 0, 0, 0, 0, 0, 0], "test_mask": [0, 0, 1, 1, 0, 0, 0, 0]} | changes
    src, dst = [0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]
    return from_edges(src, dst, 5, edge_data={name: np.array(mask, bool) for name, mask in masks.items()})


def test_masks_say_what_is_held_out():
    split = split_links(masked_graph(), "masks", 0)
    assert split.num_edges == 4 and not split.edge_data
    assert split.links.pairs["val"].tolist() == [[0], [1]] and split.links.pairs["test"].tolist() == [[1], [2]]
    assert split.links.pairs["train"].tolist() == [[0, 2], [3, 3]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"val_mask": [1, 0, 0, 0, 0, 0, 0, 0]}, ["1 link", "val_mask", "train"]),  # the reverse edge stays
        ({"val_mask": [1, 1, 0, 0, 0, 0, 0, 0], "test_mask": [0] * 8}, ["test"]),
    ],
)
def test_masks_that_leak_or_hold_out_nothing_are_refused(changes, named):
    graph = masked_graph()
    graph.edge_data.update({name: np.array(mask, bool) for name, mask in changes.items()})
    with pytest.raises(InputError) as caught:
        split_links(graph, "masks", 0)
    assert all(each in str(caught.value) for each in named)


@pytest.mark.parametrize("spec", ["0.8,0.1", "0.8,0.1,0.2", "1,0,0", "a,b,c", "0.5,0.6,-0.1", "", "nan,0.5,0.5", 3])
def test_other_shares_are_refused(spec, tmp_path):
    with pytest.raises(InputError, match="link_split") as caught:
        partition(random_graph(True), 1, tmp_path / "out", link_split=spec)
    assert repr(spec) in str(caught.value) and not (tmp_path / "out").exists()


FILE = {"val_edge": [[0], [9]], "test_edge": [[1], [9]], "val_neg": [[2], [9]], "test_neg": [[3], [9]]}


def path_graph(**options):
    """0 - 1 - ... - 8 and node 9 by itself."""
    ends = np.arange(8)
    return from_edges(np.r_[ends, ends + 1], np.r_[ends + 1, ends], 10, **options)


def write(path, **changes):
    np.savez(path, **{name: np.array(value) for name, value in (FILE | changes).items() if value is not None})
    return str(path)


def test_a_file_gives_the_links(tmp_path):
    path = write(tmp_path / "links.npz", valid_edge=np.array([[0, 9], [4, 7]]).T, val_edge=None)
    split = split_links(path_graph(), path, 0)
    assert split.num_edges == 16 and split.links.is_undirected
    assert split.links.pairs["val"].tolist() == [[0, 4], [9, 7]]
    assert split.links.pairs["train"].shape == (2, 8) and split.links.pairs["test_neg"].tolist() == [[3], [9]]


def test_negatives_are_drawn_where_a_file_has_none(tmp_path):
    path = write(tmp_path / "links.npz", val_neg=None, val_edge=[[0, 4, 5], [9, 9, 9]])
    split = split_links(path_graph(), path, 0)
    drawn = {tuple(sorted(each)) for each in split.links.pairs["val_neg"].T.tolist()}
    assert split.links.pairs["val_neg"].shape == (2, 3)
    assert not drawn & (pairs_of(path_graph()) | {(0, 9), (4, 9), (5, 9)})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"val_edge": [[0], [1]]}, ["2 edges", "links.npz"]),
        ({"val_edge": [[0], [10]]}, ["val_edge", "10", "0 to 9"]),
        ({"test_edge": [[-1], [2]]}, ["test_edge", "-1"]),
        ({"val_edge": [[3], [3]]}, ["val_edge", "node 3"]),
        ({"val_neg": [[4], [5]]}, ["val_neg", "1 pair", "4 to 5"]),
        ({"test_neg": [[9], [0]]}, ["test_neg", "9 to 0"]),
        ({"test_edge": None}, ["test_edge"]),
        ({"test_edge": [[0.0], [1.0]]}, ["test_edge", "float64"]),
        ({"test_edge": [1, 2]}, ["test_edge", "(2,)"]),
        ({"test_edge": np.zeros((2, 0), int)}, ["test"]),
        ({"val_neg": np.zeros((2, 0), int)}, ["val_neg"]),
        ({"test_edge": [[9], [0]]}, ["1 link", "test", "val"]),  # the reverse of a link of validation
        ({"train_edge": [[0, 1], [1, 8]]}, ["1 pair", "train_edge"]),
    ],
)
def test_a_file_that_leaks_or_does_not_fit_is_refused(changes, named, tmp_path):
    path = write(tmp_path / "links.npz", **changes)
    with pytest.raises(InputError) as caught:
        partition(path_graph(), 2, tmp_path / "out", link_split=path)
    assert all(each in str(caught.value) for each in named) and not (tmp_path / "out").exists()


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"PK no")
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    for name in ("bad.npz", "missing.npz", "array.npz"):
        with pytest.raises(InputError, match=name):
            split_links(path_graph(), str(tmp_path / name), 0)


def test_a_pair_that_a_file_has_twice_counts_once(tmp_path):
    path = write(tmp_path / "links.npz", val_edge=[[0, 9, 0], [9, 0, 9]])
    assert split_links(path_graph(), path, 0).links.pairs["val"].tolist() == [[0], [9]]


@pytest.mark.parametrize(
    "names, node",
    [(np.arange(10, dtype=np.int32), 3 + 2**32), (np.arange(10, dtype=np.uint64) + np.uint64(2**64 - 20), -15)],
)
def test_a_node_whose_name_has_another_value_is_refused(tmp_path, names, node):
    ends = {name: names[value].astype(np.int64) for name, value in FILE.items()}
    ends["val_edge"] = ends["val_edge"].copy()
    ends["val_edge"][0, 0] = node
    path = write(tmp_path / "links.npz", **ends)
    with pytest.raises(InputError, match=f"names node {node}, which"):
        split_links(replace(path_graph(), node_names=names), path, 0)


@pytest.mark.parametrize("shift", [np.uint64(0), np.uint64(2**63)])
def test_a_file_names_nodes_as_the_source_does(tmp_path, shift):
    names = np.array([7, 70, 71, 72, 73, 74, 75, 76, 77, 5], np.uint64) + shift
    path = write(tmp_path / "links.npz", **{name: names[value] for name, value in FILE.items()})
    split = split_links(replace(path_graph(), node_names=names), path, 0)
    assert {name: split.links.pairs[name.removesuffix("_edge")].tolist() for name in FILE} == FILE


def test_a_complete_graph_has_no_other_pairs():
    src, dst = np.divmod(np.arange(100), 10)
    with pytest.raises(InputError, match="nearly all pairs"):
        split_links(from_edges(src, dst, 10), "0.6,0.2,0.2", 0)


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_shards_hold_the_links(cut, tmp_path):
    out = tmp_path / "out"
    manifest = partition(random_graph(True), 3, out, cut=cut, link_split="0.6,0.2,0.2", virtual_nodes=1)
    verify(out, read_manifest(out))
    links = read_links(out, manifest)
    assert {name: links[name].shape[1] for name in LINK_SETS} == manifest["links"]["pairs"]
    assert sorted(links["new_ids"].tolist()) == list(range(46))
    assert max(links[name].max() for name in LINK_SETS) < 45
    content = bytearray((out / LINKS).read_bytes())
    content[-1] ^= 1
    (out / LINKS).write_bytes(bytes(content))
    with pytest.raises(InputError, match=LINKS):
        verify(out, manifest)


def test_shards_without_links_say_so(tmp_path):
    manifest = partition(random_graph(True), 2, tmp_path / "out")
    with pytest.raises(InputError, match="--link-split"):
        read_links(tmp_path / "out", manifest)


def test_a_bound_on_memory_is_refused_with_a_split(tmp_path):
    with pytest.raises(InputError, match="link_split") as caught:
        partition(random_graph(True), 2, tmp_path / "out", link_split="0.6,0.2,0.2", memory=2**30)
    assert "memory" in str(caught.value)


# ---- negatives of each link, and the split of a data set ----


def test_each_link_may_have_negatives_of_its_own(tmp_path):
    own = [[[2, 9], [3, 9]], [[5, 9], [6, 9]], [[7, 9], [8, 9]]]
    changes = {"val_edge": [[0, 9, 1], [9, 0, 9]], "test_edge": [[4], [9]], "val_neg": own, "test_neg": [[[0, 5]]]}
    links = split_links(path_graph(), write(tmp_path / "links.npz", **changes), 0).links
    assert links.own_negatives and links.pairs["val"].tolist() == [[0, 1], [9, 9]]  # 9 - 0 is 0 - 9 again
    assert links.pairs["val_neg"].tolist() == [[2, 3, 7, 8], [9, 9, 9, 9]]
    assert links.pairs["test_neg"].tolist() == [[0], [5]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"val_neg": [[[2, 9], [3, 9]]]}, ["val alone"]),
        ({"val_neg": [[[2, 9]], [[3, 9]]], "test_neg": [[[5, 9]]]}, ["val_neg", "(2, 1, 2)", "(n, K, 2)", "n 1"]),
        ({"val_neg": [[[4, 5]]], "test_neg": [[[5, 9]]]}, ["val_neg", "4 to 5"]),
    ],
)
def test_negatives_that_are_not_of_each_link_are_refused(changes, named, tmp_path):
    with pytest.raises(InputError) as caught:
        split_links(path_graph(), write(tmp_path / "links.npz", **changes), 0)
    assert all(each in str(caught.value) for each in named)


def test_the_split_of_a_data_set_is_taken_as_it_is(tmp_path):
    arrays = {name: np.array(value) for name, value in FILE.items()}
    arrays |= {
        "val_edge": np.array([[0], [1]]),
        "test_neg": np.array([[4, 2], [5, 2]]),
        "train_edge": np.array([[0, 1], [1, 2]]),
    }
    graph = replace(path_graph(), link_split=arrays)
    manifest = partition(graph, 2, tmp_path / "shards")
    assert manifest["links"]["pairs"] == {"train": 2, "val": 1, "test": 1, "val_neg": 1, "test_neg": 2}
    notes = " ".join(manifest["notes"])
    assert (
        manifest["edges"] == 16
        and "2 edges" in notes
        and "1 link of val" in notes
        and "test_neg are links" in notes
        and "node 2 with itself" in notes
    )
    other = partition(graph, 2, tmp_path / "other", link_split="0.6,0.2,0.2")
    assert other["links"]["pairs"]["train"] == 4
    with pytest.raises(InputError, match="memory"):
        partition(graph, 2, tmp_path / "third", memory=2**32)
