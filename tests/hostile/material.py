"""Good files of every kind, made once per trial; cases copy and damage them."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import numpy as np
import yaml

NODES, EDGES = 60, 300


def make(folder: Path, run) -> None:
    """Fill ``folder``; ``run(argv)`` runs ``dgl-gt`` there and raises where it fails."""
    folder.mkdir(parents=True)
    here = os.getcwd()
    os.chdir(folder)
    try:
        _graphs()
        _bombs()
        _made_by_commands(run)
        _profiles()
    finally:
        os.chdir(here)


def _graphs() -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, NODES, (2, EDGES))
    feat = rng.standard_normal((NODES, 5)).astype(np.float32)
    label, split = rng.integers(0, 3, NODES), np.arange(NODES) % 3
    masks = {key: split == i for i, key in enumerate(("train_mask", "val_mask", "test_mask"))}
    np.savez("graph.npz", edge_index=edges, num_nodes=NODES, x=feat, y=label, **masks, edge_data_w=rng.random(EDGES))
    np.savez("bare.npz", edge_index=edges)
    sparse = {"x_indptr": np.arange(NODES + 1), "x_indices": np.arange(NODES) % 5, "x_data": np.ones(NODES)}
    np.savez_compressed("sparse.npz", edge_index=edges, num_nodes=NODES, x_shape=[NODES, 5], **sparse, y=label, **masks)
    np.save("edges.npy", edges)
    np.save("feat.npy", feat)
    rows = [f"{u},{v},{0.5 * i}" for i, (u, v) in enumerate(edges.T)]
    Path("edges.csv").write_text("src,dst,weight\n" + "\n".join(rows) + "\n")
    Path("edges.txt").write_text("# a comment\n" + "".join(f"{u} {v}\n" for u, v in edges.T))
    Path("edges.tsv").write_text("".join(f"{u}\t{v}\n" for u, v in edges.T))
    Path("edges.csv.gz").write_bytes(gzip.compress(Path("edges.csv").read_bytes(), mtime=0))
    table = [f"{i},{label[i]},{int(split[i] == 0)},{feat[i, 0]:.3f}" for i in range(NODES)]
    Path("nodes.csv").write_text("node,label,train_mask,a\n" + "\n".join(table) + "\n")
    neighbours = [set() for _ in range(NODES)]
    for u, v in edges.T.tolist():
        if u != v:
            neighbours[u].add(v), neighbours[v].add(u)
    lines = [" ".join(str(v + 1) for v in sorted(near)) for near in neighbours]
    Path("metis.graph").write_text("\n".join([f"{NODES} {sum(map(len, neighbours)) // 2}", *lines]) + "\n")
    import dgl
    import torch

    graph = dgl.graph((torch.from_numpy(edges[0]), torch.from_numpy(edges[1])), num_nodes=NODES)
    graph.ndata["feat"], graph.ndata["label"] = torch.from_numpy(feat), torch.from_numpy(label)
    graph.ndata.update({key: torch.from_numpy(mask) for key, mask in masks.items()})
    dgl.save_graphs("graph.bin", [graph])


def _bombs() -> None:
    """Return a small .gz that holds gigabytes: its members are independent, so one can be repeated."""
    for name, text in (("zeros", b"\0"), ("ones", b"1"), ("cells", b"1,")):
        packer = zlib.compressobj(wbits=31)
        member = packer.compress(text * (2**24 // len(text))) + packer.flush()
        Path(f"{name}.csv.gz").write_bytes(member * 100)


def _made_by_commands(run) -> None:
    quiet = ["--json"]
    run(["partition", "graph.npz", "--parts", "1", "--out", "shards1", *quiet])
    run(["partition", "graph.npz", "--parts", "2", "--halo-depth", "2", "--out", "shards2", *quiet])
    run(["partition", "graph.npz", "--parts", "2", "--cut", "vertex", "--out", "vertex2", *quiet])
    run(["export", "shards2", "dgl", "--name", "dgl", *quiet])
    config = ["--epochs", "2", "--hidden", "16", "--heads", "2", "--layers", "1"]
    run(["train", "shards1", "--out", "model", *config, *quiet])
    run(["train", "shards1", "--out", "run", *config, "--epochs", "3", "--checkpoint-every", "1", *quiet])
    Path("config.yaml").write_text(
        yaml.safe_dump({"model": {"layers": 1, "hidden": 16, "heads": 2}, "epochs": 1, "optimizer": {"lr": 0.01}})
    )


def _profiles() -> None:
    one = {
        "format": "dgl-gt profile 3",
        "kind": "measured",
        "ranks": None,
        "memory_bytes": 1.7e10,
        "process_bytes": 5.0e8,
        "stream_bytes_per_s": 1.0e10,
        "simple_bytes_per_s": 2.0e10,
        "operation_s": 1.0e-5,
        "products": {32: 5.0e10, 128: 1.0e11},
        "attention": {
            "edge_s": 1e-9,
            "head_s": 1e-9,
            "row_column_s": 0.0,
            "near_column_s": 2.4e-9,
            "far_column_s": {1000: 2.4e-9, 1000000: 3e-9},
        },
        "bf16_product_speed": 2.0,
        "bf16_edge_time": 0.5,
        "latency_s": 1.0e-4,
        "overlap": 0.5,
        "reduce_bytes_per_s": 1.25e9,
        "link_bytes_per_s": {"within": 1.25e9, "between": 1.0e9, "ranks_per_host": 1},
    }
    two = json.loads(json.dumps(one)) | {"ranks": 2, "memory_bytes": [1.7e10, 1.6e10], "operation_s": [1e-5, 2e-5]}
    two |= {"products": {32: [5.0e10, 4e10], 128: 1.0e11}, "link_bytes_per_s": [[1e9, 1e9], [2e9, 2e9]]}
    two["attention"]["far_column_s"] = {1000: 2.4e-9, 1000000: [3e-9, 4e-9]}
    Path("profile.yaml").write_text(yaml.safe_dump(one))
    Path("profile2.yaml").write_text(yaml.safe_dump(two))
