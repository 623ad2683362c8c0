"""Batch normalisation with the statistics of the nodes of all ranks, and the norms that a model can have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.view import View


class BatchNorm(nn.BatchNorm1d):
    r"""``torch.nn.BatchNorm1d`` over the nodes of all ranks (Ioffe and Szegedy, arXiv:1502.03167).

    In training, with :math:`\mu` and :math:`\sigma^2` the mean and the biased variance of each column over all nodes,

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    Constructor arguments, ``state_dict`` keys and results are those of ``torch.nn.BatchNorm1d`` on one process; running
    statistics take the unbiased variance, as there. Each node counts once, also where a deep halo computes copies of
    it. In training, ranks exchange ``P (2C + 1)`` numbers forward and ``2 P C`` backward. Every rank takes part, even
    one without nodes. The ranks' means and variances are joined as in Chan, Golub and LeVeque, *Updating formulae and a
    pairwise algorithm for computing sample variances* (1979).
    """

    def forward(self, x: Tensor, graph=None) -> Tensor:
        """Normalise the columns of ``x``.

        Parameters
        ----------
        x : Tensor, floating point, (rows, C)
            Rows of nodes. On a ``ShardedGraph`` those of the owned nodes.
        graph : ShardedGraph, DGLGraph, DGL block, CSC, or Tensor (2, E), optional
            Graph to which the rows belong. Without it, and where one process holds the graph, the statistics are those
            of the given rows.

        Returns
        -------
        Tensor, (rows, C)
            In the dtype of ``x``.

        Raises
        ------
        ValueError
            ``x`` has another shape, or in training there are fewer than two nodes.
        """
        self._check_input_dim(x)
        view = None if graph is None else as_view(graph, x)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or view is None or view.holds_all:
            return super().forward(x)
        mean, variance, count = self._statistics(x[: view.num_owned], view)
        if self.training and self.track_running_stats:
            self._update(mean, variance * (count / (count - 1)))
        scale = torch.rsqrt(variance + self.eps)
        weight = self.weight if self.affine else torch.ones_like(scale)
        bias = self.bias if self.affine else torch.zeros_like(scale)
        return _Normalise.apply(x, weight, bias, mean, scale, count, view)

    @torch.no_grad()
    def _statistics(self, owned: Tensor, view: View) -> tuple[Tensor, Tensor, float]:
        """Return the mean and the biased variance of all ranks' rows, (C,) each, and the number of rows."""
        owned = owned.detach().to(torch.promote_types(owned.dtype, torch.float32))
        rows = owned.new_tensor([len(owned)])
        if len(owned):
            variance, mean = torch.var_mean(owned, 0, correction=0)
        else:
            variance = mean = owned.new_zeros(owned.shape[1])
        of_ranks = view.stack_over_ranks(torch.cat([rows, mean, variance * len(owned)]))
        counts, means, squares = of_ranks.split([1, len(mean), len(mean)], 1)
        count = float(counts.sum())
        if count < 2:
            raise ValueError(
                f"all ranks together have {count:.0f} nodes; batch statistics need at least two; train on more nodes, or "
                "choose another norm"
            )
        mean = (counts * means).sum(0) / count
        variance = (squares + counts * (means - mean).square()).sum(0) / count
        return mean, variance, count

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of this pass."""
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


class _Normalise(torch.autograd.Function):
    """``weight * (x - mean) * scale + bias``, whose gradient counts that the statistics depend on owned rows."""

    @staticmethod
    def forward(ctx, x, weight, bias, mean, scale, count, view):
        ctx.count, ctx.view = count, view
        ctx.save_for_backward(x, weight, mean, scale)
        factor = weight * scale
        return torch.addcmul(bias - mean * factor, x, factor).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight, mean, scale = ctx.saved_tensors
        grad = grad.to(mean.dtype)
        centred = x - mean
        of_bias, of_weight = grad.sum(0), torch.linalg.vecdot(grad, centred, dim=0) * scale
        of_x = None
        sums = ctx.view.stack_over_ranks(torch.stack([of_bias, of_weight])).sum(0) / ctx.count
        if ctx.needs_input_grad[0]:
            owned, factor = ctx.view.num_owned, weight * scale
            of_x = grad * factor
            # Only owned rows took part in the statistics, but every computed copy has used them.
            of_x[:owned] -= torch.addcmul(sums[0] * factor, centred[:owned], sums[1] * factor * scale)
            of_x = of_x.to(x.dtype)
        return of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None, None, None, None


NORM_MODULES = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "batch": BatchNorm, "none": nn.Identity}


def normalise(norm: nn.Module, x: Tensor, view) -> Tensor:
    """Apply a norm to rows; batch statistics are those of all ranks of the view."""
    return norm(x, view) if isinstance(norm, BatchNorm) else norm(x)
