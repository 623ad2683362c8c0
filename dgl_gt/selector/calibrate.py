"""Measure a hardware profile: every rank at the same time, as in training."""

from __future__ import annotations

import os
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F

from dgl_gt.comm.group import Comm
from dgl_gt.ops.attention import sparse_attention
from dgl_gt.structure import CSC
from partition.system.memory import available_memory_bytes, peak_memory_bytes

from .hardware_profile import Profile

_ROWS = 40_000
_EDGES = 240_000
_HIGH_DEGREE = 60
_FAR_ROWS = (6_000, 60_000)  # K and V of which a processor's caches hold, and do not hold
_SHAPES = ((8, 8), (8, 16), (1, 64), (4, 32))  # heads and width of each
_WIDTHS = (32, 64, 128, 256)
_MESSAGES = (2**12, 2**20, 2**24)  # bytes of one exchange with one rank
_BATCHES, _BATCH_S = 3, 0.25
_ALONE = 5  # runs
_MOST_EXCHANGED = 2**28  # bytes of the exchange that computation is to hide
_TRAINING_BYTES = 96 * 2**20


def measure(comm: Comm, progress=None) -> Profile:
    """Measure this group's ranks and links; every rank calls it, and all get the same profile. About a minute.

    Parameters
    ----------
    comm : Comm
    progress : callable, optional
        Called as ``progress(stage)``.
    """
    progress = progress or (lambda stage: None)
    figures = {}
    for stage, function in (("memory", _memory), ("attention", _attention), ("products", _products), ("rows", _rows)):
        progress(f"measuring {stage}")
        figures |= function(comm)
    figures = {key: np.array(_of_all(comm, value)) for key, value in figures.items()}
    progress("measuring links")
    ranks = comm.world_size
    return Profile(
        name="measured",
        kind="measured",
        ranks=ranks,
        **{key: figures[key] for key in ("memory_bytes", "process_bytes", "stream_bytes_per_s", "layer_s")},
        products={width: figures[f"products {width}"] for width in _WIDTHS},
        attention={key: figures[key] for key in ("edge_s", "head_s", "row_column_s", "near_column_s")}
        | {"far_column_s": {int(key): figures[key] for key in _far_keys()}},
        **_links(comm),
    )


def _attention(comm: Comm) -> dict[str, float]:
    """Least squares over shapes, degrees and localities.

    Seconds = E (edge_s + H head_s + C column_s) + N C row_column_s, with a column_s for each locality,
    the least where sources lie near.
    """
    equations, seconds = [], []
    graphs = [(0, _graph(comm)), (0, _graph(comm, degree=_HIGH_DEGREE))]
    for kind, graph in graphs + [(kind, _graph(comm, rows)) for kind, rows in enumerate(_FAR_ROWS, 1)]:
        for heads, head_dim in _SHAPES:
            shape = graph.num_src, 3, heads, head_dim
            qkv = torch.randn(shape, device=comm.device, requires_grad=True)
            upstream = torch.randn(shape[0], heads, head_dim, device=comm.device)

            def step(qkv=qkv, upstream=upstream, graph=graph):
                torch.autograd.grad(sparse_attention(graph, qkv), qkv, upstream)

            columns = heads * head_dim
            of_row = columns * graph.num_src / graph.num_edges
            equations.append([1, heads, of_row, columns, *(columns * (kind == each) for each in (1, 2))])
            seconds.append(_seconds(comm, step) / graph.num_edges)
    weights = 1 / np.array(seconds)  # so that errors count by their share
    solution = _not_negative(np.array(equations) * weights[:, None], np.array(seconds) * weights)
    edge_s, head_s, row_column_s, near, *more = solution.tolist()
    figures = {"edge_s": edge_s, "head_s": head_s, "row_column_s": row_column_s, "near_column_s": near}
    return figures | {key: near + extra for key, extra in zip(_far_keys(), more)}


def _far_keys() -> list[str]:
    """Bytes of K and V on average over the shapes."""
    columns = statistics.fmean(heads * head_dim for heads, head_dim in _SHAPES)
    return [str(int(2 * 4 * columns * rows)) for rows in _FAR_ROWS]


def _not_negative(equations: np.ndarray, values: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    return np.maximum(nnls(equations, values)[0], 1e-15)


def _graph(comm: Comm, far_rows: int | None = None, degree: int | None = None) -> CSC:
    """Edges from rows nearby, or from anywhere among so many."""
    rows = far_rows or (_EDGES // degree if degree else _ROWS)
    degree = max(4, _EDGES // rows)
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(rows).repeat_interleave(degree)
    if far_rows is None:
        source = (target + torch.randint(-500, 500, target.shape, generator=generator)) % rows
    else:
        source = torch.randint(0, rows, target.shape, generator=generator)
    ends = torch.arange(0, rows * degree + 1, degree)
    return CSC.build(ends, source.to(torch.int32), rows).to(comm.device)


def _products(comm: Comm) -> dict[str, float]:
    rates = {}
    for width in _WIDTHS:
        x = torch.randn(_ROWS, width, device=comm.device, requires_grad=True)
        weight = torch.randn(3 * width, width, device=comm.device, requires_grad=True)
        bias = torch.randn(3 * width, device=comm.device, requires_grad=True)

        upstream = torch.ones(_ROWS, 3 * width, device=comm.device)

        def step(inputs=(x, weight, bias), upstream=upstream):
            torch.autograd.grad(F.linear(*inputs), inputs, upstream)

        flops = 3 * 2 * _ROWS * width * 3 * width
        rates[f"products {width}"] = flops / _seconds(comm, step)
    return rates


def _rows(comm: Comm) -> dict[str, float]:
    """The operations of a layer on each number of its rows, and the same of next to no rows."""
    width, ffn = 128, 2

    def chain(x, wide):
        h = x + F.layer_norm(x, (width,))
        return h + F.layer_norm(h, (width,)), F.gelu(wide)

    def step(rows):
        x = torch.randn(rows, width, device=comm.device, requires_grad=True)
        wide = torch.randn(rows, ffn * width, device=comm.device, requires_grad=True)
        upstream = torch.ones_like(x), torch.ones_like(wide)
        return lambda: torch.autograd.grad(chain(x, wide), (x, wide), upstream)

    stream = (22 + 5 * ffn) * _ROWS * width * 4 / _seconds(comm, step(_ROWS))
    few = torch.randn(2, width, device=comm.device, requires_grad=True)
    weight = torch.randn(width, width, device=comm.device, requires_grad=True)
    small = step(2)

    def layer():
        small()
        h = few
        for _ in range(6):
            h = F.linear(h, weight)
        torch.autograd.grad(h, weight, torch.ones_like(h))

    return {"stream_bytes_per_s": stream, "layer_s": 3 * _seconds(comm, layer)}


def memory_at_hand(comm: Comm) -> int:
    """Bytes that this rank may take: a GPU's memory, or its share of what machine and control group leave."""
    if comm.device.type == "cuda":
        return torch.cuda.get_device_properties(comm.device).total_memory
    local = int(os.environ.get("LOCAL_WORLD_SIZE", comm.world_size))
    return available_memory_bytes() // local + peak_memory_bytes()


def _memory(comm: Comm) -> dict[str, float]:
    # nothing has been measured yet; training loads more modules, and holds buffers of the transport
    process = 0 if comm.device.type == "cuda" else peak_memory_bytes() + _TRAINING_BYTES
    return {"memory_bytes": memory_at_hand(comm), "process_bytes": process}


def _links(comm: Comm) -> dict:
    """Latency and bandwidth from alpha + beta x bytes, all ranks sending at once to the one so many places on."""
    ranks = comm.world_size
    if ranks == 1:
        one = {"latency_s": 0.0, "overlap": 0.0, "reduce_bytes_per_s": 1e12}
        return {**one, "link_bytes_per_s": np.full((1, 1), 1e12)}
    mine = np.full(ranks, 1e12)
    for step in range(1, ranks):
        seconds = []
        for size in _MESSAGES:
            rows = torch.zeros(size // 4, device=comm.device)
            to, source = comm.counts_for(comm.rank + step, len(rows)), comm.counts_for(comm.rank - step, len(rows))

            def message(rows=rows, to=to, source=source):
                comm.start(rows, to, source).wait()

            seconds.append(_seconds(comm, message, alone=True))
        beta, _ = np.polyfit(_MESSAGES, seconds, 1, w=1 / np.array(seconds))
        # noise may hide what bytes cost on a fast link; then the largest message's whole time does
        mine[(comm.rank - step) % ranks] = 1 / beta if beta > 0 else _MESSAGES[-1] / seconds[-1]
    few = torch.zeros(ranks, device=comm.device)
    latency = _seconds(comm, lambda: comm.start(few, [1] * ranks, [1] * ranks).wait(), alone=True)
    flat = torch.zeros(2**20, device=comm.device)
    reduce = flat.nbytes / _seconds(comm, lambda: comm.all_reduce(flat), alone=True)
    link = np.array([_of_all(comm, value) for value in mine]).T
    latency, reduce, overlap = (
        statistics.fmean(_of_all(comm, value)) for value in (latency, reduce, _overlap(comm, mine))
    )
    return {"latency_s": latency, "overlap": overlap, "reduce_bytes_per_s": reduce, "link_bytes_per_s": link}


def _overlap(comm: Comm, link: np.ndarray) -> float:
    """Share of the shorter of an exchange and as much computation that both at once save."""
    ranks = comm.world_size
    slowest = min(min(_of_all(comm, float(value))) for value in link)
    count = int(0.1 * slowest / (ranks - 1) / 4)
    count = min(max(1024, count), _MOST_EXCHANGED // 4 // ranks)
    rows, counts = torch.zeros(count * ranks, device=comm.device), [count] * ranks
    counts[comm.rank] = 0
    rows = rows[: sum(counts)]
    graph = _graph(comm)
    q = torch.randn(_ROWS, 8, 16, device=comm.device)

    def exchange():
        comm.start(rows, counts, counts).wait()

    def compute(times=1):
        for _ in range(times):
            sparse_attention(graph, q, q, q)

    def both(times):
        under_way = comm.start(rows, counts, counts)
        compute(times)
        under_way.wait()

    wire = _seconds(comm, exchange, alone=True)
    times = max(1, round(wire / _seconds(comm, compute)))
    times = int(max(_of_all(comm, times)))
    busy = _seconds(comm, lambda: compute(times))
    together = _seconds(comm, lambda: both(times), alone=True)
    return min(max((wire + busy - together) / min(wire, busy), 0.0), 1.0)


def _seconds(comm: Comm, function, alone: bool = False) -> float:
    """Of one run on this rank, while all ranks do the same: the median of a few batches.

    A batch is long enough for ranks that share cores to take turns, and for what a run leaves to the next. Runs of an
    exchange are timed ``alone``: in training, too, links have rested before, and that changes what they carry.
    """
    for _ in range(2):
        function()
    if alone:
        return statistics.median(_elapsed(comm, function) for _ in range(_ALONE))
    slowest = comm.all_reduce(torch.tensor([_elapsed(comm, function)], dtype=torch.float64), "max")
    runs = max(1, round(_BATCH_S / float(slowest[0])))
    return statistics.median(_elapsed(comm, function, runs) / runs for _ in range(_BATCHES))


def _elapsed(comm: Comm, function, runs: int = 1) -> float:
    comm.all_reduce(torch.zeros(1))
    _synchronise(comm)
    started = time.perf_counter()
    for _ in range(runs):
        function()
    _synchronise(comm)
    return time.perf_counter() - started


def _synchronise(comm: Comm) -> None:
    if comm.device.type == "cuda":
        torch.cuda.synchronize(comm.device)


def _of_all(comm: Comm, value: float) -> list[float]:
    return torch.cat(comm.gather_rows(torch.tensor([float(value)], dtype=torch.float64))).tolist()
