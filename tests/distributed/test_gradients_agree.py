"""Ranks whose tensors need gradients in different ways, several backward passes, and a first pass in inference mode."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from test_strategies import make_shards, run_model
from whole_graph import csc_of

import dgl_gt
from dgl_gt.comm.group import Comm
from dgl_gt.nn import GraphTransformer, apply_activation_checkpoint
from dgl_gt.partition.figures.strategies import NAMES

CASES = [*((name, 1) for name in NAMES if name != "local"), ("halo", 2)]


def load(folder, strategy, depth):
    return dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth, timeout_s=60)


def one_needs_a_gradient(rank, folder):
    """By case: this rank's gradient, where rank 0's rows alone need one, and where all do."""
    results = []
    for strategy, depth in CASES:
        sg = load(folder, strategy, depth)
        torch.manual_seed(0)
        model = GraphTransformer(5, 12, 3, 2, 4).requires_grad_(False)  # so that the rows alone can need gradients
        for needs in (rank == 0, True):
            feat = sg.ndata["feat"].clone().requires_grad_(needs)
            (model(sg, feat) ** 2).sum().backward()
            results.append(None if feat.grad is None else feat.grad.numpy())
    sg = load(folder, "halo", 1)
    x = torch.ones(len(sg.node_ids), 2, requires_grad=rank == 1)
    sg.pull(x).sum().backward()
    halo = sg._shard.num_held - sg._shard.num_owned
    return results, None if x.grad is None else float(x.grad.sum()), len(x), halo


def test_ranks_that_need_gradients_differently_do_not_wait_for_each_other(awkward_graph, tmp_path):
    make_shards(awkward_graph(5), 2, tmp_path)
    (first, pulled, _, halo), (second, pulled_too, owned, _) = run_ranks(2, one_needs_a_gradient, tmp_path)
    for alone, together in zip(first[::2], first[1::2]):
        np.testing.assert_array_equal(alone, together)
    assert all(each is None for each in second[::2]) and all(each is not None for each in second[1::2])
    assert pulled is None and pulled_too == 2 * (owned + halo)  # rank 0 holds copies


def twice_backward(rank, folder):
    """By case and activation_checkpoint: the gradient of the features after one backward pass, and after another of the same graph."""
    results = []
    for strategy, depth in CASES:
        sg = load(folder, strategy, depth)
        for activation_checkpoint in ("none", "full", "keep_exchanges"):
            torch.manual_seed(0)
            model = apply_activation_checkpoint(GraphTransformer(5, 12, 3, 2, 4), activation_checkpoint)
            feat = sg.ndata["feat"].clone().requires_grad_()
            loss = (model(sg, feat) ** 2).sum()
            (once,) = torch.autograd.grad(loss, feat, retain_graph=True)
            before = sg.comm.sent_bytes
            (again,) = torch.autograd.grad(loss, feat, retain_graph=True)
            results.append((once.numpy(), again.numpy(), sg.comm.sent_bytes - before))
    return results


def test_a_second_backward_pass_gives_the_same_gradients(awkward_graph, tmp_path):
    make_shards(awkward_graph(6), 2, tmp_path)
    for results in run_ranks(2, twice_backward, tmp_path):
        for number, (once, again, sent_bytes) in enumerate(results):
            np.testing.assert_array_equal(once, again)
            np.testing.assert_allclose(once, results[number - number % 3][0], rtol=1e-4, atol=1e-5)
            if number % 3 == 2:  # what was kept is not sent again
                assert sent_bytes == results[number - 2][2]


def inference_first(rank, folder, feat, bias):
    """What a step gives on graphs that were loaded and first used in inference mode."""
    results = []
    for strategy, depth in CASES:
        with torch.inference_mode():
            sg = load(folder, strategy, depth)
            GraphTransformer(5, 24, 3, 3, 12)(sg, feat[sg.node_ids], bias[sg.edge_ids])
            sg.srcdata, sg.pull(sg.ndata["feat"])
        out, *_ = run_model(sg, feat[sg.node_ids], bias[sg.edge_ids], torch.float64)
        results.append(sg.gather(out).numpy())
    return results


def test_a_first_pass_in_inference_mode_does_not_spoil_training(awkward_graph, tmp_path):
    graph = awkward_graph(7)
    make_shards(graph, 2, tmp_path)
    generator = torch.Generator().manual_seed(3)
    feat = torch.randn(graph.num_nodes, 5, generator=generator)
    bias = torch.randn(graph.num_edges, 12, generator=generator)
    expected = run_model(csc_of(graph), feat, bias, torch.float64)[0].numpy()
    for results in run_ranks(2, inference_first, tmp_path, feat, bias):
        for found in results:
            np.testing.assert_allclose(found, expected, atol=1e-10)


def odd_dtypes(rank, folder):
    sg = load(folder, "halo", 1)
    before = sg.comm.sent_bytes
    messages = []
    for dtype in (torch.int16, torch.float8_e4m3fn):
        rows = torch.zeros(len(sg.node_ids), 2).to(dtype)
        for call in (sg.pull, sg.gather, sg.comm.all_reduce):
            with pytest.raises(ValueError) as raised:
                call(rows)
            messages.append(str(raised.value))
    dtypes = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16)
    for dtype in (*dtypes, torch.float32, torch.float64, torch.complex64, torch.complex128):
        rows = (sg.node_ids % 2).reshape(-1, 1).to(dtype)
        everywhere = sg.gather(rows)
        assert everywhere.dtype == dtype and torch.equal(everywhere[sg.node_ids], rows)
        on_last = sg.gather(rows, to=1)
        assert (on_last is None) == (rank == 0)
        pulled = sg.pull(rows)
        assert torch.equal(pulled[: len(rows)], rows) and len(pulled) > len(rows)
    return messages, before


def test_dtypes_that_ranks_cannot_exchange_are_named(awkward_graph, tmp_path):
    make_shards(awkward_graph(8), 2, tmp_path)
    for messages, sent_bytes in run_ranks(2, odd_dtypes, tmp_path):
        assert sent_bytes == 0
        for message, dtype in zip(messages, ["int16"] * 3 + ["float8_e4m3fn"] * 3, strict=True):
            assert message.startswith(
                f"ranks cannot exchange tensors of torch.{dtype}; allowed: bool, uint8, int8, int"
            )


def gathered_bytes(rank):
    """The most bytes of tensors that gathering made on this rank, and that it received."""
    received = []
    exchange = dist.all_to_all_single

    def watched(output, given, *arguments, **options):
        received.append((output.nbytes, given.nbytes))
        return exchange(output, given, *arguments, **options)

    dist.all_to_all_single = watched
    comm = Comm()
    comm.gather_rows(torch.zeros(100, 8), to=0)
    return received


def test_gathering_at_one_rank_fills_no_other_and_copies_nothing():
    own = 100 * 8 * 4
    assert run_ranks(3, gathered_bytes) == [[(3 * own, own)], [(0, own)], [(0, own)]]
