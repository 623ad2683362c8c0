import functools

import numpy as np
import pytest
import torch
from ranks import run_ranks

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def exchange(rank):
    return {dtype: exchange_in(rank, dtype) for dtype in DTYPES}


def exchange_in(rank, dtype):
    comm = Comm()
    world = comm.world_size
    send = [(rank + peer) % 3 if peer != rank else 0 for peer in range(world)]  # uneven, with empty pieces
    rows = torch.arange(sum(send) * 2, dtype=torch.float64).reshape(-1, 2).to(dtype) + 8 * rank
    rows.requires_grad_()
    received = comm.exchange(rows, send, send)
    (received * (rank + 1)).sum().backward()
    assert comm.sent_bytes == comm.received_bytes == 2 * sum(send) * 2 * rows.element_size()
    return send, rows.detach().double().numpy(), received.detach().double().numpy(), rows.grad.double().numpy()


@pytest.fixture(scope="module")
def exchanged():
    """Results of :func:`exchange` on so many ranks, which are started once for all dtypes."""
    return functools.cache(lambda world_size: run_ranks(world_size, exchange))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exchange_moves_rows_there_and_gradients_back(exchanged, world_size, dtype):
    results = [of_rank[dtype] for of_rank in exchanged(world_size)]
    for rank, (send, _, received, grad) in enumerate(results):
        expected = []
        for peer_send, peer_rows, _, _ in results:
            begin = sum(peer_send[:rank])
            expected.append(peer_rows[begin : begin + peer_send[rank]])
        assert (received == np.concatenate(expected)).all()
        owners = np.repeat(np.arange(world_size), send)
        assert (grad == (owners + 1)[:, None]).all()


def sum_gradients(rank):
    comm = Comm()
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))]
    if rank == 0:  # a rank with nothing to do has no gradients at all
        parameters[0].grad = torch.full((3,), 2.0)
    parameters[1].grad = torch.full((2, 2), rank + 1.0, dtype=torch.float64)
    comm.sum_gradients(parameters)
    return [parameter.grad.numpy() for parameter in parameters]


def test_gradients_are_summed_even_where_a_rank_has_none():
    for first, second in run_ranks(3, sum_gradients):
        assert (first == 2).all() and (second == 6).all()


def gather(rank):
    comm = Comm()
    rows = torch.full((rank, 2), float(rank))  # rank 0 has none
    return [piece.numpy() for piece in comm.gather_rows(rows)]


@pytest.mark.parametrize("world_size", [1, 3])
def test_gather_of_uneven_rows(world_size):
    for pieces in run_ranks(world_size, gather):
        assert [piece.shape for piece in pieces] == [(rank, 2) for rank in range(world_size)]
        assert all((piece == rank).all() for rank, piece in enumerate(pieces))


@pytest.mark.parametrize("to", [-1, 1, 7, "0"])
def test_rows_are_gathered_on_a_rank_that_exists(to):
    with pytest.raises(ValueError, match=f"to is {to!r}; it must be a rank from 0 to 0, or None"):
        Comm().gather_rows(torch.zeros(2, 2), to)


def fail_on_one(rank):
    try:
        with Comm().raising_together():
            if rank == 1:
                raise InputError("the disk is full")
    except InputError as error:
        return str(error)


def test_an_error_of_one_rank_is_raised_on_all():
    assert run_ranks(3, fail_on_one) == ["rank 1: the disk is full", "the disk is full", "rank 1: the disk is full"]


def test_reductions_that_there_are():
    with pytest.raises(InputError, match="op is 'mean'"):
        Comm().all_reduce(torch.ones(2), "mean")
