"""The undocumented names of torch that a run needs: which versions have them, and what happens where one lacks them.

The oldest version that this package supports is 2.4; all names are present in 2.13. ``train/optimizer.py`` also takes
the wrappers from the methods of optimisers, without which nothing changes.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.autograd.graph import _engine_run_backward
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["tree_leaves", "tree_map"]  # of ``torch.utils._pytree``, since torch 2.2: over tensors in nested arguments


def default_store() -> dist.Store:
    """Return the key-value store through which the ranks of this job found each other; they note there why they stop.

    ``_get_default_store``, older than torch 2.4. Without it, making a group of several ranks fails: ``AttributeError``.
    """
    return dist.distributed_c10d._get_default_store()


def set_group_timeout(group: dist.ProcessGroup | None, timeout_s: float) -> None:
    """Set how long the collectives of a process group may take before the backend gives up (s).

    ``_set_pg_timeout``, older than torch 2.4. Without it, a run for which the user asks for a timeout fails:
    ``AttributeError``.
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


def assume_constant(function):
    """Let torch.compile take the result of a function for a constant, as ``torch.compiler.assume_constant_result`` does.

    ``_dynamo_marked_constant``, in torch 2.4 to 2.13. The decorator, which sets it, imports the machinery of
    torch.compile, a second in every process. Without it, ``torch.compile(fullgraph=True)`` refuses what calls the function.
    """
    function._dynamo_marked_constant = True
    return function


def is_watched() -> bool:
    """Return whether a ``TorchDispatchMode`` sees the operations that run, as those of plans do.

    ``is_in_torch_dispatch_mode``, since torch 2.3. Without the name, importing this package's layers fails.
    """
    return is_in_torch_dispatch_mode()


def is_transformed() -> bool:
    """Return whether a transform of ``torch.func`` is running, outside of torch.compile.

    ``_are_functorch_transforms_active``, in torch 2.4 to 2.13. Without the name, the answer is False, and transforms meet
    operators that do not know them, which torch refuses in its own words.
    """
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    return ask is not None and not torch.compiler.is_compiling() and ask()


class OperationMode(TorchDispatchMode):
    """Inside the block, ``__torch_dispatch__`` of a subclass sees each operation, custom ones too; it is not compiled.

    ``torch.utils._python_dispatch.TorchDispatchMode``, older than torch 2.4; without it, nothing of dgl_gt that needs
    torch can be imported, and the same holds for the two functions of ``torch.utils._pytree`` above. Its
    ``_should_skip_dynamo``, since torch 2.6, decides whether each call goes through a layer of torch.compile, which
    takes some 10 microseconds, and a second for its import at the first call. Without the second name, every call goes
    through it.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        return False


def storage_key(values: torch.Tensor | torch.UntypedStorage) -> int:
    """Return a number that tells the storage of a tensor from all others that are alive.

    ``UntypedStorage._cdata``, older than torch 2.4; ``data_ptr()`` is 0 for every empty storage. Without it, tracing a
    step fails: ``AttributeError``.
    """
    return (values.untyped_storage() if isinstance(values, torch.Tensor) else values)._cdata


def is_in_backward() -> bool:
    """Return whether a backward pass is running on this thread.

    ``torch._C._current_graph_task_id``, in torch 2.4 to 2.13. Without it, tracing a step fails: ``AttributeError``.
    """
    return torch._C._current_graph_task_id() != -1


def backward_number() -> int:
    """Return the number of the backward pass that is running on this thread.

    ``torch._C._current_graph_task_id``, in torch 2.4 to 2.13. Without it, ``dgl_gt.pyg.distribute_whole`` fails in
    backward: ``AttributeError``.
    """
    return torch._C._current_graph_task_id()


def after_backward(function) -> None:
    """Call a function when the backward pass that is running has ended; DistributedDataParallel waits for buckets so.

    ``torch.autograd.Variable._execution_engine.queue_callback``, in torch 2.4 to 2.13. Without it,
    ``dgl_gt.pyg.distribute_whole`` fails in backward: ``AttributeError``.
    """
    torch.autograd.Variable._execution_engine.queue_callback(function)


def gradients_of(results, inputs, upstream, allow_unused: bool = False) -> tuple:
    """Return the gradients of inputs, from results and a gradient of the same shape for each; shapes are not checked.

    ``torch.autograd.graph._engine_run_backward``, in torch 2.4 to 2.13. ``torch.autograd.grad``, which checks, imports
    sympy: more than a second and 30 MB in every process. Without the name, importing this package's layers fails.
    """
    several = tuple(results), tuple(upstream)
    return _engine_run_backward(*several, False, False, tuple(inputs), allow_unused, accumulate_grad=False)


def schema_of(operation):
    """Return the schema of an ``OpOverload``: names of arguments, and what it writes or returns in another form.

    ``OpOverload._schema``, older than torch 2.4. Without it, tracing a step fails: ``AttributeError``.
    """
    return operation._schema


def profiler_range_operations() -> tuple:
    """Return the operations with which a range of the profiler begins and ends.

    ``torch.ops.profiler._record_function_enter_new`` and ``_record_function_exit._RecordFunction``, in torch 2.4 to
    2.13. Without the names, importing ``dgl_gt.plan`` fails with ``AttributeError``.
    """
    profiler = torch.ops.profiler
    return profiler._record_function_enter_new.default, profiler._record_function_exit._RecordFunction
