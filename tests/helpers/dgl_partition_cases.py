"""What the tests of DGL's partition directory share: owners, exports, and how shards and refusals look."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.partition import partition, read_manifest, verify
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.dgl_export import export_dgl


def original_edges(graph):
    """Sources and destinations in the user's edge order, (2, E)."""
    ends = np.empty((2, graph.num_edges), np.int64)
    ends[:, graph.edge_ids] = graph.indices, graph.destinations()
    return ends


def owners(graph, parts, seed=0, empty=None):
    """A random owner of each node; the part ``empty`` owns none."""
    owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
    owner[owner == empty] = parts - 1 if empty != parts - 1 else 0
    return owner


def exported(graph, owner, parts, tmp_path, **options):
    """Shards in ``tmp_path / "shards"`` and their export; the json of the latter."""
    partition(graph, parts, tmp_path / "shards", owner=owner, **options)
    return export_dgl(tmp_path / "shards", tmp_path / "dgl", graph_name="g")


def original(config, part):
    """The user's ids of the inner nodes and inner edges of an exported part."""
    ids = load_file(config.parent / f"part{part}" / "original_ids.safetensors")
    return ids["node_ids"], ids["edge_ids"]


def assert_same_shards(first, second):
    """Both directories hold the same shards, whatever their source was called."""
    one, other = read_manifest(first), read_manifest(second)
    assert one["files"] == other["files"]  # sizes and checksums
    assert {**one, "source": 0, "checksum": 0} == {**other, "source": 0, "checksum": 0}
    verify(second, other)


def refused(function, *arguments, words, **options):
    """The call raises an InputError of one line, in which all the words are."""
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
