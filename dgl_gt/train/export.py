"""A trained model as a file for serving: ONNX, TorchScript, or a library that AOTInductor compiles.

The attention of this package is an operator of its own, which no other program has. Here torch's gathers and sums take
its place; they store some numbers for each edge and column.
"""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.view import View, project_own
from dgl_gt.model_config import EDGE_KINDS
from dgl_gt.nn import apply_activation_checkpoint, apply_precision
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError, check_one_of, first_line, import_optional
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file

from .around_nodes import PairModel
from .model import FactoryError
from .saved_model import load_model

FORMATS = {"onnx": ".onnx", "torchscript": ".pt", "aoti": ".pt2"}  # and how a file's name ends
_TRACED = {"N": 20, "E": 60, "n": 30}  # sizes of the graph on which the operations are recorded
_CHECKED = {"N": 3000, "E": 30_000, "n": 500}  # large enough that several threads take part
_TOLERANCE = 1e-5  # of the largest number, or of 1


def export_model(directory, out, to: str, *, force: bool = False) -> dict[str, Any]:
    """Write a trained model as a file that runs without this package, on one graph at a time, in float32 on the CPU.

    The file takes ``feat`` (N, F) float32 and ``edge_index`` (2, E) int64; where the model reads them ``edge_feat`` (E, K)
    float32 and ``edge_kind`` (E, K) int32; and for a model of links ``pairs`` (2, n) int64, in this order. It returns
    logits for nodes or edges, numbers for a regression, or scores of pairs, for any N, E and n. With encodings, ``feat``
    holds the features, normalised where the model was trained so, then the encodings, those of ``laplacian`` times √N.
    Before the file appears, its results on a random graph are compared with those of the model.

    Parameters
    ----------
    directory : path
        Model directory written by ``dgl-gt train --out``.
    out : path
        File to write. Its name ends in ``.onnx``, ``.pt`` or ``.pt2``.
    to : {"onnx", "torchscript", "aoti"}
        "onnx" needs onnxscript and onnxruntime, and "aoti" a C++ compiler.
    force : bool
        Whether to replace ``out``.

    Returns
    -------
    dict
        ``inputs`` and ``output``, the shapes, and ``dtypes``; ``encodings``, in their order in ``feat``;
        ``class_names``; and the ``largest_difference`` from the model.

    Raises
    ------
    InputError
        The directory holds no model, the model or the format cannot be served, or ``out`` cannot be written.
    """
    check_one_of("to", to, tuple(FORMATS))
    if Path(out).suffix != FORMATS[to]:
        raise InputError(f"{out} must end in {FORMATS[to]}, as files of the format {to} do; choose another name")
    check_file(out, force=force)
    _check_tools(to)
    served = _Served(_load(directory))
    with TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / f"model{FORMATS[to]}"
        run = _write(served, to, path)
        inputs = served.random_inputs(_CHECKED)
        wanted = served.answer(as_view, *inputs)
        difference = float((run(*inputs) - wanted).abs().max())
        if not difference <= _TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise InputError(
                f"to is {to}, and the file gives other results than the model, by {difference:.2g}; nothing was written: "
                f"choose another format, or another version of torch ({torch.__version__})"
            )
        with new_file(out, force=force) as file:
            file.write(path.read_bytes())
    return served.description() | {"largest_difference": difference}


def _check_tools(to: str) -> None:
    """Raise :class:`InputError` where what a format needs is not installed."""
    if to == "onnx":
        for package in ("onnxscript", "onnxruntime"):
            import_optional(package, "to='onnx' (--to onnx)", "pip install onnxscript onnxruntime")
    compiler = os.environ.get("CXX", "g++")
    if to == "aoti" and not shutil.which(compiler):
        raise InputError(
            f"to is aoti, which compiles the model, and there is no C++ compiler {compiler}; install one (on Debian or "
            "Ubuntu: apt install g++), or name it in CXX"
        )


def _load(directory) -> nn.Module:
    """The model of a directory, without what serves training alone; ``InputError`` names what cannot be served."""
    try:
        model: Any = load_model(directory)
    except FactoryError as error:
        raise InputError(
            f"{directory} holds a model that a function of yours made, of which only you know what it reads; call torch.export "
            "or torch.jit.trace on it in your own code"
        ) from error
    model.float()  # load_model gives torch's default dtype
    task = model.dgl_gt_task
    if task.node_embedding:
        raise InputError(
            f"{directory} holds a model with a trained row for each node of its graph (node_embedding), which other nodes lack; "
            "serve the file that `dgl-gt predict` writes"
        )
    if task.kind == "pretrain":
        raise InputError(
            f"{directory} holds a model that was trained for pretrain, which predicts nothing; train a task from it with --init"
        )
    return apply_activation_checkpoint(apply_precision(model, "fp32"), "none").requires_grad_(False)


class _Edges(View):
    """A whole graph as its ``edge_index``, in operations of torch alone, which work for any number of nodes and edges.

    Sums are ``scatter_add``: onnxruntime runs ``index_add`` with several threads and loses terms
    (microsoft/onnxruntime#18048, #23396).
    """

    holds_all = True

    def __init__(self, edge_index: Tensor, feat: Tensor):
        self.source, self.destination, self._feat = edge_index[0], edge_index[1], feat
        self.num_owned = self.num_dst = feat.shape[0]

    def in_degrees(self) -> Tensor:
        return self._count(self.destination)

    def out_degrees(self) -> Tensor:
        return self._count(self.source)

    def _count(self, ends: Tensor) -> Tensor:
        none = torch.zeros_like(self._feat[:, 0], dtype=torch.int64)
        return none.scatter_add(0, ends, torch.ones_like(ends))

    def add_ends(self, of_dst: Tensor, of_src: Tensor) -> Tensor:
        return of_dst[self.destination] + of_src[self.source]

    def attend(self, h, project, *, bias=None, edge=None, dropout=None, negative_slope=None) -> Tensor:
        own, kv = project_own(project, h, edge)
        rows = own.contiguous()
        if negative_slope is None:
            q, k, v = rows.unbind(1) if kv is None else (rows, *kv.unbind(1))
            keys, values = k[self.source], v[self.source]
            if edge is not None:
                features = edge.unsqueeze(1).expand(-1, k.shape[1], -1)
                keys, values = torch.cat([keys, features], 2), torch.cat([values, features], 2)
            scores = (q[self.destination] * keys).sum(-1) * k.shape[-1] ** -0.5
        else:
            v, k, q = rows[..., :-2], rows[..., -2], rows[..., -1]
            values = v[self.source]
            scores = functional.leaky_relu(q[self.destination] + k[self.source], negative_slope)
        scores = scores if bias is None else scores + bias
        none = torch.zeros_like(v[..., 0])
        ends = self._ends_of(scores)
        top = (none - torch.inf).scatter_reduce(0, ends, scores, "amax")
        weights = torch.exp(scores - top[self.destination])
        weights = weights / none.scatter_add(0, ends, weights)[self.destination]
        messages = weights.unsqueeze(-1) * values
        none = torch.zeros_like(q if edge is not None else v)
        return none.scatter_add(0, self._ends_of(messages), messages)

    def _ends_of(self, values: Tensor) -> Tensor:
        """The row to which each number of edges' values (E, ...) belongs."""
        return self.destination.view(-1, *[1] * (values.dim() - 1)).expand_as(values)


class _Served(nn.Module):
    """A model that takes and returns tensors alone."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        of_model = cast(Any, model)
        self._task, learned = of_model.dgl_gt_task, of_model.dgl_gt_learned
        self._both_ways = bool(learned.get("is_undirected"))
        sizes = traits_of(model).input_sizes or {}
        self.shapes: dict[str, tuple] = {"feat": ("N", sizes["in_dim"]), "edge_index": (2, "E")}
        self.shapes |= {name: ("E", sizes[f"{name}s"]) for name in ("edge_feat", "edge_kind") if sizes[f"{name}s"]}
        self.shapes |= {"pairs": (2, "n")} if self._task.reads_links else {}
        self._scale = (
            [torch.tensor(learned[name], dtype=torch.float32) for name in ("scale", "mean")]
            if "scale" in learned
            else []
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """Answer from the tensors alone."""
        return self.answer(_Edges, *inputs)

    def answer(self, view_of: Callable[[Tensor, Tensor], View], *inputs: Tensor) -> Tensor:
        """Return what the file returns, with the view that this makes of an ``edge_index`` and features."""
        given = dict(zip(self.shapes, inputs))
        feat, edge_index, pairs = given.pop("feat"), given.pop("edge_index"), given.pop("pairs", None)
        if self._task.normalize_features and not self._task.encodings:
            feat = functional.normalize(feat, p=1.0)
        view, model = view_of(edge_index, feat), cast(Any, self.model)
        nodes = model.nodes if isinstance(model, PairModel) else model
        out = nodes([view] * len(nodes.layers), feat, **given)
        if isinstance(model, PairModel):
            ends, edge_feat = (edge_index, given.get("edge_feat")) if pairs is None else (pairs, None)
            out = model.scores(out, ends[0], ends[1], edge_feat, self._both_ways)
        if pairs is not None:
            return out[:, 0]
        return out * self._scale[0] + self._scale[1] if self._scale else out

    def random_inputs(self, sizes: dict[str, int]) -> tuple[Tensor, ...]:
        """Inputs of a random graph; it has nodes without edges, parallel edges and self-loops."""
        generator = torch.Generator().manual_seed(0)
        found = []
        for name, shape in self.shapes.items():
            size = tuple(sizes.get(each, each) for each in shape)
            if name in ("feat", "edge_feat"):
                found.append(torch.randn(size, generator=generator, dtype=torch.float32))
            elif name == "edge_kind":
                found.append(torch.randint(EDGE_KINDS, size, generator=generator, dtype=torch.int32))
            else:
                found.append(torch.randint(sizes["N"], size, generator=generator))
        return tuple(found)

    def description(self) -> dict[str, Any]:
        """What the file takes and returns, as values that JSON can hold."""
        model = cast(Any, self.model)
        inputs = self.random_inputs(_TRACED)
        output = ["E" if isinstance(model, PairModel) else "N", self.answer(as_view, *inputs).shape[-1]]
        dtypes = {name: str(each.dtype).removeprefix("torch.") for name, each in zip(self.shapes, inputs)}
        return {
            "inputs": {name: list(shape) for name, shape in self.shapes.items()},
            "dtypes": dtypes,
            "output": ["n"] if self._task.reads_links else output,
            "encodings": list(self._task.inputs.encodings),
            "class_names": model.class_names,
        }


def _write(served: _Served, to: str, path: Path) -> Callable[..., Tensor]:
    """Write a model in a format; returns the function of tensors that the file then is."""
    logger, cache = logging.getLogger("torch.onnx"), "TORCHINDUCTOR_CACHE_DIR"
    earlier, level = os.environ.get(cache), logger.level
    os.environ[cache] = str(path.parent / "cache")  # where compiled pieces lie, which nobody needs later
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that a trace might freeze: the file is checked with others
            return {"onnx": _write_onnx, "torchscript": _write_torchscript, "aoti": _write_library}[to](served, path)
    except Exception as error:  # whatever torch's exporters and compilers raise
        raise InputError(
            f"to is {to}, and torch {torch.__version__} cannot write this model so: {first_line(error)}; choose another format"
        ) from error
    finally:
        logger.setLevel(level)
        os.environ.pop(cache)
        os.environ |= {} if earlier is None else {cache: earlier}


def _write_torchscript(served: _Served, path: Path) -> Callable[..., Tensor]:
    torch.jit.trace(served, served.random_inputs(_TRACED), check_trace=False).save(path)
    return torch.jit.load(path)


def _write_library(served: _Served, path: Path) -> Callable[..., Tensor]:
    inductor: Any = torch._inductor
    inductor.aoti_compile_and_package(_exported(served), package_path=str(path))
    return inductor.aoti_load_package(str(path))


def _write_onnx(served: _Served, path: Path) -> Callable[..., Tensor]:
    import onnxruntime

    names = list(served.shapes)
    program: Any = torch.onnx.export(_exported(served), dynamo=True, input_names=names, verbose=False)
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda *inputs: torch.from_numpy(
        session.run(None, {name: each.numpy() for name, each in zip(names, inputs)})[0]
    )


def _exported(served: _Served) -> torch.export.ExportedProgram:
    """The model as operations for any number of nodes, edges and pairs."""
    dims = {name: torch.export.Dim(name, min=2) for name in _TRACED}
    shapes = tuple({axis: dims[each] for axis, each in enumerate(s) if each in dims} for s in served.shapes.values())
    return torch.export.export(served, served.random_inputs(_TRACED), dynamic_shapes=(shapes,), strict=True)
