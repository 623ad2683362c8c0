"""Ranks that fail, together or alone: what the others are told; settings that must agree; groups of some ranks."""

import multiprocessing
import os
import pickle
import signal
import time
from functools import partial

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from ranks import run_ranks
from test_strategies import compare, make_shards, run_model
from whole_graph import csc_of

import dgl_gt
from dgl_gt.comm.failure import FailureDetector
from dgl_gt.comm.group import Comm
from dgl_gt.nn import GraphTransformer
from dgl_gt.train.config import TrainConfig
from dgl_gt.train.trainer import train
from partition import partition
from partition.errors import InputError
from partition.predict.strategies import STRATEGIES

PARTS = 3
BOUND_S = 20  # no measure of speed: a rank that is still waiting then would wait for good
LIMIT_S = 90  # then a rank that hangs is killed, instead of the whole run waiting for it


def prepare():
    """Look for ranks that have stopped ten times a second; and do not wait for good."""
    FailureDetector.poll_s = 0.1
    signal.alarm(LIMIT_S)


def swap(comm, rows=None, pause_s=0.0):
    """Exchange a row with each other rank, and say whether what arrived is right."""
    time.sleep(pause_s)
    counts = [1] * comm.world_size
    rows = torch.full((comm.world_size, 2), float(comm.rank)) if rows is None else rows
    received = comm.exchange(rows, counts, counts)
    return received, received[:, 0].tolist() == list(range(comm.world_size))


def outcome(work):
    """Class and message of what ``work()`` raised, or its result; and how long it took."""
    started = time.monotonic()
    try:
        found = "returned", work()
    except Exception as error:
        found = type(error).__name__, str(error)
    return (*found, time.monotonic() - started)


class Fault(torch.autograd.Function):
    """Fails in backward."""

    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


def before_an_exchange(comm, error):
    swap(comm)
    if error:
        raise error
    swap(comm)


def between_begin_and_finish(comm, error):
    counts = [1] * comm.world_size
    begun = comm.begin(torch.zeros(comm.world_size, 2), counts, counts)
    if error:
        raise error
    comm.finish(begun)
    swap(comm)


def during_backward(comm, error):
    rows = torch.ones(comm.world_size, 2, requires_grad=True)
    first, _ = swap(comm, rows)
    if error:
        first = Fault.apply(first, error)
    swap(comm, first * 2)[0].sum().backward()  # the second exchange's backward is done by all


def before_a_sum_of_gradients(comm, error):
    if error:
        raise error
    comm.sum_gradients([torch.nn.Parameter(torch.zeros(3))])


def before_a_gathering_of_rows(comm, error):
    if error:
        raise error
    comm.gather_rows(torch.zeros(comm.rank, 2))


def work_together(comm, place, error):
    with comm.together():
        place(comm, error)


PLACES = (
    before_an_exchange,
    between_begin_and_finish,
    during_backward,
    before_a_sum_of_gradients,
    before_a_gathering_of_rows,
)
ONE_FAILS = [
    *((place, 1, ValueError("it broke")) for place in PLACES),
    (before_an_exchange, 1, InputError("a bad number")),
    (during_backward, 0, InputError("a bad number")),
    (before_an_exchange, 0, ValueError("it broke")),
    (between_begin_and_finish, 2, KeyError("absent")),
]


def one_fails(rank):
    """Each in a group of its own, which it leaves unusable; all share the ranks' one store."""
    prepare()
    results = []
    for place, culprit, error in ONE_FAILS:
        comm = Comm(dist.new_group(range(PARTS)))

        results.append(outcome(partial(work_together, comm, place, error if rank == culprit else None)))
    comm = Comm(dist.new_group(range(PARTS)))
    # rank 0 is late, so that the others look for one that has stopped
    return results, outcome(lambda: swap(comm, pause_s=0.5 if rank == 0 else 0)[1])


@pytest.fixture(scope="module")
def results_of_one_failing():
    return run_ranks(PARTS, one_fails)


@pytest.mark.parametrize("number", range(len(ONE_FAILS)), ids=[f"{p.__name__}-{c}-{e!r}" for p, c, e in ONE_FAILS])
def test_where_one_rank_fails_the_others_say_why(results_of_one_failing, number):
    _, culprit, error = ONE_FAILS[number]
    is_input = isinstance(error, InputError)
    for rank, (results, _) in enumerate(results_of_one_failing):
        kind, message, seconds = results[number]
        assert seconds < BOUND_S
        if rank == culprit:
            assert (kind, message) == (type(error).__name__, str(error))
        elif is_input:
            assert (kind, message) == ("RankInputError", f"rank {culprit}: {error}")
        else:
            assert (kind, message) == ("RankError", f"rank {culprit} stopped: {type(error).__name__}: {error}")


def test_nothing_is_left_behind_of_ranks_that_failed(results_of_one_failing):
    """In the same processes, a new group exchanges."""
    assert [after[:2] for _, after in results_of_one_failing] == [("returned", True)] * PARTS


def several_fail(rank):
    """Ranks 0 and 1 fail while 2 waits; then all fail, of which the same group recovers."""
    prepare()
    comm = Comm(dist.new_group(range(PARTS)))

    def two_fail():
        with comm.together():
            if rank < 2:
                raise ValueError(f"rank {rank} broke")
            swap(comm)

    two = outcome(two_fail)
    comm = Comm(dist.new_group(range(PARTS)))

    def all_fail():
        with comm.together():
            swap(comm)
            raise InputError("a bad number") if rank == 1 else ValueError(f"rank {rank} broke")

    def all_refuse():
        with comm.together():
            comm.raise_together(InputError("a bad number") if rank == 1 else None)

    every = [outcome(all_fail), outcome(all_refuse)]
    return two, every, outcome(lambda: swap(comm, pause_s=0.5 if rank == 0 else 0)[1])


def test_several_ranks_that_fail_at_once():
    """Each has its own error, and a rank that waits the error of one; a group that all left in one place goes on."""
    for rank, (two, (failed, refused), after) in enumerate(run_ranks(PARTS, several_fail)):
        assert two[2] < BOUND_S and failed[2] < BOUND_S and after[2] < BOUND_S
        if rank < 2:
            assert two[:2] == ("ValueError", f"rank {rank} broke")
        else:
            assert two[0] == "RankError"
            assert two[1] in [f"rank {other} stopped: ValueError: rank {other} broke" for other in (0, 1)]
        assert failed[:2] == (("InputError", "a bad number") if rank == 1 else ("ValueError", f"rank {rank} broke"))
        assert refused[:2] == ("InputError", "a bad number" if rank == 1 else "rank 1: a bad number")
        assert after[:2] == ("returned", True)


def one_is_late(rank, error):
    """Rank 0 waits for the others at once, rank 2 comes when rank 0 has long read why rank 1 stopped."""
    prepare()
    comm = Comm()

    def work():
        with comm.together():
            if rank == 1:
                raise error
            swap(comm, pause_s=1.0 if rank == 2 else 0.0)

    return outcome(work)


@pytest.mark.parametrize("error", [ValueError("it broke"), InputError("a bad number")], ids=repr)
def test_a_rank_that_comes_late_is_told_too(error):
    results = run_ranks(PARTS, one_is_late, error)
    prefix = "rank 1: " if isinstance(error, InputError) else "rank 1 stopped: ValueError: "
    assert [message for _, message, _ in results] == [prefix + str(error), str(error), prefix + str(error)]
    assert max(seconds for *_, seconds in results) < BOUND_S


def test_a_rank_that_stops_after_its_group_has_ended_says_so_all_the_same():
    """And raises its own error."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        detector = FailureDetector(None)
    finally:
        dist.destroy_process_group()
    detector.report(ValueError("it broke"))


def fails_inside_two_contexts(rank):
    """Rank 1 fails; then both exchange in the same group, rank 1 a little later."""
    prepare()
    FailureDetector.linger_s = 0.5
    comm = Comm(dist.new_group(range(2)))

    def work():
        with comm.together(), comm.together():
            if rank == 1:
                raise ValueError("it broke")
            swap(comm)

    first = outcome(work)[:2]
    comm = Comm(dist.new_group(range(2)))
    return first, outcome(lambda: swap(comm, pause_s=1.0 * rank)[1])[:2]


def test_an_error_inside_two_contexts_is_reported_once():
    told, failed = run_ranks(2, fails_inside_two_contexts)
    assert told == (("RankError", "rank 1 stopped: ValueError: it broke"), ("returned", True))
    assert failed == (("ValueError", "it broke"), ("returned", True))


def commands_that_fail_on_one(rank, folder):
    """Rank 1 fails in a prediction, over a model of other features, and in a trial."""
    from dgl_gt.train import predict, trial

    prepare()
    sg = dgl_gt.load(folder)
    found = [outcome(lambda: predict(GraphTransformer(5 + rank, 8, 3, layers=1, heads=2), sg))[:2]]
    trial._load = lambda *_: dgl_gt.load(folder, group=dist.new_group([0, 1]))
    if rank == 1:
        trial.build_model = None
    candidate = trial.Candidate(
        cut="edge", strategy="halo", depth=1, activation_checkpoint="none", directory=str(folder)
    )
    return found + [outcome(lambda: trial._run_trial(candidate, TrainConfig(hidden=8, heads=2), {}, None))[:2]]


def test_a_prediction_and_a_trial_that_fail_on_one_rank_end_on_all(tmp_path):
    partition("sample:communities?nodes=200&features=5", 2, tmp_path / "shards")
    told, failed = run_ranks(2, commands_that_fail_on_one, tmp_path / "shards")
    assert [kind for kind, _ in failed] == ["InputError", "TypeError"]
    assert [kind for kind, _ in told] == ["RankInputError", "RankError"]
    assert told[0][1] == f"rank 1: {failed[0][1]}" and told[1][1] == f"rank 1 stopped: TypeError: {failed[1][1]}"


def one_of_two_groups_fails(rank):
    """Of ranks 0 and 1 the second fails; of ranks 2 and 3 the second is late."""
    prepare()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    comm = Comm(groups[rank // 2])

    def work():
        with comm.together():
            if rank == 1:
                raise ValueError("it broke")
            return swap(comm, pause_s=1.0 if rank == 3 else 0.0)[1]

    return outcome(work)[:2]


def test_a_failure_in_one_group_leaves_the_other_alone():
    told = ("RankError", "rank 1 stopped: ValueError: it broke")
    failed = ("ValueError", "it broke")
    assert run_ranks(4, one_of_two_groups_fails) == [told, failed, ("returned", True), ("returned", True)]


class ToFile:
    """What a rank sends, kept in a file: a rank that dies must not end the others, as it does in ``run_ranks``."""

    def __init__(self, path):
        self.path = path

    def send(self, value):
        self.path.write_bytes(pickle.dumps(value))


def one_dies(rank, waits_in):
    comm = Comm()

    def work():
        with comm.together():
            swap(comm)
            if rank == 1:
                os._exit(3)
            return swap(comm) if waits_in == "exchange" else comm.all_reduce(torch.ones(2))

    return outcome(work)


@pytest.mark.parametrize("waits_in", ["exchange", "all_reduce"])
def test_where_a_rank_dies_the_others_lose_their_connection(tmp_path, waits_in):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "ranks", "dgl_gt.nn", "dgl_gt.train.trainer"])
    processes = []
    for rank in range(PARTS):
        arguments = (rank, PARTS, str(tmp_path), ToFile(tmp_path / f"result{rank}"), one_dies, (waits_in,))
        processes.append(context.Process(target=ranks._rank, args=arguments))
        processes[-1].start()
    try:
        deadline = time.monotonic() + LIMIT_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert [process.exitcode for process in processes] == [0, 3, 0]
        for rank in (0, 2):
            ok, (kind, message, seconds) = pickle.loads((tmp_path / f"result{rank}").read_bytes())
            assert ok and kind == "RankError" and seconds < BOUND_S
            assert message.startswith(f"rank {rank} lost its connection: another rank has ended")
    finally:
        for process in processes:
            process.kill()
            process.join()


def fail_in_training(rank, directory):
    """A rank's own callback fails after the second epoch."""
    prepare()

    def on_epoch(epoch, *_):
        if rank == 1 and epoch == 1:
            raise OSError("no space left")

    sg = dgl_gt.load(directory)
    return outcome(lambda: train(sg, TrainConfig(layers=1, hidden=8, heads=2, epochs=5), on_epoch))


def test_a_training_run_ends_everywhere_where_one_rank_fails(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    told, failed = run_ranks(2, fail_in_training, tmp_path / "shards")
    assert failed[:2] == ("OSError", "no space left")
    assert told[:2] == ("RankError", "rank 1 stopped: OSError: no space left")
    assert max(told[2], failed[2]) < BOUND_S


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
    (("edge", "edge"), (dict(strategy="mirror"),) * 2, "use halo, gather, heads or ring, or partition with --cut vert"),
    (("vertex", "vertex"), (dict(strategy="halo"),) * 2, "use mirror, or partition with --cut edge"),
    (("vertex", "vertex"), (dict(strategy="ring"),) * 2, "holds a vertex cut; use mirror"),
    (
        ("vertex", "vertex"),
        (dict(depth=2),) * 2,
        "depth is 2 with strategy mirror; only halo can have a depth beyond 1",
    ),
    (("edge", "edge"), (dict(depth=3),) * 2, "stores 2 hops of halo; use at most 2, or partition with --halo-depth 3"),
    (("other", "other"), (dict(depth=2),) * 2, "stores 1 hop of halo"),
    (("edge", "edge"), (dict(strategy="gather", depth=2),) * 2, "depth is 2 with strategy gather; only halo can"),
    (("edge", "edge"), (dict(strategy="halo_kv", depth=2),) * 2, "depth is 2 with strategy halo_kv"),
    (("edge", "edge"), (dict(depth=0),) * 2, "depth is 0; it must be an integer of at least 1"),
    (("edge", "edge"), (dict(depth=1.5),) * 2, "depth is 1.5; it must be an integer"),
    (("edge", "edge"), (dict(strategy="local"),) * 2, "strategy local runs on one part, and"),
    (("three", "three"), (dict(),) * 2, "has 3 parts, but the number of ranks is 2; start 3"),
    (("absent", "absent"), (dict(),) * 2, "absent"),
    # wrong on one rank alone
    (("edge", "absent"), (dict(),) * 2, "absent"),
    (("edge", "three"), (dict(),) * 2, "has 3 parts"),
    (("edge", "edge"), (dict(), dict(strategy="mirror")), "use halo, gather, heads or ring"),
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
    results.append(outcome(lambda: train(sg, TrainConfig(layers=1, hidden=9, heads=3, epochs=1)))[:2])
    return results, swap(sg.comm)[1]


@pytest.fixture(scope="module")
def results_of_loading(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for name, source, parts, options in (
        ("edge", "sample:communities?nodes=200&features=5&seed=1", 2, dict(halo_depth=2)),
        ("vertex", "sample:communities?nodes=200&features=5&seed=1", 2, dict(cut="vertex")),
        ("other", "sample:communities?nodes=200&features=5&seed=2", 2, dict()),
        ("three", "sample:communities?nodes=200&features=5&seed=1", 3, dict()),
    ):
        partition(source, parts, folder / name, **options)
    return run_ranks(2, load_wrongly, folder)


@pytest.mark.parametrize("number", range(len(DIFFERENT + BAD)), ids=[case[2][:50] for case in DIFFERENT + BAD])
def test_load_refuses_on_every_rank_what_does_not_fit(results_of_loading, number):
    for results, _ in results_of_loading:
        kind, message = results[number]
        assert kind == "InputError" and (DIFFERENT + BAD)[number][2] in message


def test_heads_that_ranks_cannot_share_are_refused_at_the_first_step(results_of_loading):
    """By a model alone and by the trainer; and the ranks go on to exchange."""
    for results, goes_on in results_of_loading:
        for kind, message in results[-2:]:
            assert kind == "InputError"
            assert message.startswith("heads is 3, which 2 ranks cannot share evenly; choose a multiple of 2")
        assert goes_on


def in_groups(rank, folders, cases, feats, biases):
    """Ranks 0 and 2 share the first graph, 1 and 3 the second."""
    prepare()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    team = rank % 2
    feat, bias, results = feats[team], biases[team], []
    for strategy, depth, overlap, dtype in cases:
        directory = folders[team] / ("vertex" if strategy == "mirror" else "edge")
        sg = dgl_gt.load(directory, strategy, depth, group=groups[team], overlap=overlap)
        out, feat_grad, bias_grad, parameters = run_model(sg, feat[sg.node_ids], bias[sg.edge_ids], dtype)
        edges, rows = (torch.cat(sg.comm.gather_rows(x)) for x in (sg.edge_ids, bias_grad))
        bias_grad = torch.empty_like(rows).index_copy_(0, edges, rows).double().numpy()
        results.append((*(sg.gather(x).double().numpy() for x in (out, feat_grad)), bias_grad, parameters))
    return results


def test_two_groups_of_ranks_each_train_on_shards_of_their_own(awkward_graph, tmp_path):
    """Every strategy at once in both, each the same as one process on its graph."""
    graphs = [awkward_graph(21), awkward_graph(22)]
    folders = [tmp_path / "first", tmp_path / "second"]
    for graph, folder in zip(graphs, folders):
        make_shards(graph, 2, folder)
    cases = [(name, 1, True, torch.float64) for name in STRATEGIES if name != "local"]
    cases += [("halo", 2, True, torch.float64), ("ring", 1, False, torch.float32)]
    generator = torch.Generator().manual_seed(3)
    feats = [torch.randn(graph.num_nodes, 5, generator=generator) for graph in graphs]
    biases = [torch.randn(graph.num_edges, 12, generator=generator) for graph in graphs]
    expected = {
        (team, dtype): run_model(csc_of(graph), feats[team], biases[team], dtype)
        for team, graph in enumerate(graphs)
        for dtype in (torch.float64, torch.float32)
    }
    assert not np.allclose(expected[0, torch.float64][0], expected[1, torch.float64][0])
    for rank, results in enumerate(run_ranks(4, in_groups, folders, cases, feats, biases)):
        for case, found in zip(cases, results, strict=True):
            compare(expected[rank % 2, case[3]], found, case[3], f"rank {rank}, {case}:")
