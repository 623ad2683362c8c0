"""Graphs and comparisons for tests of the cut by many workers."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from dgl_gt.partition.cuts.clusters import order_in_parts
from dgl_gt.partition.cuts.permutation import slice_pointers
from dgl_gt.partition.cuts.vertex_cut import VertexCut
from dgl_gt.partition.distributed.stages import InProcess
from dgl_gt.partition.graph import symmetrised
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.partition.shards.write import write_shards


def files_of(folder) -> dict[str, bytes]:
    """The bytes of every file of a folder by its name."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in Path(folder).rglob("*") if each.is_file()}


def owner_of(folder, manifest) -> np.ndarray:
    """The part of each node."""
    owner = np.full(manifest["nodes"], -1)
    for part, counts in enumerate(manifest["per_part"]):
        ids = load_file(Path(folder) / f"part{part}" / "structure.safetensors")["node_ids"]
        owner[ids[: counts["owned"]]] = part
    return owner


def written_by_one_process(graph, manifest, many, out):
    """The manifest of the shards that one process writes for the edges and masters of others."""
    of_id = np.full(graph.num_edges, -1, np.int32)
    for part in range(manifest["parts"]):
        of_id[load_file(many / f"part{part}" / "structure.safetensors")["edge_ids"]] = part
    assert (of_id >= 0).all()
    master = owner_of(many, manifest)
    order = order_in_parts(symmetrised(graph), master, seed=manifest["seed"]).astype(graph.indices.dtype)
    ptr = slice_pointers(master, manifest["parts"])
    cut = VertexCut(order, ptr, of_id[graph.edge_ids], np.array(manifest["shares"]))
    out.mkdir()
    return write_shards(Layout(graph, cut), out, seed=manifest["seed"], isolated_nodes=manifest["isolated_nodes"])


def save_graph(path, seed=0, nodes=200, edges=900, *, directed=True, isolated=20, hub=True, data=True):
    """Write a graph with a hub, isolated nodes, parallel edges and self-loops; unless directed, edges are listed once."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, max(1, nodes - isolated), (2, edges))
    near = draw.random(edges) < 0.8
    dst[near] = np.minimum(src[near] // 20 * 20 + dst[near] % 20, max(0, nodes - isolated - 1))
    if hub and edges:
        src[: edges // 8] = nodes // 3
    if directed:
        src, dst = np.append(src, src[: edges // 10]), np.append(dst, dst[: edges // 10])  # parallel edges
    else:
        pairs = np.unique(np.sort(np.stack([src, dst]), axis=0), axis=1)
        src, dst = pairs[:, draw.permutation(pairs.shape[1])]
    arrays = {"edge_index": np.stack([src, dst]), "num_nodes": nodes, "directed": directed}
    if data:
        split = draw.permutation(nodes) % 3
        arrays |= {name: split == i for i, name in enumerate(("train_mask", "val_mask", "test_mask"))}
        arrays |= {"x": draw.standard_normal((nodes, 3)).astype(np.float32), "y": draw.integers(0, 4, nodes)}
        arrays |= {"edge_data_weight": draw.random(len(src))}
    np.savez(path, **arrays)
    return path


class Counting(InProcess):
    """Runs tasks in this process, counts them, and stops after some."""

    def __init__(self, most=None):
        self.most, self.tasks = most, []

    def run(self, stage, task, items):
        """Call ``task`` with each item."""
        for item in items:
            if self.most is not None and len(self.tasks) >= self.most:
                raise KeyboardInterrupt
            self.tasks.append((stage, item))
            yield task(item)
