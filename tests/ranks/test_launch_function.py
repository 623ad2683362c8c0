"""``dgl_gt.launch``: a function on ranks, from a script, an interactive session and a notebook."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.ranks import launch_function, started_ranks
from dgl_gt.ranks.launcher_link import Failure

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


class Result:
    """A class that ranks know by value alone where this module is ``__main__``."""

    def __init__(self, value):
        self.value = value


def test_three_ranks_work_together_and_rank_0_answers(capsys):
    """With what the function names, and what it prints in whole lines."""
    offset = np.array([1.0, 2.0])

    def work():
        comm = dgl_gt.Comm()
        print(f"rank {comm.rank} of {comm.world_size}")
        print("to stderr", file=sys.stderr)
        print("no newline", end="")
        total = comm.all_reduce(torch.tensor([float(comm.rank)]))
        return Result((comm.rank, total.item() + offset))

    result = dgl_gt.launch(work, ranks=3)
    assert isinstance(result, Result)
    rank, values = result.value
    assert rank == 0
    np.testing.assert_array_equal(values, 3 + offset)
    out, err = capsys.readouterr()
    assert sorted(re.findall(r"rank \d of 3\n", out)) == [f"rank {rank} of 3\n" for rank in range(3)]
    assert out.count("no newline") == err.count("to stderr\n") == 3


def test_an_error_names_its_rank_and_its_line():
    def fails():
        comm = dgl_gt.Comm()
        if comm.rank == 1:
            raise KeyError("no such thing")  # this line
        comm.all_reduce(torch.ones(1))

    with pytest.raises(dgl_gt.RankError, match="^rank 1 failed:\n") as raised:
        dgl_gt.launch(fails, 2)
    text = str(raised.value)
    assert "# this line" in text and text.endswith("KeyError: 'no such thing'")
    assert "rank_process.py" not in text and "function_rank.py" not in text


def test_bad_input_on_ranks_is_bad_input_here(tmp_path):
    folder = str(tmp_path / "absent")
    with pytest.raises(dgl_gt.InputError, match=re.escape(folder)) as raised:
        dgl_gt.launch(lambda: dgl_gt.load(folder), 2)
    assert re.match("rank [01]:\n", str(raised.value.__cause__)) and "dgl_gt.load(folder)" in str(
        raised.value.__cause__
    )


def test_a_rank_that_dies_ends_the_others():
    """Also where a collective of torch, called by the user, notices first."""

    def dies():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()

    with pytest.raises(dgl_gt.RankError, match=r"^rank 1 was ended by signal 9 \(SIGKILL\)"):
        dgl_gt.launch(dies, 2)


def test_a_function_ends_processes_that_it_forked():
    def pools():
        with multiprocessing.get_context("fork").Pool(2) as pool:  # which is terminated at the end of the block
            pool.apply_async(time.sleep, (600,))
            return pool.apply(abs, (-3,)) if os.environ["RANK"] == "1" else 3

    assert dgl_gt.launch(pools, 2) == 3


@pytest.mark.parametrize("code", [0, 2, 7])
def test_a_function_that_exits_gives_no_result(code):
    with pytest.raises(dgl_gt.RankError, match=f"^rank 0 ended with exit code {code}$"):
        dgl_gt.launch(lambda: sys.exit(code), 1)


def test_a_result_that_cannot_be_copied():
    with pytest.raises(dgl_gt.InputError, match="returned a lock"):
        dgl_gt.launch(threading.Lock, 1)


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("function", "ranks", "words"),
    [
        (lambda: 0, 0, ["ranks is 0", "at least 1"]),
        (lambda: 0, "2", ["ranks is '2'"]),
        (lambda: 0, True, ["ranks is True"]),
        (3, 2, ["function is 3", "without arguments"]),
        (lambda rank: 0, 2, ["function is", "'rank'", "without arguments"]),
        (lambda lock=LOCK: lock, 2, ["function is", "cannot be copied", "lock"]),
    ],
    ids=["no ranks", "text", "truth", "no function", "arguments", "a lock"],
)
def test_wrong_arguments_start_nothing(monkeypatch, function, ranks, words):
    monkeypatch.setattr(launch_function, "started_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    with pytest.raises(dgl_gt.InputError) as raised:
        dgl_gt.launch(function, ranks)
    assert all(word in str(raised.value) for word in words)


def test_a_rank_launches_no_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(dgl_gt.InputError, match="RANK is set"):
        dgl_gt.launch(lambda: 0, 2)


def test_a_rank_without_memory_is_told_as_such():
    with pytest.raises(dgl_gt.InputError, match="^rank 1 ran out of memory: it asked") as raised:
        raise launch_function._error(1, Failure("memory", "it asked for 1 TiB", 0, trace="Traceback ... in work"))
    assert "in work" in str(raised.value.__cause__)


def test_lines_of_ranks_do_not_mix():
    """A line is passed on when it is whole, the last one when its rank has ended."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as pipe, pytest.MonkeyPatch.context() as patched:
        passed = []
        patched.setattr(sys, "stdout", type("Stream", (), {"write": passed.append, "flush": lambda *_: None}))
        printed = started_ranks._Printed("stdout", pipe)
        for piece, expected in (
            (b"one", ""),
            (b" line\ntw", "one line\n"),
            (b"o \xc3", ""),
            (b"\xa9\r", "two é\r"),
            (b"end", ""),
        ):
            os.write(write_end, piece)
            printed.pass_on(is_last=False)
            assert "".join(passed) == expected
            passed.clear()
        printed.pass_on(is_last=True)
        assert passed == ["end"]
        os.close(write_end)


# ---- scripts and sessions -----------------------------------------------------------------------------------------

SCRIPT = """
import dgl_gt

class Answer:
    def __init__(self, value):
        self.value = value

def work():
    return Answer(base + dgl_gt.Comm().world_size)

base = 40
print("the script runs")
print(isinstance(dgl_gt.launch(work, 2), Answer), dgl_gt.launch(work, 2).value)
"""


@pytest.mark.parametrize("way", ["script", "-c", "session"])
def test_functions_of_main_need_no_guard(tmp_path, way):
    """A script is not run again by the ranks, and a session has no file that they could run."""
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = {"script": ["script.py"], "-c": ["-c", SCRIPT], "session": ["-i", "-q"]}[way]
    typed = SCRIPT.replace("\n\n", "\n\n\n") if way == "session" else ""
    done = subprocess.run(
        [sys.executable, *arguments], input=typed, capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "True 42"]


def wait_for_end_of(processes):
    """Where their launcher was killed, they end a moment later."""
    deadline = time.monotonic() + TIMEOUT_S
    while processes and time.monotonic() < deadline:
        processes = [each for each in processes if Path(f"/proc/{each}").exists()]
        time.sleep(0.05)
    assert not processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_ranks_and_then_the_script(tmp_path, number):
    script = "import dgl_gt, os, time\ndgl_gt.launch(lambda: (print(os.getpid(), flush=True), time.sleep(600)), 2)\n"
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, "script.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    wait_for_end_of(ranks)


# ---- notebooks ----------------------------------------------------------------------------------------------------


def run_cells(folder, *cells):
    """The outputs of the cells of a notebook, a list for each."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=TIMEOUT_S, allow_errors=True, resources=resources).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.fixture
def notebook_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_a_notebook_shows_output_results_and_errors(tmp_path, notebook_environment):
    """In a process that has used OpenMP, of which a fork would hang."""
    cells = [
        "import torch, dgl_gt\ntorch.set_num_threads(2)\nx = torch.ones(1000, 1000)\n(x @ x).exp().sum()\n"
        "class Layer(torch.nn.Module):\n    def forward(self, h):\n        return (h @ h).sum() / len(h) + missing",
        "def work():\n    print('on a rank')\n    return Layer()(x)\ndgl_gt.launch(work, 2)",
        "missing = 1\ndgl_gt.launch(work, 2).item()",
    ]
    _, failed, worked = run_cells(tmp_path, *cells)
    assert [each.text for each in failed if each.output_type == "stream"][0].startswith("on a rank\n")
    assert failed[-1].ename == "RankError" and re.match("rank [01] failed:", failed[-1].evalue)
    assert "return (h @ h).sum() / len(h) + missing" in failed[-1].evalue
    assert failed[-1].evalue.endswith("NameError: name 'missing' is not defined")
    assert worked[-1].data["text/plain"] == "1000001.0"


@pytest.fixture
def kernel(tmp_path, notebook_environment):
    """The manager and the client of a kernel."""
    client = pytest.importorskip("jupyter_client")
    manager, kernel = client.manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    yield manager, kernel
    kernel.stop_channels()
    manager.shutdown_kernel(now=True)


def test_an_interrupt_of_a_notebook_stops_the_ranks(kernel):
    manager, kernel = kernel
    ranks = []
    try:
        asked = kernel.execute(
            "import os, time, dgl_gt\ndgl_gt.launch(lambda: (print(os.getpid()), time.sleep(600)), 2)"
        )
        deadline = time.monotonic() + TIMEOUT_S
        while len(ranks) < 2 and time.monotonic() < deadline:
            message = kernel.get_iopub_msg(timeout=TIMEOUT_S)
            if message["msg_type"] == "stream":
                ranks += map(int, re.findall(r"^\d+$", message["content"]["text"], re.MULTILINE))
        manager.interrupt_kernel()
        replies = iter(lambda: kernel.get_shell_msg(timeout=TIMEOUT_S), None)  # some to questions of the kernel's start
        reply = next(each["content"] for each in replies if each["parent_header"]["msg_id"] == asked)
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
        wait_for_end_of(ranks)
    finally:
        for each in ranks:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def test_a_notebook_completes_names_and_shows_docstrings(kernel):
    _, kernel = kernel
    kernel.execute("import dgl_gt", reply=True, timeout=TIMEOUT_S)
    for name in ("launch", "plan.plan", "plan.calibrate", "report.report", "partition.partition", "train.predict"):
        typed = f"dgl_gt.{name}"[:-2]
        found = kernel.complete(typed, reply=True, timeout=TIMEOUT_S)["content"]["matches"]
        assert name.rpartition(".")[2] in [each.rpartition(".")[2] for each in found]
        shown = kernel.inspect(f"dgl_gt.{name}", reply=True, timeout=TIMEOUT_S)["content"]
        assert shown["found"] and "Docstring:" in shown["data"]["text/plain"]


def test_a_notebook_shows_bars_and_nothing_else_does(tmp_path, notebook_environment, capsys):
    cells = [
        "import dgl_gt\nfrom dgl_gt.partition import partition\nfrom dgl_gt.train import read_config, train\n"
        "made = partition('sample:communities?nodes=200', 2, 'shards')",
        "config = read_config(epochs=3, layers=1, hidden=8, heads=2)\n"
        "losses = dgl_gt.launch(lambda: train(dgl_gt.load('shards'), config).losses, 2)\nlen(losses)",
        "dgl_gt.launch(lambda: len(train(dgl_gt.load('shards'), config, on_epoch=print).losses), 2)",
    ]
    staged, trained, silent = run_cells(tmp_path, *cells)
    shown = "application/vnd.jupyter.widget-view+json"
    assert [shown in each.get("data", {}) for each in staged] == [True]
    assert [shown in each.get("data", {}) for each in trained] == [True, False]
    assert trained[-1].data["text/plain"] == "3"
    assert not any(shown in each.get("data", {}) for each in silent)

    dgl_gt.partition.partition("sample:communities?nodes=200", 1, tmp_path / "one")
    config = dgl_gt.train.read_config(epochs=3, layers=1, hidden=8, heads=2)
    dgl_gt.train.train(dgl_gt.load(tmp_path / "one"), config)
    assert capsys.readouterr() == ("", "")
