"""The progress of a run: a bar on a terminal, plain lines elsewhere, and what both say."""

import concurrent.futures
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from dgl_gt.train.run_state import TrainHistory
from dgl_gt.train.summary import Progress, show_progress


def train(progress, epochs, first=0):
    for epoch in range(first, epochs):
        progress.after_epoch(epoch, 1 / (epoch + 1), 0.9 - 0.1 * abs(epoch - 3), 0.25)


def test_plain_lines_name_epoch_loss_validation_best_and_time_left(capsys):
    with show_progress(20, True) as progress:
        train(progress, 20)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[2].startswith("epoch 6/20  loss 0.1667  validation 0.7000  best 0.9000 (epoch 4)  0.25 s per epoch  ")
    assert all(line.endswith(" left") for line in lines)


def test_a_run_that_goes_on_knows_its_best_epoch(capsys):
    with Progress(8) as progress:
        progress.start(TrainHistory("accuracy", False, [1.0] * 6, [0.5] * 6, best_epoch=1, validation=0.95, test=0.9))
        train(progress, 8, first=6)
    assert capsys.readouterr().err.count("best 0.9500 (epoch 2)") == 2


def test_before_the_first_evaluation_there_is_no_best(capsys):
    with Progress(2) as progress:
        progress.start(TrainHistory("accuracy", False, [], [], best_epoch=-1, validation=-1.0, test=-1.0))
        progress.after_epoch(0, 1.0, float("nan"), 0.1)
    assert "loss 1.0000  0.10 s" in capsys.readouterr().err


def test_other_ranks_show_nothing(capsys):
    with show_progress(5, False) as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def everything(reader):
    """What was written to the terminal, until its other end is closed: one read may return a part of it."""
    pieces = []
    with contextlib.suppress(OSError):
        while piece := os.read(reader, 1 << 16):
            pieces.append(piece)
    os.close(reader)
    return b"".join(pieces).decode()


@pytest.mark.parametrize("columns", [0, 80, 200])
def test_a_terminal_shows_a_bar_with_the_time_left(columns, monkeypatch):
    """Also a terminal of 80 columns, and one that does not know its width."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        everything_shown = pool.submit(everything, reader)
        with open(writer, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            with show_progress(20, True) as progress:
                train(progress, 20)
    shown = everything_shown.result().split("\r")
    last = max(number for number, text in enumerate(shown) if "20/20" in text)
    assert shown[last].startswith("epoch 20/20 |████████| 00:00 left  loss 0.0500  validation -0.7000  best 0.9")
    assert all(len(text.rstrip("\n")) <= (columns or 100) for text in shown)
    if columns == 200:
        assert "best 0.9000 (epoch 4)  0.25 s per epoch" in shown[last]
