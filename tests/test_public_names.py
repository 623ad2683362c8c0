"""Every name of the package that users are told about is public."""

import re
from pathlib import Path
from types import ModuleType

import pytest

import dgl_gt
import partition

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
    for package in (dgl_gt, dgl_gt.nn, dgl_gt.partition, dgl_gt.selector, dgl_gt.train):
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
        value = partition if target.startswith("partition.") else dgl_gt
        for part in target.split(".")[1:]:
            if isinstance(value, ModuleType):
                assert part in value.__all__, f"the docstring of {name} mentions {target}, which is not public"
            value = getattr(value, part)


def test_the_public_surface_is_complete():
    """What a user needs for a loop of their own is found without the name of an inner module."""
    for name in ("load", "ShardedGraph", "csc", "CSC", "merge", "sparse_attention", "Comm", "RankError"):
        assert callable(getattr(dgl_gt, name))
    for module, names in {
        "train": (
            *("TrainConfig", "load_model", "predict", "read_config", "save_model", "step_traces", "train"),
            "train_and_save",
        ),
        "selector": ("Plan", "PRESETS", "StepTraces", "choose", "read_profile", "report_costs"),
        "nn": ("BiasedMHA", "GraphTransformer", "GraphTransformerLayer"),
        "partition": ("load_graph", "partition"),
    }.items():
        assert set(names) <= set(getattr(dgl_gt, module).__all__)
        assert all(hasattr(getattr(dgl_gt, module), name) for name in names)
        assert not any(isinstance(getattr(getattr(dgl_gt, module), name), ModuleType) for name in names)


@pytest.mark.parametrize("module", [dgl_gt, dgl_gt.train], ids=lambda module: module.__name__)
def test_a_name_that_is_not_public_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
        module.nothing
