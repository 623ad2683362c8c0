"""What several test folders need: real data, awkward random graphs, and what happens where DGL is absent."""

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from dgl_gt.partition.graph import from_edges

# A shell starts what runs in the background with these ignored, and children inherit that; tests send them to children.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# Triton decides when it is imported, by whichever test does so first, whether its kernels are compiled or interpreted.
# tests/partition runs without torch, too.
if importlib.util.find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")

# Costs that `dgl-gt calibrate` has kept for a user of this machine would change cuts.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"dgl-gt-tests-{os.getpid()}")
# Traces of steps are kept there for all workers.
_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
os.environ["DGL_GT_CACHE"] = str(Path(tempfile.gettempdir()) / f"dgl-gt-tests-{_RUN}")

if os.environ.get("DGL_GT_WITHOUT_DGL"):
    hiding = str(Path(__file__).parent / "helpers" / "without_dgl")
    sys.path.insert(0, hiding)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [hiding, os.environ.get("PYTHONPATH")]))
HAS_DGL = not os.environ.get("DGL_GT_WITHOUT_DGL") and importlib.util.find_spec("dgl") is not None

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("DGL_GT_DATA", ROOT.parent / "shared" / "data"))


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="run two tests of each file, and one of those that take long")
    parser.addoption(
        "--slow", action="store_true", help="run those marked slow, too: more of what others test, and longer"
    )


def pytest_collection_modifyitems(config, items):
    """``--quick`` keeps a few. Long tests come first, so that no worker ends with one; one marked ``needs_dgl`` skips where DGL is absent.

    A test marked ``slow`` runs with ``--slow``, or where tests are named.
    """
    long = ("docs", "examples", "hostile")
    if not config.getoption("slow") and not any("::" in each for each in config.args):
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    if config.getoption("quick"):
        of_file = {}
        for item in items:
            of_file.setdefault(item.path, []).append(item)
        items[:] = [
            test
            for path, tests in of_file.items()
            for test in (tests if len(tests) == 1 else tests[:1] if path.parent.name in long else (tests[0], tests[-1]))
        ]
    items.sort(key=lambda item: item.path.parent.name not in long)
    for item in items:
        if not HAS_DGL and item.get_closest_marker("needs_dgl"):
            item.add_marker(pytest.mark.skip(reason="DGL is not installed"))


def pytest_sessionfinish(session):
    """Remove the folders that this process has named above; the last worker's traces go with the one that started them."""
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
    if not hasattr(session.config, "workerinput"):
        shutil.rmtree(os.environ["DGL_GT_CACHE"], ignore_errors=True)


@pytest.fixture
def rank_here(monkeypatch):
    """Commands that start one rank are that rank, in this process, as under torchrun: another one would import torch again."""
    from free_port import free_port
    from torch import distributed

    from dgl_gt.cli.main import main
    from dgl_gt.ranks import launch

    def launch_command(arguments, ranks, *others, **options):
        if ranks > 1:
            return start(arguments, ranks, *others, **options)
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        os.environ.update(place)
        try:
            return main(arguments)
        finally:
            for name in place:
                del os.environ[name]
            if distributed.is_initialized():  # after an error
                distributed.destroy_process_group()

    start = launch.launch_command
    monkeypatch.setattr(launch, "launch_command", launch_command)


@pytest.fixture(scope="session")
def measured_profile(tmp_path_factory) -> Path:
    """What one run of ``dgl-gt calibrate --quick`` on two ranks wrote; the costs are in the folder ``measured`` beside it.

    The workers of pytest-xdist share it, as it takes ten seconds.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    profile = folder / "two.yaml"
    with open(folder / "two.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not profile.exists():
            command = [sys.executable, "-m", "dgl_gt", "calibrate", "--nproc", "2", "--quick", "--out", profile]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "measured")}
            subprocess.run(command, check=True, timeout=300, env=environment)
    return profile


@pytest.fixture
def bucket(monkeypatch, tmp_path_factory):
    """A bucket of a server of S3 on the loopback: its address, the file system that writes to it, and the server's faults."""
    s3fs = pytest.importorskip("s3fs", reason="the driver of s3://")
    pytest.importorskip("moto.server", reason="a server of S3")
    from object_store import running_store

    with running_store() as (store, endpoint):
        settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a-secret-key"}
        settings |= {"DGL_GT_CACHE": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()  # moto keeps buckets for the process
        s3fs.S3FileSystem.clear_instance_cache()  # which know another server
        system = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
        system.mkdir("graphs")
        yield "s3://graphs", system, store


@pytest.fixture
def real_graph():
    """A function: name -> path of a real graph; skips where the data are absent."""

    def path(name: str) -> Path:
        file = DATA / f"{name}.npz"
        if not file.is_file():
            pytest.skip(f"{file} is absent; set DGL_GT_DATA to a folder with the graphs of the benchmarks")
        return file

    return path


@pytest.fixture(scope="session")
def awkward_graph():
    """A function: seed -> directed Graph with isolated nodes, self-loops, parallel edges, hubs, node and edge data."""

    def make(seed: int, nodes: int = 60, edges: int = 300, classes: int = 3):
        rng = np.random.default_rng(seed)
        alive = rng.permutation(nodes)[: nodes - 6]  # the others have neither in- nor out-edges
        src, dst = rng.choice(alive, edges), rng.choice(alive, edges)
        src[:40], dst[40:80] = alive[0], alive[1]  # hubs, one out, one in
        src[80:90], dst[80:90] = src[90:100], dst[90:100]  # parallel edges
        dst[100:105] = src[100:105]  # self-loops
        split = rng.integers(0, 3, nodes)
        return from_edges(
            src,
            dst,
            nodes,
            {
                "feat": rng.standard_normal((nodes, 5)).astype(np.float32),
                "label": rng.integers(0, classes, nodes),
                **{key: split == i for i, key in enumerate(("train_mask", "val_mask", "test_mask"))},
            },
            {"weight": rng.standard_normal((edges, 4))},
            name=f"awkward-{seed}",
        )

    return make
