"""What the tests of the selector share: profiles written by hand, every way to train, and how a refusal looks."""

from itertools import product

import numpy as np
import yaml

from partition.predict.step_memory import step_memory
from partition.predict.step_time import step_time
from partition.predict.strategies import ACTIVATION_CHECKPOINTS, STRATEGIES, check_strategy
from partition.predict.traffic import step_bytes


def profile_values(ranks=2, **changes) -> dict:
    """A profile as its file holds it: ranks that are alike, with links of 1 GB/s."""
    values = {
        "format": "dgl-gt profile 1",
        "kind": "measured",
        "ranks": ranks,
        "memory_bytes": 1e9,
        "process_bytes": 1e6,
        "stream_bytes_per_s": 1e10,
        "layer_s": 1e-6,
        "products": {32: 5e10, 128: 1e11},
        "attention": {
            "edge_s": 1e-9,
            "head_s": 1e-10,
            "row_column_s": 1e-11,
            "near_column_s": 1e-10,
            "far_column_s": {1000: 2e-10},
        },
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
    values["layer_s"] = slowed(values["layer_s"], True)
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


def every_way(cuts, model, profile, max_depth=None) -> dict:
    """(directory, strategy, depth, activation_checkpoint) -> seconds, bytes sent, and bytes of the largest process.

    All that partition can run, from its formulas alone.
    """
    ways = {}
    for directory, figures in cuts:
        parts = figures.parts
        speeds = profile.speeds(model, parts)
        depths = range(1, min(model.layers, max_depth or model.layers) + 1)
        for strategy, depth, activation_checkpoint in product(STRATEGIES, depths, ACTIVATION_CHECKPOINTS):
            try:
                check_strategy(figures, strategy, depth, model)
            except ValueError:
                continue
            seconds = step_time(figures, model, speeds, strategy, depth, activation_checkpoint).total_s
            memory = step_memory(figures, model, strategy, depth, activation_checkpoint).total
            process = memory + np.broadcast_to(profile.process_bytes, parts)
            sent = step_bytes(figures, model, strategy, depth, activation_checkpoint)
            ways[directory, strategy, depth, activation_checkpoint] = (seconds, sent, int(process.max()))
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
