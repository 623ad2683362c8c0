"""What the tests of memory bounds share: sources, their bounds, and runs of the command."""

import json

import numpy as np

from dgl_gt.cli.main import main
from dgl_gt.partition.config import PartitionConfig
from dgl_gt.partition.memory_bound import SourceSizes, estimate_needs, measure_source
from dgl_gt.partition.sources.load import open_source

SAMPLE = "sample:communities?nodes=400&seed=1"


def sizes(**changes):
    """Return the sizes of a source of a million nodes, but for what ``changes`` says."""
    figures = dict(nodes=10**6, edges=10**7, parts=8, undirected_edges=5 * 10**6, node_bytes=400, edge_bytes=16)
    return SourceSizes(**{**figures, "loaded_bytes": 0, "is_graph": False, **changes})


def npz(name="graph.npz", nodes=300, edges=2000, seed=0, save=np.savez, **changes):
    """Write random edges, or what ``changes`` says, into the current folder; return the name of the file."""
    rng = np.random.default_rng(seed)
    arrays = {"edge_index": rng.integers(0, nodes, (2, edges)), "num_nodes": nodes, **changes}
    save(name, **{key: value for key, value in arrays.items() if value is not None})
    return name


class Said:
    """A progress callback that keeps the stages."""

    def __init__(self):
        self.stages = []

    def __call__(self, stage, *_):
        self.stages.append(stage)


def sizes_of(source, parts, **settings):
    """Return the sizes of an opened source for a partition with these settings."""
    return measure_source(source, PartitionConfig(parts=parts, **settings))


def bound(source, method, parts=2, **settings):
    """Return the least memory with which the method is chosen."""
    return estimate_needs(sizes_of(open_source(source), parts, **settings), method).memory_bytes


def run(capsys, *arguments):
    """Run a command with ``--json``; return its exit code, its JSON or None, and stderr."""
    try:
        code = main([*map(str, arguments), "--json"])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out) if out else None, err
