"""Activation checkpointing, applied to a model from outside."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dgl_gt.partition.errors import check_one_of
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS

from .attention import is_dense
from .batch_norm import BatchNorm
from .convolution_layer import ConvolutionLayer
from .dropout import begin_pass
from .layer import GraphTransformerLayer
from .precision import ReplacedForward
from .typed_layer import TypedTransformerLayer


def apply_activation_checkpoint(model: nn.Module, mode: str) -> nn.Module:
    """Set what a training step keeps of each graph transformer layer of a model for its backward pass.

    It replaces the ``forward`` of every :class:`GraphTransformerLayer`, :class:`ConvolutionLayer` and
    :class:`TypedTransformerLayer` in the model, in place. Parameters, ``state_dict`` keys and numbers stay the same, and so do running statistics of batch norms, which
    the second run of a layer does not count again. It can be called again with another mode.

    Parameters
    ----------
    model : Module
        A model of this package or of your own, or a single layer.
    mode : {"none", "full", "keep_exchanges"}
        ``none`` keeps all that backward needs. ``full`` keeps the input of a layer alone, and backward computes the
        layer again (Chen et al., arXiv:1604.06174); on several ranks it then exchanges again, too. ``keep_exchanges``
        is like ``full``, but keeps the rows that the exchanges brought.

    Returns
    -------
    Module
        The model itself.

    Raises
    ------
    ValueError
        If the mode is unknown, or the model has no such layer.
    """
    check_one_of("mode", mode, ACTIVATION_CHECKPOINTS)
    layers = _layers(model)
    if not layers:
        raise ValueError(
            f"a {type(model).__name__} has no GraphTransformerLayer or ConvolutionLayer; pass a model that has "
            "one, or call torch.utils.checkpoint.checkpoint with context_fn=sg.kept_exchanges for layers of another kind"
        )
    for layer in layers:
        earlier = vars(layer).get("forward")
        if isinstance(earlier, ReplacedForward) and earlier.function is _forward:
            del layer.forward
        elif earlier is not None:
            raise ValueError(
                f"the forward of a {type(layer).__name__} has been replaced, for instance by apply_precision; call "
                "apply_activation_checkpoint first"
            )
        if mode != "none":
            layer.forward = ReplacedForward(layer, _forward, mode)
    return model


def checkpoint_modes(model: nn.Module) -> tuple[str, ...]:
    """Return the modes of activation checkpointing that can be applied to a model."""
    return ACTIVATION_CHECKPOINTS if _layers(model) else ("none",)


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that can be computed again."""
    kinds = GraphTransformerLayer, ConvolutionLayer, TypedTransformerLayer
    return [module for module in model.modules() if isinstance(module, kinds)]


def _forward(layer: nn.Module, mode: str, *args, **kwargs) -> Tensor:
    """Run a layer; where autograd is on, keep its input alone."""
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if is_dense("nfeat", args, kwargs):
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return _along_edges(layer, mode, *args, **kwargs)


def _along_edges(layer: nn.Module, mode: str, graph, feat: Tensor, *args, **named) -> Tensor:
    seeded = begin_pass(layer, graph, feat)  # here, so that both runs of the layer have the same masks
    options = {"context_fn": seeded.view.kept_exchanges} if mode == "keep_exchanges" else {}
    runs = count()

    def run(*args, **named):
        with nullcontext() if next(runs) == 0 else _frozen_statistics(layer):
            return type(layer).forward(layer, *args, **named)

    return checkpoint(run, seeded, feat, *args, use_reentrant=False, **options, **named)


@contextmanager
def _frozen_statistics(layer: nn.Module):
    """Inside the block, batch norms update copies of their running statistics, which are then forgotten."""
    norms = [module for module in layer.modules() if isinstance(module, BatchNorm) and module.track_running_stats]
    kept = [(norm, dict(norm.named_buffers(recurse=False))) for norm in norms]
    for norm, buffers in kept:
        for name, value in buffers.items():
            setattr(norm, name, value.clone())
    try:
        yield
    finally:
        for norm, buffers in kept:
            for name, value in buffers.items():
                setattr(norm, name, value)
