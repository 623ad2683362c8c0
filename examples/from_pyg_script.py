"""A PyG script that trains a GCN on one process, and the same script across ranks; all forms print the same losses.

One process, plain PyG::

    python examples/from_pyg_script.py

Two ranks, each of which runs the model on its half of the graph; three lines are added::

    torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/from_pyg_script.py --shards shards

Each of these holds the whole graph, with its features. Where that is too much, a rank can read its own rows alone; nine
lines change, with the import::

    dgl-gt partition 'sample:communities?nodes=2000&seed=0' --parts 2 --out communities-2
    torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/from_pyg_script.py --shards communities-2 --own-rows
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import dgl_gt  # <- added
from dgl_gt.partition import load_graph

CLASSES = 10


def train_plain(epochs):
    data = sample_graph()
    torch.manual_seed(0)
    model = GCN(data.num_features, 64, num_layers=2, out_channels=CLASSES, norm="batch_norm")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        logits = model(data.x, data.edge_index)[data.train_mask]
        loss = F.cross_entropy(logits, data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch:2d}  loss {loss:.4f}")


def train_distributed(epochs, shards):
    dist.init_process_group("gloo")  # <- added
    data = sample_graph()
    torch.manual_seed(0)
    model = GCN(data.num_features, 64, num_layers=2, out_channels=CLASSES, norm="batch_norm")
    dgl_gt.pyg.distribute_whole(model, data, shards)  # <- added
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        logits = model(data.x, data.edge_index)[data.train_mask]
        loss = F.cross_entropy(logits, data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch:2d}  loss {loss:.4f}")


def train_on_own_rows(epochs, shards):
    dist.init_process_group("gloo")  # <- added
    sg = dgl_gt.load(shards)  # <- added
    data = dgl_gt.pyg.data_of(sg)  # <- changed: this rank's part
    train_nodes = sg.comm.all_reduce(data.train_mask.sum())  # <- added: of all ranks
    torch.manual_seed(0)
    model = GCN(data.num_features, 64, num_layers=2, out_channels=CLASSES, norm="batch_norm")
    dgl_gt.pyg.distribute(model, sg)  # <- added
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        logits = model(data.x, data.edge_index)[data.train_mask]
        loss = F.cross_entropy(logits, data.y[data.train_mask], reduction="sum") / train_nodes  # <- changed
        optimizer.zero_grad()
        loss.backward()
        sg.comm.sum_gradients(model.parameters())  # <- added
        optimizer.step()
        print(f"epoch {epoch:2d}  loss {sg.comm.all_reduce(loss.detach()):.4f}")  # <- changed


def sample_graph():
    """The sample graph as a Data; stands for whatever a script of yours loads."""
    sample = load_graph("sample:communities?nodes=2000&seed=0")
    node_data = {key: torch.from_numpy(value) for key, value in sample.node_data.items()}
    edge_index = torch.stack([torch.from_numpy(each).long() for each in sample.edges()])
    return Data(x=node_data["feat"], y=node_data["label"], train_mask=node_data["train_mask"], edge_index=edge_index)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a GCN with PyG: on one process, or across ranks.")
    parser.add_argument("--shards", metavar="DIR", help="folder of the parts; start with torchrun, a rank a part")
    parser.add_argument("--own-rows", action="store_true", help="read the rows of this rank alone, from DIR")
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    if args.shards:
        (train_on_own_rows if args.own_rows else train_distributed)(args.epochs, args.shards)
    else:
        train_plain(args.epochs)
