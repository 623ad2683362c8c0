"""Shards to choose from, made once, and commands run in this process."""

import subprocess

import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import load_graph, partition

GRAPH = "sample:communities?nodes=1000&features=12&seed=0"


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """A folder with cuts of one graph into two parts: ``edge`` with two hops of halo, and ``vertex``."""
    made = tmp_path_factory.mktemp("selector")
    graph = load_graph(GRAPH)
    partition(graph, 2, made / "edge", halo_depth=2)
    partition(graph, 2, made / "vertex", cut="vertex")
    return made


@pytest.fixture
def both(shards):
    """The directories of both cuts."""
    return [shards / "edge", shards / "vertex"]


@pytest.fixture
def here(capsys):
    """A function that runs a command in this process; gives its exit code and what it printed."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:  # argparse
            code = stopped.code
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call
