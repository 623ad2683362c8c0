"""The precision in which a model computes, applied to it from outside, and what takes the place of a forward for that."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from dgl_gt.model_config import PRECISIONS
from dgl_gt.partition.errors import check_one_of
from dgl_gt.torch_internals import tree_map


def apply_precision(model: nn.Module, precision: str) -> nn.Module:
    """Set the precision in which a model computes.

    It replaces the ``forward`` of the model, in place. Parameters, their gradients and the optimiser's state stay in
    float32, and so do ``state_dict`` keys and values. It can be called again with another precision. Call
    :func:`apply_activation_checkpoint` before it, if at all.

    Parameters
    ----------
    model : Module
        A model of this package or of your own, with parameters.
    precision : {"fp32", "bf16"}
        ``fp32`` computes in the dtype of parameters and features. ``bf16`` runs the model under ``torch.autocast`` with
        bfloat16: matrix products and attention read and write bfloat16 and sum in float32, and so do the operations
        that follow them, but for those that ``torch.autocast`` keeps in float32, such as LayerNorm on CUDA devices.
        Exchanges send rows in the dtype that they have. Results in bfloat16 are returned as float32, so that a loss is
        computed in float32.

    Returns
    -------
    Module
        The model itself.

    Raises
    ------
    ValueError
        If the precision is unknown.
    """
    check_one_of("precision", precision, PRECISIONS)
    earlier = vars(model).pop("forward", None)
    if isinstance(earlier, ReplacedForward) and earlier.function is _in_bfloat16:
        (earlier,) = earlier.settings
    if precision == "bf16":
        model.forward = ReplacedForward(model, _in_bfloat16, earlier)
    elif earlier is not None:
        model.forward = earlier
    return model


def _in_bfloat16(model: nn.Module, forward: Callable | None, *args, **kwargs):
    """Run a model under autocast; ``forward`` is what has replaced its own, if anything has."""
    run = partial(type(model).forward, model) if forward is None else forward
    with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
        result = run(*args, **kwargs)
    return tree_map(_in_float32, result)


def _in_float32(x):
    return x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x


class ReplacedForward:
    """Runs ``function(module, *settings, *args, **kwargs)`` in place of a module's ``forward``.

    It does not keep the module alive: a module that refers to itself would be freed only by Python's garbage
    collection, and its parameters with it. In a deep copy or a pickle of the module it belongs to the copy; a shallow
    copy runs the forward of the original.
    """

    def __init__(self, module: nn.Module, function: Callable, *settings):
        self._module, self.function, self.settings = weakref.ref(module), function, settings

    def __call__(self, *args, **kwargs):
        module = self._module()
        if module is None:
            raise ReferenceError("the module of this forward is gone; keep the module, and call it instead")
        return self.function(module, *self.settings, *args, **kwargs)

    def __reduce__(self):
        return ReplacedForward, (self._module(), self.function, *self.settings)
