"""A run goes on with fewer ranks, on another cut and with another strategy: the same losses."""

import shutil

import numpy as np
import pytest
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.run_files.run_directory import checkpoints_in
from dgl_gt.train import read_config, train_and_save
from dgl_gt.train.run_state import data_digest

CONFIG = read_config(epochs=12, layers=2, hidden=16, heads=4, dropout=0.3, attention_dropout=0.1, patience=0, lr=0.01)
CASES = {
    "adam, plateau": {"optimizer": "adam", "weight_decay": 0.01, "schedule": "plateau", "patience": 12},
    "trained rows": {"node_embedding": 6},
    "two phases, batch norm": {
        "architecture": "gnn",
        "score": "additive",
        "global_attention": "polynormer",
        "norm": "batch",
        "local_epochs": 6,
    },
}


@pytest.fixture(scope="module")
def cuts(awkward_graph, tmp_path_factory):
    """Edge cuts into 1, 2 and 4 parts, and a vertex cut into two; rank 1 of four owns no labelled row of its own choice."""
    folder = tmp_path_factory.mktemp("cuts")
    for parts in (1, 2, 4):
        partition(awkward_graph(7), parts, folder / f"edge{parts}")
    partition(awkward_graph(7), 2, folder / "vertex2", cut="vertex")
    return folder


def trained(rank, shards, out, config, **options):
    """Losses and validations of a run, which every rank must agree on."""
    _, record = train_and_save(dgl_gt.load(shards), config, out, **options)
    return record.losses, record.validations, record.metric


def run(parts, *args, **options):
    first, *others = run_ranks(parts, _trained, args, options)
    assert all(each == first for each in others)
    return first


def _trained(rank, args, options):
    return trained(rank, *args, **options)


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_with_four_two_and_one_ranks_and_on_a_vertex_cut(cuts, tmp_path, case):
    config, out = CONFIG.changed(**CASES[case]), tmp_path / "run"
    losses, validations, metric = run(4, cuts / "edge4", tmp_path / "full", config.changed(checkpoint_every=4))
    shutil.copytree(tmp_path / "full", out)
    (out / "checkpoint-000008.safetensors").unlink(missing_ok=True)
    same = run(4, cuts / "edge4", tmp_path / "run", config, resume=True)
    assert same == (losses, validations, metric)  # to the last bit
    for shards, parts in (("edge2", 2), ("edge1", 1), ("vertex2", 2)):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "full", out)
        (out / "checkpoint-000008.safetensors").unlink()
        found = run(parts, cuts / shards, out, config, resume=True)
        np.testing.assert_allclose(found[0], losses, rtol=1e-4, atol=0, err_msg=shards)
        assert found[0][:4] == losses[:4] and found[0][4:] != losses[4:]


def test_ranks_that_share_nothing_but_the_run_of_rank_0(cuts, tmp_path):
    """Only rank 0 sees the directory, as on machines of their own."""
    full = run(2, cuts / "edge2", tmp_path / "a", CONFIG.changed(checkpoint_every=5))
    assert len(checkpoints_in(tmp_path / "a")) == 2
    first, second = run_ranks(2, _on_its_own_disk, cuts / "edge2", tmp_path)
    assert first == second == full


def _on_its_own_disk(rank, shards, folder):
    out = folder / ("a" if rank == 0 else "absent")
    return trained(rank, shards, out, CONFIG, resume=out.exists())  # what rank 0 says holds


def digest_on_rank(rank, shards):
    return data_digest(dgl_gt.load(shards), ["feat", "label", "train_mask"])


def test_every_cut_of_a_graph_has_the_same_digest(cuts):
    found = [
        run_ranks(parts, digest_on_rank, cuts / name) for name, parts in (("edge1", 1), ("edge4", 4), ("vertex2", 2))
    ]
    assert all(each == found[0][0] for ranks in found for each in ranks)


def refused(rank, shards, out, options, config=CONFIG):
    try:
        train_and_save(dgl_gt.load(shards), config, out, **options)
    except ValueError as error:
        return str(error)


def refused_on_nan(rank, shards, out):
    return refused(rank, shards, out, {}, CONFIG.changed(on_nan=("stop", "skip")[rank]))


def test_ranks_that_disagree_end(cuts, tmp_path):
    for text in run_ranks(2, refused_on_nan, cuts / "edge2", tmp_path / "run"):
        assert "on_nan is 'stop' on rank 0 but 'skip' on rank 1" in text


@pytest.mark.parametrize("options", [{}, {"resume": True}], ids=["exists", "no checkpoint"])
def test_what_only_rank_0_sees_ends_all_ranks(cuts, tmp_path, options):
    (tmp_path / "run").mkdir()
    first, second = run_ranks(2, refused, cuts / "edge2", tmp_path / "run", options)
    assert ("exists" if not options else "holds no checkpoint") in first and second.startswith("rank 0: ")
