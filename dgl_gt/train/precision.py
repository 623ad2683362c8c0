"""Whether bfloat16 is faster than float32 here: two products of the model's shapes are timed before training."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch.nn import functional

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.run_files.run_directory import CONFIG

from .config import TrainConfig, read_config

_FLOPS = 4e9  # of a product with its backward pass, at most
_RUNS = 3  # of which the fastest counts


def with_measured_precision(sg: ShardedGraph, config: TrainConfig) -> TrainConfig:
    """The config with a precision in place of ``auto``: what is faster on rank 0; every rank calls it.

    Where bfloat16 is asked for and no faster, rank 0 says so on stderr.
    """
    if config.precision == "fp32":
        return config
    seconds = [0.0, 0.0]
    if sg.comm.rank == 0:
        seconds = [product_seconds(sg, config.model.hidden, dtype) for dtype in (torch.float32, torch.bfloat16)]
    fp32_s, bf16_s = sg.comm.broadcast_object(seconds)
    is_slower, precision = bf16_s >= fp32_s, config.precision
    if precision == "auto":
        precision = "fp32" if is_slower else "bf16"
    if sg.comm.rank == 0:
        times = f"a product of width {config.model.hidden} takes {1e3 * bf16_s:.1f} ms in bfloat16, {1e3 * fp32_s:.1f} ms in float32"
        if config.precision == "auto":
            print(f"dgl-gt: precision is {precision}: {times}", file=sys.stderr)
        elif is_slower:
            print(f"dgl-gt: bf16 is no faster on this processor: {times}; it still saves memory", file=sys.stderr)
    return config.changed(precision=precision)


def with_earlier_precision(comm: Comm, config: TrainConfig, out) -> TrainConfig:
    """The config with the precision of the run in ``out`` that goes on, in place of ``auto``; every rank calls it."""
    if config.precision != "auto":
        return config
    found = "auto"
    if comm.rank == 0:
        with suppress(InputError):  # there may be no run yet
            found = read_config(Path(out) / CONFIG).precision
    return config.changed(precision=comm.broadcast_object(found))


def product_seconds(sg: ShardedGraph, width: int, dtype: torch.dtype) -> float:
    """Seconds of the projection to Q, K and V of the rank's rows, (rows, C) x (C, 3C), with its backward pass."""
    rows = int(max(64, min(sg.num_nodes(), _FLOPS / (18 * width**2))))
    shapes = (rows, width), (3 * width, width), (rows, 3 * width)
    x, weight, upstream = (
        torch.full(shape, 0.5, dtype=dtype, device=sg.device, requires_grad=True) for shape in shapes
    )

    def run() -> float:
        started = time.perf_counter()
        torch.autograd.grad(functional.linear(x, weight), (x, weight), upstream)
        if sg.device.type == "cuda":
            torch.cuda.synchronize(sg.device)
        return time.perf_counter() - started

    run()
    return min(run() for _ in range(_RUNS))
