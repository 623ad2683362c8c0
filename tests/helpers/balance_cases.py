"""What the tests of balance share: a random graph with masks, and the exact bound of a part."""

import math
from fractions import Fraction

import numpy as np

from dgl_gt.partition.graph import from_edges


def graph_of(seed, nodes=200, edges=1500, splits=None):
    """Return a random graph with isolated nodes, self-loops, parallel edges and training masks, (N,) or (N, splits)."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes - 5, (2, edges))
    dst[:30] = src[:30]
    src[30:40], dst[30:40] = src[40:50], dst[40:50]
    mask = rng.random((nodes, splits) if splits else nodes) < 0.3
    return from_edges(src, dst, nodes, {"train_mask": mask}, name="random")


def allowed(weight, total_weight, total, bound):
    """Return the most that a part may take, in exact arithmetic: share times bound, or the share rounded up."""
    share = Fraction(weight, total_weight) * total
    return max(share * Fraction(str(bound)), math.ceil(share))
