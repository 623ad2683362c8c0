"""The settings of ``partition``: its keyword arguments, its options on the command line, and the config they become."""

import argparse
import inspect
from dataclasses import MISSING, fields

import pytest

from dgl_gt.partition import load_graph, make_edge_cut, partition
from dgl_gt.partition.command_options import READING, add_options
from dgl_gt.partition.config import PartitionConfig
from dgl_gt.partition.cuts.edge_cut import EdgeCutOptions
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.sources.options import SourceOptions


@pytest.mark.parametrize(
    ("call", "config", "others"),
    [
        (partition, PartitionConfig, {"source", "out", "force", "progress", "engine", "worker_memory", "resume"}),
        (load_graph, SourceOptions, {"source"}),
        (make_edge_cut, EdgeCutOptions, {"graph", "parts", "progress"}),
    ],
)
def test_a_call_takes_what_its_config_has_with_the_same_defaults(call, config, others):
    parameters = inspect.signature(call).parameters
    assert parameters.keys() == others | {each.name for each in fields(config)}
    for each in fields(config):
        assert parameters[each.name].default == (inspect.Parameter.empty if each.default is MISSING else each.default)


def test_every_setting_but_the_owner_is_an_option_of_the_same_name():
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = {action.dest for action in parser._actions}
    assert {each.name for each in fields(PartitionConfig)} - options == {"owner"}
    assert set(READING) <= options & {each.name for each in fields(SourceOptions)}


@pytest.mark.parametrize("name", ["parts", "halo_depth", "memory", "rank_memory"])
def test_counts_start_at_one(name):
    with pytest.raises(InputError, match=f"{name} is 0"):
        PartitionConfig(**{"parts": 2, name: 0})
