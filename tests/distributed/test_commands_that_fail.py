"""A prediction, a trial and a training run that fail on one rank end on all."""

import torch.distributed as dist
from failing_ranks import BOUND_S, outcome, prepare
from ranks import run_ranks

import dgl_gt
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import partition
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train


def commands_that_fail_on_one(rank, folder):
    """Rank 1 fails in a prediction, over a model of other features, and in a trial."""
    from dgl_gt.plan import trial
    from dgl_gt.train import predict

    prepare()
    sg = dgl_gt.load(folder)
    found = [outcome(lambda: predict(GraphTransformer(5 + rank, 8, 3, layers=1, heads=2), sg))[:2]]
    trial._load = lambda *_: dgl_gt.load(folder, group=dist.new_group([0, 1]))
    if rank == 1:
        trial.prepare = None
    candidate = trial.Candidate(
        cut="edge", strategy="halo", depth=1, activation_checkpoint="none", directory=str(folder)
    )
    return found + [outcome(lambda: trial._run_trial(candidate, read_config(hidden=8, heads=2), {}, None))[:2]]


def test_a_prediction_and_a_trial_that_fail_on_one_rank_end_on_all(tmp_path):
    partition("sample:communities?nodes=200&features=5", 2, tmp_path / "shards")
    told, failed = run_ranks(2, commands_that_fail_on_one, tmp_path / "shards")
    assert [kind for kind, _ in failed] == ["InputError", "TypeError"]
    assert [kind for kind, _ in told] == ["RankInputError", "RankError"]
    assert told[0][1] == f"rank 1: {failed[0][1]}" and told[1][1] == f"rank 1 stopped: TypeError: {failed[1][1]}"


def fail_in_training(rank, directory):
    """A rank's own callback fails after the second epoch."""
    prepare()

    def on_epoch(epoch, *_):
        if rank == 1 and epoch == 1:
            raise OSError("no space left")

    sg = dgl_gt.load(directory)
    return outcome(lambda: train(sg, read_config(layers=1, hidden=8, heads=2, epochs=5), on_epoch=on_epoch))


def test_a_training_run_ends_everywhere_where_one_rank_fails(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    told, failed = run_ranks(2, fail_in_training, tmp_path / "shards")
    assert failed[:2] == ("OSError", "no space left")
    assert told[:2] == ("RankError", "rank 1 stopped: OSError: no space left")
    assert max(told[2], failed[2]) < BOUND_S
