"""Command lines as a shell starts them: interrupted, or with streams that are closed, full or unread."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dgl_gt.partition import partition, read_manifest, verify
from dgl_gt.partition.system.signals import after_imports

ROOT = Path(__file__).parents[3]
PARTITION = ["-m", "dgl_gt", "partition", "sample:communities?nodes=300", "--parts", "2", "--out"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards") / "shards"
    partition("sample:communities?nodes=300", 2, directory)
    return directory


def run(*words, **options):
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "PYTHONUNBUFFERED")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    environment = {**clean, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run([sys.executable, *map(str, words)], text=True, env=environment, timeout=60, **options)


def unread():
    """Yield one end of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


INTERRUPTED = """
import os, signal, sys
from dgl_gt.partition.system.signals import enter

def imports():
    os.kill(os.getpid(), signal.SIGINT)
    raise RuntimeError("it went on")

sys.exit(enter("dgl-gt", imports))
"""


@pytest.mark.parametrize(("environment", "text"), [({}, "dgl-gt: interrupted\n"), ({"RANK": "0"}, "")])
def test_an_interruption_while_modules_are_imported_shows_no_traceback(environment, text):
    """A rank prints nothing: the process that started it reports."""
    done = run("-c", INTERRUPTED, env=environment)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, text)


def test_an_interruption_that_the_caller_ignores_stays_ignored():
    done = run("-c", INTERRUPTED, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert "it went on" in done.stderr


STOPPED_AT_WORK = """
import os, sys, time
from pathlib import Path
from dgl_gt.cli.main import main
from dgl_gt.partition import pipeline

def stopped(*_, **__):
    assert list(out.parent.glob(".out.partial-*"))
    for _ in range(2):  # as `timeout` does, to the process and to its group
        os.kill(os.getpid(), number)
    time.sleep(60)

number, out = int(sys.argv[1]), Path(sys.argv[2])
pipeline.open_source = stopped
sys.exit(main(["partition", "none.npz", "--parts", "2", "--out", str(out)]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_what_is_half_written(tmp_path, number):
    done = run("-c", STOPPED_AT_WORK, int(number), tmp_path / "out")
    assert done.returncode == 128 + number, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert done.stderr.replace("reading the graph", "").strip(" 0.s\n") in ("", "dgl-gt: interrupted")


def test_a_full_disk_behind_standard_output_is_said_in_one_line(shards):
    with open("/dev/full", "w") as full:
        done = run("-m", "dgl_gt", "inspect", shards, stdout=full)
        assert done.returncode == 2
        assert done.stderr == (
            "dgl-gt: error: cannot write to standard output: No space left on device; "
            "the files that the command wrote are complete\n"
        )
        done = run("-m", "dgl_gt", "--help", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "dgl-gt: error: cannot write to standard output: No space left on device\n"


def test_work_goes_on_without_streams(tmp_path):
    """If the caller closes streams, the next files that are opened could get their numbers."""
    closed = run(*PARTITION, tmp_path / "closed", preexec_fn=lambda: os.closerange(0, 3))
    with unread() as pipe:
        alone = run(*PARTITION, tmp_path / "unread", stdout=pipe, stderr=pipe)
    assert closed.returncode == alone.returncode == 0
    for name in ("closed", "unread"):
        verify(tmp_path / name, read_manifest(tmp_path / name))


def test_a_refusal_does_not_go_to_standard_output(tmp_path):
    """If standard error is closed, messages must not go to standard output, where --json prints the result."""
    done = run("-m", "dgl_gt", "inspect", tmp_path, "--json", preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout) == (2, "")


def test_a_result_is_whole_where_messages_are_lost(shards):
    with open("/dev/full", "w") as full:
        done = run("-m", "dgl_gt", "inspect", shards, "--json", stderr=full)
    assert done.returncode == 0 and json.loads(done.stdout)["parts"] == 2


MESSAGES = """
import os, sys
from dgl_gt.partition.system.signals import open_streams
open_streams()
for _ in range(40):
    print("x" * 10_000, file=sys.stderr)
print("caf\\udce9 done", file=sys.stderr)
print("went on")
"""


def test_messages_to_a_full_pipe_that_does_not_wait():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        done = run("-c", MESSAGES, stderr=pipe)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_messages_that_no_encoding_has_to_a_closed_stream():
    done = run("-c", MESSAGES, preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_signal_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    """An exception in the middle of an import can be lost, or end the process in C++."""
    (tmp_path / "slow_module.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.01)\nIS_WHOLE = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def stop(number, _):
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, after_imports(stop))
    try:
        with pytest.raises(SystemExit, match="143"):
            import slow_module

            while True:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert slow_module.IS_WHOLE
