"""Where in a model a step is: for messages about exchanges that wait, and about numbers that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dgl_gt.comm.group import Comm

from .around_nodes import AroundNodes


@contextmanager
def named_places(model: nn.Module, comm: Comm) -> Iterator[None]:
    """Inside the block, exchanges know the layer that does them, so that a message or a profile can name it."""

    def enter(name):
        return lambda *_: comm.enter(name)

    def leave(_module, _inputs, output):
        comm.leave(output)

    handles = []
    for name, module in _parts(model):
        handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        comm.place = ""
        for each in handles:
            each.remove()


@contextmanager
def at_place(name: str, comm: Comm) -> Iterator[None]:
    """Inside the block, exchanges know the name of a part of the step that is not a module."""
    comm.enter(name)
    try:
        yield
    finally:
        comm.leave()


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules right below a model; in place of a list of layers, each of the layers."""
    for name, module in model.named_children():
        if isinstance(module, nn.ModuleList):
            yield from ((f"{name}.{number}", each) for number, each in enumerate(module))
        elif isinstance(model, AroundNodes) and module is model.nodes:
            yield from ((f"{name}.{part}", each) for part, each in _parts(module))
        else:
            yield name, module


def first_not_finite(state: dict) -> str | None:
    """The name of the first tensor that holds NaN or infinity, if there is one."""
    return next((name for name, value in state.items() if not torch.isfinite(value).all()), None)


@torch.no_grad()
def find_not_finite(model: nn.Module, forward: Callable[[], object], feat: torch.Tensor, comm: Comm) -> str | None:
    """The first place of a forward pass that holds NaN or infinity on any rank, in words; every rank calls it."""
    names = comm.gather_objects(first_not_finite(dict(model.named_parameters())))  # rows of nodes differ between ranks
    if any(names):
        return f"The weights {next(filter(None, names))} hold NaN or infinity already"
    if comm.all_reduce(torch.tensor([int(not torch.isfinite(feat).all())]), "max")[0]:
        return "The features hold NaN or infinity"
    order, handles = [], []

    def note(name):
        return lambda _module, _inputs, output: order.append((name, _is_finite(output)))

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(note(name or "the model")))
    try:
        forward()
    finally:
        for each in handles:
            each.remove()
    mine = next((number for number, (_, is_finite) in enumerate(order) if not is_finite), len(order))
    found = [each for each in comm.gather_objects([mine, order[mine][0] if mine < len(order) else None]) if each[1]]
    if not found:
        return None
    return f"In a repeated forward pass, the output of {min(found)[1]} is the first that is not finite"


def _is_finite(output) -> bool:
    values = output if isinstance(output, (tuple, list)) else [output]
    tensors = [each for each in values if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return all(bool(torch.isfinite(each).all()) for each in tensors)
