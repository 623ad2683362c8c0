"""The parameters that ranks share: what callers may name, and whether they are the same on all ranks.

Ranks drift apart where a loop leaves out the sum of gradients, or where one rank starts with different weights or
optimiser settings; losses look plausible then. So ranks compare their parameters now and then: at some of the
sums, and in some forward passes, which are collectives that all ranks reach in the same order. Ranks may round
differently, for instance on other processors, so numbers are compared up to a tolerance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from weakref import WeakKeyDictionary

import torch
from torch.nn.parameter import is_lazy

from dgl_gt.partition.errors import InputError
from dgl_gt.torch_internals import is_in_backward

_INTERVAL = 61  # a prime, so that each of several sums in a step has its turn
_SAMPLES = 8  # numbers of a parameter that ranks compare, besides its norm


def named(parameters) -> Iterator[tuple[str, torch.Tensor]]:
    """Give names and tensors of what torch's optimisers take: tensors, named ones, or groups of them; or one tensor.

    The name is empty where there is none. Anything else raises ``InputError``.
    """
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    kind = f"a {type(parameters).__name__}"
    for each in parameters if isinstance(parameters, Iterable) else [parameters]:
        match each:
            case torch.Tensor():
                yield "", each
            case (str() as name, torch.Tensor() as tensor):
                yield name, tensor
            case {"params": group}:
                yield from named(group)
            case _:
                of = "" if each is parameters else f" of {type(each).__name__}"
                raise InputError(
                    f"parameters is {kind}{of}; it must be a tensor, or an iterable of tensors, of named parameters or "
                    "of parameter groups; pass model.parameters()"
                )


def to_sum(comm, parameters) -> list[torch.nn.Parameter]:
    """Return the parameters that need a gradient and are not a rank's own, each once; see :func:`named`.

    If it is time, ranks compare them.
    """
    names = {each: name for name, each in named(parameters) if each.requires_grad and not is_own(each)}
    if comm.parameter_check is not None:
        comm.parameter_check.at_sum(names)
    return list(names)


def is_own(parameter: torch.Tensor) -> bool:
    """Whether the rows of a parameter belong to nodes of this rank, as in ``dgl_gt.nn.NodeEmbedding``."""
    return getattr(parameter, "is_rank_own", False)


class ParameterCheck:
    """Compares the parameters of all ranks now and then; every rank calls each method, in the same order."""

    def __init__(self, comm) -> None:
        self._comm, self._sums, self._pulls = comm, 0, 0
        self._summed: set[tuple] = set()
        self._passes: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()

    def at_sum(self, parameters: dict[torch.Tensor, str]) -> None:
        """Compare the parameters whose gradients are summed, if it is time, or if they are summed for the first time."""
        self._sums += 1
        kinds = tuple((name, each.dtype, each.shape) for each, name in parameters.items())
        is_new = kinds not in self._summed
        if not is_new and not _is_due(self._sums):
            return
        self._summed.add(kinds)
        owned = self._comm.owned_rows
        is_even = self.compare([(name or "a parameter", each) for each, name in parameters.items()])
        for each, name in parameters.items() if is_new and is_even else ():
            if each.ndim and len(each) == owned:
                warnings.warn(
                    f"{name or 'a parameter'} {tuple(each.shape)} has as many rows as every rank has nodes, and its "
                    f"gradients are summed over ranks; {_OF_NODES}",
                    stacklevel=4,
                )

    def at_pass(self, module: torch.nn.Module) -> None:
        """Compare the parameters of a module whose forward pass begins, if it trains and it is time."""
        if not module.training or not _is_forward():
            return
        self._passes[module] = number = self._passes.get(module, 0) + 1
        if _is_due(number):
            kind = type(module).__name__
            self.compare([(f"{name} of {kind}", each) for name, each in module.named_parameters()])

    def at_pull(self, rows: torch.Tensor) -> None:
        """Compare the parameters on which rows depend that a rank is about to send, if it is time."""
        if not _is_forward():
            return
        self._pulls += 1
        if _is_due(self._pulls):
            self.compare([("a parameter", each) for each in _parameters_of(rows)], is_partial=True)

    def compare(self, parameters: list[tuple[str, torch.Tensor]], is_partial: bool = False) -> bool:
        """Raise ``InputError`` on every rank if a parameter differs; return whether all have as many nodes.

        ``is_partial`` says that ranks may have other parameters, because rows need no gradient on some of them.
        """
        parameters = [(name, each) for name, each in parameters if not is_own(each) and _is_trained(each)]
        mine = [[name, str(each.dtype).removeprefix("torch."), *each.shape] for name, each in parameters]
        values = _values([each for _, each in parameters])
        place, self._comm.place = self._comm.place, "the check of parameters"
        try:
            first, *others = self._comm.gather_objects([self._comm.owned_rows, mine, values])
        finally:
            self._comm.place = place
        for rank, other in enumerate(others, 1):
            if first[1] != other[1]:
                if is_partial:
                    continue
                raise InputError(_other_shapes(first, other, rank))
            differing = [each for each, ours, its in zip(mine, first[2], other[2]) if _differ(ours, its, each)]
            if differing and not (is_partial and _share_one(mine, first[2], other[2])):
                raise InputError(_other_values(differing[0], rank))
        return all(first[0] == other[0] for other in others)


def _is_trained(parameter: torch.Tensor) -> bool:
    return not is_lazy(parameter) and (parameter.is_floating_point() or parameter.is_complex())


def _share_one(parameters: list, ours: list, others: list) -> bool:
    """Whether a parameter is the same on two ranks, though maybe in another place: then other ones are just not in use.

    A sum that is missing, other first weights and another optimiser change all of them.
    """
    return any(
        len(set(one[1:])) > 1 and len(one) == len(other) and not _differ(one, other, parameter)
        for parameter, one in zip(parameters, ours)
        for other in others
    )


_OF_NODES = "where rows belong to nodes, use dgl_gt.nn.NodeEmbedding(sg, width)"


def _other_shapes(first: list, other: list, rank: int) -> str:
    """Say which parameter of rank 0 has another name, dtype or shape on another rank."""
    (owned, ours, _), (others_owned, its, _) = first, other
    pairs = zip_longest(map(_described, ours), map(_described, its), fillvalue="missing")
    number, (one, another) = next((number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1])
    rows = [each[number][2] if len(each) > number and len(each[number]) > 2 else None for each in (ours, its)]
    advice = _OF_NODES if rows == [owned, others_owned] else "make the same model on every rank"
    return f"parameter {number} is {one} on rank 0, but {another} on rank {rank}; {advice}"


def _described(parameter: list) -> str:
    name, dtype, *shape = parameter
    return f"{name} {tuple(shape)} of {dtype}"


def _other_values(parameter: list, rank: int) -> str:
    return (
        f"{_described(parameter)} differs between rank 0 and rank {rank}; start with the same weights on every rank "
        "(torch.manual_seed), call sg.comm.sum_gradients(model.parameters()) after every loss.backward(), give every rank "
        "the same optimiser, and clip gradients of a NodeEmbedding apart. To compare no parameters, use dgl_gt.load(..., check_parameters=False)"
    )


def _is_due(number: int) -> bool:
    """Whether to compare at the call of this number, counted from 1: often at first, then at every 61st."""
    return number % _INTERVAL == 0 or (number < _INTERVAL and number & (number - 1) == 0)


def _is_forward() -> bool:
    """Whether this is a forward pass of training, and not a part of it that backward computes again."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_in_backward()


@torch.no_grad()
def _values(parameters: list[torch.Tensor]) -> list[list[float]]:
    """Return for each parameter its norm and some of its numbers."""
    pieces = []
    for each in parameters:
        flat = (torch.view_as_real(each) if each.is_complex() else each).reshape(-1)
        norm = torch.linalg.vector_norm(flat, dtype=torch.promote_types(flat.dtype, torch.float32))
        samples = flat[:: max(1, -(-len(flat) // _SAMPLES))]
        pieces.append(torch.cat([norm.reshape(1), samples]).double())
    if not pieces:
        return []
    together = torch.cat([each.to(pieces[0].device) for each in pieces]).cpu()  # a GPU waits once
    return [each.tolist() for each in together.split([len(each) for each in pieces])]


def _differ(values: list[float], others: list[float], parameter: list) -> bool:
    """Whether two ranks' values of a parameter differ by more than rounding."""
    _, dtype, *shape = parameter
    tolerance, size = math.sqrt(torch.finfo(getattr(torch, dtype)).eps), values[0] / math.sqrt(math.prod(shape) or 1)
    return any(
        abs(one - other) > tolerance * max(abs(one), size)
        if math.isfinite(one) and math.isfinite(other)
        else one != other and not (math.isnan(one) and math.isnan(other))
        for one, other in zip(values, others)
    )


def _parameters_of(rows: torch.Tensor) -> list[torch.nn.Parameter]:
    """Return the parameters on which rows depend, in the order of autograd's graph."""
    found, seen, left = [], set(), [rows.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.nn.Parameter):
            found.append(leaf)
        left += [following for following, _ in node.next_functions]
    return found
