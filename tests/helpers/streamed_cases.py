"""What the tests of streamed cuts share: lists of edges, and a recount of the shards from them."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.partition import read_manifest, verify
from dgl_gt.partition.graph import SPLIT_MASKS


def listing(seed, once=False, nodes=50, count=260, **changes):
    """Return arrays of an npz with hubs, loops, parallel edges, isolated nodes also at the end, and several dtypes."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes - 6, (2, count))
    src[:40], dst[40:80] = 3, 4  # hubs
    src[80:90], dst[80:90] = src[90:100], dst[90:100]
    dst[100:112] = src[100:112]
    dst[-1] = src[-1]
    if once:
        src, dst = np.maximum(src, dst), np.minimum(src, dst)  # parallel edges are no reverses
    split = rng.integers(0, 3, nodes)
    return {
        "edge_index": np.stack([src, dst]),
        "num_nodes": nodes,
        "directed": not once,
        "x": rng.standard_normal((nodes, 3)).astype(np.float32),
        "y": rng.integers(0, 4, nodes),
        **{key: split == i for i, key in enumerate(SPLIT_MASKS)},
        "edge_data_weight": rng.standard_normal((count, 2)),
        "edge_data_kind": rng.integers(0, 9, count).astype(np.uint8),
        **changes,
    }


def saved(folder, arrays, save=np.savez):
    """Write the arrays that are not None; return the path."""
    save(folder / "g.npz", **{key: value for key, value in arrays.items() if value is not None})
    return folder / "g.npz"


def stored(arrays):
    """Return sources, destinations and data rows of all edges from the listed edges, in plain Python."""
    src, dst = arrays["edge_index"].tolist()
    there = [(u, v, e) for e, (u, v) in enumerate(zip(src, dst))]
    back = [] if arrays["directed"] else [(v, u, e) for u, v, e in there if u != v]
    return np.array(there + back, int).reshape(-1, 3).T


def stored_parts(out, parts):
    """Return of each part its structure, node data and edge data."""
    names = ("structure", "node_data", "edge_data")
    return [[load_file(out / f"part{part}" / f"{name}.safetensors") for name in names] for part in range(parts)]


def check_shards(out, arrays, parts):
    """Recount everything from the list of edges."""
    manifest = read_manifest(out)
    verify(out, manifest)
    want_src, want_dst, rows = stored(arrays)
    count, nodes = len(want_src), arrays["num_nodes"]
    assert (manifest["cut"], manifest["halo_depth"], manifest["parts"]) == ("vertex", 0, parts)
    assert (manifest["nodes"], manifest["edges"], manifest["method"]) == (nodes, count, "streaming")
    node_data = {new: arrays[old] for old, new in (("x", "feat"), ("y", "label")) if old in arrays}
    node_data |= {key: arrays[key] for key in SPLIT_MASKS if key in arrays}
    edge_data = {key.removeprefix("edge_data_"): arrays[key] for key in arrays if key.startswith("edge_data_")}
    src, dst, masters, per_part = np.full(count, -1), np.full(count, -1), [], []
    linked = set(want_src) | set(want_dst)
    there = stored_parts(out, parts)
    for part, (structure, nodes_here, edges_here) in enumerate(there):
        ids, edge, indptr = structure["node_ids"], structure["edge_ids"], structure["indptr"]
        owned = manifest["ptr"][part + 1] - manifest["ptr"][part]
        assert len(set(edge.tolist())) == len(edge) and (src[edge] == -1).all(), "an edge has one owner"
        assert len(indptr) == len(ids) + 1 and indptr[-1] == len(edge) == len(structure["indices"])
        targets = np.repeat(np.arange(len(ids)), np.diff(indptr))
        src[edge], dst[edge] = ids[structure["indices"]], ids[targets]
        for begin, end in zip(indptr, indptr[1:]):
            assert (np.diff(edge[begin:end]) > 0).all(), "inside a row edges keep the user's order"
        masters.extend(ids[:owned].tolist())
        touched = set(src[edge]) | set(dst[edge])
        assert set(ids[:owned]) & linked <= touched, "a master has edges of its node"
        mirrors = ids[owned:].tolist()
        assert set(mirrors) == touched - set(ids[:owned]) and len(set(mirrors)) == len(mirrors)
        assert nodes_here.keys() == node_data.keys() and edges_here.keys() == edge_data.keys()
        for key, value in node_data.items():
            assert np.array_equal(nodes_here[key], value[ids]) and nodes_here[key].dtype == value.dtype
        for key, value in edge_data.items():
            assert np.array_equal(edges_here[key], value[rows[edge]]) and edges_here[key].dtype == value.dtype
        returned = len(set(dst[edge]) - set(ids[:owned]))
        per_part.append({"owned": owned, "mirrors": len(mirrors), "edges": len(edge), "returned": returned})
    assert (src == want_src).all() and (dst == want_dst).all(), "every edge is somewhere"
    assert sorted(masters) == list(range(nodes))
    assert [{key: figure[key] for key in per_part[0]} for figure in manifest["per_part"]] == per_part
    check_exchange(manifest, [structure for structure, *_ in there])
    check_quality(manifest, per_part, arrays)
    return manifest


def check_exchange(manifest, structures):
    """Each part sends the rows that the other lists as mirrors, and mirrors with in-edges send results back."""
    owned = np.diff(manifest["ptr"])
    for i, sender in enumerate(structures):
        assert manifest["per_part"][i]["sent"] == len(sender["send_rows"]) == len(sender["send_returns"])
        assert manifest["per_part"][i]["returns"] == sender["send_returns"].sum()
        for j, receiver in enumerate(structures):
            between = slice(*sender["send_ptr"][j : j + 2])
            mirrors = slice(*(receiver["recv_ptr"][i : i + 2] + owned[j]))
            sent = sender["send_rows"][between]
            assert ((sent >= 0) & (sent < owned[i])).all()
            assert sender["node_ids"][sent].tolist() == receiver["node_ids"][mirrors].tolist()
            assert sender["send_returns"][between].tolist() == (np.diff(receiver["indptr"])[mirrors] > 0).tolist()
            assert manifest["received_rows"][j][i] == len(sent)
            assert i != j or not len(sent)


def check_quality(manifest, per_part, arrays):
    parts, nodes, quality = manifest["parts"], manifest["nodes"], manifest["quality"]
    column = {key: np.array([counts[key] for counts in per_part]) for key in per_part[0]}
    held, shares = column["owned"] + column["mirrors"], np.array(manifest["shares"])
    assert quality["mirrors"] == column["mirrors"].sum() == np.sum(manifest["received_rows"])
    assert quality["volume"] == column["mirrors"].sum() + column["returned"].sum()
    assert quality["replication_factor"] == pytest.approx(held.sum() / nodes)
    assert quality["max_copies_factor"] == pytest.approx(held.max() * parts / nodes)
    assert quality["node_balance"] == pytest.approx((column["owned"] / shares).max() / nodes)
    edge_count = column["edges"].sum()
    assert quality["edge_balance"] == pytest.approx((column["edges"] / shares).max() / edge_count if edge_count else 1)
    assert (column["edges"] <= np.ceil(1.05 * edge_count * shares)).all(), "the cap"
    assert (quality["train_balance"] is None) == ("train_mask" not in arrays)
