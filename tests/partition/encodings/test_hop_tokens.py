"""Hop tokens of typed graphs, against dense matrices, and in shards."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from typed import WIDTHS, typed_graph

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, convert, encode, from_relations, partition, read_manifest, verify
from dgl_gt.partition.relations import relations_of
from dgl_gt.partition.transforms import hop_tokens as module
from dgl_gt.partition.transforms.hop_tokens import hop_tokens, token_counts

TOKENS = {"paper": 1 + 2 + 4 + 7, "author": 1 + 2 + 3 + 6, "subject": 1 + 1 + 2 + 4}  # of three hops


def unit(rows):
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def dense_tokens(graph, hops, width, seed):
    """The tokens by their definition, with a dense matrix for each relation."""
    schema, streams = graph.schema, np.random.SeedSequence(seed)

    def matrix(stream, rows):
        return np.random.default_rng(stream).standard_normal((rows, width), np.float32).astype(float) / width**0.5

    state = {}
    for (name, nodes), stream in zip(schema.nodes.items(), streams.spawn(len(schema.nodes))):
        feat = graph.node_data.get(f"{name}/feat")
        if feat is None:
            state[name] = matrix(stream, nodes)
        elif feat.shape[1] > width:
            state[name] = unit(feat.astype(float)) @ matrix(stream, feat.shape[1])
        else:
            state[name] = np.pad(unit(feat.astype(float)), ((0, 0), (0, width - feat.shape[1])))
    tokens = {name: [rows] for name, rows in state.items()}
    latest = {name: [rows] for name, rows in state.items()}
    for _ in range(hops):
        following = {name: [] for name in schema.nodes}
        for relation, edges in relations_of(graph).items():
            adjacency = np.zeros((schema.nodes[relation.destination], schema.nodes[relation.source]))
            np.add.at(adjacency, (edges.dst, edges.src), 1)
            mean = adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)
            following[relation.destination] += [mean @ each for each in latest[relation.source]]
        latest = following
        tokens = {name: each + latest[name] for name, each in tokens.items()}
    return {name: np.concatenate(each, 1) for name, each in tokens.items()}


@pytest.mark.parametrize("width", [6, 7, 16])
@pytest.mark.parametrize("seed", [0, 3])
def test_against_dense_matrices(width, seed, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_ROWS", 17)
    graph = typed_graph(seed)
    found, wanted = hop_tokens(graph, 3, width, seed), dense_tokens(graph, 3, width, seed)
    assert {name: each.shape[1] // width for name, each in found.items()} == TOKENS
    for name, rows in wanted.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], rows, rtol=0, atol=2e-6, err_msg=name)
    other = hop_tokens(graph, 3, width, seed + 1)
    assert not np.allclose(found["subject"], other["subject"])


def test_a_type_without_edges_has_its_own_token_alone():
    graph = from_relations({"a": 4, "b": 3, "c": 0}, {("a", "to", "a"): ([0, 1], [1, 0]), ("c", "to", "a"): ([], [])})
    tokens = hop_tokens(graph, 2, 5, 0)
    assert token_counts(graph.schema, 2) == {"a": 5, "b": 1, "c": 1}
    assert {name: each.shape for name, each in tokens.items()} == {"a": (4, 25), "b": (3, 5), "c": (0, 5)}
    own, by_hop = tokens["a"][:, :5], tokens["a"][:, 5:].reshape(4, 2, 2, 5)
    np.testing.assert_array_equal(by_hop[:2, 0, 0], own[[1, 0]])
    assert not by_hop[2:].any() and not by_hop[:, :, 1].any()  # no in-edges; a relation without edges


@pytest.mark.parametrize("cut", ["edge", "vertex"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shards_hold_the_same_rows(tmp_path, parts, cut):
    graph = typed_graph(1)
    whole = encode(graph, "hops=3x6", seed=4)
    manifest = partition(graph, parts, tmp_path / "out", cut=cut, encode="hops=3x6", seed=4)
    record = {"columns": 6 * sum(TOKENS.values()), "hops": 3, "width": 6, "seed": 4, "tokens": TOKENS}
    assert manifest["encodings"] == whole.encodings == {"hops": record}
    verify(tmp_path / "out", read_manifest(tmp_path / "out"))
    for part in range(parts):
        ids = load_file(tmp_path / f"out/part{part}/structure.safetensors")["node_ids"]
        data = load_file(tmp_path / f"out/part{part}/node_data.safetensors")
        for name, first, end in zip(TOKENS, graph.schema.node_ptr, graph.schema.node_ptr[1:]):
            rows = ids[(ids >= first) & (ids < end)] - first
            np.testing.assert_array_equal(data[f"{name}/hops"], whole.node_data[f"{name}/hops"][rows])


def test_a_width_is_assumed_and_sizes_are_foretold(tmp_path, capfd):
    graph = typed_graph()
    assert encode(graph, "hops=1").encodings["hops"]["width"] == module.WIDTH
    assert max(WIDTHS.values()) < module.WIDTH
    convert(graph, tmp_path / "g.npz")
    asked = ["partition", str(tmp_path / "g.npz"), "--parts", "2", "--encode", "hops=2,degree"]
    assert main([*asked, "--dry-run"]) == 0
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    assert f"hops ({64 * (7 + 6 + 4):,} columns)" in capfd.readouterr().out


def test_bad_input(tmp_path, capfd):
    graph = typed_graph()
    with pytest.raises(InputError, match="hops is 32, .* 10 relations end in 'paper'"):
        partition(graph, 1, tmp_path / "out", encode="hops=32")
    for hops in ("33", "0", "2x0"):
        with pytest.raises(InputError, match=f"hops={hops}"):
            encode(graph, f"hops={hops}")
    with pytest.raises(InputError, match="author/hops"):
        encode(from_relations({"author": 2, "paper": 2}, {("author", "of", "paper"): ([0], [1])},
                              {"author": {"hops": np.zeros((2, 3))}}), "hops=1")  # fmt: skip
    with pytest.raises(InputError, match="author/hops"):
        encode(
            encode(graph, "hops=1").__class__(**{**vars(graph), "node_data": {"author/hops": np.zeros((80, 1))}}),
            "hops=1",
        )
    huge = {"paper": {"feat": np.full((3, 2), 1e300)}, "author": {"feat": np.ones((2, 2))}}
    graph = from_relations({"paper": 3, "author": 2}, {("author", "of", "paper"): ([0], [1])}, huge)
    with pytest.raises(InputError, match="paper/feat"):
        partition(graph, 1, tmp_path / "out", encode="hops=1")
    assert not (tmp_path / "out").exists()


def test_more_than_fits_into_memory(monkeypatch):
    from dgl_gt.partition.transforms import encode as encode_module

    def refuse(what, needed_bytes):
        raise InputError(f"{what}: {needed_bytes}")

    monkeypatch.setattr(encode_module, "check_fits_memory", refuse)
    with pytest.raises(InputError, match="columns of encodings"):
        encode(typed_graph(), "hops=8x4096")
