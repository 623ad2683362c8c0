"""A grown graph cut like its old shards: who stays, where new nodes go, and what is refused."""

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_relations, partition
from dgl_gt.partition.shards.files import ShardReader

NODES, PARTS = 300, 3


def communities(seed=0, nodes=NODES):
    """Edges of three communities of nodes i % 3, in both directions; the last two nodes have none."""
    generator = np.random.default_rng(seed)
    src = generator.integers(0, nodes - 2, 6 * nodes)
    dst = (src + 3 * generator.integers(1, nodes // 3 - 1, len(src))) % (3 * (nodes // 3))
    other = generator.random(len(src)) < 0.05
    dst[other] = generator.integers(0, nodes - 2, other.sum())
    dst = np.minimum(dst, nodes - 3)
    return np.concatenate([[src, dst], [dst, src]], axis=1)


def save(path, edges, nodes=NODES, **arrays):
    np.savez(path, edge_index=edges, num_nodes=nodes, **arrays)
    return path


def owner_of(shards, manifest):
    reader, owner = ShardReader(shards, manifest), np.full(manifest["nodes"], -1)
    for part in range(manifest["parts"]):
        owner[reader.structure(part, "node_ids")["node_ids"][: reader.rows(part)[0]]] = part
    return owner


@pytest.fixture
def old(tmp_path):
    """The graph of the nodes below 240, as shards."""
    edges = communities()
    edges = edges[:, (edges < 240).all(axis=0)]
    manifest = partition(save(tmp_path / "old.npz", edges, 240), PARTS, tmp_path / "old")
    return tmp_path / "old", owner_of(tmp_path / "old", manifest)


def test_old_nodes_stay_and_new_ones_go_to_their_neighbours(tmp_path, old):
    shards, before = old
    edges = communities()
    manifest = partition(save(tmp_path / "g.npz", edges), PARTS, tmp_path / "new", like=shards)
    after = owner_of(tmp_path / "new", manifest)
    np.testing.assert_array_equal(after[:240], before)
    sizes = np.bincount(after, minlength=PARTS)
    assert sizes.max() <= 1.15 * NODES / PARTS and "60 nodes are new, 0 are gone, 0 have moved" in manifest["notes"][-1]
    votes = np.zeros((NODES, PARTS))
    np.add.at(votes, (edges[0], after[edges[1]]), 1)
    new = np.arange(240, NODES - 2)
    assert (votes[new, after[new]] == votes[new].max(axis=1)).mean() > 0.8  # the others found no room


def test_ids_say_who_is_who(tmp_path, old):
    shards, before = old
    edges = communities()
    numbers = np.random.default_rng(1).permutation(NODES)
    names = np.empty(NODES, int)
    names[numbers] = np.arange(NODES)  # node i of the old graph is called numbers[i] here, and its name is i
    new = partition(save(tmp_path / "g.npz", numbers[edges], node_names=names), PARTS, tmp_path / "new", like=shards)
    after = owner_of(tmp_path / "new", new)
    np.testing.assert_array_equal(after[numbers[:240]], before)


def test_nodes_that_are_gone(tmp_path, old):
    shards, before = old
    edges = communities()
    edges = edges[:, (edges < 200).all(axis=0)]
    manifest = partition(save(tmp_path / "g.npz", edges, 200), PARTS, tmp_path / "new", like=shards)
    np.testing.assert_array_equal(owner_of(tmp_path / "new", manifest), before[:200])
    assert "0 nodes are new, 40 are gone" in manifest["notes"][-1]


def test_nodes_move_where_that_is_worth_it(tmp_path, old):
    shards, before = old
    generator = np.random.default_rng(3)
    edges = generator.permutation(NODES)[communities()]  # another graph of the same names
    graph = save(tmp_path / "g.npz", edges)
    stay = partition(graph, PARTS, tmp_path / "stay", like=shards, move=0.9)
    np.testing.assert_array_equal(owner_of(tmp_path / "stay", stay)[:240], before)
    moved = partition(graph, PARTS, tmp_path / "moved", like=shards, move=0.0)
    assert moved["quality"]["volume"] < stay["quality"]["volume"]
    count = int((owner_of(tmp_path / "moved", moved)[:240] != before).sum())
    assert f"{count} have moved" in moved["notes"][-1] and count > 0


@pytest.mark.parametrize("extra", [{"virtual_nodes": 2}, {"self_loops": True}, {"halo_depth": 2}, {"memory": 1 << 30}])
def test_with_other_options(tmp_path, old, extra):
    shards, before = old
    manifest = partition(save(tmp_path / "g.npz", communities()), PARTS, tmp_path / "new", like=shards, **extra)
    np.testing.assert_array_equal(owner_of(tmp_path / "new", manifest)[:240], before)


def test_unequal_shares_are_kept(tmp_path):
    graph = save(tmp_path / "g.npz", communities())
    old = partition(graph, 2, tmp_path / "old", target_weights=[3, 1])
    new = partition(save(tmp_path / "h.npz", communities(nodes=360), 360), 2, tmp_path / "new", like=tmp_path / "old")
    assert new["shares"] == old["shares"] == [0.75, 0.25]
    assert new["per_part"][0]["owned"] > 2 * new["per_part"][1]["owned"]


def test_one_part_and_only_isolated_nodes_are_new(tmp_path):
    graph = save(tmp_path / "g.npz", [[0, 1], [1, 0]], 2)
    partition(graph, 1, tmp_path / "one")
    manifest = partition(
        save(tmp_path / "h.npz", [[0, 1], [1, 0]], 9), 1, tmp_path / "new", like=tmp_path / "one", move=0.1
    )
    assert manifest["per_part"][0]["owned"] == 9
    partition(graph, 2, tmp_path / "two")
    manifest = partition(save(tmp_path / "h.npz", [[0, 1], [1, 0]], 10), 2, tmp_path / "new2", like=tmp_path / "two")
    assert [part["owned"] for part in manifest["per_part"]] == [5, 5]


def test_a_long_chain_of_new_nodes(tmp_path):
    partition(save(tmp_path / "g.npz", [[0, 1], [1, 0]], 2), 2, tmp_path / "old")
    chain = np.array([np.arange(3000), np.arange(1, 3001)])
    manifest = partition(save(tmp_path / "h.npz", chain, 3001), 2, tmp_path / "new", like=tmp_path / "old")
    assert max(part["owned"] for part in manifest["per_part"]) < 1600


def test_ids_of_other_whole_numbers(tmp_path):
    """One id above 2^63 makes all of them uint64."""
    ids = np.arange(60) + 2**53 + 1
    ring = np.array([np.arange(60), (np.arange(60) + 1) % 60])
    partition(save(tmp_path / "g.npz", ring, 60, node_names=ids), 2, tmp_path / "old")
    more = np.append(ids.astype(np.uint64), np.uint64(2**63 + 5))
    new = partition(save(tmp_path / "h.npz", ring, 61, node_names=more), 2, tmp_path / "new", like=tmp_path / "old")
    assert "1 nodes are new, 0 are gone, 0 have moved" in new["notes"][-1]


def test_virtual_nodes_are_not_the_users(tmp_path, old):
    manifest = partition(save(tmp_path / "g.npz", communities()), PARTS, tmp_path / "new", like=old[0], virtual_nodes=2)
    assert "60 nodes are new" in manifest["notes"][-1]


def test_parts_of_the_command_are_those_of_the_shards(tmp_path, old, capfd):
    shards, _ = old
    graph = save(tmp_path / "g.npz", communities())
    assert main(["partition", str(graph), "--like", str(shards), "--move", "0.05", "--out", str(tmp_path / "new")]) == 0
    printed = capfd.readouterr()
    assert f"{PARTS} parts" in printed.out and "60 nodes are new" in printed.err
    assert main(["partition", str(graph), "--out", str(tmp_path / "none")]) == 2
    assert "--parts" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"parts": 2}, ("parts", "2", "3")),
        ({"move": 1.5}, ("move", "1.5")),
        ({"cut": "vertex"}, ("like", "--cut edge")),
        ({"owner": [0] * NODES}, ("like", "owner")),
        ({"attempts": 3}, ("like", "attempts")),
        ({"max_imbalance": 1.1}, ("like", "max_imbalance")),
        ({"like": "nowhere"}, ("nowhere",)),
        ({"like": None, "move": 0.1}, ("move", "like")),
    ],
)
def test_bad_arguments(tmp_path, old, arguments, named):
    shards, _ = old
    graph = save(tmp_path / "g.npz", communities())
    with pytest.raises(InputError) as error:
        partition(graph, **{"parts": PARTS, "out": tmp_path / "new", "like": shards, **arguments})
    assert all(each in str(error.value) for each in named) and not (tmp_path / "new").exists()


def test_shards_that_do_not_fit(tmp_path, old):
    shards, _ = old
    graph = save(tmp_path / "g.npz", communities(), node_names=np.array([f"n{i}" for i in range(NODES)]))
    with pytest.raises(InputError, match="n0"):
        partition(graph, PARTS, tmp_path / "new", like=shards)
    partition(graph, PARTS, tmp_path / "vertex", cut="vertex")
    with pytest.raises(InputError, match="vertex"):
        partition(graph, PARTS, tmp_path / "new", like=tmp_path / "vertex")


def test_nodes_of_each_type_stay(tmp_path):
    """A type that grows moves the numbers of those after it, and types may be new or gone."""
    rng = np.random.default_rng(0)

    def graph(counts, edges):
        ends = {
            key: (rng.integers(0, counts[key[0]], n), rng.integers(0, counts[key[2]], n)) for key, n in edges.items()
        }
        return from_relations(counts, ends)

    old = graph({"gone": 3, "user": 40, "item": 30}, {("user", "to", "item"): 200, ("item", "to", "gone"): 5})
    new = graph({"user": 50, "tag": 4, "item": 31}, {("user", "to", "item"): 220, ("item", "to", "tag"): 30})
    before = partition(old, 3, tmp_path / "old")
    after = partition(new, 3, tmp_path / "new", like=tmp_path / "old")
    assert "15 nodes are new, 3 are gone, 0 have moved" in " ".join(after["notes"])
    owners = [owner_of(tmp_path / name, manifest) for name, manifest in (("old", before), ("new", after))]
    assert np.array_equal(owners[0][3:43], owners[1][:40]) and np.array_equal(owners[0][43:], owners[1][54:84])
    with pytest.raises(InputError, match="types"):
        partition("sample:communities?nodes=100", 3, tmp_path / "plain", like=tmp_path / "old")
