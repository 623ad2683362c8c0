"""``dgl-gt train`` with each way to cross ranks: as the launcher and torchrun on two nodes start it, and refused."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from free_port import free_port
from torch.distributed import TCPStore

from dgl_gt.cli.main import main
from dgl_gt.partition import load_graph, partition

ROOT = Path(__file__).parents[2]
QUICK = ["--epochs", "3", "--hidden", "16", "--heads", "4", "--layers", "2", "--attention-dropout", "0.1"]
RING = ["train", "--strategy", "ring", *QUICK, "--json"]
LIMIT_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards of one graph: ``edge`` with one hop of halo, ``deep`` with two, and ``vertex``."""
    made = tmp_path_factory.mktemp("shards")
    graph = load_graph("sample:communities?nodes=600&features=12&seed=3")
    for name, options in (("edge", {}), ("deep", {"halo_depth": 2}), ("vertex", {"cut": "vertex"})):
        partition(graph, 2, made / name, **options)
    return made


def as_rank(rank, port, output, arguments):
    """One rank's command, in the environment that a launcher gives it."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    values |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ.update({key: str(value) for key, value in values.items()})
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(output / f"{name}{rank}", os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["dgl-gt", *arguments]
    torch.set_num_threads(1)
    sys.exit(main())


def on_two_ranks(output, *arguments):
    """Exit codes, standard outputs and standard errors of both ranks; forked where torch is imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "dgl_gt.train.run"])
    words = [str(argument) for argument in arguments]
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # outlives the ranks, as a launcher's does
    ranks = [context.Process(target=as_rank, args=(rank, store.port, output, words)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    try:
        deadline = time.monotonic() + LIMIT_S
        for process in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return codes, *([(output / f"{name}{rank}").read_text() for rank in (0, 1)] for name in ("stdout", "stderr"))


def command(*arguments):
    return [sys.executable, *map(str, arguments)]


def environment():
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*arguments):
    return subprocess.run(
        command("-m", "dgl_gt", *arguments), capture_output=True, text=True, env=environment(), timeout=LIMIT_S
    )


@pytest.fixture(scope="module")
def launched(folder):
    """What ``--strategy ring`` prints where the launcher starts its ranks."""
    done = run(RING[0], folder / "edge", *RING[1:])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_launcher_passes_the_strategy_on(launched):
    assert (launched["strategy"], launched["depth"], launched["ranks"], launched["epochs"]) == ("ring", 1, 2, 3)
    rows, width_bytes, layers = 600, 16 * 4, 2
    # K and V to the other rank forward; in backward those again, and their gradients
    assert launched["exchanged_bytes_per_epoch"] == 3 * 2 * rows * width_bytes * layers


@pytest.mark.parametrize(
    ("shards", "options", "strategy", "depth"),
    [
        ("edge", [], "halo_h", 1),
        ("edge", ["--strategy", "halo", "--no-overlap"], "halo_h", 1),
        ("edge", ["--set", "exchange.strategy=gather"], "gather", 1),
        ("edge", ["--strategy", "heads"], "heads", 1),
        ("edge", ["--strategy", "ring", "--no-overlap"], "ring", 1),
        ("vertex", ["--strategy", "mirror"], "mirror", 1),
        ("vertex", [], "mirror", 1),
        ("deep", ["--depth", "2"], "halo_h", 2),
        ("deep", ["--strategy", "halo_kv", "--activation-checkpoint", "keep_exchanges"], "halo_kv", 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_strategy_is_what_the_record_says(folder, launched, tmp_path, shards, options, strategy, depth):
    """And the run is that of the others."""
    codes, (stdout, other), (stderr, _) = on_two_ranks(tmp_path, "train", folder / shards, *options, *QUICK, "--json")
    assert codes == [0, 0], stderr
    record = json.loads(stdout)
    assert (record["strategy"], record["depth"], record["ranks"]) == (strategy, depth, 2)
    np.testing.assert_allclose(record["losses"], launched["losses"], rtol=1e-4)
    assert other == ""
    assert (record["exchanged_bytes_per_epoch"] == 0) == (depth == 2)  # two layers from halo rows that the shards store


REFUSED = [
    (
        "edge",
        ["--strategy", "nope"],
        "--strategy is 'nope'",
    ),
    ("edge", ["--strategy", "mirror"], "strategy mirror does not run on"),
    ("vertex", ["--strategy", "halo"], "strategy halo does not run on"),
    ("edge", ["--strategy", "local"], "strategy local runs on one part"),
    ("edge", ["--depth", "3"], "depth is 3, but"),
    ("deep", ["--depth", "3"], "stores 2 hops of halo; use at most 2, or partition with --halo-depth 3"),
    ("deep", ["--depth", "0"], "depth is 0"),
    ("deep", ["--depth", "2", "--strategy", "ring"], "depth is 2 with strategy ring"),
    ("edge", ["--strategy", "heads", "--heads", "1"], "heads is 1, which 2 ranks cannot share evenly"),
]


@pytest.mark.parametrize(("shards", "options", "message"), REFUSED, ids=[" ".join(case[1]) for case in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(folder, tmp_path, shards, options, message):
    codes, stdout, (stderr, other) = on_two_ranks(tmp_path, "train", folder / shards, *QUICK, *options)
    assert codes == [2, 2] and stdout == ["", ""]
    lines = [line for line in stderr.splitlines() if "will not be saved" not in line]
    assert len(lines) == 1 and lines[0].startswith("dgl-gt: error: ") and message in lines[0]
    assert other == (
        stderr if {"nope", "0"} & {*options} else ""
    )  # once for all ranks, but a wrong value before they join


@pytest.mark.parametrize(
    ("shards", "options", "message"), REFUSED[:-1], ids=[" ".join(case[1]) for case in REFUSED[:-1]]
)
def test_what_shards_do_not_allow_is_refused_before_ranks_start(folder, capsys, monkeypatch, shards, options, message):
    monkeypatch.setattr("dgl_gt.ranks.launch.launch_command", lambda *_, **__: pytest.fail("ranks were started"))
    assert main(["train", str(folder / shards), *QUICK, *options]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("dgl-gt: error: ") and stderr.count("\n") == 1 and message in stderr


def test_a_depth_that_is_no_number_is_refused(folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(folder / "deep"), "--depth", "two"])
    assert stopped.value.code == 2 and "--depth: invalid int value: 'two'" in capsys.readouterr().err


def test_torchrun_on_two_nodes_gives_the_launchers_run(folder, launched):
    """Two agents that meet as docs/guide.md says, each with one rank."""
    endpoint = ["--master-addr", "localhost", "--master-port", free_port()]
    torchrun = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, *endpoint]
    words = ["-m", "dgl_gt", RING[0], folder / "edge", *RING[1:]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    agents = [subprocess.Popen(command(*torchrun, "--node-rank", node, *words), **pipes) for node in range(2)]
    try:
        outputs = [agent.communicate(timeout=LIMIT_S) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    record = json.loads(outputs[0][0])
    assert outputs[1][0] == ""
    assert record["losses"] == launched["losses"]
    assert record["ranks"] == 2 and record["strategy"] == "ring"
