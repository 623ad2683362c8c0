"""Every name of the package that users are told about is public."""

import ast
import configparser
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import dgl_gt
from dgl_gt import partition
from dgl_gt.model_config import ARCHITECTURES
from dgl_gt.train.config import SECTIONS
from dgl_gt.train.task_settings import TASKS

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").iterdir())]
TEXTS = [path for path in TEXTS if path.suffix in (".md", ".py", ".ipynb")]


def names_in(text: str) -> set[str]:
    """Dotted names below ``dgl_gt`` that a text uses or imports; not the modules of the generated reference."""
    text = re.sub(r"(?m)^:::.*$", "", text)
    found = {name.rstrip(".") for name in re.findall(r"\bdgl_gt((?:\.\w+)+)", text)}
    for module, names in re.findall(r"from dgl_gt([\w.]*) import \(?([\w, ]+)", text):
        found |= {f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip()}
    return {name.removeprefix(".") for name in found}


@pytest.mark.parametrize("path", TEXTS, ids=[path.name for path in TEXTS])
def test_every_name_that_users_read_is_public(path):
    for name in names_in(path.read_text()):
        value = dgl_gt
        for part in name.split("."):
            if isinstance(value, ModuleType):
                assert part in value.__all__, f"{path.name} mentions dgl_gt.{name}, and {part} is not public"
            value = getattr(value, part)


def public_objects():
    """Each public class and function once, with its name."""
    found = {}
    for package in (dgl_gt, dgl_gt.nn, dgl_gt.partition, dgl_gt.plan, dgl_gt.report, dgl_gt.train):
        for name in package.__all__:
            value = getattr(package, name)
            if callable(value):
                found.setdefault(id(value), (f"{package.__name__}.{name}", value))
    return list(found.values())


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=[name for name, _ in public_objects()])
def test_docstrings_of_public_names_send_readers_to_public_names(name, value):
    docs = [value.__doc__ or ""]
    if isinstance(value, type):
        docs += [
            each.__doc__ or ""
            for key, each in vars(value).items()
            if not key.startswith("_") and hasattr(each, "__doc__")
        ]
    for target in re.findall(
        r":\w+:`((?:dgl_gt|partition)\.[\w.]+)`|``((?:dgl_gt|partition)\.[\w.]+)", "\n".join(docs)
    ):
        target = next(filter(None, target)).rstrip(".")
        assert not target.startswith("partition."), (
            f"the docstring of {name} mentions {target}, which nobody can import"
        )
        value = dgl_gt
        for part in target.split(".")[1:]:
            if isinstance(value, ModuleType):
                assert part in value.__all__, f"the docstring of {name} mentions {target}, which is not public"
            value = getattr(value, part)


def test_the_public_surface_is_complete():
    """What a user needs for a loop of their own is found without the name of an inner module."""
    for name in ("launch", "load", "ShardedGraph", "csc", "CSC", "merge", "sparse_attention", "Comm", "RankError"):
        assert callable(getattr(dgl_gt, name))
    for module, names in {
        "train": (
            *("TrainConfig", "load_model", "predict", "read_config", "save_model", "train"),
            "train_and_save",
        ),
        "plan": ("Plan", "PRESETS", "Tracer", "choose", "read_profile", "report_costs", "search_policy", "tracer_of"),
        "nn": ("BiasedMHA", "GraphTransformer", "GraphTransformerLayer"),
        "partition": ("load_graph", "partition"),
    }.items():
        assert set(names) <= set(getattr(dgl_gt, module).__all__)
        assert all(hasattr(getattr(dgl_gt, module), name) for name in names)
        assert not any(isinstance(getattr(getattr(dgl_gt, module), name), ModuleType) for name in names)


def test_completion_of_comm_offers_what_pages_use():
    comm = dgl_gt.Comm()
    pages = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    used = set(re.findall(r"\bcomm\.([a-z]\w*)", pages))
    assert used and used <= set(dir(comm)) and len(dir(comm)) < 20
    assert all(hasattr(comm, name) for name in dir(comm))


LAZY = {
    dgl_gt: "dgl_gt",
    dgl_gt.plan: "dgl_gt/plan",
    dgl_gt.report: "dgl_gt/report",
    dgl_gt.train: "dgl_gt/train",
    partition: "dgl_gt/partition",
}


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_completion_offers_public_names_alone(module):
    import dgl_gt.exchange  # an inner room that something has loaded is no public name  # noqa: F401

    assert set(dir(module)) == set(module.__all__)


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_type_checkers_see_the_names_that_are_loaded(module):
    """Each name of the stub is that of the module, from the same place, and none is missing."""
    folder = ROOT / LAZY[module]
    found = {}
    for node in ast.parse((folder / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name == alias.asname for alias in node.names), "else the name is not exported"
            found |= {alias.name: node.module for alias in node.names}
    homes = {
        "dgl_gt": "_ATTRIBUTES",
        "dgl_gt.plan": "_HOMES",
        "dgl_gt.report": "_HOMES",
        "dgl_gt.train": "_HOMES",
        "dgl_gt.partition": "_MODULES",
    }[module.__name__]
    prefix = "dgl_gt.partition." if module is partition else ""
    lazy = {name: prefix + home for name, home in getattr(module, homes).items()}
    assert {name: home for name, home in found.items() if home} == lazy
    assert {name for name, home in found.items() if not home} == set(getattr(module, "_SUBMODULES", ()))


def test_packages_are_installed_with_their_types():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for module, folder in LAZY.items():
        assert (ROOT / folder / "__init__.pyi").exists()
        assert "*.pyi" in setup["options.package_data"][module.__name__]
    assert (ROOT / "dgl_gt" / "py.typed").exists() and "py.typed" in setup["options.package_data"]["dgl_gt"]


def test_a_type_checker_finds_misspelt_arguments_and_names(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed; pip install mypy")
    wrong = {
        'dgl_gt.load("x", stratgy="halo")': "call-arg",
        "dgl_gt.lod": "attr-defined",
        "dgl_gt.train.GNNConfig(hiden=3)": "call-arg",
        'dgl_gt.partition.load_graph("x", nme=1)': "call-arg",
        "dgl_gt.launch(print, rank=2)": "call-arg",
        "dgl_gt.launch(lambda: 1, ranks=2).imga": "attr-defined",
        'dgl_gt.plan.plan("x", ranks=2)': "call-arg",
        'dgl_gt.report.report("x").number': "attr-defined",
    }
    right = ["dgl_gt.launch(lambda: 1, ranks=2).imag", 'dgl_gt.plan.plan("x").choice.seconds']
    right += ['dgl_gt.load("x", strategy="halo")', "dgl_gt.train.GNNConfig(hidden=8)", 'dgl_gt.InputError("x")']
    (tmp_path / "user.py").write_text("\n".join(["import dgl_gt", *wrong, *right]))
    skipped = "[mypy-torch.*,numpy.*,scipy.*,msgspec.*,safetensors.*,yaml.*]\nfollow_imports = skip\n"  # they take long
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n{skipped}")
    command = [sys.executable, "-m", "mypy", "user.py"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    found = dict(re.findall(r"user.py:(\d+): error: .*\[(.*)\]", ran.stdout))
    assert found == {str(line): code for line, code in enumerate(wrong.values(), 2)}, ran.stdout + ran.stderr


def test_the_citation_names_this_version():
    assert f"\nversion: {dgl_gt.__version__}\n" in (ROOT / "CITATION.cff").read_text()


CONFIGS = ARCHITECTURES | TASKS | {name: kind for name, kind in SECTIONS.items() if name not in ("model", "task")}


@pytest.mark.parametrize("section", CONFIGS.values(), ids=CONFIGS)
def test_help_explains_every_setting(section):
    doc = inspect.cleandoc(section.__doc__).replace("\n", "\n    ")
    texts = dict(re.findall(r"(?m)^    (\w+ : .*)\n((?:        .*\n)+)", doc))
    by_name = {heading.split(" : ")[0]: (heading, " ".join(text.split())) for heading, text in texts.items()}
    for setting in fields(section):
        if setting.metadata:
            heading, text = by_name[setting.name]
            assert heading.endswith(f"default {setting.default!r}")
            assert text.lower().startswith(setting.metadata["help"].lower())
    assert "Annotated" not in str(inspect.signature(section))
    assert section not in ARCHITECTURES.values() or "from 1 to 1,000" in by_name["layers"][1]


def test_the_error_of_wrong_input_is_public():
    assert dgl_gt.InputError is partition.InputError
    with pytest.raises(dgl_gt.InputError, match="heads"):
        dgl_gt.train.read_config(hidden=10, heads=3)


@pytest.mark.parametrize("module", [dgl_gt, dgl_gt.train], ids=lambda module: module.__name__)
def test_a_name_that_is_not_public_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
        module.nothing
