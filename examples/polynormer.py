"""Train Polynormer (Deng et al., arXiv:2403.01232) in its two phases, on one process or across ranks.

On a graph that is made up, which takes half a minute::

    python examples/polynormer.py

On ogbn-arxiv, which ogb downloads, with two ranks::

    torchrun --nproc-per-node 2 examples/polynormer.py --graph ogb:ogbn-arxiv --hidden 256 --epochs 2000

The first phase trains the local layers alone. The second starts from the best weights of the first, and trains global
attention as well.
"""

import argparse
import os
import tempfile

import torch.distributed as dist

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.train import read_config, train

POLYNORMER = {
    "architecture": "polynormer",
    "optimizer": "adam",
    "lr": 0.001,
    "warmup": 0,
    "patience": 0,
}


def main(args):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    config = read_config(
        **POLYNORMER,
        hidden=args.hidden,
        layers=args.layers,
        global_layers=2,
        dropout=0.3,
        epochs=args.epochs,
        local_epochs=args.epochs // 4,
        evaluate_every=5,
    )
    with tempfile.TemporaryDirectory() as folder:
        shards = [os.path.join(folder, "shards")]
        if ranks > 1:
            dist.broadcast_object_list(shards)  # all ranks read the folder of rank 0
        if ranks == 1 or dist.get_rank() == 0:
            partition(args.graph, ranks, shards[0], self_loops=True, undirected=True)
        if ranks > 1:
            dist.barrier()
        with dgl_gt.load(shards[0]) as sg:
            fit(sg, config)
    if ranks > 1:
        dist.destroy_process_group()


def fit(sg, config):
    def show(epoch, loss, validation, seconds):
        if sg.comm.rank == 0 and (epoch + 1) % 20 == 0:
            phase = "local" if epoch < config.local_epochs else "local and global"
            print(f"epoch {epoch + 1:4d} ({phase})  loss {loss:.4f}  validation {validation:.4f}")

    result = train(sg, config, on_epoch=show)
    if sg.comm.rank == 0:
        print(f"test {result.metric_name} {result.test:.4f} at epoch {result.best_epoch + 1}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train Polynormer: on one process, or across ranks with torchrun.")
    parser.add_argument(
        "--graph", default="sample:communities?nodes=2000&seed=0", help="any source of `dgl-gt partition`"
    )
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=120)
    main(parser.parse_args())
