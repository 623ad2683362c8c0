"""A DGL script that trains a GAT on one process, and the same script across ranks; they print the same losses.

One process, plain DGL::

    python examples/from_dgl_script.py

Two ranks, each with half of the graph::

    dgl-gt partition 'sample:communities?nodes=2000&seed=0' --self-loops --parts 2 --out communities-2
    torchrun --nproc-per-node 2 examples/from_dgl_script.py --shards communities-2

For a graph of your own, partition the file that ``dgl.save_graphs`` writes, or call
``dgl_gt.partition.partition(g, parts=2, out=...)``.
"""

import argparse

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.nn import GATConv

import dgl_gt
from dgl_gt.partition import load_graph

CLASSES = 10  # not counted from the labels: one rank's rows may lack a class


class GAT(torch.nn.Module):
    def __init__(self, in_dim):
        super().__init__()
        self.conv1 = GATConv(in_dim, 16, num_heads=4, activation=F.elu)
        self.conv2 = GATConv(64, CLASSES, num_heads=1)
        self.dropout = dgl_gt.nn.Dropout(0.2)  # as torch's, but ranks draw the masks of one process

    def forward(self, g, h):
        h = self.dropout(self.conv1(g, h).flatten(1), g)
        return self.conv2(g, h).mean(1)


class DistributedGAT(GAT):
    """The same parameters; ``g`` is a ShardedGraph: its block has this rank's edges, ``pull`` brings the rows it lacks.

    ``dgl_gt.nn.GraphTransformerLayer`` does both itself: ``layer(g, h)`` takes a DGLGraph or a ShardedGraph, so a model
    made of those needs no second ``forward``.
    """

    def forward(self, g, h):
        h = self.dropout(self.conv1(g.block, g.pull(h)).flatten(1), g)  # <- changed
        return self.conv2(g.block, g.pull(h)).mean(1)  # <- changed


def train_plain(epochs):
    g = sample_graph()
    feat, label = g.ndata["feat"], g.ndata["label"]
    train, test = g.ndata["train_mask"], g.ndata["test_mask"]
    torch.manual_seed(0)
    model = GAT(feat.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        logits = model(g, feat)
        loss = F.cross_entropy(logits[train], label[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch:2d}  loss {loss:.6f}")
    model.eval()
    correct = (model(g, feat).argmax(1) == label)[test].sum()
    print(f"test accuracy {correct / test.sum():.4f}")


def train_distributed(epochs, shards):
    dist.init_process_group("gloo")  # <- added
    g = dgl_gt.load(shards)  # <- changed: this rank's part, a ShardedGraph
    feat, label = g.ndata["feat"], g.ndata["label"]
    train, test = g.ndata["train_mask"], g.ndata["test_mask"]
    train_nodes, test_nodes = g.comm.all_reduce(torch.stack([train.sum(), test.sum()]))  # <- added: of all ranks
    torch.manual_seed(0)
    model = DistributedGAT(feat.shape[1])  # <- changed
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        logits = model(g, feat)
        loss = F.cross_entropy(logits[train], label[train], reduction="sum") / train_nodes  # <- changed: global mean
        optimizer.zero_grad()
        loss.backward()
        g.comm.sum_gradients(model.parameters())  # <- added
        optimizer.step()
        show(g, f"epoch {epoch:2d}  loss {g.comm.all_reduce(loss.detach()):.6f}")  # <- changed: sum over ranks
    model.eval()
    correct = g.comm.all_reduce((model(g, feat).argmax(1) == label)[test].sum())  # <- changed: sum over ranks
    show(g, f"test accuracy {correct / test_nodes:.4f}")  # <- changed
    dist.destroy_process_group()  # <- added


def show(g, line):
    """Print once, not once a rank."""
    if g.comm.rank == 0:
        print(line)


def sample_graph():
    """The sample graph as a DGLGraph; stands for whatever a script of yours loads."""
    sample = load_graph("sample:communities?nodes=2000&seed=0")
    edges = torch.from_numpy(sample.indices), torch.from_numpy(sample.destinations())
    g = dgl.graph(edges, num_nodes=sample.num_nodes)
    g.ndata.update({key: torch.from_numpy(value) for key, value in sample.node_data.items()})
    return dgl.add_self_loop(g)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a GAT with DGL: on one process, or across ranks.")
    parser.add_argument(
        "--shards", metavar="DIR", help="what `dgl-gt partition` wrote; start with torchrun, a rank a part"
    )
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    if args.shards:
        train_distributed(args.epochs, args.shards)
    else:
        train_plain(args.epochs)
