"""Models of a user's own, as ``--model-factory factories:NAME`` finds them."""

import os

import torch
import torch.distributed as dist
from torch import nn

from dgl_gt.nn import GraphConv, GraphTransformer, GraphTransformerLayer


class Pulled(nn.Module):
    """A layer of this package between linear layers; the mean of all held rows goes to none of them."""

    def __init__(self, in_dim, classes):
        super().__init__()
        self.first, self.last = nn.Linear(in_dim, 8), nn.Linear(8, classes)
        self.layer = GraphTransformerLayer(8, 16, 2)
        self.register_buffer("is_wide", torch.tensor([False, True]))

    def forward(self, sg, feat):
        return self.last(self.layer(sg, self.first(feat).relu()))


class Random(Pulled):
    """With weights that no seed fixes."""

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        self.last.weight.data += float.fromhex("0x" + os.urandom(4).hex()) / 2**34


class Rows(nn.Module):
    """No layer of this package; an ordinary network of each node alone."""

    def __init__(self, in_dim, classes):
        super().__init__()
        self.linear = nn.Linear(in_dim, classes)

    def forward(self, sg, feat):
        return self.linear(feat)


class Held(Rows):
    """A row for each held node, which is too many."""

    def forward(self, sg, feat):
        return self.linear(sg.pull(feat))


class Pair(Rows):
    """Two results."""

    def forward(self, sg, feat):
        return self.linear(feat), None


class Fails(Rows):
    """A network for another width."""

    def forward(self, sg, feat):
        return self.linear(feat[:, 1:])


class Wide(Rows):
    """One class too many."""

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes + 1)


class Whole(Rows):
    """Whole numbers in place of logits."""

    def forward(self, sg, feat):
        return self.linear(feat).long()


class Extra(Rows):
    """State that is no tensor."""

    def get_extra_state(self):
        return {"note": "x"}

    def set_extra_state(self, state):
        pass


class Tied(Rows):
    """Two layers with one weight."""

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        self.other = nn.Linear(in_dim, classes)
        self.other.weight = self.linear.weight

    def forward(self, sg, feat):
        return self.other(feat) + self.linear(feat)


class Smoothed(GraphTransformer):
    """One of this package's, with an exchange after its last layer: a row's gradient comes from other rows, too."""

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, 64, classes, 2, 4)
        self.smooth = GraphConv(classes, classes, allow_zero_in_degree=True)

    def forward(self, sg, feat):
        return self.smooth(sg, super().forward(sg, feat))


class Named(Rows):
    """Attributes and methods of a user's own that have ordinary names."""

    num_views, reads, dropout_parts = 3, "pages", 0.5

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        self.input_sizes = [in_dim]

    def after_attention(self):
        raise AssertionError("not asked for")


def no_parameters(in_dim, classes):
    return nn.Identity()


def transformer(in_dim, classes):
    """The model of this package, by another way."""
    return GraphTransformer(in_dim, 16, classes, 2, 4)


def by_rank(in_dim, classes):
    """Another model on each rank."""
    return nn.Linear(in_dim, classes + dist.get_rank())


def three(in_dim, classes):
    return 3


def one_argument(in_dim):
    return nn.Linear(in_dim, 3)


number = 3
