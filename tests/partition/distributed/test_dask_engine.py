"""Dask as the engine: any number of workers, workers and schedulers that die, and what is refused before the first task."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from distributed_cases import Counting, files_of, save_graph
from free_port import free_port
from slow_case import slow

from dgl_gt.cli.main import main
from dgl_gt.partition import DaskEngine, InputError, partition
from dgl_gt.partition.distributed import engine as engines
from dgl_gt.partition.distributed.engine import connected, local

pytest.importorskip("distributed")
MEMORY = 1 << 30


@pytest.fixture(scope="module")
def engine():
    with local(2, MEMORY) as running:
        yield running


@pytest.fixture
def path(tmp_path):
    return save_graph(tmp_path / "graph.npz")


@pytest.fixture
def expected(tmp_path, path, small_tasks):
    partition(path, 4, tmp_path / "expected", engine=Counting())
    return files_of(tmp_path / "expected")


@pytest.mark.parametrize("workers", [slow(1), 2, slow(4)])
def test_any_number_of_workers_gives_the_same_shards(tmp_path, engine, path, expected, workers):
    engine.client.cluster.scale(workers)
    engine.client.wait_for_workers(workers, timeout=120)
    partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY)
    assert files_of(tmp_path / "out") == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_is_killed_costs_a_task(tmp_path, path, expected, seed):
    seen = []

    def kill(stage):
        seen.append(stage)
        if len(seen) == 5 + 8 * seed:
            os.kill(min(engine.client.run(os.getpid).values()), signal.SIGKILL)

    with local(2, MEMORY) as engine:  # of its own, because Dask does not always start a killed worker again
        partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY, progress=kill)
    assert len(seen) > 30
    assert files_of(tmp_path / "out") == expected


def test_a_worker_that_dies_while_it_is_asked(tmp_path, engine, path, expected, monkeypatch):
    from distributed.comm import CommClosedError

    monkeypatch.setattr(engine.client, "run", lambda *given, **more: {"tcp://127.0.0.1:1": CommClosedError("closed")})
    partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY)
    assert files_of(tmp_path / "out") == expected


def test_a_worker_that_cannot_run_dgl_gt(tmp_path, engine, path, monkeypatch):
    monkeypatch.setattr(engine.client, "run", lambda *given, **more: {"tcp://127.0.0.1:1": OSError("libc.so.6")})
    with pytest.raises(InputError, match=r"tcp://127.0.0.1:1 .*libc\.so"):
        partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY)
    assert not (tmp_path / "out").exists()


def test_an_error_of_the_input_comes_back_from_a_worker(tmp_path, engine, path, expected, everything_mapped):
    changed = []

    def change(stage):
        if stage == "edges" and not changed:
            changed.append(os.utime(path, ns=(1, 1)))

    with pytest.raises(InputError, match=r"graph\.npz has changed"):
        partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY, progress=change)
    assert not (tmp_path / "out").exists()


def scheduler(port, tmp_path):
    """Start a scheduler and a worker; return the processes."""
    # nothing may wait on the network but on the loopback
    options = ["--host", "127.0.0.1", "--no-dashboard"]
    started = [[*options, "--port", str(port)], [f"tcp://127.0.0.1:{port}", *options, "--nworkers", "1"]]
    started[1] += ["--nthreads", "1", "--local-directory", str(tmp_path / "worker"), "--memory-limit", "1GiB"]
    commands = [
        [sys.executable, "-m", "distributed.cli.dask_scheduler"],
        [sys.executable, "-m", "distributed.cli.dask_worker"],
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return [subprocess.Popen([*command, *more], **quiet) for command, more in zip(commands, started)]


def test_a_scheduler_that_dies_and_a_run_that_goes_on(tmp_path, path, expected, capfd):
    arguments = {"parts": 4, "out": tmp_path / "out", "worker_memory": MEMORY}
    for resume in (False, True):
        port, killed = free_port(), []
        processes = scheduler(port, tmp_path)

        def kill(stage, first=processes[0], resume=resume, killed=killed):
            if stage == "coarse-cut" and not resume and not killed:
                killed.append(first.kill())

        try:
            with connected(f"tcp://127.0.0.1:{port}") as running:
                if resume:
                    partition(path, engine=running, progress=kill, resume=True, **arguments)
                else:
                    with pytest.raises(InputError, match="resume"):
                        partition(path, engine=running, progress=kill, **arguments)
                    assert not (tmp_path / "out").exists()
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    assert files_of(tmp_path / "out") == expected
    assert "Traceback" not in capfd.readouterr().err


@contextmanager
def started(tmp_path):
    """The address of a scheduler and its processes; the last is a worker."""
    port = free_port()
    processes = scheduler(port, tmp_path)
    try:
        yield f"tcp://127.0.0.1:{port}", processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_no_worker_left(tmp_path, path, small_tasks, monkeypatch):
    monkeypatch.setattr(engines, "_LOOKS_EVERY_S", 0.1)
    monkeypatch.setattr(engines, "_WITHOUT_WORKERS_S", 0.5)
    with started(tmp_path) as (address, processes), connected(address) as running:

        def kill(stage):
            if stage == "edges":
                processes[-1].terminate()
                processes[-1].wait()

        with pytest.raises(InputError, match=r"no worker.*resume.*\.out\.work"):
            partition(path, 4, tmp_path / "out", engine=running, worker_memory=MEMORY, progress=kill)


def test_a_worker_that_joins_later_is_asked_too(tmp_path, path, small_tasks):
    late = []

    def join(stage):
        if stage == "edges" and not late:
            command = [sys.executable, "-m", "distributed.cli.dask_worker", engine.client.scheduler.address]
            options = [
                "--host",
                "127.0.0.1",
                "--no-dashboard",
                "--no-nanny",
                "--nthreads",
                "1",
                "--memory-limit",
                "512MiB",
            ]
            options += ["--local-directory", str(tmp_path / "late")]
            late.append(subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            engine.client.wait_for_workers(2, timeout=60)

    with local(1, MEMORY) as engine:
        try:
            with pytest.raises(InputError, match="512"):
                partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY, progress=join)
        finally:
            late[0].kill()
            late[0].wait()


def test_no_workers_in_time(tmp_path, path, monkeypatch):
    class Late(Exception):
        """What asyncio raises before Python 3.11; it is not Python's own TimeoutError."""

    def wait(count, timeout):
        raise Late

    with local(1, MEMORY) as engine:
        monkeypatch.setattr("distributed.TimeoutError", Late)
        monkeypatch.setattr(engine.client, "wait_for_workers", wait)
        with pytest.raises(InputError, match="no workers"):
            partition(path, 4, tmp_path / "out", engine=engine, worker_memory=MEMORY)


def test_ctrl_c_prints_no_traceback(tmp_path):
    source = "sample:communities?nodes=30000&degree=30&seed=0"
    command = [sys.executable, "-m", "dgl_gt", "partition", source, "--parts", "4", "--out", str(tmp_path / "out")]
    command += ["--engine", "local", "--workers", "2", "--worker-memory", "512MiB"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    lines = []
    for line in run.stderr:
        lines.append(line)
        if "files of this run" in line:
            break
    os.killpg(run.pid, signal.SIGINT)
    said = "".join(lines) + run.stderr.read()
    assert run.wait(timeout=60) not in (0, 1)
    assert "Traceback" not in said and str(tmp_path / ".out.work") in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"engine": "local"}, "engine"), ({"worker_memory": MEMORY}, "worker_memory"), ({"resume": True}, "resume")],
)
def test_arguments_that_do_not_fit_together(tmp_path, path, arguments, named):
    with pytest.raises(InputError, match=named):
        partition(path, 2, tmp_path / "out", **arguments)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("tcp://127.0.0.1:9", "127.0.0.1:9"),
        ("127.0.0.1:8786", "127.0.0.1:8786"),
        ("http://127.0.0.1:8786", "http"),
        ("tcp://10.0.0.1:8786", "insecure"),
        ("tcp://example.org:8786", "insecure"),
        ("tls://127.0.0.1:9", "tls://127.0.0.1:9"),
    ],
)
def test_schedulers_that_are_not_there_or_not_safe(tmp_path, path, capfd, monkeypatch, address, named):
    monkeypatch.setattr(engines, "_WAIT_S", 1)
    arguments = [str(path), "--parts", "2", "--out", str(tmp_path / "out"), "--engine", "dask", "--scheduler", address]
    assert main(["partition", *arguments]) == 2
    said = capfd.readouterr().err
    assert named in said and "Traceback" not in said
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph.npz"]


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--scheduler", "tcp://127.0.0.1:1"], "--scheduler"),
        (["--workers", "2"], "--workers"),
        (["--worker-memory", "2GiB"], "--worker-memory"),
        (["--resume"], "--resume"),
        (["--engine", "dask", "--scheduler", "tcp://127.0.0.1:1", "--workers", "2"], "--workers"),
        (["--engine", "local", "--insecure"], "--insecure"),
        (["--engine", "local", "--workers", "0"], "workers"),
    ],
)
def test_options_that_do_not_fit_together(tmp_path, path, capfd, more, named, dry):
    more = [*more, "--dry-run"] if dry else more
    assert main(["partition", str(path), "--parts", "2", "--out", str(tmp_path / "out"), *more]) == 2
    assert named in capfd.readouterr().err


def test_a_scheduler_must_be_named(tmp_path, path, capfd):
    assert main(["partition", str(path), "--parts", "2", "--out", str(tmp_path / "out"), "--engine", "dask"]) == 2
    assert "--scheduler" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--parts", "900"], "parts"),
        (["--parts", "2", "--worker-memory", "100MiB"], "--worker-memory"),
        (["--parts", "2", "--self-loops"], "weight"),
        (["--parts", "2", "--workers", "0"], "workers"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(path, capfd, more, named):
    assert main(["partition", str(path), "--engine", "local", "--dry-run", *more]) == 2
    assert named in capfd.readouterr().err


def test_workers_of_another_version(tmp_path, engine, path, monkeypatch):
    monkeypatch.setattr(engines, "version", lambda: "0.0.1")
    with pytest.raises(InputError, match=r"0\.0\.1"):
        partition(path, 2, tmp_path / "out", engine=engine, worker_memory=MEMORY)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph.npz"]


def test_workers_with_less_memory_than_a_task_takes(tmp_path, engine, path):
    with pytest.raises(InputError, match=r"1024MiB"):
        partition(path, 2, tmp_path / "out", engine=engine, worker_memory=2 * MEMORY)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph.npz"]


def test_the_command_with_workers_of_its_own(tmp_path, path, capfd):
    arguments = [str(path), "--parts", "2", "--out", str(tmp_path / "out")]
    assert main(["partition", *arguments, "--engine", "local", "--workers", "1", "--worker-memory", "1GiB"]) == 0
    assert "edge cut" in capfd.readouterr().out
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_a_dry_run_starts_nothing(tmp_path, path, capfd):
    arguments = [str(path), "--parts", "2", "--engine", "local", "--workers", "9", "--dry-run", "--json"]
    assert main(["partition", *arguments]) == 0
    stages = json.loads(capfd.readouterr().out)
    assert len(stages) == 5 and all(each["seconds"] >= 0 and each["tasks"] >= 1 for each in stages.values())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph.npz"]


def test_what_is_no_client():
    with pytest.raises(InputError, match="Client"):
        DaskEngine("tcp://127.0.0.1:8786")
