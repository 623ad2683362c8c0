"""The examples do what they show: the script's two forms agree, the notebooks run and draw what they say."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from slow_case import slow

from dgl_gt.train import read_config

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "from_dgl_script.py"
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
STRATEGIES = ROOT / "examples" / "choose_a_strategy.ipynb"
ANY_MODEL = ROOT / "examples" / "any_dgl_model.ipynb"
TIMEOUT_S = 300


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """For the processes that the examples start: this checkout, one thread, nothing written into the home directory."""
    for key, value in {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "DGLBACKEND": "pytorch",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }.items():
        monkeypatch.setenv(key, value)
    for key in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)


def run(*arguments) -> str:
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documented_command(word: str) -> list[str]:
    """The arguments of the one indented command in the script's docstring that starts with a word."""
    (line,) = re.findall(rf"^    {word} (.*)$", ast.get_docstring(ast.parse(SCRIPT.read_text())), re.MULTILINE)
    return [argument.strip("'") for argument in line.split()]


def figures(printed: str, name: str) -> np.ndarray:
    return np.array([float(figure) for figure in re.findall(rf"{name} (\S+)", printed)])


@pytest.mark.needs_dgl
def test_the_dgl_script_prints_the_same_losses_across_ranks(tmp_path):
    shards = tmp_path / "shards"
    partition_arguments = documented_command("dgl-gt")
    assert partition_arguments[-2] == "--out"
    run("-m", "dgl_gt", *partition_arguments[:-1], shards)
    torchrun_arguments = documented_command("torchrun")
    assert torchrun_arguments[:2] == ["--nproc-per-node", "2"] and torchrun_arguments[-2] == "--shards"
    plain = run(SCRIPT)
    # --standalone: a free port, where torchrun's default may be taken
    torchrun = ["-m", "torch.distributed.run", "--standalone", *torchrun_arguments[:2]]
    distributed = run(*torchrun, SCRIPT, "--shards", shards)
    losses = figures(plain, "loss")
    assert len(losses) == 30 and losses[-1] < 0.1 * losses[0]
    np.testing.assert_allclose(figures(distributed, "loss"), losses, rtol=1e-4)
    accuracy, distributed_accuracy = figures(plain, "accuracy"), figures(distributed, "accuracy")
    assert accuracy > 0.95
    np.testing.assert_allclose(distributed_accuracy, accuracy, atol=2e-3)  # at most one of 500 test nodes


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_config_is_one_of_train(path):
    assert read_config(path) != read_config()
    assert "Partition" in path.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("script", "pattern", "least"),
    [slow("polynormer.py", r"test accuracy (\S+)", 0.85), ("train_ogbn_arxiv.py", r"test +accuracy (\S+)", 0.95)],
)
def test_a_script_learns_and_ranks_agree(script, pattern, least):
    epochs = {"polynormer.py": 100, "train_ogbn_arxiv.py": 20}[script]
    arguments = [ROOT / "examples" / script, "--graph", "sample:communities?nodes=500&seed=0", "--epochs", epochs]
    plain = run(*arguments)
    distributed = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *arguments)
    (reached,), (by_ranks,) = re.findall(pattern, plain), re.findall(pattern, distributed)
    assert float(reached) >= least
    assert float(by_ranks) == pytest.approx(float(reached), abs=0.02)  # some of 125 test nodes


def test_the_pyg_script_prints_the_same_losses_across_ranks(tmp_path):
    script, shards = ROOT / "examples" / "from_pyg_script.py", tmp_path / "shards"
    run("-m", "dgl_gt", "partition", "sample:communities?nodes=2000&seed=0", "--parts", 2, "--out", shards)
    plain = figures(run(script, "--epochs", 8), "loss")
    assert len(plain) == 8 and plain[-1] < 0.5 * plain[0]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--local-ranks-filter", 0]
    for options in (["--shards", tmp_path / "made"], ["--shards", shards], ["--shards", shards, "--own-rows"]):
        distributed = figures(run(*torchrun, script, *options, "--epochs", 8), "loss")
        np.testing.assert_allclose(distributed, plain, rtol=1e-4)
    assert (tmp_path / "made" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "form", "lines"),
    [
        ("from_dgl_script.py", "train_distributed", 10),
        ("from_pyg_script.py", "train_distributed", 3),
        ("from_pyg_script.py", "train_on_own_rows", 9),
    ],
)
def test_every_line_that_differs_in_the_distributed_form_is_marked(name, form, lines):
    text = (ROOT / "examples" / name).read_text()
    functions = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}

    def body(name: str) -> list[str]:
        return text.splitlines()[functions[name].body[0].lineno - 1 : functions[name].end_lineno]

    plain, distributed = body("train_plain"), body(form)
    assert len(plain) > 10 and len(distributed) > 10
    for line in distributed:
        assert (line not in plain) == ("# <- " in line), line
    imports = [line for line in text.partition("\ndef ")[0].splitlines() if "# <- added" in line]
    assert len(imports) + len([line for line in distributed if line not in plain]) == lines


def test_the_rows_of_a_pretrained_model_match_nodes():
    found = run(
        ROOT / "examples" / "align.py", "--graph", "sample:communities?nodes=300&degree=6&seed=0", "--epochs", 40
    )
    by_features, by_rows = (float(each) for each in re.findall(r": ([\d.]+)%", found))
    assert 50 < by_features <= by_rows


def results_of(path: Path, results: str, folder: Path, instead: dict[str, str] | None = None):
    """Execute a notebook, with some text replaced, and evaluate an expression after its last cell."""
    notebook = nbformat.read(path, as_version=4)
    for text, other in (instead or {}).items():
        (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)
        cell.source = cell.source.replace(text, other)
    notebook.cells.append(nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({results}))"))
    NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": str(folder)}}).execute()
    return json.loads(notebook.cells[-1].outputs[0].text)


def test_the_notebook_runs_and_its_model_beats_the_features(tmp_path):
    results = "accuracy, feature_accuracy, run.metric.test, foretold, run.exchanged_bytes_per_epoch"
    figures = results_of(NOTEBOOK, f"[float(x) for x in ({results})]", tmp_path)
    accuracy, feature_accuracy, reported, foretold, counted = figures
    assert feature_accuracy < 0.45
    assert accuracy > 0.85
    assert accuracy == pytest.approx(reported, abs=2e-3)
    assert counted == foretold


@pytest.mark.slow
def test_the_notebook_on_strategies_draws_the_candidates_of_its_plans(tmp_path, measured_profile):
    """Its profile is one that is there already, and it measures two epochs twice instead of five epochs five times."""
    copied = f"dgl_gt.plan.read_profile({str(measured_profile)!r})"
    shorter = {"profile = calibrate(2)": f"profile = {copied}", "for _ in range(5)": "for _ in range(2)"}
    shorter |= {"heads=4, epochs=5)": "heads=4, epochs=2)"}
    shorter |= {"np.sort(measured[name], axis=1).T[[0, 2]]": "np.sort(measured[name], axis=1).T[[0, 1]]"}
    rows = "[[label.get_text() for label in axis.get_yticklabels()] for axis in axes]"
    marked = "[[label.get_text() for label in axis.get_yticklabels() if label.get_weight() == 'bold'] for axis in axes]"
    made = "{name: each.as_dict() for name, each in plans.items()}"
    trials = "[[each.choice, each.measured_seconds] for each in run.plan.trials]"
    results = f"[{made}, measured, {rows}, {marked}, run.plan.chosen, {trials}]"
    plans, measured, drawn, chosen, trained, tried = results_of(STRATEGIES, results, tmp_path, shorter)
    assert list(plans) == ["mesh", "random"]
    for graph, rows_drawn, rows_marked in zip(plans, drawn, chosen):
        candidates, choice = plans[graph]["candidates"], plans[graph]["choice"]
        wanted = [each for each in candidates if each["activation_checkpoint"] == "none" and each["refused"] is None]
        assert {each["cut"] for each in wanted} == {"edge", "vertex"}
        assert [row.split(",")[0].split(" ")[0] for row in rows_drawn] == [each["strategy"] for each in wanted]
        assert ["depth 2" in row for row in rows_drawn] == [each["depth"] == 2 for each in wanted]
        assert len(set(rows_drawn)) == len(measured[graph]) == len(wanted)
        assert all(len(runs) == 2 and min(runs) > 0 for runs in measured[graph])
        (best,) = (each for each in candidates if all(each[key] == choice[key] for key in each.keys() & choice.keys()))
        assert best["refused"] is None
        assert rows_marked == [rows_drawn[wanted.index(best)]]
    assert len(tried) == 2 and trained == min(tried, key=lambda each: each[1])[0]


@pytest.mark.needs_dgl
def test_the_notebook_on_any_model_trains_it_alike_on_ranks(tmp_path):
    results = "with_dgl, with_ours, two.losses, richer.test, plan.chosen, plan.choice.strategy, plan.profile['name']"
    with_dgl, with_ours, on_two, accuracy, chosen, strategy, profile = results_of(ANY_MODEL, f"[{results}]", tmp_path)
    assert with_dgl[-1] < 0.2 * with_dgl[0]
    np.testing.assert_allclose(with_ours, with_dgl, rtol=0, atol=1e-4)
    np.testing.assert_allclose(on_two, with_dgl, rtol=0, atol=1e-4)
    assert accuracy > 0.8
    assert chosen.startswith(strategy) and profile == "cpu-10GbE"


NOTEBOOKS = {"quickstart": (NOTEBOOK, 2), "strategies": (STRATEGIES, 1), "any model": (ANY_MODEL, 1)}


@pytest.mark.parametrize(("path", "figures"), NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_a_notebook_is_committed_with_outputs_of_one_clean_run(path, figures):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.metadata.kernelspec.name == "python3"
    figures_shown = 0
    for cell in cells:
        assert cell.outputs, f"no output under:\n{cell.source}"
        for output in cell.outputs:
            if output.output_type == "stream":
                assert output.name == "stdout"
                assert not re.search(r"(^|\s)/\w+/", output.text), "a path of the machine that ran it"
            else:
                assert "application/vnd.jupyter.widget-view+json" not in output.data, "a bar, which needs its kernel"
                figures_shown += "image/png" in output.data
    assert figures_shown == figures


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_starts_no_commands(path):
    """All is done by functions of the package; and this test knows every notebook."""
    assert path in [each for each, _ in NOTEBOOKS.values()]
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for source in cells:
        assert not re.search(r"subprocess|os\.system|popen|multiprocessing|get_ipython|^\s*[!%]", source, re.MULTILINE)
    assert any("dgl_gt.launch(" in source for source in cells)
