"""The launcher: what its ranks listen on, whose failure is named, and how long it waits."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_gt.cli.main import main
from dgl_gt.train import launch, rank_process, started_ranks, threads
from dgl_gt.train.launcher_link import Failure, Launcher
from dgl_gt.train.started_ranks import StartedRank, first_failure
from partition import from_edges, partition
from partition.errors import InputError

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
ENDLESS = ["--epochs", "100000", "--patience", "0", "--hidden", "16", "--heads", "2", "--layers", "1"]
LISTENING = "0A"  # in /proc/net/tcp


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards") / "shards"
    partition("sample:communities?nodes=400&features=8", 2, directory)
    return directory


@pytest.fixture
def own_network():
    """Words before a command that give it a network of its own: a loopback interface, and one to the outside."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a network namespace with a second interface needs root and the command ip")
    name = f"dglgt{secrets.token_hex(3)}"
    inside = ["ip", "netns", "exec", name]
    steps = [
        ["ip", "netns", "add", name],
        [*inside, "ip", "link", "add", "lan", "type", "veth", "peer", "name", "other"],
        *([*inside, "ip", "link", "set", each, "up"] for each in ("lo", "lan", "other")),
        [*inside, "ip", "address", "add", "10.98.0.1/24", "dev", "lan"],
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this machine gives no network namespace: {' '.join(step)}: {done.stderr.strip()}")
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def family(pid: int) -> list[Path]:
    """A process, its children, theirs, and so on."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parents[process] = Path("/proc", (process / "stat").read_text().rpartition(")")[2].split()[1])
    found = [Path("/proc", str(pid))]
    for process in found:
        found += [each for each, parent in parents.items() if parent == process]
    return found


def listening(tables: str, processes: list[Path] | None = None) -> list[str]:
    """Hexadecimal addresses of a network's tables on which somebody listens, or one of these processes does."""
    inodes = set()
    for process in processes or []:
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in tables.splitlines()]
    return [row[1] for row in rows if row[3] == LISTENING and (processes is None or row[9] in inodes)]


def tables(prefix=()) -> str:
    words = [*prefix, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def is_loopback(address: str) -> bool:
    host = address.partition(":")[0]  # each word of four bytes is in the order of this machine
    if len(host) == 8:
        return socket.inet_ntop(socket.AF_INET, bytes.fromhex(host)[::-1]).startswith("127.")
    return host in ("00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def sockets_of_a_run(shards, folder, prefix=()) -> list[str]:
    """Everywhere that a training run listens once both of its ranks do; with a prefix all that its network has."""
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    words = [*prefix, sys.executable, "-m", "dgl_gt", "train", str(shards), *ENDLESS]
    with open(folder.parent / "stderr", "w") as stderr:
        run = subprocess.Popen(words, stdout=stderr, stderr=stderr, env=environment)
    try:
        deadline, joined = time.monotonic() + LIMIT_S, []
        while len(joined) < 2:
            assert run.poll() is None and time.monotonic() < deadline, (folder.parent / "stderr").read_text()
            time.sleep(0.2)
            found = tables(prefix)
            joined = [each for each in family(run.pid)[1:] if listening(found, [each])]
        return listening(found, None if prefix else family(run.pid))
    finally:
        run.terminate()
        assert run.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert list(folder.iterdir()) == []  # nothing that torch or the launcher makes for itself


def test_a_run_listens_on_the_loopback_alone(shards, tmp_path):
    (tmp_path / "tmp").mkdir()
    found = sockets_of_a_run(shards, tmp_path / "tmp")
    assert found and all(is_loopback(address) for address in found), found


def test_a_run_listens_on_the_loopback_alone_where_there_is_a_second_interface(own_network, shards, tmp_path):
    (tmp_path / "tmp").mkdir()
    found = sockets_of_a_run(shards, tmp_path / "tmp", own_network)
    assert found and all(is_loopback(address) for address in found), found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"RANK": "0"}, "which makes this process one of several ranks, but WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "but MASTER_PORT is not set; start ranks with"),
        (
            {"RANK": "first", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            "RANK is 'first' in the environment; it must be a whole number from 0 to 1",
        ),
    ],
)
def test_half_of_a_launchers_environment_is_refused(shards, monkeypatch, capsys, values, message):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert main(["train", str(shards)]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["train", "SHARDS"], ["calibrate", "--out", "new.yaml"]], ids=["train", "calibrate"]
)
def test_another_number_of_ranks_than_torchrun_started_is_refused(shards, monkeypatch, capsys, tmp_path, command):
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", 29500)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(rank_process, "join_group", lambda *_: 0)
    monkeypatch.chdir(tmp_path)
    words = [str(shards) if word == "SHARDS" else word for word in command]
    assert main([*words, "--nproc", "3"]) == 2
    assert "--nproc is 3, but torchrun has started 2 ranks; leave --nproc out" in capsys.readouterr().err


# ---- ranks of a few words of shell: what is made of their ends ----------------------------------------------------


def say(**words) -> str:
    return f"echo '{json.dumps(words)}' >&$PIPE;"


def failed(kind, text="", **more) -> str:
    return say(kind=kind, text=text, at_s=time.monotonic(), **more)


JOINED = say(state="joined")
WAITS = "sleep 600 & wait;"  # a shell that waits hears a signal at once
CLINGS = "trap '' TERM; sleep 600 & wait; wait;"


@pytest.fixture
def started(monkeypatch):
    """A function: a shell script a rank -> the ranks, which are ended with the test."""
    monkeypatch.setattr(started_ranks, "_CAUSE_WAIT_S", 0.5)
    monkeypatch.setattr(started_ranks, "_END_WAIT_S", 0.5)
    ranks, ends = [], []

    def start(*scripts):
        for number, script in enumerate(scripts):
            ours, theirs = os.pipe()
            ends.append(ours)
            words = ["bash", "-c", f"PIPE={theirs}; {script}"]
            process = subprocess.Popen(words, pass_fds=(theirs,), start_new_session=True)
            os.close(theirs)
            ranks.append(StartedRank(number, process, ours))
        return ranks

    yield start
    for each in ranks:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
    for end in ends:
        os.close(end)


def outcome(ranks, timeout=None):
    started_ranks.watch(ranks, lambda: False, timeout)
    started_ranks.end_all(ranks)
    assert all(each.has_ended for each in ranks)
    return first_failure(ranks)


def test_ranks_that_end_well_are_no_failure(started):
    assert outcome(started(JOINED, JOINED + "sleep 0.1")) is None


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        ([JOINED + WAITS, JOINED + "kill -9 $$"], (1, "signal", "9")),
        (["kill -TERM $$", WAITS], (0, "signal", "15")),
        ([WAITS, "exit 143"], (1, "signal", "15")),  # a rank that had no time to say so
        ([CLINGS, WAITS, "exit 7"], (2, "exit", "7")),
        # told first of what another rank says later
        ([failed("relayed", "rank 1 stopped") + "exit 1", "sleep 0.2;" + failed("error", "it broke") + "exit 1"], None),
        # and told by a connection that has ended with the process
        ([failed("relayed", "connection lost") + "exit 1", "sleep 0.2; kill -9 $$"], (1, "signal", "9")),
        ([failed("relayed", "rank 1 stopped") + "exit 1", WAITS], (0, "relayed", "rank 1 stopped")),
        ([WAITS, failed("memory", "it asked for 1 TiB") + "exit 2"], (1, "memory", "it asked for 1 TiB")),
    ],
    ids=lambda value: None,
)
def test_the_first_failure_is_named_and_all_ranks_end(started, scripts, expected):
    number, failure = outcome(started(*scripts))
    assert (number, failure.kind, failure.text) == (expected or (1, "error", "it broke"))


def test_of_a_mistake_that_all_ranks_find_the_first_ranks_words_are_shown(started, monkeypatch):
    script = failed("input", "rank 1: a bad number") + "exit 2", failed("input", "a bad number") + "exit 2"
    assert outcome(started(*script))[1].text == "rank 1: a bad number"


def test_what_the_launcher_ends_is_no_failure(started):
    ranks = started(WAITS, CLINGS)
    time.sleep(0.2)  # until the trap is set
    started_ranks.watch(ranks, lambda: True)
    started_ranks.end_all(ranks)
    assert ranks[1].process.returncode == -signal.SIGKILL
    assert first_failure(ranks) is None


def test_a_rank_that_writes_the_model_is_given_time_to_finish(started, tmp_path):
    """More than another rank, which would be killed by then."""
    release = tmp_path / "release"
    writes = "trap 'exit 9' TERM; " + say(state="writing") + f"while [ ! -e {release} ]; do sleep 0.1; done; exit 0"
    ranks = started(writes)
    while ranks[0].state != "writing":
        ranks[0].update()
    timer = threading.Timer(1.5, release.touch)
    timer.start()
    started_ranks.end_all(ranks)
    assert ranks[0].process.returncode == 0
    timer.join()


def test_a_rank_that_does_not_join_is_named(started, monkeypatch, capsys):
    monkeypatch.setattr(started_ranks, "LATE_AFTER_S", 0.1)
    joining = say(state="joining")
    ranks = started(joining + WAITS, WAITS)
    with pytest.raises(InputError, match=r"^rank 1 \(process \d+\) has not joined after 0.6 s"):
        outcome(ranks, timeout=0.6)
    assert capsys.readouterr().err == (
        f"dgl-gt: rank 1 (process {ranks[1].process.pid}) has not joined after 0 s; still waiting "
        "(--timeout SECONDS sets a limit)\n"
    )
    started_ranks.end_all(ranks)


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (Failure("input", "a bad number", 0), 2, "dgl-gt: error: a bad number\n"),
        (Failure("relayed", "rank 0: a bad number", 0, is_input=True), 2, "dgl-gt: error: rank 0: a bad number\n"),
        (Failure("relayed", "rank 0 stopped: it broke", 0), 1, "dgl-gt: rank 0 stopped: it broke\n"),
        (Failure("signal", "15", 0), 143, "dgl-gt: rank 1 was ended by signal 15 (SIGTERM)\n"),
        (Failure("signal", "6", 0), 134, "dgl-gt: rank 1 was ended by signal 6 (SIGABRT)\n"),
        (Failure("exit", "2", 0), 2, ""),  # it has said why itself
        (Failure("exit", "7", 0), 7, "dgl-gt: rank 1 ended with exit code 7\n"),
        (Failure("error", "Traceback ...", 0), 1, "dgl-gt: rank 1 was stopped by an error in dgl-gt:\nTraceback ...\n"),
        (Failure("memory", "it asked", 0), 2, "dgl-gt: error: rank 1 ran out of memory: it asked; take less\n"),
    ],
    ids=lambda value: value.kind if isinstance(value, Failure) else None,
)
def test_one_line_says_which_rank_and_why(capsys, failure, code, text):
    assert launch._report_failure(1, failure, launch.child_process.memory_kills(), lambda: "take less") == code
    assert capsys.readouterr().err == text


def test_a_kill_for_want_of_memory_is_told_from_others(capsys, monkeypatch):
    monkeypatch.setattr(launch.child_process, "memory_kills", lambda: 3)
    killed = Failure("signal", "9", 0)
    assert launch._report_failure(0, killed, 3, lambda: "take less") == 137
    assert launch._report_failure(0, killed, 2, lambda: "take less") == 2
    assert capsys.readouterr().err == (
        "dgl-gt: rank 0 was ended by signal 9 (SIGKILL)\n"
        "dgl-gt: error: rank 0 ran out of memory: the system killed it; take less\n"
    )


# ---- a rank's side ------------------------------------------------------------------------------------------------


def test_under_torchrun_a_rank_that_waits_for_others_says_so(monkeypatch, capsys):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_process, "LATE_AFTER_S", 0.1)
    monkeypatch.setattr(rank_process, "_REPORT_WAIT_S", 0.0)
    assert rank_process.run(lambda: pytest.fail("there is no other rank"), None, timeout=1.0) == 1
    assert capsys.readouterr().err == (
        "dgl-gt: rank 1 has waited 0 s at 127.0.0.1:1 for the others to join; still waiting "
        "(--timeout SECONDS sets a limit)\n"
    )


@pytest.fixture
def ended(monkeypatch):
    """Exit codes that a rank ends itself with; joining the others and telling the launcher are left out."""
    codes = []

    def end(code):
        codes.append(code)
        raise EndedHere

    monkeypatch.setattr(rank_process.os, "_exit", end)
    monkeypatch.setattr(rank_process, "STOPPING", ())
    monkeypatch.setattr(rank_process, "join_group", lambda *_: 0)
    monkeypatch.setattr(Launcher, "report", lambda *_, **__: None)
    monkeypatch.setattr(rank_process.dist, "FileStore", lambda *_: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    return codes


class EndedHere(BaseException):
    """In place of the end of this process."""


def test_a_rank_that_has_finished_is_not_ended_over_an_error_in_leaving(ended, monkeypatch):
    def leave():
        raise RuntimeError("the others have gone")

    monkeypatch.setattr(rank_process, "leave_group", leave)
    with pytest.raises(RuntimeError, match="the others have gone"):
        rank_process.run(lambda: "result", Launcher(1, 2, 3, 0))
    assert ended == []


@pytest.mark.parametrize(("given", "code"), [(None, 0), (143, 143), ("it is over", 1)])
def test_a_rank_that_is_told_to_exit_does_so(ended, monkeypatch, capsys, given, code):
    """Though nobody reads its output any more."""
    monkeypatch.setattr(sys, "stdout", open(os.devnull, "w"))
    sys.stdout.close()
    with pytest.raises(EndedHere):
        rank_process.run(lambda: sys.exit(given), Launcher(1, 2, 3, 0))
    assert ended == [code]
    assert capsys.readouterr().err == ("it is over\n" if isinstance(given, str) else "")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("timeout", [None, 7.0])
def test_ranks_wait_without_end_or_as_long_as_was_asked_for(monkeypatch, backend, timeout):
    asked = {}
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: backend == "nccl")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(
        rank_process.dist, "init_process_group", lambda name, **options: asked.update(options, name=name)
    )
    monkeypatch.setattr(rank_process.dist, "get_rank", lambda: 0)
    rank_process.join_group(timeout)
    assert asked["name"] == backend
    assert asked["timeout"].total_seconds() == (timeout or 365 * 24 * 3600)


def test_an_allocation_that_fails_is_told_from_a_bug():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 57, dtype=torch.uint8)
    failure = rank_process._failure_of(refused.value)
    assert (failure.kind, failure.text, failure.exit_code) == ("memory", "it asked for 131072.0 TiB at once", 2)
    assert rank_process._failure_of(MemoryError()).text == "an allocation failed"
    bug = rank_process._failure_of(RuntimeError("shapes do not match"))
    assert bug.kind == "error" and bug.text.endswith("RuntimeError: shapes do not match")


@pytest.mark.parametrize("strategy", [None, "halo", "halo_kv"])
def test_advice_names_what_was_predicted(shards, strategy):
    from dgl_gt.train.config import TrainConfig
    from dgl_gt.train.memory_advice import advice_for_strategy

    text = advice_for_strategy(shards, TrainConfig(), strategy, 1)
    assert "--layers 2 --hidden 64 is predicted to need" in text and "MiB" in text
    text = advice_for_strategy(shards, TrainConfig(hidden=100_000, heads=1), strategy, 1)  # too large for a trace
    assert re.search(
        r"the model has 160,\d{3},\d{3},\d{3} parameters, which .* take 2\.3 TiB, and .*choose a smaller", text
    )


@pytest.mark.parametrize("problem", [InputError("the shards are gone"), MemoryError()], ids=repr)
def test_advice_that_cannot_be_given_does_not_replace_the_message(problem):
    def advise():
        raise problem

    message = launch.out_of_memory_message(1, "it asked for 1 TiB", advise)
    assert message == (
        "rank 1 ran out of memory: it asked for 1 TiB; free memory, or partition into more parts on more machines"
    )


@pytest.mark.parametrize("node_data", [{}, {"feat": np.ones(4, np.float32)}], ids=["none", "one number a node"])
def test_advice_on_shards_without_rows_of_features(tmp_path, node_data):
    from dgl_gt.train.config import TrainConfig
    from dgl_gt.train.memory_advice import advice_for_strategy

    partition(from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4, node_data), 2, tmp_path / "shards")
    assert "no node data 'feat'" in advice_for_strategy(tmp_path / "shards", TrainConfig(), None, 1)


def test_advice_where_ranks_choose_names_no_figure_of_another_run(shards, monkeypatch):
    advised = []
    monkeypatch.setattr("dgl_gt.cli.train.run_on_parts", lambda args, work, advice: advised.append(advice()) or 0)
    assert main(["train", str(shards), "--strategy", "auto", "--hidden", "100000", "--heads", "1"]) == 0
    assert advised == [
        "choose a smaller model, partition into more parts on more machines, or let --rank-memory SIZE bound what "
        "--strategy auto chooses from"
    ]


@pytest.mark.parametrize(
    ("wanted", "processors", "ranks", "text"),
    [
        ("16", 2, 2, "OMP_NUM_THREADS is 16, but 2 ranks share 2 processors, so threads wait for each other; set"),
        ("2", 1, 1, "OMP_NUM_THREADS is 2, but 1 rank has 1 processor, so"),
        ("1", 2, 4, ""),  # as few as can be
        ("2", 4, 2, ""),
        ("", 4, 2, ""),
        ("2,4", 1, 1, ""),
    ],
)
def test_more_threads_than_processors_are_warned_of(monkeypatch, capsys, wanted, processors, ranks, text):
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setattr(threads, "available_cpus", lambda: processors)
    threads.warn_of_too_many_threads(ranks)
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"dgl-gt: warning: {text}") if text else stderr == ""


# ---- ranks that start again, and ranks that may finish an epoch ---------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure("signal", "9", 0), True),
        (Failure("signal", "11", 0), True),
        (Failure("signal", "15", 0), False),  # somebody asked for it
        (Failure("relayed", "rank 0 has waited 20 s for rank 1", 0), True),
        (Failure("relayed", "rank 0: a bad number", 0, is_input=True), False),
        (Failure("input", "a bad number", 0), False),
        (Failure("memory", "it asked", 0), False),
        (Failure("error", "Traceback", 0), True),
        (Failure("exit", "7", 0), True),
        (Failure("exit", "2", 0), False),
    ],
    ids=lambda value: f"{value.kind} {value.text[:12]}" if isinstance(value, Failure) else None,
)
def test_what_may_pass_is_tried_again(failure, expected):
    assert launch._may_pass(failure, launch.child_process.memory_kills()) is expected


@pytest.fixture
def shell_ranks(started, monkeypatch):
    """A function: for each start of the ranks, a shell script per rank; returns how often they have been started."""

    def use(*starts):
        count = []

        @contextmanager
        def start_ranks(arguments, ranks, keep_memory, restarts):
            assert restarts == len(count)
            count.append(restarts)
            before = len(started())
            yield started(*starts[restarts])[before:]

        monkeypatch.setattr(launch, "_started_ranks", start_ranks)
        return count

    return use


def test_ranks_start_again_until_they_succeed(shell_ranks, capsys):
    killed = "kill -9 $$;"
    count = shell_ranks([JOINED + killed, JOINED + WAITS], [JOINED + WAITS, JOINED + killed], [JOINED, JOINED])
    assert launch.launch([], 2, max_restarts=5) == 0
    assert count == [0, 1, 2]
    assert [line.partition("; ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "the ranks start again (1 of 5)",
        "the ranks start again (2 of 5)",
    ]


def test_ranks_do_not_start_again_for_ever(shell_ranks, capsys):
    killed = [JOINED + "kill -9 $$;", JOINED + WAITS]
    count = shell_ranks(killed, killed, killed)
    assert launch.launch([], 2, max_restarts=1) == 137
    assert (
        count == [0, 1] and capsys.readouterr().err.splitlines()[-1] == "dgl-gt: rank 0 was ended by signal 9 (SIGKILL)"
    )


FINISHES = "trap 'sleep 0.3; exit 130' INT; " + JOINED + "while true; do sleep 0.1; done"
IGNORES = "trap '' INT; " + JOINED + "sleep 600 & wait"


def test_ranks_may_finish_what_they_do_when_asked_to_stop(started):
    ranks = started(FINISHES, IGNORES)
    while any(each.state != "joined" for each in ranks):
        ranks[0].update(), ranks[1].update()
    started_ranks.ask_to_stop(ranks, [signal.SIGINT])
    assert ranks[0].process.returncode == 130 and not ranks[1].has_ended
    started_ranks.end_all(ranks)


def test_a_second_signal_does_not_wait_for_them(started, monkeypatch, capsys):
    monkeypatch.setattr(started_ranks, "SAME_STOP_S", 0.2)
    ranks, signals = started(IGNORES), [signal.SIGINT]
    while ranks[0].state != "joined":
        ranks[0].update()
    timer = threading.Timer(0.8, signals.append, [signal.SIGINT])
    timer.start()
    started_ranks.ask_to_stop(ranks, signals)
    assert not ranks[0].has_ended and len(signals) == 2
    assert capsys.readouterr().err == "dgl-gt: waiting for the ranks to stop; a second Ctrl-C ends them at once\n"
    started_ranks.end_all(ranks)


def test_ranks_that_take_too_long_for_a_scheduler_are_not_waited_for(started, monkeypatch):
    monkeypatch.setattr(started_ranks, "_STOP_WAIT_S", 0.5)
    ranks = started("trap '' TERM; " + JOINED + "sleep 600 & wait; wait")
    while ranks[0].state != "joined":
        ranks[0].update()
    started_ranks.ask_to_stop(ranks, [signal.SIGTERM])
    assert not ranks[0].has_ended
    started_ranks.end_all(ranks)
