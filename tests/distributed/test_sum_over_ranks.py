"""``Comm.all_reduce_sum``: the sum over ranks and its gradient."""

import pytest
import torch
from ranks import run_ranks

from dgl_gt.comm.group import Comm


def gradients(rank):
    """Of a loss of both ranks, the gradient of each rank's values; where rank 1's values need none; and without any."""
    comm, found = Comm(), []
    for needs_gradient in (True, rank == 0):
        values = torch.arange(3.0).add(rank).requires_grad_(needs_gradient)
        total = comm.all_reduce_sum(values)
        ((rank + 1) * total.square()).sum().backward()
        found.append((total.tolist(), None if values.grad is None else values.grad.tolist()))
    with torch.no_grad():
        total = comm.all_reduce_sum(torch.ones(2))
        assert total.tolist() == [2, 2] and not total.requires_grad
    with torch.inference_mode():
        assert comm.all_reduce_sum(torch.ones(2)).tolist() == [2, 2]
    return found


def test_the_gradient_is_the_sum_of_all_ranks():
    total, gradient = [1.0, 3.0, 5.0], [6.0, 18.0, 30.0]  # d/dv (1 + 2) (sum of v)^2
    first, second = run_ranks(2, gradients)
    assert first == [(total, gradient)] * 2
    assert second == [(total, gradient), (total, None)]


def transposed(rank):
    """Sum and gradient where rank 1's values, and rank 0's gradient, lie in memory the other way round."""
    comm, numbers = Comm(), torch.arange(6.0).view(2, 3)
    values = (numbers.T.contiguous().T if rank else numbers).requires_grad_()
    total = comm.all_reduce_sum(values)
    gradient = numbers if rank else numbers.T.contiguous().T
    total.backward(gradient)
    return comm.all_reduce(values).tolist(), total.tolist(), values.grad.tolist()


def test_ranks_may_differ_in_strides():
    assert run_ranks(2, transposed) == [([[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]],) * 3] * 2


def test_one_process():
    values = torch.ones(2, dtype=torch.float64, requires_grad=True)
    total = Comm().all_reduce_sum(values)
    assert total is not values and torch.equal(total, values)
    assert torch.autograd.gradcheck(Comm().all_reduce_sum, values)
    with pytest.raises(ValueError, match="int64.*use all_reduce"):
        Comm().all_reduce_sum(torch.ones(2, dtype=torch.int64))
