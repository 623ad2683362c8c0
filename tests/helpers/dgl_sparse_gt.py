"""The mathematics of DGL's example of a sparse graph transformer, on a dense adjacency matrix, with its names of weights.

``dgl.sparse`` is a library of its own, which does not load everywhere. A node's query is compared with the keys of the
destinations of its out-edges. A head is every H-th feature.
"""

import torch
from torch import nn


class SparseMHA(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(hidden, hidden))

    def forward(self, adjacency, h):
        """``adjacency`` (N, N) is true where an edge goes from the row's node to the column's."""
        q, k, v = (linear(h).view(len(h), -1, self.heads) for linear in (self.q_proj, self.k_proj, self.v_proj))
        scores = torch.einsum("sdh,tdh->sth", q, k) / q.shape[1] ** 0.5
        weights = scores.masked_fill(~adjacency[..., None], -torch.inf).softmax(1)
        weights = weights.masked_fill(~adjacency.any(1)[:, None, None], 0)  # nodes without out-edges
        return self.out_proj(torch.einsum("sth,tdh->sdh", weights, v).reshape(len(h), -1))


class GTLayer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.MHA = SparseMHA(hidden, heads)
        self.batchnorm1, self.batchnorm2 = nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden)
        self.FFN1, self.FFN2 = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, adjacency, h):
        h = self.batchnorm1(self.MHA(adjacency, h) + h)
        return self.batchnorm2(h + self.FFN2(torch.relu(self.FFN1(h))))


class GTModel(nn.Module):
    """The example's model with a linear encoder and without its pooling, which predicts for each node."""

    def __init__(self, features, hidden, heads, layers, classes):
        super().__init__()
        self.encoder = nn.Linear(features, hidden)
        self.layers = nn.ModuleList(GTLayer(hidden, heads) for _ in range(layers))
        self.predictor = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, classes))

    def forward(self, adjacency, feat):
        h = self.encoder(feat)
        for layer in self.layers:
            h = layer(adjacency, h)
        return self.predictor(h)
