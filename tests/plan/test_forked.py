"""Work in a forked child: its result, its errors, and what it leaves in this process."""

import os
import signal
import sys
from functools import partial

import pytest
import torch

from dgl_gt.partition.system import child_process
from dgl_gt.plan import NothingFits

run_forked = partial(child_process.run_forked, name="the child")


def gradient_sum(size):
    x = torch.ones(size, size, requires_grad=True)
    (x @ x).sum().backward()
    return x.grad.sum().item()


def test_the_result_comes_back_and_the_rest_stays_in_the_child(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    def work():
        import colorsys  # noqa: F401

        return os.getpid(), gradient_sum(2)

    child, value = run_forked(work)
    assert child != os.getpid() and value == gradient_sum(2) == 16 and "colorsys" not in sys.modules


def test_threads_of_this_process_do_not_keep_the_child_waiting():
    def on_one_thread():
        torch.set_num_threads(1)
        return gradient_sum(300)

    def late(*_):
        raise TimeoutError("the child waits for threads that it does not have")

    threads, before = torch.get_num_threads(), signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    torch.set_num_threads(2)
    try:
        expected = gradient_sum(300)  # starts the threads that the child does not have
        assert run_forked(on_one_thread) == expected
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        torch.set_num_threads(threads)


def test_a_refusal_is_raised_here():
    def refuse():
        raise NothingFits("nothing fits", 5, 2)

    with pytest.raises(NothingFits, match="nothing fits") as found:
        run_forked(refuse)
    assert (found.value.least_bytes, found.value.missing_bytes) == (5, 2) and found.value.__cause__ is None


def test_a_bug_shows_where_it_is():
    def work():
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as found:
        run_forked(work)
    assert "in work" in str(found.value.__cause__)


def test_a_lack_of_memory_is_still_one():
    with pytest.raises(MemoryError):
        run_forked(lambda: bytearray(1 << 62))
    with pytest.raises(RuntimeError, match="allocate"):
        run_forked(lambda: torch.empty(1 << 58))


def unreadable():
    raise OSError("it is gone")


class Unreadable(Exception):
    """It can be pickled, and not be read again, also where tblib has changed how errors are pickled (Dask imports it)."""

    def __reduce__(self):
        return unreadable, ()


def test_an_error_that_cannot_be_read_again_comes_in_words():
    def work():
        raise Unreadable("this and that")

    with pytest.raises(RuntimeError, match="Unreadable: this and that"):
        run_forked(work)


def test_signals_that_ask_to_end_are_for_the_parent():
    def work():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        return "done"

    assert run_forked(work) == "done"


def test_a_child_that_leaves_says_how():
    with pytest.raises(RuntimeError, match="the child ended with exit code 3"):
        run_forked(lambda: os._exit(3))


def test_a_result_that_cannot_be_sent_is_an_error():
    with pytest.raises(Exception, match="local object"):
        run_forked(lambda: lambda: None)


@pytest.mark.parametrize(
    ("number", "is_memory"), [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGUSR1, False)]
)
def test_a_child_that_is_killed(monkeypatch, number, is_memory):
    monkeypatch.setattr(child_process, "killed_for_memory", lambda code, _: is_memory and code == -number)
    kind, text = (ValueError, "ran out of memory; use") if is_memory else (RuntimeError, rf"ended by signal {number:d}")
    with pytest.raises(kind, match=text):
        run_forked(lambda: os.kill(os.getpid(), number))
