"""A pass of a model whose layers run piece by piece, with the rows between layers in files.

Forward keeps the rows that each layer reads. Backward computes each piece of each layer again, from the last layer to the
first, and adds the gradients of its sources' rows; it draws the random numbers of the first time. So a process holds the
working set of one piece of one layer, as GriNNder does for GCNs on one GPU (arXiv 2605.11517).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from dgl_gt.exchange.streamed import SpilledRows, Stream
from dgl_gt.exchange.view import SeededView
from dgl_gt.partition.errors import InputError
from dgl_gt.torch_internals import gradients_of

_Run = Callable[[int, Tensor, list[Tensor]], Tensor]  # of a piece's number, its rows, and rows of its edges


class Layered(Protocol):
    """A model that can run piece by piece: layers, and what each row goes through before the first and after the last.

    A layer is called as ``layer(seeded, h, **given)``, with the rows of a piece's sources.
    """

    layers: nn.ModuleList

    def encode(self, feat: Tensor, seeded: SeededView, /) -> Tensor: ...
    def decode(self, h: Tensor, seeded: SeededView, /) -> Tensor: ...
    def parameters(self) -> Iterable[Tensor]: ...
    def modules(self) -> Iterable[nn.Module]: ...
    def named_modules(self) -> Iterable[tuple[str, nn.Module]]: ...


def run_streamed(
    model: Layered,
    stream: Stream,
    seeds: Mapping[nn.Module, Tensor],
    feat: Tensor,
    biases: list[Tensor | None],
    edge: Tensor | None = None,
) -> Tensor:
    """Return what the model gives the owned rows, (N_owned, out), from their features; a collective.

    ``biases`` has one for each layer, (E, H) or None; ``edge`` (E, F) is given to all layers. :class:`InputError` names a
    module that would treat pieces as it does not treat the whole.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise InputError(
                f"with spill (--spill) layers run part by part, and {name} is a {type(module).__name__}, which sums over all rows; "
                "use a norm of each row, or leave spill out"
            )
    feat = stream.checked(feat, [*biases, edge])
    a_pass = _Pass(model, stream, seeds, biases, edge)
    return _Streamed.apply(a_pass, feat, *a_pass.of_edges, *a_pass.parameters)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a_pass, feat, *others):
        ctx.a_pass = a_pass
        ctx.save_for_backward(feat)
        return a_pass.forward(feat, a_pass.is_differentiated and any(ctx.needs_input_grad))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        return None, *ctx.a_pass.backward(ctx.saved_tensors[0], ctx.needs_input_grad[1], grad_out)


class _Pass:
    """One pass. Tensors of ``of_edges`` have a row for each edge, and may need a gradient, as the parameters do."""

    def __init__(self, model: Layered, stream: Stream, seeds, biases: list[Tensor | None], edge: Tensor | None):
        self._model, self._stream, self._seeds = model, stream, seeds
        given = [{"attn_bias": bias, "edge": edge} for bias in biases]
        self._given = [{name: x for name, x in each.items() if x is not None} for each in given]
        self.of_edges = [*{id(x): x for each in self._given for x in each.values()}.values()]
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self._inputs: list[SpilledRows] = []  # the rows that each layer reads, and those after the last
        self._random: dict[tuple, Tensor] = {}  # the state of torch's generator before each piece that drew numbers
        self._reached: set[int] = set()  # the sums that got a gradient, by their id
        self.is_differentiated = torch.is_grad_enabled()  # which an autograd.Function turns off
        self._modes = [(each, each.training) for each in model.modules()]
        self._versions = self._versions_now()
        settings = {"dtype": torch.get_autocast_dtype("cpu"), "enabled": torch.is_autocast_enabled("cpu")}
        self._autocast = partial(torch.autocast, "cpu", **settings)

    def _versions_now(self) -> list[int]:
        return [each._version for each in (*self.of_edges, *self.parameters)]

    def forward(self, feat: Tensor, keeps: bool) -> Tensor:
        """Return the result; with ``keeps``, keep what backward reads."""
        stream = self._stream
        after = self._filled(self._encode, lambda number: feat[stream.rows[number]])
        for index in range(len(self._model.layers)):
            before = after
            stream.fetch(before)
            after = self._filled(partial(self._layer, index), partial(stream.sources, before))
            self._done(before, keeps)
        out: list[Tensor] = []
        self._each(lambda number: out.append(self._run(self._decode, number, stream.read(after, number))))
        self._done(after, keeps)
        return torch.cat(out)

    def _each(self, work: Callable[[int], None]) -> None:
        """Call a function with the number of each piece; what it makes is gone before the next one runs."""
        for number in range(len(self._stream.rows)):
            with self._stream.running():
                work(number)

    def _run(self, run: _Run, number: int, rows: Tensor) -> Tensor:
        before = torch.get_rng_state()
        with self._autocast():
            found = run(number, rows, self._edges_of(number))
        if found.dim() != 2:
            raise InputError(
                f"with spill (--spill) rows between layers are in files, and a layer returned the shape {tuple(found.shape)}; let it "
                "return (rows, C), or leave spill out"
            )
        if not torch.equal(before, torch.get_rng_state()):
            self._random[_place(run), number] = before
        return found

    def _done(self, space: SpilledRows, keeps: bool) -> None:
        if keeps:
            self._inputs.append(space)
        else:
            self._stream.give_back(space)

    def _filled(self, run: _Run, rows_of: Callable[[int], Tensor]) -> SpilledRows:
        """Space with the rows that all pieces give."""
        spaces: list[SpilledRows] = []

        def fill(number: int) -> None:
            found = self._run(run, number, rows_of(number))
            if not spaces:
                spaces.append(self._stream.take(found.shape[1], found.dtype))
            self._stream.write(spaces[0], number, found)

        self._each(fill)
        return spaces[0]

    def backward(self, feat: Tensor, feat_needs_gradient: bool, grad_out: Tensor) -> list[Tensor | None]:
        """Return the gradients of ``feat``, of ``of_edges`` and of the parameters."""
        if not self._inputs:
            raise InputError(
                "spill is given, and backward runs twice on one pass (retain_graph); add the losses up before"
            )
        if self._versions != self._versions_now():
            raise RuntimeError(
                "a weight was changed in place between forward and backward, which computes layers again"
            )
        now = [(each, each.training) for each, _ in self._modes]
        _set_modes(self._modes)
        try:
            return self._backward(feat, feat_needs_gradient, grad_out)
        finally:
            _set_modes(now)

    def _backward(self, feat: Tensor, feat_needs_gradient: bool, grad_out: Tensor) -> list[Tensor | None]:
        stream, sums = self._stream, [torch.zeros_like(x) for x in (*self.of_edges, *self.parameters)]
        space = self._inputs.pop()
        gradient = self._back_through_output(space, grad_out, sums)
        stream.give_back(space)
        for index in reversed(range(len(self._model.layers))):
            space, after = self._inputs.pop(), gradient
            gradient = self._back_through_layer(index, space, after, sums)
            stream.give_back(space)
            stream.give_back(after)
        of_feat = torch.zeros_like(feat) if feat_needs_gradient else None

        def back(number: int) -> None:
            rows, upstream = stream.rows[number], stream.read(gradient, number)
            found = self._again(self._encode, number, feat[rows], upstream, sums, feat_needs_gradient)
            if of_feat is not None:
                of_feat[rows] = found

        self._each(back)
        stream.give_back(gradient)
        return [of_feat, *(total if id(total) in self._reached else None for total in sums)]

    def _back_through_output(self, space: SpilledRows, grad_out: Tensor, sums: list[Tensor]) -> SpilledRows:
        stream = self._stream
        gradient = stream.take(space.rows.shape[1], space.dtype, is_gradient=True)

        def back(number: int) -> None:
            upstream = grad_out[stream.rows[number]]
            stream.write(
                gradient, number, self._again(self._decode, number, stream.read(space, number), upstream, sums)
            )

        self._each(back)
        return gradient

    def _back_through_layer(self, index: int, space: SpilledRows, after: SpilledRows, sums: list) -> SpilledRows:
        """The gradients of the rows that a layer reads, from those and the gradients of the rows after it."""
        stream = self._stream
        gradient = stream.take(space.rows.shape[1], space.dtype, is_gradient=True)
        stream.clear(gradient)

        def back(number: int) -> None:
            h, upstream = stream.sources(space, number), stream.read(after, number)
            stream.add(gradient, number, self._again(partial(self._layer, index), number, h, upstream, sums))

        self._each(back)
        stream.send_home(gradient)
        return gradient

    def _again(self, run: _Run, number: int, h: Tensor, upstream: Tensor, sums: list[Tensor], reaches=True) -> Tensor:
        """Compute a piece again; add the gradients of parameters and edges to ``sums``, and return that of its rows."""
        h, edges = h.detach().requires_grad_(reaches), self._edges_of(number)
        edges = [each.detach().requires_grad_(whole.requires_grad) for each, whole in zip(edges, self.of_edges)]
        state = self._random.get((_place(run), number))
        with torch.enable_grad(), self._autocast(), torch.random.fork_rng([], enabled=state is not None):
            if state is not None:
                torch.set_rng_state(state)
            out = run(number, h, edges)
        if not out.requires_grad:  # no weight is trained before the first layer
            return torch.zeros_like(h)
        pairs = [(x, total) for x, total in zip((*edges, *self.parameters), sums, strict=True) if x.requires_grad]
        wanted = [x for x, _ in pairs] + [h] * reaches
        found = gradients_of([out], wanted, [upstream], allow_unused=True)
        for (x, total), gradient in zip(pairs, found):
            if gradient is not None:
                self._reached.add(id(total))
                is_of_edges = any(x is each for each in edges)
                (total[self._stream.edges[number]] if is_of_edges else total).add_(gradient)
        return h if not reaches else torch.zeros_like(h) if found[-1] is None else found[-1]

    def _edges_of(self, number: int) -> list[Tensor]:
        return [each[self._stream.edges[number]] for each in self.of_edges]

    def _seeded(self, number: int) -> SeededView:
        return SeededView(self._stream.piece(number), self._seeds)

    def _encode(self, number: int, feat: Tensor, edges: list[Tensor]) -> Tensor:
        return self._model.encode(feat, self._seeded(number))

    def _layer(self, index: int, number: int, h: Tensor, edges: list[Tensor]) -> Tensor:
        of_pass = {id(whole): piece for whole, piece in zip(self.of_edges, edges)}
        given = {name: of_pass[id(x)] for name, x in self._given[index].items()}
        return self._model.layers[index](self._seeded(number), h, **given)

    def _decode(self, number: int, h: Tensor, edges: list[Tensor]) -> Tensor:
        return self._model.decode(h, self._seeded(number))


def _place(run: _Run) -> int | str:
    """Which part of a model it runs: the number of a layer, or a name."""
    return run.args[0] if isinstance(run, partial) else run.__name__


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, is_training in modes:
        module.training = is_training
