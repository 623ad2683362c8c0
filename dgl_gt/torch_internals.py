"""The undocumented names of torch that a run needs.

Others are explained where they are used: ``_dynamo_marked_constant`` in ``ops/dispatch.py``, ``torch.utils._pytree`` in
``nn/precision.py``, and the wrappers of optimisers in ``train/optimizer.py``, without which nothing changes.
``dgl_gt/trace``, which measures steps, uses more.

Each function says what it does, which versions of torch have the name, and what happens where a version lacks it. The
oldest version that this package supports is 2.4; all names are present in 2.13.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def default_store() -> dist.Store:
    """Return the key-value store through which the ranks of this job found each other.

    ``_get_default_store``, older than torch 2.4. Ranks leave notes in it about why they stop. Without the name, making
    a group of several ranks fails with ``AttributeError``: a rank could not say why it stops.
    """
    return dist.distributed_c10d._get_default_store()


def set_group_timeout(group: dist.ProcessGroup | None, timeout_s: float) -> None:
    """Set how long the collectives of a process group may take before the backend gives up (s).

    ``_set_pg_timeout``, older than torch 2.4. It is called only where the user asks for a timeout. Without the name,
    that fails with ``AttributeError``; everything else works.
    """
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def is_inside_ddp() -> bool:
    """Return whether the forward pass of a ``DistributedDataParallel`` is running.

    ``_active_ddp_module``, older than torch 2.4. Without the name, the answer is False: a warning about gradients that
    are divided by the number of ranks is not given, and nothing else changes.
    """
    return getattr(DistributedDataParallel, "_active_ddp_module", None) is not None


def graph_is_kept() -> bool:
    """Return whether the backward pass that is running was called with ``retain_graph=True``.

    ``_get_current_graph_task_keep_graph``, since torch 2.5 at the latest. Without the name, the answer is True: rows
    that exchanges brought stay in memory until the graph of their layer is freed.
    """
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or ask()


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether a user has put a hook on the forward or backward pass of a module.

    ``_forward_hooks``, ``_forward_pre_hooks``, ``_backward_hooks`` and ``_backward_pre_hooks``, older than torch 2.4.
    Without the names, calling a layer fails with ``AttributeError``.
    """
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)
