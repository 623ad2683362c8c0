"""A task trained by one process and by several ranks: losses, metrics and predictions are the same to 1e-9."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.train import predict
from dgl_gt.train.config import read_config
from dgl_gt.train.predictions import embed
from dgl_gt.train.run import train

STRATEGIES = ["halo_h", "halo_kv", "gather", "heads", "ring", "mirror"]


def on_ranks(kinds):
    """Each kind on 2, 3 and 4 ranks, all but one of which run only with ``--slow``."""
    cases = [(kind, parts, parts - 2 == place % 3) for place, kind in enumerate(kinds) for parts in (2, 3, 4)]
    return pytest.mark.parametrize(
        ("kind", "parts"), [(kind, parts) if is_quick else slow(kind, parts) for kind, parts, is_quick in cases]
    )


def run_on_rank(rank, folder, settings, strategies):
    torch.set_default_dtype(torch.float64)
    found = []
    for strategy in strategies:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
        result = train(sg, read_config(**settings))
        answer = (embed if settings["task"] == "pretrain" else predict)(result.model, sg)
        answers = {} if answer is None else {name: value.tolist() for name, value in answer._asdict().items()}
        found.append((result.losses, result.validations, result.test, answers))
    return found


def trained_alone(graph, settings, folder, **options):
    """What one process gives; ``options`` are those of the partition."""
    partition(graph, 1, folder / "1" / "edge", **options)
    (expected,) = run_ranks(1, run_on_rank, folder / "1", settings, ["halo_h"])[0]
    assert len(set(expected[0])) == len(expected[1]) == settings["epochs"]  # steps change the weights
    return expected


def check_ranks(graph, settings, folder, expected, parts, strategies, **options):
    """Train on so many ranks with each of the strategies, and compare."""
    folder = folder / str(parts)
    for cut in ("edge", "vertex") if "mirror" in strategies else ("edge",):
        partition(graph, parts, folder / cut, cut=cut, **options)
    for found in run_ranks(parts, run_on_rank, folder, settings, strategies):
        for strategy, (losses, validations, test, answers) in zip(strategies, found, strict=True):
            for mine, theirs in ((losses, expected[0]), (validations, expected[1]), (test, expected[2])):
                np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{strategy}, {parts}")
            for name, values in answers.items():
                rtol = 1e-6 if name == "embedding" else 1e-9  # it is float32
                np.testing.assert_allclose(
                    values, expected[3][name], rtol=rtol, atol=1e-7 if rtol > 1e-9 else 1e-12, err_msg=strategy
                )
