"""What the tests of the selector share: profiles written by hand, every way to train, and how a refusal looks."""

import json
from itertools import product

import numpy as np
import yaml

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS, LOCAL, NAMES, ONE, Count, strategy_of
from dgl_gt.plan import Tracer
from dgl_gt.plan.trace import Event, Trace, traced_time

GRAPH = "sample:communities?nodes=300&features=12&seed=0"
SMALL = ["--hidden", 16, "--heads", 4, "--layers", 2, "--classes", 10]


def profile_values(ranks=2, **changes) -> dict:
    """A profile as its file holds it: ranks that are alike, with links of 1 GB/s."""
    values = {
        "format": "dgl-gt profile 3",
        "kind": "measured",
        "ranks": ranks,
        "memory_bytes": 1e9,
        "process_bytes": 1e6,
        "page_byte_s": 0.0,
        "memory_factor": 1.0,
        "stream_bytes_per_s": 1e10,
        "simple_bytes_per_s": 2e10,
        "operation_s": 1e-8,
        "products": {32: 5e10, 128: 1e11},
        "attention": {
            "edge_s": 1e-9,
            "head_s": 1e-10,
            "row_column_s": 1e-11,
            "near_column_s": 1e-10,
            "far_column_s": {1000: 2e-10},
        },
        "bf16_product_speed": 2.0,
        "bf16_edge_time": 0.5,
        "latency_s": 1e-5,
        "overlap": 0.5,
        "reduce_bytes_per_s": 1e9,
        "link_bytes_per_s": [[1e9] * ranks] * ranks if ranks else {"within": 1e9, "between": 1e8, "ranks_per_host": 2},
    }
    assert changes.keys() <= values.keys()
    return {**values, **changes}


def half_speed(ranks=2, slow=1) -> dict:
    """The same with one rank at half the speed of the others."""
    values = profile_values(ranks)

    def slowed(value, is_time):
        if isinstance(value, dict):
            return {key: slowed(each, is_time) for key, each in value.items()}
        return [value * (2 if is_time else 0.5) if rank == slow else value for rank in range(ranks)]

    values["stream_bytes_per_s"] = slowed(values["stream_bytes_per_s"], False)
    values["simple_bytes_per_s"] = slowed(values["simple_bytes_per_s"], False)
    values["operation_s"] = slowed(values["operation_s"], True)
    values["products"] = slowed(values["products"], False)
    values["attention"] = slowed(values["attention"], True)
    return values


class _PlainDumper(yaml.SafeDumper):
    """Writes a list in full wherever it is, as aliases are refused."""

    def ignore_aliases(self, data):
        return True


def write_profile(path, values=None):
    """Write a profile; gives its path."""
    path.write_text(yaml.dump(profile_values() if values is None else values, Dumper=_PlainDumper))
    return path


class MadeUpTraces(Tracer):
    """Traces of no step: random sizes per row and edge, so that a plan takes no time.

    Parameters
    ----------
    seed : int
    width : int
        Width of rows, to which all sizes are proportional.
    heads : int
        Number of heads, which ranks must share evenly with the strategy ``heads``.
    deep_share : float
        What halos deeper than one hop need, as a share of the memory that other steps need.
    """

    def __init__(self, seed=0, width=16, heads=4, max_depth=2, modes=ACTIVATION_CHECKPOINTS, deep_share=1.0):
        super().__init__(None, max_depth, modes, {"seed": seed})
        self._options = seed, width, heads, deep_share

    def _trace(self, figures, strategy, depth, mode):
        seed, width, heads, deep_share = self._options
        if strategy.name == "heads" and heads % figures.parts:
            raise InputError(f"heads is {heads}, which {figures.parts} ranks cannot share evenly")
        number = ACTIVATION_CHECKPOINTS.index(mode)
        rng = np.random.default_rng([seed, [*NAMES, "mesh=2"].index(strategy.name), depth])
        compute, memory, sent = (1, 1.2, 1.3)[number], (1, 0.6, 0.5)[number], (1, 1, 1.5)[number]
        counts = (LOCAL if figures.parts == 1 else strategy).counts(depth)
        has_copies, row, random = Count("copies", 0) in counts, 4 * width, rng.uniform(0.5, 2, 6)

        def size(of_row=0.0, of_edge=0.0, of_copy=0.0, of_sent=0.0, constant=0.0):
            each = {ONE: constant, Count("owned"): of_row, Count("edges"): of_edge, Count("edges", 0): of_edge}
            each |= {Count("copies", 0): of_copy, Count("sent", 0): of_sent}
            return [each.get(count, 0.0) for count in counts]

        held = row * memory * (deep_share if depth > 1 else 1.0)
        events = [
            (Event("memory"), [size(6 * random[0] * held, of_copy=held)]),
            (Event("product", ("mm", 4)), [size(compute * random[1] * width**2), *[size(constant=width)] * 3]),
            (Event("edges", (heads, width // heads, 4, 3)), [size(of_edge=compute), size(1), size(1, of_copy=1)]),
            (Event("rows", ("add",)), [size(9 * compute * random[2] * row)]),
        ]
        if has_copies:
            bytes_of = random[3] * sent * row
            events += [(Event("begin"), [size(of_sent=bytes_of), size(of_copy=bytes_of)]), (Event("wait"), [])]
            events += [(Event("sum"), [size(constant=row)])]
        sizes = np.array([each for _, of_event in events for each in of_event]).T
        event_of = np.repeat(np.arange(len(events)), [len(of_event) for _, of_event in events])
        kept = np.array(size(2 * row, 12, constant=100 * row))
        return Trace(counts, tuple(event for event, _ in events), event_of, sizes, kept)


def every_way(cuts, traces, profile, max_depth=None) -> dict:
    """(directory, strategy, depth, activation_checkpoint) -> seconds, bytes sent, and bytes of the largest process.

    All that can run, from the traces alone; ``keep_exchanges`` only where there is an exchange.
    """
    ways = {}
    for directory, figures in cuts:
        depths = range(1, min(traces.max_depth, max_depth or traces.max_depth) + 1)
        for strategy, depth, mode in product(NAMES, depths, traces.activation_checkpoints):
            try:
                trace = traces.of(figures, strategy_of(strategy), depth, mode)
            except ValueError:
                continue
            if mode == "keep_exchanges" and not trace.sent_bytes(figures):
                continue
            process = trace.peak_bytes(figures) + np.broadcast_to(profile.process_bytes, figures.parts)
            seconds = traced_time(trace, figures, profile).total_s
            ways[directory, strategy, depth, mode] = (seconds, trace.sent_bytes(figures), int(process.max()))
    return ways


def refused(done, *messages, lines=1):
    """Exit code 2, one line that says what is wrong, nothing on stdout, no traceback.

    ``lines``: how many there are on stderr; None where stages of work come before.
    """
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert lines is None or done.stderr.count("\n") == lines, done.stderr
    last = done.stderr.rstrip("\n").splitlines()[-1]
    assert done.stderr.count("error:") == 1 and "error:" in last, done.stderr
    for message in messages:
        assert message in last, last
    return last


def planned(done) -> dict:
    """What ``dgl-gt plan --json`` printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
