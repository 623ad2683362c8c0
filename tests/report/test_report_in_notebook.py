"""``dgl_gt.report.report``: the page and the numbers that the command writes, as a value that a notebook shows."""

import html
import json
import re

import pytest

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.report import Report, report
from dgl_gt.train import read_config, train_and_save


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Shards, and a run on them."""
    folder = tmp_path_factory.mktemp("made")
    partition("sample:communities?nodes=300&seed=0", 1, folder / "shards")
    config = read_config(layers=1, hidden=8, heads=2, epochs=2)
    train_and_save(dgl_gt.load(folder / "shards"), config, folder / "run")
    return folder


@pytest.mark.parametrize("name", ["shards", "run"])
def test_it_has_what_the_command_writes(directories, name, tmp_path, capsys):
    made = report(directories / name)
    assert isinstance(made, Report) and capsys.readouterr() == ("", "")
    assert main(["report", str(directories / name), "-o", str(tmp_path / "page.html")]) == 0
    assert made.page == (tmp_path / "page.html").read_text()
    assert json.loads(json.dumps(made.numbers)) == json.loads((tmp_path / "page.json").read_text())


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(directories):
    made = report(str(directories / "run"))
    (framed,) = re.findall(r'^<iframe srcdoc="([^"]*)"[^<>]*></iframe>$', made._repr_html_())
    assert html.unescape(framed) == made.page
    assert repr(made) == f"report of {directories / 'run'}"


def test_other_directories(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(dgl_gt.InputError, match=re.escape(str(path))):
            report(path)
