"""A graph and cuts of it, made once, of which steps are traced."""

import numpy as np
import pytest
from traced_steps import CLASSES, FEATURES

from dgl_gt.partition import from_edges, partition


@pytest.fixture(scope="session")
def graph():
    """Half of the edges near, half anywhere, some of them from hubs, and isolated nodes at the end."""
    rng = np.random.default_rng(0)
    nodes, edges = 3000, 30_000
    src, dst = rng.integers(0, nodes, (2, edges))
    src[: edges // 2] = (dst[: edges // 2] + rng.integers(-30, 30, edges // 2)) % nodes
    src[-edges // 20 :] = rng.integers(0, 5, edges // 20)
    data = {"feat": rng.standard_normal((nodes, FEATURES)), "label": rng.integers(0, CLASSES, nodes)}
    data["feat"] = data["feat"].astype(np.float32)
    return from_edges(src, dst, nodes, data, {"weight": rng.standard_normal((edges, 2))})


@pytest.fixture(scope="session", params=[2, 4])
def shards(request, graph, tmp_path_factory):
    """A directory with an edge cut and a vertex cut."""
    folder = tmp_path_factory.mktemp("cuts")
    partition(graph, request.param, folder / "edge", halo_depth=2)
    partition(graph, request.param, folder / "vertex", cut="vertex")
    return folder
