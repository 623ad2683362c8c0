"""A scheduler and a worker that ask for certificates: the command gives its own, and without one learns why it fails."""

import os
import shutil
import subprocess
import sys

import pytest
from distributed_cases import Counting, files_of, save_graph
from free_port import free_port

from dgl_gt.partition import partition

pytest.importorskip("distributed")
ROLES = ("SCHEDULER", "WORKER", "CLIENT")


@pytest.fixture
def certified(tmp_path):
    """An environment in which Dask finds a certificate, its key and who signed it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    files = {f"{prefix}CA_FILE": str(certificate)}
    for role in ROLES:
        files |= {f"{prefix}{role}__CERT": str(certificate), f"{prefix}{role}__KEY": str(key)}
    return os.environ | files


@pytest.fixture
def address(tmp_path, certified):
    port = free_port()
    address = f"tls://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--no-dashboard"]
    limits = ["--nworkers", "1", "--nthreads", "1", "--memory-limit", "1GiB"]
    commands = [
        ["dask_scheduler", *options, "--protocol", "tls", "--port", str(port)],
        ["dask_worker", address, *options, *limits, "--local-directory", str(tmp_path / "worker")],
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": certified}
    running = [
        subprocess.Popen([sys.executable, "-m", f"distributed.cli.{name}", *rest], **quiet) for name, *rest in commands
    ]
    yield address
    for process in running:
        process.terminate()
        process.wait()


def test_tls(tmp_path, address, certified, small_tasks):
    path = save_graph(tmp_path / "graph.npz")
    partition(path, 2, tmp_path / "expected", engine=Counting())

    def run(out, environment):
        command = [sys.executable, "-m", "dgl_gt", "partition", str(path), "--parts", "2", "--out", str(tmp_path / out)]
        command += ["--engine", "dask", "--scheduler", address, "--worker-memory", "1GiB"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    refused = run("refused", dict(os.environ))
    assert refused.returncode == 2 and address in refused.stderr and "Traceback" not in refused.stderr
    assert not (tmp_path / "refused").exists()
    done = run("out", certified)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "out").keys() == files_of(tmp_path / "expected").keys()
