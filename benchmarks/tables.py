"""Tables with ids of text to nodes, and to shards, beside pandas, which maps the ids alone.

    python benchmarks/tables.py [--edges 20000000] [--nodes 1000000] [--files 30] [--runs 3] [--memory 2GiB] [--folder DIR]
    python benchmarks/tables.py --s3 [--edges ...]

The tables are made up: edges of two relations with a weight, in Parquet files, and a table of nodes with two features
and a label. Each figure is of a process of its own, in turn; seconds are medians, memory is the most of all runs.
pandas reads only the ids of both and maps them file by file with ``Index.get_indexer``, its fastest way here. "read"
maps the ids and reads all columns; "shards" also cuts the graph into four parts and writes them. ``--s3`` makes the
shards from the files, and again from an S3 server on the loopback that has the same files, and says what differs.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if sys.path[0] == str(ROOT / "benchmarks"):  # where `import partition` would find the benchmark of that name
    sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402

from dgl_gt.partition.console import table  # noqa: E402

PANDAS = """
import glob, sys, numpy as np, pandas as pd
folder = sys.argv[1]
index = pd.Index(pd.read_parquet(f"{folder}/nodes.parquet", columns=["id"])["id"])
ends = []
for path in sorted(glob.glob(f"{folder}/edges/*/*.parquet")):
    ids = pd.read_parquet(path, columns=["src", "dst"])
    ends.append([index.get_indexer(ids[name]).astype(np.int32) for name in ("src", "dst")])
print(sum(len(src) for src, _ in ends))
"""
OPTIONS = "node_table=f'{folder}/nodes.parquet', features=['age', 'country'], memory=int(sys.argv[2])"
READ = f"""
import sys; from dgl_gt.partition.sources.load import open_source; from dgl_gt.partition.sources.options import SourceOptions
folder = sys.argv[1]
print(open_source(f"{{folder}}/edges", SourceOptions({OPTIONS})).num_edges)
"""
SHARDS = f"""
import sys; from dgl_gt.partition import partition
folder = sys.argv[1]
print(partition(f"{{folder}}/edges", 4, sys.argv[3], force=True, {OPTIONS})["edges"])
"""


def make_tables(folder: Path, edges: int, nodes: int, files: int) -> None:
    """Write the tables. Four edges of five are inside groups of a thousand nodes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    hashes = generator.permutation(nodes).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ids = np.array([f"user-{number:016x}" for number in hashes.tolist()])
    order = generator.permutation(nodes)
    country = np.array(["CN", "DE", "FR", "GB", "NL", "US"])[generator.integers(0, 6, nodes)]
    columns = {"id": ids[order], "age": generator.integers(18, 90, nodes), "country": country}
    pq.write_table(pa.table(columns | {"label": order % 5}), folder / "nodes.parquet")
    for number in range(files):
        src = generator.integers(0, nodes, edges // files)
        near = np.minimum(src // 1000 * 1000 + generator.integers(0, 1000, len(src)), nodes - 1)
        dst = np.where(generator.random(len(src)) < 0.8, near, generator.integers(0, nodes, len(src)))
        weight = generator.random(len(src)).astype(np.float32)
        place = folder / "edges" / ("follows" if number % 2 else "pays")
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"src": ids[src], "dst": ids[dst], "weight": weight}), place / f"{number:04d}.parquet")


def run(script: str, *arguments) -> tuple[float, int]:
    """Seconds and peak memory (bytes) of a script in a process of its own."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"a script ended with status {status}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def compare_with_s3(folder: Path, memory: int, scratch: Path) -> None:
    """Print what differs between shards of the files in a folder and of the same files on an S3 server."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    os.environ["AWS_ENDPOINT_URL"] = "http://{}:{}".format(*server.get_host_and_port())
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    system, here, there = s3fs.S3FileSystem(), scratch / "files", scratch / "s3"
    system.put(str(folder / "edges"), "s3://tables/edges", recursive=True)
    system.put(str(folder / "nodes.parquet"), "s3://tables/nodes.parquet")
    for place, out in ((folder, here), ("s3://tables", there)):
        print(f"shards of {place}: {run(SHARDS, place, memory, out)[0]:.1f} s")
    server.stop()
    names = sorted({str(path.relative_to(out)) for out in (here, there) for path in out.rglob("*") if path.is_file()})
    _, differing, missing = filecmp.cmpfiles(here, there, names, shallow=False)
    first, second = ((out / "manifest.json").read_text().replace(str(folder), "s3://tables") for out in (here, there))
    first, second = json.loads(first), json.loads(second)
    fields = [name for name in first | second if first.get(name) != second.get(name)]
    print(f"{len(names)} files, of which these differ: {', '.join(differing + missing) or 'none'}")
    print(f"fields of manifest.json that differ by more than the address of the tables: {', '.join(fields) or 'none'}")


def main(argv=None) -> None:
    """Print the table."""
    from dgl_gt.partition.system.units import parse_size

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", type=parse_size, default="2GiB")
    parser.add_argument("--s3", action="store_true", help="compare shards of files with those of an S3 server")
    parser.add_argument("--folder", type=Path, help="where the tables are made, and found again")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not (folder / "nodes.parquet").exists():
            make_tables(folder, args.edges, args.nodes, args.files)
        if args.s3:
            return compare_with_s3(folder, args.memory, Path(temporary))
        tools = {"pandas, ids": PANDAS, "dgl-gt, read": READ, "dgl-gt, shards": SHARDS}
        found = {name: [] for name in tools}
        for _ in range(args.runs):
            for name, script in tools.items():
                found[name].append(run(script, folder, args.memory, Path(temporary) / "shards"))
    seconds = {name: statistics.median(s for s, _ in runs) for name, runs in found.items()}
    rows = [
        [name, f"{seconds[name]:.1f}", f"{seconds[name] / seconds['pandas, ids']:.2f}"]
        + [f"{max(peak for _, peak in found[name]) / 2**30:.2f}"]
        for name in tools
    ]
    print(f"{args.edges:,} edges in {args.files} files, {args.nodes:,} nodes, median of {args.runs}\n")
    print(table(["", "s", "over pandas", "peak GiB"], rows))


if __name__ == "__main__":
    main()
