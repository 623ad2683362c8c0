"""Train a tuned GCN (Luo et al., arXiv:2406.08993) on ogbn-arxiv, with the official split and ogb's Evaluator.

The graph and its download need ogb (``pip install ogb``)::

    python examples/train_ogbn_arxiv.py --graph ogb:ogbn-arxiv
    torchrun --nproc-per-node 2 examples/train_ogbn_arxiv.py --graph ogb:ogbn-arxiv

Without ``--graph`` it trains on a small graph that is made up, offline.
"""

import argparse
import os
import tempfile

import numpy as np
import torch.distributed as dist

import dgl_gt
from dgl_gt.partition import load_graph, partition
from dgl_gt.train import predict, read_config, train

CONFIG = read_config(
    architecture="gnn",
    norm="batch",
    input="none",
    layers=3,
    hidden=256,
    dropout=0.5,
    optimizer="adam",
    lr=0.005,
    warmup=0,
    epochs=300,
    patience=50,
)


def accuracy(label, prediction):
    """Accuracy by ogb's Evaluator, or, where ogb is not installed, by hand."""
    try:
        from ogb.nodeproppred import Evaluator
    except ImportError:
        return float((label == prediction).mean())
    return Evaluator("ogbn-arxiv").eval({"y_true": label[:, None], "y_pred": prediction[:, None]})["acc"]


def main(args):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    is_first = ranks == 1 or dist.get_rank() == 0
    with tempfile.TemporaryDirectory() as folder:
        shards = [os.path.join(folder, "shards")]
        if ranks > 1:
            dist.broadcast_object_list(shards)  # all ranks read the folder of rank 0
        if is_first:
            graph = load_graph(args.graph, undirected=True, self_loops=True)
            partition(graph, ranks, shards[0])
        if ranks > 1:
            dist.barrier()
        with dgl_gt.load(shards[0]) as sg:
            result = train(sg, CONFIG if args.epochs is None else CONFIG.changed(epochs=args.epochs))
            predictions = predict(result.model, sg)  # of all nodes, in the order of the data set; on rank 0
    if is_first:
        label, prediction = graph.node_data["label"], predictions[0]
        for name in ("train", "val", "test"):
            rows = np.flatnonzero(graph.node_data[f"{name}_mask"])
            print(f"{name:5s} accuracy {accuracy(label[rows], prediction[rows]):.4f}")
        print(f"{result.seconds_per_epoch:.3f} s per epoch on {ranks} rank(s), best epoch {result.best_epoch + 1}")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a tuned GCN on ogbn-arxiv: on one process, or with torchrun.")
    parser.add_argument(
        "--graph", default="sample:communities?nodes=2000&seed=0", help="any source of `dgl-gt partition`"
    )
    parser.add_argument("--epochs", type=int, help="number of epochs, in place of at most 300")
    main(parser.parse_args())
