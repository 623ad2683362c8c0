import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.partition import partition, read_manifest, verify
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges


def owners(graph, parts, seed=0):
    owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
    owner[owner == 1] = 0  # part 1 is empty
    return owner


def read_part(directory, part):
    return [
        load_file(directory / f"part{part}" / f"{name}.safetensors") for name in ("structure", "node_data", "edge_data")
    ]


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_parts_together_are_the_graph(awkward_graph, tmp_path, parts, seed):
    graph = awkward_graph(seed)
    owner = owners(graph, parts) if parts > 1 else np.zeros(graph.num_nodes, int)
    manifest = partition(graph, parts, tmp_path / "out", owner=owner)
    src, dst = np.empty(graph.num_edges, int), np.empty(graph.num_edges, int)
    seen_edges, halos = [], []
    for part in range(parts):
        structure, node_data, edge_data = read_part(tmp_path / "out", part)
        ids, owned = structure["node_ids"], len(structure["indptr"]) - 1
        assert (owner[ids[:owned]] == part).all() and (owner[ids[owned:]] != part).all()
        assert owned == (owner == part).sum()
        edge = structure["edge_ids"]
        src[edge] = ids[structure["indices"]]
        dst[edge] = ids[np.repeat(np.arange(owned), np.diff(structure["indptr"]))]
        seen_edges.append(edge)
        halos.append(ids[owned:])
        for key, value in graph.node_data.items():
            assert (node_data[key] == value[ids]).all() and node_data[key].dtype == value.dtype
        assert (edge_data["weight"] == graph.edge_data["weight"][edge]).all()
        needed = set(src[edge]) - set(ids[:owned])
        assert set(halos[-1]) == needed and len(halos[-1]) == len(needed), "the halo is what is needed and no more"
    assert sorted(np.concatenate(seen_edges)) == list(range(graph.num_edges))
    original = np.empty((2, graph.num_edges), int)
    original[:, graph.edge_ids] = graph.indices, graph.destinations()
    assert (original == [src, dst]).all()
    _check_figures(manifest, owner, src, dst, parts)


def _check_figures(manifest, owner, src, dst, parts):
    """Brute force: recount every figure from the edge list."""
    halo = [len({s for s, d in zip(src, dst) if owner[d] == part and owner[s] != part}) for part in range(parts)]
    owned = np.bincount(owner, minlength=parts)
    edges = np.bincount(owner[dst], minlength=parts)
    quality = manifest["quality"]
    assert [part["halo"] for part in manifest["per_part"]] == halo
    assert quality["volume"] == quality["halo"] == sum(halo) == np.sum(manifest["received_rows"])
    assert quality["cut_ratio"] == pytest.approx((owner[src] != owner[dst]).mean())
    assert quality["replication_factor"] == pytest.approx((owned + halo).sum() / len(owner))
    assert quality["max_copies_factor"] == pytest.approx((owned + halo).max() * parts / len(owner))
    assert quality["node_balance"] == pytest.approx(owned.max() * parts / len(owner))
    assert quality["edge_balance"] == pytest.approx(edges.max() * parts / len(src))
    assert manifest["shares"] == pytest.approx([1 / parts] * parts)


def test_what_one_part_sends_is_what_the_other_receives(awkward_graph, tmp_path):
    graph = awkward_graph(3)
    partition(graph, 4, tmp_path / "out", owner=owners(graph, 4))
    structures = [read_part(tmp_path / "out", part)[0] for part in range(4)]
    for i, sender in enumerate(structures):
        for j, receiver in enumerate(structures):
            sent = sender["node_ids"][sender["send_rows"][slice(*sender["send_ptr"][j : j + 2])]]
            owned = len(receiver["indptr"]) - 1
            received = receiver["node_ids"][owned:][slice(*receiver["recv_ptr"][i : i + 2])]
            assert sent.tolist() == received.tolist()
            assert i != j or not len(sent)


def test_same_seed_same_bytes(awkward_graph, tmp_path):
    for name in ("a", "b"):
        partition(awkward_graph(0), 3, tmp_path / name, seed=5)
    assert read_manifest(tmp_path / "a") == read_manifest(tmp_path / "b")


def test_edge_order_inside_a_row_is_the_users(awkward_graph, tmp_path):
    """Sums over a row's edges then have one order on any number of ranks."""
    partition(awkward_graph(0), 2, tmp_path / "out")
    for part in range(2):
        structure = read_part(tmp_path / "out", part)[0]
        for begin, end in zip(structure["indptr"], structure["indptr"][1:]):
            assert (np.diff(structure["edge_ids"][begin:end]) > 0).all()


# ---- damage ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "out")
    return tmp_path / "out"


def check(directory):
    verify(directory, read_manifest(directory))


def test_every_flipped_byte_of_the_manifest_is_noticed(shards):
    path = shards / "manifest.json"
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 7)
        path.write_bytes(bad)
        with pytest.raises(InputError, match="damaged|not a dgl-gt manifest|format version|cannot read"):
            check(shards)
    path.write_bytes(good)
    check(shards)


def test_a_flipped_byte_of_any_part_file_is_noticed(shards):
    for path in sorted(shards.glob("part*/*.safetensors")):
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        path.write_bytes(bad)
        with pytest.raises(InputError, match=f"{path.name} is damaged"):
            check(shards)
        path.write_bytes(good[:-1])
        with pytest.raises(InputError, match=f"{path.name} is truncated"):
            check(shards)
        path.unlink()
        with pytest.raises(InputError, match=f"{path.name} is missing"):
            check(shards)
        path.write_bytes(good)
    check(shards)


def test_another_format_version_is_refused(shards):
    path = shards / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format_version": 1}))
    with pytest.raises(InputError, match="has format version 1"):
        read_manifest(shards)


def test_no_shards_at_all(tmp_path):
    with pytest.raises(InputError, match="holds no shards"):
        read_manifest(tmp_path)
    with pytest.raises(InputError, match="holds no shards"):
        read_manifest(tmp_path / "nowhere")


# ---- replacing --------------------------------------------------------------------------------------------------


def test_force_replaces_shards_but_nothing_else(awkward_graph, shards, tmp_path):
    with pytest.raises(InputError, match="exists"):
        partition(awkward_graph(1), 3, shards)
    assert read_manifest(shards)["parts"] == 2
    partition(awkward_graph(1), 3, shards, force=True)
    assert read_manifest(shards)["parts"] == 3
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="will not replace it"):
        partition(awkward_graph(1), 3, tmp_path / "precious", force=True)
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_what_is_added_is_named_in_the_signature(tmp_path):
    source = "sample:communities?nodes=80"
    with pytest.raises(TypeError, match=r"partition\(\) got an unexpected keyword argument 'self_loop'"):
        partition(source, 2, tmp_path / "out", self_loop=True)
    without = partition(source, 1, tmp_path / "a")["edges"]
    assert partition(source, 1, tmp_path / "b", self_loops=True)["edges"] > without


def test_the_other_byte_order_is_written_in_ours(tmp_path):
    graph = from_edges([0, 1], [1, 0], 2, {"time": np.array([1.5, 2.5], ">f8")})
    assert partition(graph, 1, tmp_path / "out")["node_data"]["time"]["dtype"] == "float64"
