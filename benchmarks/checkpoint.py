"""What a checkpoint costs: its size, the seconds to write it, and their share of the default interval.

    python benchmarks/checkpoint.py

Each model trains a few epochs on a generated graph, with a checkpoint after every epoch. Writing includes the flush to
the disk, and the choice of the disk matters: ``--folder DIR`` says where.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import dgl_gt
from dgl_gt.partition import partition
from dgl_gt.run_files.run_directory import checkpoints_in
from dgl_gt.train import CheckpointConfig, read_config, train_and_save
from dgl_gt.train.store import RunStore

EPOCHS = 12
MODELS = {
    "default: 2 layers of 64": read_config(),
    "3 layers of 128": read_config(layers=3, hidden=128),
    "7 layers of 256": read_config(layers=7, hidden=256),
    "10 layers of 1024": read_config(layers=10, hidden=1024),
}


class TimedWriting:
    """Inside the block, the seconds of each checkpoint are noted."""

    def __enter__(self) -> list[float]:
        self._write, seconds = RunStore._write_checkpoint, []

        def write(store, state):
            started = time.perf_counter()
            path = self._write(store, state)
            seconds.append(time.perf_counter() - started)
            return path

        RunStore._write_checkpoint = write
        return seconds

    def __exit__(self, *_) -> None:
        RunStore._write_checkpoint = self._write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="directory on the disk to write to; by default one for temporary files")
    args = parser.parse_args()
    usual = CheckpointConfig()
    interval_s = usual.interval[1]
    print(
        f"| model | parameters | checkpoint (MiB) | to write it (s) | share of {usual.every} |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        partition("sample:communities?nodes=500", 1, Path(folder) / "shards")
        for number, (name, config) in enumerate(MODELS.items()):
            out = Path(folder) / str(number)
            with dgl_gt.load(Path(folder) / "shards") as sg, TimedWriting() as seconds:
                settings = read_config(
                    layers=config.model.layers, hidden=config.model.hidden, epochs=EPOCHS, patience=0
                )
                result, _ = train_and_save(sg, settings.changed(checkpoint_every=1), out)
            parameters = sum(each.numel() for each in result.model.parameters())
            mib, middle = checkpoints_in(out)[0].stat().st_size / 2**20, statistics.median(seconds)
            print(f"| {name} | {parameters:,} | {mib:.1f} | {middle:.3f} | {middle / interval_s:.3%} |", flush=True)


if __name__ == "__main__":
    main()
