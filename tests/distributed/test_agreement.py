"""Settings and shards that differ among ranks or do not fit: every rank is told the same."""

from functools import partial

import numpy as np
import pytest
from failing_ranks import PARTS, outcome, prepare, swap
from ranks import run_ranks

import dgl_gt
from dgl_gt.comm.group import Comm
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import partition
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train


def disagree(rank):
    """Settings by rank, and what each said of them."""
    comm, results = Comm(), []
    for settings in (
        {"lr": 0.1, "layers": 2},
        {"lr": 0.1 * (1 + (rank == 2)), "layers": 2},
        {"lr": 0.1, **({"layers": 3} if rank != 1 else {})},
        {"metric": ["auto", "accuracy", "accuracy"][rank]},
    ):
        results.append(outcome(partial(comm.check_agreement, settings))[:2])
    return results


def test_settings_that_differ_are_named_with_both_values_and_ranks():
    same, lr, layers, metric = zip(*run_ranks(PARTS, disagree))
    hint = "; start every rank with the same settings and shards"
    assert set(same) == {("returned", None)}
    assert set(lr) == {("InputError", f"lr is 0.1 on rank 0 but 0.2 on rank 2{hint}")}
    assert set(layers) == {("InputError", f"layers is 3 on rank 0 but None on rank 1{hint}")}
    assert set(metric) == {("InputError", f"metric is 'auto' on rank 0 but 'accuracy' on rank 1{hint}")}


# Of each rank the shards, and arguments of load; and what every rank's error says.
DIFFERENT = [
    (("edge", "edge"), (dict(strategy="halo"), dict(strategy="gather")), "strategy is 'halo_h' on rank 0 but 'gather'"),
    (("edge", "edge"), (dict(), dict(strategy="ring")), "strategy is 'halo_h' on rank 0 but 'ring' on rank 1"),
    (("edge", "edge"), (dict(depth=1), dict(depth=2)), "depth is 1 on rank 0 but 2 on rank 1"),
    (("edge", "edge"), (dict(), dict(overlap=False)), "overlap is True on rank 0 but False on rank 1"),
    (("edge", "edge"), (dict(), dict(strategy="halo_kv")), "strategy is 'halo_h' on rank 0 but 'halo_kv' on rank 1"),
    (("edge", "other"), (dict(), dict()), "shards is "),
    (("edge", "vertex"), (dict(), dict()), "shards is "),
]
BAD = [
    (("edge", "edge"), (dict(strategy="nope"),) * 2, "strategy is 'nope'; it must be one of halo, local"),
    (("edge", "edge"), (dict(strategy=np.zeros((2, 0))),) * 2, "strategy is array([], shape=(2, 0)"),
    (("edge", "edge"), (dict(strategy=np.zeros((2, 2))),) * 2, "strategy is array([[0., 0.],"),
    (("edge", "edge"), (dict(depth=True),) * 2, "depth is True; it must be an integer of at least 1"),
    (("edge", "edge"), (dict(device="x"),) * 2, "device is 'x'; it must be a device that torch has here"),
    (("edge", "edge"), (dict(device=1.5),) * 2, "device is 1.5; it must be a device that torch has here"),
    (("edge", "edge"), (dict(device=np.zeros(2)),) * 2, "device is array"),
    (("edge", "edge"), (dict(strategy=""),) * 2, "strategy is ''; it must be one of halo, local"),
    (
        ("edge", "edge"),
        (dict(strategy="mirror"),) * 2,
        "use halo, gather, heads, ring or mesh=M, or partition with --cut vert",
    ),
    (("vertex", "vertex"), (dict(strategy="halo"),) * 2, "use mirror, or partition with --cut edge"),
    (("vertex", "vertex"), (dict(strategy="ring"),) * 2, "holds a vertex cut; use mirror"),
    (
        ("vertex", "vertex"),
        (dict(depth=2),) * 2,
        "depth is 2 with strategy mirror; only halo can go beyond 1",
    ),
    (("edge", "edge"), (dict(depth=3),) * 2, "stores 2 hops of halo; use at most 2, or partition with --halo-depth 3"),
    (("other", "other"), (dict(depth=2),) * 2, "stores 1 hop of halo"),
    (("edge", "edge"), (dict(strategy="gather", depth=2),) * 2, "depth is 2 with strategy gather; only halo can"),
    (("edge", "edge"), (dict(strategy="halo_kv", depth=2),) * 2, "depth is 2 with strategy halo_kv"),
    (("edge", "edge"), (dict(depth=0),) * 2, "depth is 0; it must be an integer of at least 1"),
    (("edge", "edge"), (dict(depth=1.5),) * 2, "depth is 1.5; it must be an integer"),
    (("edge", "edge"), (dict(strategy="local"),) * 2, "strategy local runs on one part, and"),
    (("one", "one"), (dict(),) * 2, "start at most 1"),
    (("absent", "absent"), (dict(),) * 2, "absent"),
    # wrong on one rank alone
    (("edge", "absent"), (dict(),) * 2, "absent"),
    (("edge", "one"), (dict(),) * 2, "has 1 part"),
    (("edge", "edge"), (dict(), dict(strategy="mirror")), "use halo, gather, heads, ring or mesh=M"),
    (("edge", "edge"), (dict(), dict(strategy="nope")), "strategy is 'nope'"),
]


def load_wrongly(rank, folder):
    prepare()
    results = []
    for names, arguments, _ in DIFFERENT + BAD:
        results.append(outcome(partial(dgl_gt.load, folder / names[rank], **arguments[rank]))[:2])
    sg = dgl_gt.load(folder / "edge", "heads")
    model = GraphTransformer(5, 9, 3, layers=1, heads=3)
    results.append(outcome(lambda: model(sg, sg.ndata["feat"]))[:2])
    results.append(outcome(lambda: train(sg, read_config(layers=1, hidden=9, heads=3, epochs=1)))[:2])
    return results, swap(sg.comm)[1]


@pytest.fixture(scope="module")
def results_of_loading(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for name, source, parts, options in (
        ("edge", "sample:communities?nodes=200&features=5&seed=1", 2, dict(halo_depth=2)),
        ("vertex", "sample:communities?nodes=200&features=5&seed=1", 2, dict(cut="vertex")),
        ("other", "sample:communities?nodes=200&features=5&seed=2", 2, dict()),
        ("one", "sample:communities?nodes=200&features=5&seed=1", 1, dict()),
    ):
        partition(source, parts, folder / name, **options)
    return run_ranks(2, load_wrongly, folder)


@pytest.mark.parametrize("number", range(len(DIFFERENT + BAD)), ids=[case[2][:50] for case in DIFFERENT + BAD])
def test_load_refuses_on_every_rank_what_does_not_fit(results_of_loading, number):
    for results, _ in results_of_loading:
        kind, message = results[number]
        # a slow rank learns of the other's error before it has gathered both
        assert kind in ("InputError", "RankInputError") and (DIFFERENT + BAD)[number][2] in message


def test_heads_that_ranks_cannot_share_are_refused_at_the_first_step(results_of_loading):
    """By a model alone and by the trainer; and the ranks go on to exchange."""
    for results, goes_on in results_of_loading:
        for kind, message in results[-2:]:
            assert kind == "InputError"
            assert message.startswith("heads is 3, which 2 ranks cannot share evenly; choose a multiple of 2")
        assert goes_on
