"""Which room may import which, and what a mere import costs."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT_DGL = ("dgl_gt.dgl_part", "dgl_gt.partition.sources.dgl_graphs")

# The rooms of the two packages, and for each the rooms (or single modules) that it may import. A module of the same
# folder is always allowed; `test_no_circles` sees to the order inside a room.
MAY_IMPORT = {
    "dgl_gt.partition": {"dgl_gt.partition.lazy_names"},  # the package's face, which loads what is asked for
    "dgl_gt.partition.lazy_names": set(),
    "dgl_gt.partition.errors": set(),
    "dgl_gt.partition.system": {"dgl_gt.partition.errors"},
    "dgl_gt.partition.schema": {"dgl_gt.partition.errors"},
    "dgl_gt.partition.graph": {"dgl_gt.partition.errors", "dgl_gt.partition.system", "dgl_gt.partition.schema"},
    "dgl_gt.partition.relations": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.graph",
    },
    "dgl_gt.partition.transforms": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.relations",
    },
    "dgl_gt.partition.sources": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.relations",
        "dgl_gt.partition.transforms",
    },
    "dgl_gt.partition.figures": {"dgl_gt.partition.errors", "dgl_gt.partition.system", "dgl_gt.partition.schema"},
    "dgl_gt.partition.cuts": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.sources.coo",
        "dgl_gt.partition.figures",
    },
    "dgl_gt.partition.shards": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.relations",
        "dgl_gt.partition.transforms",
        "dgl_gt.partition.sources",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.cuts",
    },
    "dgl_gt.partition.distributed": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.sources.coo",
        "dgl_gt.partition.transforms",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.cuts",
        "dgl_gt.partition.shards",
    },
    "dgl_gt.partition.report": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.shards",
    },
    "dgl_gt.partition.notebook": set(),
    "dgl_gt.partition.console": {"dgl_gt.partition.errors", "dgl_gt.partition.system"},
    "dgl_gt.partition.config": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.transforms",
        "dgl_gt.partition.sources",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.cuts",
    },
    "dgl_gt.partition.memory_bound": {
        "dgl_gt.partition.config",
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.transforms",
        "dgl_gt.partition.sources.coo",
        "dgl_gt.partition.cuts",
    },
    "dgl_gt.partition.pipeline": {
        "dgl_gt.partition.notebook",
        "dgl_gt.partition.config",
        "dgl_gt.partition.growth",
        "dgl_gt.partition.memory_bound",
        "dgl_gt.partition.distributed",
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.transforms",
        "dgl_gt.partition.sources",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.cuts",
        "dgl_gt.partition.shards",
    },
    "dgl_gt.partition.growth": {
        "dgl_gt.partition.config",
        "dgl_gt.partition.errors",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.system",
        "dgl_gt.partition.cuts",
        "dgl_gt.partition.shards",
    },
    "dgl_gt.partition.conversion": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.schema",
        "dgl_gt.partition.system",
        "dgl_gt.partition.graph",
        "dgl_gt.partition.sources",
    },
    "dgl_gt.partition.command_options": {
        "dgl_gt.partition.distributed.engine",
        "dgl_gt.partition.config",
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.partition.cuts",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.shards.manifest",
        "dgl_gt.partition.sources",
    },
    "dgl_gt.partition.cli": {"dgl_gt.partition"},
    "dgl_gt": set(),  # the package's face
    "dgl_gt.settings": {"dgl_gt.partition.errors", "dgl_gt.partition.system"},
    "dgl_gt.model_config": {"dgl_gt.partition.errors", "dgl_gt.settings"},
    "dgl_gt.structure": set(),
    "dgl_gt.dgl_part": {"dgl_gt.ops.dispatch"},
    "dgl_gt.pyg": {"dgl_gt.partition", "dgl_gt.comm", "dgl_gt.exchange", "dgl_gt.nn", "dgl_gt.torch_internals"},
    "dgl_gt.torch_internals": set(),
    "dgl_gt.ops": {"dgl_gt.structure", "dgl_gt.torch_internals"},
    "dgl_gt.comm": {"dgl_gt.partition.errors", "dgl_gt.torch_internals"},
    "dgl_gt.exchange": {
        "dgl_gt.partition",
        "dgl_gt.structure",
        "dgl_gt.comm",
        "dgl_gt.dgl_part",
        "dgl_gt.ops",
        "dgl_gt.torch_internals",
    },
    "dgl_gt.nn": {
        "dgl_gt.partition.errors",
        "dgl_gt.partition.figures",
        "dgl_gt.partition.schema",
        "dgl_gt.structure",
        "dgl_gt.exchange",
        "dgl_gt.model_config",
        "dgl_gt.ops",
        "dgl_gt.settings",
        "dgl_gt.torch_internals",
    },
    "dgl_gt.ranks": {
        "dgl_gt.partition.console",
        "dgl_gt.partition.errors",
        "dgl_gt.partition.notebook",
        "dgl_gt.partition.system",
        "dgl_gt.comm",
    },
    "dgl_gt.run_files": {
        "dgl_gt.partition.console",
        "dgl_gt.partition.errors",
        "dgl_gt.partition.system",
        "dgl_gt.plan.candidates",
    },
    "dgl_gt.train": {
        "dgl_gt.partition",
        "dgl_gt.comm",
        "dgl_gt.exchange",
        "dgl_gt.model_config",
        "dgl_gt.nn",
        "dgl_gt.ops.dropout",
        "dgl_gt.ops.reference",
        "dgl_gt.ranks",
        "dgl_gt.run_files",
        "dgl_gt.settings",
    },
    "dgl_gt.plan.candidates": {"dgl_gt.partition"},
    "dgl_gt.plan": {
        "dgl_gt.partition",
        "dgl_gt.comm",
        "dgl_gt.exchange",
        "dgl_gt.nn",
        "dgl_gt.ops",
        "dgl_gt.ranks",
        "dgl_gt.run_files",
        "dgl_gt.structure",
        "dgl_gt.torch_internals",
        "dgl_gt.train",
    },
    "dgl_gt.report": {"dgl_gt.partition", "dgl_gt.run_files", "dgl_gt.train"},
    "dgl_gt.tune": {
        "dgl_gt",
        "dgl_gt.partition",
        "dgl_gt.plan.planned_step",
        "dgl_gt.ranks",
        "dgl_gt.run_files",
        "dgl_gt.train",
    },
    "dgl_gt.cli": {
        "dgl_gt.partition",
        "dgl_gt",
        "dgl_gt.comm",
        "dgl_gt.ranks",
        "dgl_gt.report",
        "dgl_gt.run_files",
        "dgl_gt.plan",
        "dgl_gt.train",
        "dgl_gt.tune",
        "dgl_gt.exchange.policy.policy",
    },
    "dgl_gt.__main__": {"dgl_gt.partition.system", "dgl_gt.cli", "dgl_gt.ranks.launcher_link"},
}


def modules():
    for folder, package in (("partition", "dgl_gt.partition"), ("dgl_gt", "dgl_gt")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((package, *inner)).removesuffix(".__init__"), path


def imports(name: str, path: Path) -> set[str]:
    """Absolute names of what a module imports, inside functions too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            home = ".".join(filter(None, [base, node.module]))
            # "from package import module" names a module; "from module import name" does not
            found |= {f"{home}.{a.name}" if (ROOT / home.replace(".", "/")).is_dir() else home for a in node.names}
    return found


def inside(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_arrows_point_one_way(name, path):
    room = max((room for room in MAY_IMPORT if inside(name, room)), key=len)
    assert room not in ("dgl_gt", "dgl_gt.partition") or name == room, (
        f"{name} is in no room: give it one in MAY_IMPORT"
    )
    for module in imports(name, path):
        assert not inside(module, "partition"), f"{name} imports {module}"
        if inside(module, "dgl_gt"):
            allowed = MAY_IMPORT[room] | {room}
            assert any(inside(module, each) for each in allowed), f"{name} imports {module}"
        assert not inside(module, "dgl") or name in MAY_IMPORT_DGL, f"{name} imports dgl"
        assert not inside(module, "torch") or not inside(name, "dgl_gt.partition"), f"{name} imports torch"


def test_the_list_of_rooms_in_the_docs_goes_from_the_top_to_the_ground():
    """A room imports only rooms below it in docs/architecture.md; the faces of the packages are in no room."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Rooms")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    place = {}
    for number, names in enumerate(rows):
        folder = ""
        for name in re.findall("`([^`]+)`", names):
            folder = name.rpartition("/")[0] or folder
            path = name if "/" in name else f"{folder}/{name}"
            place[re.sub("^partition(?=/)", "dgl_gt/partition", path.removesuffix(".py")).replace("/", ".")] = number
    faces = {"dgl_gt", "dgl_gt.partition", "dgl_gt.__main__"}
    assert {room for room in MAY_IMPORT if room not in faces} <= {
        room for room in MAY_IMPORT for listed in place if inside(listed, room)
    }
    for name, path in modules():
        here = max((each for each in place if inside(name, each)), key=len, default=None)
        for module in imports(name, path):
            there = max((each for each in place if inside(module, each)), key=len, default=None)
            if here and there:
                assert place[here] <= place[there], f"{name} imports {module}, which is listed above it"


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=[name for name, _ in modules()])
def test_files_and_functions_are_short(name, path):
    """At most 400 lines in a file, and 60 in a function, without its signature and docstring."""
    text = path.read_text()
    assert len(text.splitlines()) <= 400, f"{name} is long: divide it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 60, f"{name}.{node.name} has {length} lines: cut it along its seams"


def test_every_folder_of_modules_is_installed():
    """An editable installation finds folders that setup.cfg does not list; any other leaves them out."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = settings["options"]["packages"].split()
    folders = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in modules()}
    assert sorted(listed) == sorted(folders)


def test_no_circles():
    """No module imports itself by way of others, inside functions too."""
    names = dict(modules())
    arrows = {name: {each for each in imports(name, path) if each in names} for name, path in names.items()}
    for face in ("dgl_gt", "dgl_gt.partition"):  # what these import is loaded at first use
        arrows[face] = set()
    while arrows:
        ground = {name for name, targets in arrows.items() if not targets & set(arrows) - {name}}
        assert ground, f"these import each other: {', '.join(sorted(arrows))}"
        arrows = {name: targets for name, targets in arrows.items() if name not in ground}


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after running code."""
    script = f"import sys; {code}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import dgl_gt", {"dgl", "torch", "numpy", "scipy"}),
        ("import dgl_gt.partition", {"dgl", "torch", "numpy", "scipy"}),
        ("import dgl_gt.partition.cli", {"dgl", "torch", "networkx", "ogb", "pandas"}),
        ("import dgl_gt.cli.main", {"dgl", "torch"}),
        ("import dgl_gt; dgl_gt.train.TrainConfig, dgl_gt.plan.choose", {"dgl", "torch"}),
        ("import dgl_gt; dgl_gt.load, dgl_gt.nn.GraphTransformer, dgl_gt.sparse_attention", {"dgl"}),
    ],
)
def test_imports_stay_light(code, absent):
    assert not loaded_after(code) & absent


def test_the_command_tries_no_directory_before_it_handles_signals():
    # `tempfile` tries a directory with a file, and a signal at that moment, before any handler, leaves the file behind
    code = (
        "import types; stub = types.ModuleType('dgl_gt.cli.main'); stub.main = lambda: 0; "
        "sys.modules['dgl_gt.cli.main'] = stub; import dgl_gt.__main__ as command; command._run(); "
        "import tempfile; assert tempfile.tempdir is None"
    )
    loaded_after(code)


def test_ranks_start_before_torch_is_imported(tmp_path):
    """The process that starts and watches them does not import it, which takes more than a second."""
    shards = str(tmp_path / "shards")
    code = (
        "from dgl_gt.cli.main import main; "
        f"assert not main(['partition', 'sample:communities?nodes=200', '--parts', '2', '--out', {shards!r}]); "
        f"assert not main(['train', {shards!r}, '--epochs', '1', '--hidden', '8', '--nproc', '1'])"
    )
    assert not loaded_after(code) & {"torch", "dgl"}


def test_steps_and_plans_do_not_load_the_compiler(tmp_path):
    """The machinery of torch.compile takes each process more than a second and 70 MB, and sympy as long."""
    code = (
        "import dgl_gt; from dgl_gt import partition; from dgl_gt.plan import choose, read_profile; "
        "from dgl_gt.plan import tracer_of; from dgl_gt.train import TrainConfig, read_config, train; "
        f"partition.partition('sample:communities?nodes=200', 1, {str(tmp_path / 'out')!r}); "
        f"sg = dgl_gt.load({str(tmp_path / 'out')!r}); config = read_config(epochs=2, hidden=8, layers=1, dropout=0.5); "
        "assert len(train(sg, config).losses) == 2; figures = partition.read_figures(sg.manifest); "
        "choose([(None, figures)], tracer_of(config, figures.features), read_profile()); "
        "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    )
    assert "torch" in loaded_after(code)


def test_partitioning_needs_no_torch(tmp_path):
    code = f"from dgl_gt import partition; partition.partition('sample:communities?nodes=200', 2, {str(tmp_path / 'out')!r})"
    assert not loaded_after(code) & {"torch", "dgl"}


def test_public_names_of_partitioning_are_no_modules():
    from dgl_gt import partition

    for name in partition.__all__:
        assert callable(getattr(partition, name)), f"{name} names a module, which hides what is meant"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to build the kernel with")
def test_the_cpu_kernel_is_built():
    # Without it most tests of ops would be skipped, and a kernel that no longer compiles would pass for a slow install.
    from dgl_gt.ops import cpu

    assert cpu.library() is not None
