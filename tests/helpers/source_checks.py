"""Checks that the tests of all sources share."""

import gzip

import numpy as np
import pytest

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.sources.load import load_graph


def edges(graph):
    """Return the edges as (src, dst) in edge-id order."""
    src, dst = np.empty((2, graph.num_edges), np.int64)
    src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
    return list(zip(src.tolist(), dst.tolist()))


def same(array, expected):
    """The arrays have the same dtype, shape and values."""
    assert array.dtype == expected.dtype and array.shape == expected.shape
    assert np.array_equal(array, expected)


def written(path, text):
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def refused(source, *words, **options):
    """Check that loading raises InputError with a message of one line that contains all the words."""
    with pytest.raises(InputError) as caught:
        load_graph(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
