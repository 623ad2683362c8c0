"""The documents: their code runs, their links and paths exist, their figures are those of the script.

The convention, which docs/contributing.md states: the ``python`` blocks of a page run in order in one namespace; one
with a ``title`` is written to a file of that name; each line of a ``bash`` block runs as a command. They run in a
folder of their own, which holds a small ``my_graph.npz``, and ``weighted.npz`` with edge data. A block that cannot run
here follows a comment ``not run: REASON``.
"""

import ast
import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from dgl_or_skip import dgl
from free_port import free_port
from slow_case import slow

from dgl_gt.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
TEXTS = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]  # what people read
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)
LANGUAGES = ("python", "bash", "text", "{toctree}", "{include}")
RUN_ELSEWHERE = {"own_model.md"}  # its loops: on one rank and on two, in tests/distributed/test_own_loop.py
HAS_DGL = isinstance(dgl, ModuleType)
OF_DGL = re.compile("dgl-gt (export .* for_dgl|import for_dgl)")  # commands that need it
MOST_WORDS, MOST_WORDS_OF_A_CELL = 36_000, 25
MANY_RUNS = "approximate.md", "models.md"  # minutes
NOT_RUN = (
    4  # blocks that are marked so: installing packages, and what tests/ranks/test_cluster_page.py runs on two hosts
)
TIMEOUT_S = 300
CALIBRATE = "dgl-gt calibrate --nproc 2 --out two.yaml"  # one run is shared by all tests
# What the documents show takes minutes; the same on small graphs takes seconds.
SMALLER = [
    (r"nodes=20000", "nodes=400"),
    (r"--epochs \d+", "--epochs 3"),
    (r"--checkpoint-every 5\b", "--checkpoint-every 1"),
    (r"range\(100\)", "range(20)"),
    (r"--hidden 128", "--hidden 16"),
]


class Block:
    """A fenced block: its language, the file that it is shown as, its code, and why it is not run."""

    def __init__(self, match):
        self.language, _, options = match["info"].partition(" ")
        title = re.search(r'title="([^"]+)"', options)
        self.title = title and title[1]
        self.code, self.reason = match["code"], match["reason"]


def blocks(page: Path) -> list[Block]:
    return [Block(match) for match in BLOCK.finditer(page.read_text())]


def runs(page: Path) -> bool:
    wanted = [block for block in blocks(page) if block.language in ("python", "bash") and not block.reason]
    return bool(wanted)


def smaller(text: str) -> str:
    for pattern, replacement in SMALLER:
        text = re.sub(pattern, replacement, text)
    return text


def environment() -> dict[str, str]:
    """For child processes: this checkout and one thread, and not what would make them ranks."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def chdir(folder: Path):
    """``contextlib.chdir``, which Python has from 3.11 on."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_command(line: str, folder: Path) -> str:
    """Run one line of a shell block; returns the stdout of what is not ``dgl-gt``, which runs in this process."""
    words = shlex.split(smaller(line), comments=True)
    variables = {}
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        key, _, value = words.pop(0).partition("=")
        variables[key] = value
    assert words and words[0] in ("dgl-gt", "torchrun"), f"only dgl-gt and torchrun are commands here: {line}"
    if words[0] == "dgl-gt" and not variables:
        with chdir(folder):
            assert main(words[1:]) == 0, line
        return ""
    words = [str(free_port()) if word == "29500" else word for word in words]
    command = [sys.executable, "-m", "dgl_gt" if words[0] == "dgl-gt" else "torch.distributed.run", *words[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder, env={**environment(), **variables}
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_page(page: Path, folder: Path) -> dict[str, str]:
    """Run the blocks of a page in order; returns the stdout of each command."""
    printed, script, is_new = {}, [], False
    for block in blocks(page):
        if block.reason or block.language not in ("python", "bash"):
            continue
        if block.language == "bash":
            if is_new:
                run_script(page, script, folder)
            is_new = False
            for line in filter(None, block.code.replace("\\\n", " ").splitlines()):
                if line != CALIBRATE and (HAS_DGL or not OF_DGL.match(line)):
                    printed[line] = run_command(line, folder)
        elif block.title:
            (folder / block.title).write_text(smaller(block.code))
        elif page.name not in RUN_ELSEWHERE:
            script.append(smaller(block.code))
            is_new = True
    if is_new:
        run_script(page, script, folder)
    return printed


def run_script(page: Path, script: list[str], folder: Path) -> None:
    """Run the Python blocks of a page so far; what went before a command runs again, as its names are needed."""
    words = [sys.executable, "-c", "\n".join(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder, env=environment())
    assert done.returncode == 0, f"{page.name}: {done.stderr}"


@pytest.fixture
def folder(tmp_path):
    """An empty folder but for a small graph, without and with edge data, and with ratings of edges."""
    rng = np.random.default_rng(0)
    nodes = 120
    label = rng.integers(0, 3, nodes)
    split = rng.integers(0, 3, nodes)
    edges = rng.integers(0, nodes, (2, 600))
    feat = (rng.standard_normal((nodes, 16)) + label[:, None]).astype(np.float32)
    masks = {f"{name}_mask": split == i for i, name in enumerate(("train", "val", "test"))}
    arrays = {"edge_index": edges, "num_nodes": nodes, "x": feat, "y": label, **masks}
    np.savez(tmp_path / "my_graph.npz", **arrays)
    np.savez(tmp_path / "weighted.npz", edge_data_weight=rng.random(600), **arrays)
    split = rng.integers(0, 3, 600)
    masks = {f"edge_data_{name}_mask": split == i for i, name in enumerate(("train", "val", "test"))}
    np.savez(tmp_path / "ratings.npz", edge_index=edges, edge_data_rating=rng.integers(1, 6, 600), **masks)
    return tmp_path


def write_tables(folder):
    """Write the edges of ``my_graph.npz`` as a folder of CSV, and its nodes as a table of Parquet, with ids of text."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the test writes Parquet")
    (folder / "edges").mkdir()
    edges = np.load(folder / "my_graph.npz")["edge_index"].T.tolist()
    rows = "".join(f"u{src},u{dst}\n" for src, dst in edges)
    (folder / "edges" / "all.csv").write_text(f"from,to\n{rows}")
    users = {"user_id": [f"u{number}" for number in range(120)], "age": [None, 30.0, 40.0] * 40}
    users |= {"country": ["DE", "NL"] * 60, "churned": ["no", "yes"] * 60}
    parquet.write_table(importlib.import_module("pyarrow").table(users), folder / "users.parquet")


@pytest.mark.parametrize(
    "page",
    [slow(page) if page.name in MANY_RUNS else page for page in PAGES if runs(page)],
    ids=lambda page: page.name,
)
def test_the_code_of_a_page_runs(page, folder, request, rank_here, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    if CALIBRATE in page.read_text():
        shutil.copy(request.getfixturevalue("measured_profile"), folder / "two.yaml")
    if page.name == "guide.md" and not HAS_DGL:
        pytest.skip("it begins with a script of DGL")
    if page.name == "cli.md":
        pytest.importorskip("matplotlib", reason="report needs matplotlib")
        pytest.importorskip("duckdb", reason="tables need duckdb")
        write_tables(folder)
    printed = run_page(page, folder)
    if page.name == "guide.md":
        (lines,) = (out for line, out in printed.items() if "torchrun" in line)
        pattern = r"(epoch (1|2)0  loss \d+\.\d{4}  validation accuracy \d+\.\d\d%\n){2}"
        assert re.fullmatch(pattern, lines), "the loop prints how it goes, once"


def test_every_block_says_what_it_is():
    """Its language is known, and few blocks are excepted, each with a reason."""
    reasons = []
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page.name}: a block is {block.language!r}, not one of {LANGUAGES}"
            reasons += [block.reason] if block.reason else []
    assert len(reasons) <= NOT_RUN, reasons


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_comments_in_code_are_read_without_scrolling(page):
    """A block of the site shows 104 columns; what follows in a command may be scrolled to, but a comment is missed."""
    lines = [line for block in blocks(page) for line in block.code.splitlines()]
    assert not [line for line in lines if re.search(r"(^|\s)# ", line) and len(line) > 104]


def test_the_site_begins_with_commands_and_what_they_print():
    """And the tree of pages, which the sidebar shows, is not repeated."""
    page = (DOCS / "index.md").read_text()
    first, *rest = blocks(DOCS / "index.md")
    commands = re.findall(r"^\$ dgl-gt (\w+)", first.code, re.MULTILINE)
    assert commands == ["partition", "train", "predict"]
    assert not re.search(r"^(##|-|\d\.|!)", page[: page.index("```text")], re.MULTILINE)
    assert first.code in (ROOT / "README.md").read_text()
    assert rest and all(block.code.startswith(":hidden:\n") for block in rest)


@pytest.mark.parametrize("number", [0, 1], ids=["of PyG", "of dgl-gt"])
def test_the_examples_of_the_readme_are_a_few_ordinary_lines(number):
    """One statement a line: what it takes is not hidden in long lines."""
    example = [block.code for block in blocks(ROOT / "README.md") if block.title][number]
    lines = list(filter(None, example.splitlines()))
    statements = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.stmt)]
    assert len(lines) <= 16 and len(statements) == len(lines)
    assert all(len(line) <= 120 for line in lines)


def prose(page: Path) -> str:
    """A page without its code, in fences or indented."""
    return re.sub(r"^ {4}\S.*$", "", BLOCK.sub("", page.read_text()), flags=re.MULTILINE)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_prose_is_read_without_scrolling(page):
    """But for links and pictures, which cannot be broken."""
    lines = [line for line in prose(page).splitlines() if not line.startswith("|") and "](" not in line]
    assert not [line for line in lines if len(line) > 120]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_cells_of_tables_are_short(page):
    rows = [line for line in prose(page).splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert not [cell for cell in cells if len(cell.split()) > MOST_WORDS_OF_A_CELL]


def test_the_documents_are_short():
    """What is added replaces something, or is said more shortly."""
    assert sum(len(page.read_text().split()) for page in PAGES) <= MOST_WORDS


def words_of(heading: str) -> str:
    """A heading's anchor, as both MyST and GitHub make it."""
    plain = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", plain))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = BLOCK.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in map(words_of, headings), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_a_page_names_exist(page):
    pattern = (
        r"`((?:partition|dgl_gt|tests|docs|benchmarks|examples)/[\w/.]+)`|python ((?:benchmarks|tests)/[\w/]+\.py)"
    )
    for named in re.finditer(pattern, page.read_text()):
        path = next(filter(None, named.groups()))
        assert (ROOT / path).exists() or "NAME" in path or "FORMAT" in path, f"{page.name} names {path}"


def test_tests_of_features_exist():
    names = re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / "tests" / "FEATURES.md").read_text())
    assert len(names) > 60
    for name in names:
        assert list((ROOT / "tests").rglob(name)) if "/" not in name else (ROOT / "tests" / name).exists(), name


def test_documents_that_the_code_names_exist():
    for package in ("partition", "dgl_gt", "benchmarks", "examples", "tests"):
        for path in (each for kind in ("*.py", "*.ipynb", "*.h", "*.cpp") for each in (ROOT / package).rglob(kind)):
            for name in re.findall(r"\bdocs/(\w+\.md)", path.read_text()):
                assert (DOCS / name).is_file(), f"{path.relative_to(ROOT)} names docs/{name}"


def test_figures_are_those_of_the_script(tmp_path):
    sys.path.insert(0, str(DOCS / "figures"))
    try:
        import draw
    finally:
        sys.path.pop(0)
    draw.draw(tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "figures").glob("*.svg")}
    used = "".join(page.read_text() for page in PAGES)
    assert all(f"figures/{name}" in used for name in drawn)
