"""Measures a hardware profile: all ranks at the same time, as in training."""

from __future__ import annotations

import math
import mmap
import os
import statistics
from collections.abc import Callable
from contextvars import ContextVar

import numpy as np
import torch
import torch.nn.functional as F

from dgl_gt.comm.group import Comm
from dgl_gt.ops.attention import sparse_attention
from dgl_gt.ops.head_minor import has_head_minor_kernel
from dgl_gt.partition.figures.profile import Attention, Profile
from dgl_gt.partition.system.allocator import memory_factor
from dgl_gt.partition.system.memory import available_memory_bytes, peak_memory_bytes
from dgl_gt.structure import CSC

from .tracing import Recorder
from .watch import elapsed

_ROWS = 40_000
_EDGES = 240_000
_HIGH_DEGREE = 60
_FAR_ROWS = (6_000, 60_000)  # keys and values of the first fit a processor's caches; those of the second do not
_SHAPES = ((8, 8), (8, 16), (1, 64), (4, 32))  # heads, and the width of a head
_WIDTHS = (32, 64, 128, 256)
_MESSAGE_BYTES = (2**12, 2**20, 2**24)  # of one exchange with one rank
_BATCHES: ContextVar[tuple[int, int, float]] = ContextVar(
    "first runs, batches, seconds of a batch", default=(2, 3, 0.25)
)
_QUICK = 1, 1, 0.02
_EXCHANGE_RUNS = 5
_MAX_EXCHANGE_BYTES = 2**28  # of the exchange that is overlapped with computation
_TRAINING_BYTES, _CHECKPOINTING_BYTES = 28 * 2**20, 140 * 2**20
_TAKEN_BYTES = 64 * 2**20
_DIGITS = 4


def measure(comm: Comm, progress: Callable[[str], object] | None = None, *, quick: bool = False) -> Profile:
    """Measure the ranks and links of this group, which takes about a minute, or ten seconds where it is ``quick``.

    Every rank calls it, and all get the same profile. ``progress`` is called with what is being measured.
    """
    token = _BATCHES.set(_QUICK if quick else _BATCHES.get())
    try:
        return _measure(comm, progress or (lambda stage: None))
    finally:
        _BATCHES.reset(token)


def _measure(comm: Comm, progress: Callable[[str], object]) -> Profile:
    own: dict[str, float] = {}
    for stage, function in (
        ("memory", _memory),
        ("attention", _attention),
        ("matrix products", _products),
        ("bfloat16", _in_bfloat16),
        ("element-wise operations", _rows),
    ):
        progress(f"measuring {stage}")
        own |= function(comm)
    figures = {key: _rounded(_of_all_ranks(comm, value)) for key, value in own.items()}
    products = {width: figures.pop(f"products {width}") for width in _WIDTHS}
    far = {int(key): figures.pop(key) for key in _far_keys()}
    near = {key: figures.pop(key) for key in ("edge_s", "head_s", "row_column_s", "near_column_s")}
    progress("measuring links")
    return Profile(
        kind="measured",
        device="cuda" if comm.device.type == "cuda" else "cpu",
        ranks=comm.world_size,
        **figures,
        products=products,
        attention=Attention(**near, far_column_s=far),
        # torch's checkpointing loads the machinery of torch.compile
        checkpointing_bytes=0.0 if comm.device.type == "cuda" else float(_CHECKPOINTING_BYTES),
        memory_factor=1.0 if comm.device.type == "cuda" else memory_factor(),
        page_byte_s=0.0 if comm.device.type == "cuda" else _rounded([_page_byte_s(comm)]),
        **_links(comm),
        name="measured",
    )


def _rounded(values) -> float | list[float]:
    """A list of plain numbers; the number itself if there is only one."""
    rounded = [float(f"{value:.{_DIGITS}g}") for value in values]
    return rounded[0] if len(rounded) == 1 else rounded


def _attention(comm: Comm) -> dict[str, float]:
    """Fit seconds = E (edge_s + H head_s + C column_s) + N C row_column_s by least squares over shapes and graphs.

    There is one column_s for each locality of the sources; it is smallest if they lie near their destinations.
    """
    from scipy.optimize import nnls

    equations, seconds = [], []
    graphs = [(0, _graph(comm)), (0, _graph(comm, degree=_HIGH_DEGREE))]
    for kind, graph in graphs + [(kind, _graph(comm, rows)) for kind, rows in enumerate(_FAR_ROWS, 1)]:
        for heads, head_dim in _SHAPES:
            columns = heads * head_dim
            row_columns_per_edge = columns * graph.num_src / graph.num_edges
            equations.append([1, heads, row_columns_per_edge, columns, *(columns * (kind == each) for each in (1, 2))])
            seconds.append(_edge_seconds(comm, graph, heads, head_dim))
    weights = 1 / np.array(seconds)  # so that relative errors count
    solution = nnls(np.array(equations) * weights[:, None], np.array(seconds) * weights)[0]
    edge_s, head_s, row_column_s, near, *more = np.maximum(solution, 1e-15).tolist()
    figures = {"edge_s": edge_s, "head_s": head_s, "row_column_s": row_column_s, "near_column_s": near}
    return figures | {key: near + extra for key, extra in zip(_far_keys(), more)}


def _edge_seconds(comm: Comm, graph: CSC, heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the seconds of an edge, forward and backward, with rows in the layout in which layers project them."""
    shape = graph.num_src, 3, head_dim, heads
    qkv = torch.randn(shape, dtype=dtype, device=comm.device).transpose(2, 3)
    if not has_head_minor_kernel(heads, head_dim, qkv):
        qkv = qkv.contiguous()
    upstream = torch.randn_like(qkv[:, 0])
    qkv.requires_grad_()
    return _seconds(comm, lambda: torch.autograd.grad(sparse_attention(graph, qkv), qkv, upstream)) / graph.num_edges


def _far_keys() -> list[str]:
    """Bytes of K and V of the graphs with far edges, on average over the shapes."""
    columns = statistics.fmean(heads * head_dim for heads, head_dim in _SHAPES)
    return [str(int(2 * 4 * columns * rows)) for rows in _FAR_ROWS]


def _graph(comm: Comm, far_rows: int | None = None, degree: int | None = None) -> CSC:
    """A graph whose edges come from rows nearby, or, with ``far_rows``, from any of this many rows."""
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
    return {f"products {width}": _product_flops_per_s(comm, width) for width in _WIDTHS}


def _product_flops_per_s(comm: Comm, width: int, dtype: torch.dtype = torch.float32) -> float:
    shapes: tuple[tuple[int, ...], ...] = (_ROWS, width), (3 * width, width), (3 * width,)
    inputs = [torch.randn(shape, requires_grad=True, dtype=dtype, device=comm.device) for shape in shapes]
    upstream = torch.ones(_ROWS, 3 * width, dtype=dtype, device=comm.device)
    seconds = _seconds(comm, lambda: torch.autograd.grad(F.linear(*inputs), inputs, upstream))
    return 3 * 2 * _ROWS * width * 3 * width / seconds


def _in_bfloat16(comm: Comm) -> dict[str, float]:
    """Speed of matrix products and time of attention, each as a multiple of that in float32 right before."""
    shape, bf16 = (8, 16), torch.bfloat16
    graphs = [_graph(comm), *(_graph(comm, rows) for rows in _FAR_ROWS)]
    times = [_edge_seconds(comm, graph, *shape, bf16) / _edge_seconds(comm, graph, *shape) for graph in graphs]
    width = math.prod(shape)
    return {
        "bf16_product_speed": _product_flops_per_s(comm, width, bf16) / _product_flops_per_s(comm, width),
        "bf16_edge_time": statistics.geometric_mean(times),
    }


def _rows(comm: Comm) -> dict[str, float]:
    """Bandwidth of norms with activation functions, and of sums; and the fixed time of an operation, from two rows."""
    width = 128

    def step(rows):
        x = torch.randn(rows, width, device=comm.device, requires_grad=True)
        wide = torch.randn(rows, 2 * width, device=comm.device, requires_grad=True)
        upstream = torch.ones_like(x), torch.ones_like(wide)
        return lambda: torch.autograd.grad((F.layer_norm(x, (width,)), F.gelu(wide)), (x, wide), upstream)

    many, few = step(_ROWS), step(2)
    with Recorder() as recorder:
        many()
    moved = [sizes[0] for event, sizes in zip(recorder.events, recorder.sizes) if event.kind == "rows"]
    first, second = torch.randn(2, _ROWS, width, device=comm.device)
    return {
        "simple_bytes_per_s": 3 * first.nbytes / _seconds(comm, lambda: first + second),
        "stream_bytes_per_s": sum(moved) / _seconds(comm, many),
        "operation_s": _seconds(comm, few) / len(moved),
    }


def available_rank_memory(comm: Comm) -> int:
    """Bytes that this rank may use: a GPU's memory, or its share of what the machine and its control group leave."""
    if comm.device.type == "cuda":
        return torch.cuda.get_device_properties(comm.device).total_memory
    local = int(os.environ.get("LOCAL_WORLD_SIZE", comm.world_size))
    return available_memory_bytes() // local + peak_memory_bytes()


def _memory(comm: Comm) -> dict[str, float]:
    # This is the first measurement; training loads more modules, and its transport has buffers.
    process = 0 if comm.device.type == "cuda" else peak_memory_bytes() + _TRAINING_BYTES
    return {"memory_bytes": available_rank_memory(comm), "process_bytes": process}


def _page_byte_s(comm: Comm) -> float:
    """Seconds for each byte of a tensor whose memory comes from the system, more than for one that is there."""
    known = torch.zeros(_TAKEN_BYTES // 4)

    def take() -> None:
        block = mmap.mmap(-1, _TAKEN_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as glibc takes it
        torch.frombuffer(block, dtype=known.dtype).fill_(1.0)

    taken_s = _seconds(comm, take) - _seconds(comm, lambda: known.fill_(1.0))
    return max(0.0, statistics.fmean(_of_all_ranks(comm, taken_s))) / _TAKEN_BYTES


def link_speeds(comm: Comm) -> np.ndarray:
    """Bytes a second into rank i from rank j, (P, P), from alpha + beta x bytes; every rank calls it.

    All ranks send at once, each to the rank ``step`` places on.
    """
    ranks = comm.world_size
    mine = np.full(ranks, 1e12)
    for step in range(1, ranks):
        seconds = []
        for size in _MESSAGE_BYTES:
            rows = torch.zeros(size // 4, device=comm.device)
            to, source = comm.counts_for(comm.rank + step, len(rows)), comm.counts_for(comm.rank - step, len(rows))

            def message(rows=rows, to=to, source=source):
                comm.start(rows, to, source).wait()

            seconds.append(_seconds(comm, message, one_by_one=True))
        beta, _ = np.polyfit(_MESSAGE_BYTES, seconds, 1, w=1 / np.array(seconds))
        # Noise may hide the cost of bytes on a fast link; then the whole time of the largest message stands for it.
        mine[(comm.rank - step) % ranks] = 1 / beta if beta > 0 else _MESSAGE_BYTES[-1] / seconds[-1]
    return np.array([_of_all_ranks(comm, value) for value in mine]).T


def _links(comm: Comm) -> dict:
    """Latency and bandwidth of the links, and how much of an exchange computation hides."""
    ranks = comm.world_size
    if ranks == 1:
        return {"latency_s": 0.0, "overlap": 0.0, "reduce_bytes_per_s": 1e12, "link_bytes_per_s": [[1e12]]}
    link = link_speeds(comm)
    few = torch.zeros(ranks, device=comm.device)
    latency = _seconds(comm, lambda: comm.start(few, [1] * ranks, [1] * ranks).wait(), one_by_one=True)
    flat = torch.zeros(2**20, device=comm.device)
    reduce = flat.nbytes / _seconds(comm, lambda: comm.all_reduce(flat), one_by_one=True)
    latency, reduce, overlap = (
        statistics.fmean(_of_all_ranks(comm, value)) for value in (latency, reduce, _overlap(comm, link.min()))
    )
    return {
        "latency_s": latency,
        "overlap": overlap,
        "reduce_bytes_per_s": reduce,
        "link_bytes_per_s": [_rounded(row) for row in link],
    }


def _overlap(comm: Comm, slowest: float) -> float:
    """Share of an exchange that computation hides: the time that both at once save, over the shorter time."""
    ranks = comm.world_size
    count = int(0.1 * slowest / (ranks - 1) / 4)
    count = min(max(1024, count), _MAX_EXCHANGE_BYTES // 4 // ranks)
    rows, counts = torch.zeros(count * ranks, device=comm.device), [count] * ranks
    counts[comm.rank] = 0
    rows = rows[: sum(counts)]
    graph = _graph(comm)
    q = torch.randn(_ROWS, 8, 16, device=comm.device)

    def exchange():
        comm.start(rows, counts, counts).wait()

    times = 1

    def compute():
        for _ in range(times):
            sparse_attention(graph, q, q, q)

    def both():
        under_way = comm.start(rows, counts, counts)
        compute()
        under_way.wait()

    exchange_s = _seconds(comm, exchange, one_by_one=True)
    times = int(max(_of_all_ranks(comm, max(1, round(exchange_s / _seconds(comm, compute))))))
    compute_s, both_s = _seconds(comm, compute), _seconds(comm, both, one_by_one=True)
    return min(max((exchange_s + compute_s - both_s) / min(exchange_s, compute_s), 0.0), 1.0)


def _seconds(comm: Comm, function, one_by_one: bool = False) -> float:
    """Seconds of one run on this rank while all ranks do the same: the median of a few batches.

    A batch is long enough for ranks that share cores to take turns, and for effects of one run on the next. Exchanges
    are timed run by run (``one_by_one``): in training, too, links rest before an exchange, which changes their speed.
    """
    first_runs, batches, batch_s = _BATCHES.get()
    for _ in range(first_runs):
        function()
    if one_by_one:
        return statistics.median(elapsed(comm, comm.device, function) for _ in range(_EXCHANGE_RUNS))
    slowest = comm.all_reduce(torch.tensor([elapsed(comm, comm.device, function)], dtype=torch.float64), "max")
    runs = max(1, round(batch_s / float(slowest[0])))
    return statistics.median(elapsed(comm, comm.device, function, runs) / runs for _ in range(batches))


def _of_all_ranks(comm: Comm, value: float) -> list[float]:
    return torch.cat(comm.gather_rows(torch.tensor([float(value)], dtype=torch.float64))).tolist()
