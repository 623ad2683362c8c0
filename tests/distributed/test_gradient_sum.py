"""Gradients that are summed in buckets during backward: the same as after it, on ranks that differ in every way."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from test_strategies import make_shards
from traced_steps import measured

import dgl_gt
from dgl_gt.comm import gradient_sum
from dgl_gt.comm.group import Comm
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint, set_dropout_step
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import HALO, NAMES
from dgl_gt.plan import report_costs
from dgl_gt.plan.stand_in import make_layout, stand_in

CASES = [(name, 1, "none") for name in NAMES if name != "local"]
CASES += [("halo", 2, "none"), ("halo_h", 1, "full"), ("mirror", 1, "keep_exchanges")]


class Watched(Comm):
    """Counts the sums that have started."""

    started = 0

    def start_sum(self, total):
        self.started += 1
        return super().start_sum(total)


def of_models(rank, folder):
    """Gradients after and during backward for each case; the masks of dropout are the same in both."""
    gradient_sum.BUCKET_BYTES = 2048
    found = []
    for strategy, depth, mode in CASES:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth, timeout_s=60)
        sg.comm.__class__ = Watched
        torch.manual_seed(0)
        model = GraphTransformer(5, 24, 3, 3, 12, dropout=0.3).double()
        model.layers[2].ffn[0] = model.layers[0].ffn[0]  # a projection that two layers share
        apply_activation_checkpoint(model, mode)
        parameters = [*torch.nn.Linear(40, 40).double().parameters(), *model.parameters()]  # of which two are not used
        for sums in (sg.comm.summing_gradients, None):
            for each in parameters:
                each.grad = None
            set_dropout_step(model, 1, 2)
            with sums(parameters) if sums else torch.enable_grad():
                model(sg, sg.ndata["feat"].double()).pow(2).sum().backward()
                early = sg.comm.started
            if not sums:
                sg.comm.sum_gradients(parameters)
            found.append(((early, sg.comm.started), [each.grad.numpy().copy() for each in parameters]))
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
def test_models_with_shared_and_unused_parameters_on_ranks_of_which_one_is_empty(awkward_graph, tmp_path, parts):
    graph = awkward_graph(parts)
    owner = np.random.default_rng(parts).integers(0, max(parts - 1, 1), graph.num_nodes)
    make_shards(graph, parts, tmp_path, owner)
    for found in run_ranks(parts, of_models, tmp_path):
        for ((early, started), during), (_, after) in zip(found[::2], found[1::2], strict=True):
            assert 0 < early < started or parts == 1
            for one, other in zip(during, after, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(abs(each).max() for each in after))


def odd_steps(rank):
    """What ranks that compute other gradients, in another order, once or twice, get; and with an error in between."""
    gradient_sum.BUCKET_BYTES, comm = 64, Comm(timeout_s=60)
    weights = [torch.nn.Parameter(torch.full((20,), float(number))) for number in range(6)]
    weights += [torch.nn.Parameter(torch.ones(30, dtype=torch.float64)), torch.nn.Parameter(torch.ones(2).bfloat16())]

    def loss(numbers):
        return sum((number + 1) * (rank + 1) * weights[number].sum() for number in numbers)

    orders = {0: [0, 1, 2, 3, 4, 5, 6, 7], 1: [7, 5, 6, 3, 1], 2: []}
    with comm.summing_gradients(weights):
        if orders[rank]:
            loss(orders[rank]).backward()
    first = [float(each.grad.double().mean()) for each in weights]
    for each in weights:
        each.grad = None
    with pytest.raises(ValueError, match="in the block"), comm.summing_gradients(weights):
        loss([0]).backward()
        raise ValueError("in the block")
    for each in weights:
        each.grad = None
    loss([5]).backward()  # a gradient from before the block counts, too
    with comm.summing_gradients(weights):
        for _ in range(2 if rank == 1 else 1):  # the second pass changes what has started to travel
            loss(range(8)).backward()
    return first, [float(each.grad.double().mean()) for each in weights]


def test_ranks_that_compute_other_gradients_or_some_twice():
    for first, second in run_ranks(3, odd_steps):
        of_rank_1 = [0, 2, 0, 2, 0, 2, 2, 2]
        assert first == [(number + 1) * (1 + of_rank_1[number]) for number in range(8)]
        assert second == [(number + 1) * (1 + 2 * 2 + 3 + (6 if number == 5 else 0)) for number in range(8)]


def halved(parameters):
    for each in parameters:
        each.grad.mul_(0.5)


def halved_unseen(parameters):
    """By a way that torch does not count as a change."""
    for each in parameters:
        each.grad.data.mul_(0.5)


def unscaled(parameters):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD(parameters))


def masked(parameters):
    for each in parameters:
        each.grad[:5] = 0


def replaced(parameters):
    for each in parameters:
        each.grad = each.grad * 3


def flipped(parameters):
    """The same numbers at other places."""
    for each in parameters:
        each.grad = each.grad.flip(0)


def removed(parameters):
    torch.optim.SGD(parameters).zero_grad()


CHANGES = [halved, halved_unseen, unscaled, masked, replaced, flipped, removed]
CHANGES += [lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0)]
CHANGES += [lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.5)]


def changed_inside(rank, change):
    """Gradients that one rank, or both, change after backward: with a block, and with a sum at the end."""
    gradient_sum.BUCKET_BYTES, comm = 64, Comm(timeout_s=60)
    # a number of words by which a plain sum of bits would not change where all are halved
    weights = [torch.nn.Parameter(torch.ones(size, dtype=torch.float64)) for size in (4096, 4096)]
    weights += [torch.nn.Parameter(torch.ones(21, dtype=dtype)) for dtype in (*3 * [torch.float32], torch.float64)]
    results = []
    for changing in ([1], [0, 1]):
        for is_inside in (True, False):
            for each in weights:
                each.grad = None
            with comm.summing_gradients(weights) if is_inside else torch.enable_grad():
                sum((torch.linspace(1, 2, len(each)) * (rank + 1) * each).sum() for each in weights).backward()
                if rank in changing:
                    change(weights)
            if not is_inside:
                comm.sum_gradients(weights)
            results.append(np.concatenate([each.grad.numpy() for each in weights]))
    return results


def all_changes(rank):
    return [changed_inside(rank, change) for change in CHANGES]


def test_what_changes_gradients_inside_the_block_counts():
    for by_change in run_ranks(2, all_changes):
        for inside, after, both_inside, both_after in by_change:
            np.testing.assert_allclose(inside, after, rtol=1e-6)
            np.testing.assert_allclose(both_inside, both_after, rtol=1e-6)
            assert not np.allclose(inside, both_inside)


def test_the_last_layers_come_first_and_small_models_have_one_bucket():
    def of(*counts):
        parameters = [torch.nn.Parameter(torch.zeros(each)) for each in counts]
        return [[each.numel() for each in bucket] for bucket in gradient_sum._buckets(parameters)]

    many = gradient_sum.BUCKET_BYTES // 4
    assert of(1, 2, 3) == [[3, 2, 1]]
    assert of(1, many, 2, 3) == [[3, 2, many], [1]]
    assert of(many + 1, many, 7) == [[7, many], [many + 1]]
    assert of() == []


def test_a_stand_in_announces_the_same_sums():
    """Of a wide model in buckets, and of a small one in one sum."""
    sg = stand_in(make_layout(HALO, 1, 2, 0, {}, {}), HALO, 1)
    for width, kinds in ((1024, ["begin_sum", "begin_sum", "wait_sum", "wait_sum"]), (8, ["sum"])):
        events, model = [], torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
        model = torch.nn.Sequential(torch.nn.Linear(8, width), model)
        sg.comm.transport.listener = lambda kind, what=(), *sizes: events.append((kind, *sizes))  # noqa: B023
        with sg.comm.summing_gradients(model.parameters()):
            model(torch.ones(3, 8)).sum().backward()
        assert [kind for kind, *_ in events] == kinds
        flag = len(kinds) > 1  # a number more
        assert sum(sum(sizes) for _, *sizes in events) == 4 * (sum(p.numel() for p in model.parameters()) + flag)


def wide_step(sg):
    """A step of a model whose gradients fill several buckets."""
    model = GraphTransformer(5, 256, 3, 2, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        with sg.comm.summing_gradients(model.parameters()):
            loss = torch.nn.functional.cross_entropy(model(sg, sg.ndata["feat"]), sg.ndata["label"], reduction="sum")
            loss.backward()
        optimizer.step()

    step.model = model
    return step


def test_memory_and_bytes_of_a_wide_model_are_predicted(awkward_graph, tmp_path):
    partition(awkward_graph(1, 400, 2000), 2, tmp_path / "two")
    costs = report_costs(wide_step, tmp_path / "two", "halo_h")
    peaks, sent = zip(*run_ranks(2, measured, tmp_path / "two", wide_step, "halo_h"))
    assert costs.peak_bytes == pytest.approx(peaks, rel=0.03) and costs.sent_bytes == sum(sent)
