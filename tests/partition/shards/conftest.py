"""What tests of DGL's partition directory are given: DGL, which then checks more, and graphs with rich data."""

import numpy as np
import pytest

from dgl_gt.partition.graph import from_edges

pytest.register_assert_rewrite("dgl_partition_cases")  # its checks then say which values differ


@pytest.fixture
def dgl(monkeypatch):
    dgl = pytest.importorskip("dgl")
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")  # load_partition then checks every inner id against its partition book
    return dgl


@pytest.fixture(scope="session")
def rich_graph():
    """A function: seed -> an awkward graph with data of many types."""

    def make(seed, nodes=60, edges=300):
        rng = np.random.default_rng(seed)
        src, dst = rng.integers(0, nodes - 6, (2, edges))  # the last six are isolated
        src[:40], dst[40:80] = 3, 7  # hubs
        src[80:90], dst[80:90] = src[90:100], dst[90:100]  # parallel edges
        dst[100:105] = src[100:105]  # self-loops
        split = rng.integers(0, 2, nodes)
        node_data = {
            "feat": rng.standard_normal((nodes, 5)).astype(np.float32),
            "wide/name": rng.standard_normal((nodes, 2, 3)),
            "label": rng.integers(-1, 3, nodes),
            "small_label": rng.integers(0, 9, nodes).astype(np.int16),
            "half": rng.standard_normal(nodes).astype(np.float16),
            "bits": split.astype(np.uint8),
            "flag": rng.random((nodes, 2)) < 0.5,
            "val_mask": split == 0,
            "test_mask": split == 1,
        }
        edge_data = {"weight": rng.standard_normal((edges, 4)), "kind": rng.integers(0, 5, edges), "on": src < dst}
        return from_edges(src, dst, nodes, node_data, edge_data, name=f"rich-{seed}")

    return make
