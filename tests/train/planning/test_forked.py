"""Work in a forked child: its result, its errors, and what it leaves in this process."""

import os
import signal
import sys

import pytest
import torch

from dgl_gt.selector import NothingFits
from dgl_gt.train.planning.forked import run_forked


def test_the_result_comes_back_and_the_rest_stays_in_the_child(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    def work():
        import colorsys  # noqa: F401

        return os.getpid(), (torch.ones(2, 2, requires_grad=True) * 3).sum().item()

    torch.ones(1, requires_grad=True).sum().backward()  # autograd has run in this process before
    child, value = run_forked(work)
    assert child != os.getpid() and value == 12 and "colorsys" not in sys.modules


def test_a_refusal_is_raised_here():
    def refuse():
        raise NothingFits("nothing fits", 5, 3)

    with pytest.raises(NothingFits, match="nothing fits") as found:
        run_forked(refuse)
    assert (found.value.least_bytes, found.value.fixed_bytes) == (5, 3)


def test_a_bug_shows_its_traceback(capfd):
    with pytest.raises(RuntimeError, match="its traceback is above"):
        run_forked(lambda: {}["missing"])
    assert "KeyError: 'missing'" in capfd.readouterr().err


def test_a_child_that_is_killed_is_an_error_in_words():
    with pytest.raises(ValueError, match=r"the process that plans was ended by signal 9 \(SIGKILL\).*; use a smaller"):
        run_forked(lambda: os.kill(os.getpid(), signal.SIGKILL))
