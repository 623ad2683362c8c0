"""Hostile sources, seeded: every one must load as a Graph or be refused by an InputError of one printable line.

A few hundred run in the suite; more, and files of DGL, with::

    python tests/partition/sources/source_fuzz.py --cases 20000 --seed 1
    python tests/partition/sources/source_fuzz.py --cases 2000 --seed 1 --dgl

Memory and time of a case are bounded, so that a claim that is believed shows as a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from hostile_sources import case, damaged

from dgl_gt.partition.errors import InputError, SourceWarning
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.sources.load import load_graph

MEMORY_BYTES, SECONDS = 1 << 30, 10


class TooSlow(BaseException):
    """A time-out that is not an Exception, so that no handler takes it for an error in a file."""


def outcome(load) -> str:
    """Return ``graph``, ``refused``, or a description of what went wrong."""

    def too_slow(*_):
        raise TooSlow

    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy's say that a value was not what we take it for
            warnings.simplefilter("ignore", SourceWarning)
            made = load()
        return "graph" if isinstance(made, Graph) else f"made {type(made).__name__}"
    except InputError as error:
        return "refused" if str(error).isprintable() and len(str(error)) < 20_000 else f"said {str(error)!r}"
    except TooSlow:
        return f"over {SECONDS} s\n{traceback.format_exc()}"
    except BaseException:  # whatever it is, it is what is looked for
        return traceback.format_exc()
    finally:
        signal.alarm(0)


def run(cases: int, seed: int) -> tuple[Counter, dict[str, str]]:
    """Count the outcomes, and list what went wrong by the seed of the case."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES,) * 2)
    counts, failures = Counter(), {}
    for number in range(cases):
        rng = random.Random(f"{seed}/{number}")
        with tempfile.TemporaryDirectory() as folder:
            source, options = case(rng, Path(folder))
            found = outcome(lambda source=source, options=options: load_graph(source, **options))
        counts[found if found in ("graph", "refused") else "failed"] += 1
        if found not in ("graph", "refused"):
            failures[f"{seed}/{number}"] = (
                f"{type(source).__name__} {str(source)[:200]!r} {str(options)[:200]}\n{found}"
            )
    return counts, failures


def run_dgl(cases: int, seed: int) -> tuple[Counter, dict[str, str]]:
    """Do the same with files of ``dgl.save_graphs`` as the child reads them; a signal may end the child."""
    import dgl
    import torch

    from dgl_gt.partition.sources.dgl_graphs import records

    counts, failures = Counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.bin"
        graph = dgl.graph(([0, 1, 2], [1, 2, 3]))
        graph.ndata["feat"], graph.edata["weight"] = torch.ones(4, 2), torch.ones(3, dtype=torch.int64)
        dgl.save_graphs(str(path), [graph], {"label": torch.ones(1)})
        whole = path.read_bytes()
        for number in range(cases):
            path.write_bytes(damaged(random.Random(f"{seed}/{number}"), whole))
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.write(writing, outcome(lambda: (list(records(path)), Graph(*np.zeros((3, 0))))[1]).encode()[-4000:])
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as stream:
                found = stream.read()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found = f"signal {-code}" if code < 0 else found
            fine = found in ("graph", "refused") or code < 0
            counts[found if fine else "failed"] += 1
            if not fine:
                failures[f"{seed}/{number}"] = found
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dgl", action="store_true", help="damage files of dgl.save_graphs")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import networkx  # noqa: F401  before the memory is bounded
    import pyarrow.parquet  # noqa: F401

    os.chdir(tempfile.gettempdir())
    counts, failures = (run_dgl if args.dgl else run)(args.cases, args.seed)
    for where, failure in failures.items():
        print(f"---- case {where}: {failure}", file=sys.stderr)
    print(json.dumps(counts))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
