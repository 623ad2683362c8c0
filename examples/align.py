"""Match the nodes of two graphs: one model is pretrained on both, and nodes whose rows are near each other are matched.

The second graph is the first one with its nodes in another order and some of its edges changed, as in T-GAE (He et al.,
arXiv:2310.03272). On a graph that is made up, which takes half a minute::

    python examples/align.py

On a graph of yours, with 5 % of the edges changed, ten times::

    python examples/align.py --graph cora.npz --changed 0.05 --samples 10

Nodes have no features here: return probabilities of random walks and degrees, which do not depend on the order, take
their place. For graphs of more than one part, pretrain with ``dgl-gt train --task pretrain --shards A B``, and write the
rows with ``dgl-gt predict --embeddings``.
"""

import argparse
import tempfile
from dataclasses import replace

import numpy as np

import dgl_gt
from dgl_gt.partition import encode, from_edges, load_graph, partition
from dgl_gt.train import embed, read_config, train

ENCODINGS = "random_walk=16,degree"
SETTINGS = {"task": "pretrain", "architecture": "gnn", "score": "mean", "heads": 1, "layers": 4, "jumping": "concat"}
SETTINGS |= {"norm": "none", "dropout": 0.0, "hidden": 128, "edge_weight": 0.1, "mask_share": 0.5, "patience": 0}


def changed_graph(edges, count, share, rng):
    """The edges, (2, E), with some taken out and others put in, between nodes in another order; and the new numbers."""
    changes = int(share * edges.shape[1])
    added = rng.integers(changes + 1)
    kept = edges[:, rng.permutation(edges.shape[1])[changes - added :]]
    new = rng.integers(0, count, (2, added))
    order = rng.permutation(count)
    return order[np.concatenate([kept, new], 1)], order


def encoded(edges, count):
    """A graph with both directions of its edges, and its encodings as features."""
    graph = encode(from_edges(np.r_[edges[0], edges[1]], np.r_[edges[1], edges[0]], count), ENCODINGS)
    feat = np.concatenate([each.reshape(count, -1) for each in graph.node_data.values()], 1)
    return replace(graph, node_data={"feat": feat.astype(np.float32)}, encodings={})


def rows_of(graphs, config):
    """The rows of the nodes of each graph, from one model that is pretrained on all."""
    every = np.concatenate([each.node_data["feat"] for each in graphs])
    mean, deviation = every.mean(0), every.std(0) + 1e-6
    with tempfile.TemporaryDirectory() as folder:
        loaded = []
        for number, graph in enumerate(graphs):
            graph.node_data["feat"] = (graph.node_data["feat"] - mean) / deviation
            partition(graph, 1, f"{folder}/{number}")
            loaded.append(dgl_gt.load(f"{folder}/{number}", group=loaded[0].comm if loaded else None))
        model = train(loaded[0], config, also=loaded[1:]).model
        rows = [embed(model, sg).embedding for sg in loaded]
    every = np.concatenate(rows)
    return [(each - every.mean(0)) / (every.std(0) + 1e-6) for each in rows]


def matched(first, second):
    """For each row of the first the row of the second that is matched with it: again and again the nearest two left."""
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1) - 2 * first @ second.T
    found, is_free = np.full(len(first), -1), np.ones(len(second), bool)
    for place in squares.argsort(axis=None, kind="stable"):
        a, b = divmod(int(place), len(second))
        if found[a] < 0 and is_free[b]:
            found[a], is_free[b] = b, False
    return found


def main(args):
    graph = load_graph(args.graph)
    src, dst = graph.edges()
    edges, count = np.unique(np.stack([src, dst])[:, src < dst], axis=1), graph.num_nodes
    rng, right = np.random.default_rng(args.seed), {"features": [], "pretrained rows": []}
    for _ in range(args.samples):
        other, order = changed_graph(edges, count, args.changed, rng)
        graphs = [encoded(edges, count), encoded(other, count)]
        rows = rows_of(graphs, read_config(**SETTINGS, epochs=args.epochs))
        for name, both in (("features", [each.node_data["feat"] for each in graphs]), ("pretrained rows", rows)):
            right[name].append((matched(*both) == order).mean())
    for name, shares in right.items():
        print(f"matched by {name}: {np.mean(shares):.1%} +- {np.std(shares):.1%} of {count:,} nodes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Match the nodes of a graph with those of a changed copy.")
    parser.add_argument("--graph", default="sample:communities?nodes=600&degree=6&seed=0")
    parser.add_argument("--changed", type=float, default=0.01, help="share of the edges that are taken out or put in")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
