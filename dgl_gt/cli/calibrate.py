"""``dgl-gt calibrate``."""

from __future__ import annotations

from pathlib import Path

from dgl_gt.partition import console
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.profile import MAX_RANKS
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.units import format_bytes

from .options import add_json, add_timeout, positive_integer


def add_command(commands) -> None:
    """Add ``calibrate`` to an argparse subparsers object."""
    command = commands.add_parser(
        "calibrate",
        help="measure the speed of ranks and of the links between them",
        description="Measure how fast ranks and the links between them are, all at the same time, and write a hardware "
        "profile. This takes about a minute. Under torchrun, join the ranks that torchrun started.",
    )
    text = "number of ranks to start on this machine (default: 1)"
    command.add_argument("--nproc", type=positive_integer, metavar="P", help=text)
    command.add_argument("--out", required=True, metavar="FILE.yaml", help="hardware profile to write")
    add_timeout(command)
    command.add_argument("--force", action="store_true", help="replace FILE.yaml if it exists")
    add_json(command)
    command.set_defaults(command=_calibrate)


def _calibrate(args):
    from dgl_gt.ranks.launch import run_on_ranks

    if args.nproc is not None and args.nproc > MAX_RANKS:
        raise InputError(f"--nproc is {args.nproc}; it must be from 1 to {MAX_RANKS}")
    out = check_file(args.out, force=args.force)
    return run_on_ranks(
        args.argv,
        lambda: args.nproc or 1,
        lambda: _calibrate_rank(args, out),
        nproc=args.nproc,
        timeout=args.timeout,
        memory_advice=lambda: "free memory, or measure fewer ranks",
    )


def _calibrate_rank(args, out: Path):
    """Measure on this rank; rank 0 writes the profile. Returns its values, and a table of them."""
    import yaml

    from dgl_gt.comm.group import Comm
    from dgl_gt.plan.calibrate import measure

    comm = Comm(timeout_s=args.timeout)
    with comm.together(), console.Stages() as progress:
        profile = measure(comm, progress if comm.rank == 0 else None)
    values = profile.as_dict()
    if comm.rank == 0:
        with new_file(out, force=args.force) as file:
            file.write(yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100).encode())
    return values, f"{_profile_table(values, profile.target_weights())}\n\nwrote {out}"


def _profile_table(values: dict, target_weights: list[float]) -> str:
    def listed(value, scale: float, digits: int = 1) -> str:
        return ", ".join(f"{each / scale:.{digits}f}" for each in (value if isinstance(value, list) else [value]))

    rows = [
        ("ranks", values["ranks"]),
        ("matrix products of width 128 (GFLOP/s)", listed(values["products"][128], 1e9)),
        ("norms and activation functions (GB/s)", listed(values["stream_bytes_per_s"], 1e9)),
        ("element-wise sums (GB/s)", listed(values["simple_bytes_per_s"], 1e9)),
        ("attention, rows nearby, per edge and column (ns)", listed(values["attention"]["near_column_s"], 1e-9, 2)),
        *(
            (
                f"attention, rows anywhere in {format_bytes(held_bytes)}, per edge and column (ns)",
                listed(seconds, 1e-9, 2),
            )
            for held_bytes, seconds in values["attention"]["far_column_s"].items()
        ),
        ("memory (GiB)", listed(values["memory_bytes"], 2**30)),
    ]
    if values["ranks"] > 1:
        link = values["link_bytes_per_s"]
        between = [link[i][j] for i in range(len(link)) for j in range(len(link)) if i != j]
        rows += [
            ("slowest and fastest link (MB/s)", listed([min(between), max(between)], 1e6)),
            ("latency of an exchange (ms)", listed(values["latency_s"], 1e-3, 2)),
            ("exchange hidden behind computation", f"{values['overlap']:.0%}"),
            ("shares for --target-weights", ",".join(f"{each:.3f}" for each in target_weights)),
        ]
    return table(["measured", "one value, or one per rank"], rows)
