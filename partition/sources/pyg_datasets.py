"""Data sets of PyG with one graph: the file that PyG has processed, by the safe loader."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
from pathlib import Path

from dgl_gt.partition.errors import INSTALL_PYG, InputError, first_line, import_optional

from .coo import COOGraph
from .options import split_source_name
from .pyg_graphs import from_pyg, read_pyg_file

# Names that need no class, with that of the class to which they belong.
_CLASS_OF = {
    **dict.fromkeys(("Cora", "CiteSeer", "PubMed"), "Planetoid"),
    **dict.fromkeys(("Computers", "Photo"), "Amazon"),
    **dict.fromkeys(("CS", "Physics"), "Coauthor"),
    **dict.fromkeys(("Chameleon", "Squirrel"), "WikipediaNetwork"),
    **dict.fromkeys(("Cornell", "Texas", "Wisconsin"), "WebKB"),
    **dict.fromkeys(
        ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"), "HeterophilousGraphDataset"
    ),
}


class _Files(Exception):
    """The files that a data set has after processing."""


def pyg_dataset(source: str) -> COOGraph:
    """Load ``pyg:NAME?root=DIR``; NAME is a name such as ``Cora``, or a class of ``torch_geometric.datasets``, or CLASS/NAME.

    DIR (default ``data/CLASS``) is the ``root`` of that class. If PyG has processed the data set there, only that file is
    read, by the safe loader. Otherwise PyG downloads and processes it, and reads what it has downloaded itself.
    """
    text, options = split_source_name(source, {"root": str})
    kind, name = _class_and_name(source, text)
    parameters = inspect.signature(kind).parameters
    arguments = {"root": options.get("root", f"data/{kind.__name__}"), "name": name}
    if name and "name" not in parameters:
        raise InputError(f"{source!r}: {kind.__name__} has one data set and takes no name; write pyg:{kind.__name__}")
    if not name and "name" in parameters:
        raise InputError(f"{source!r}: {kind.__name__} has several data sets; name one, as in pyg:{kind.__name__}/NAME")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return _load(source, kind, {key: each for key, each in arguments.items() if key in parameters})
    except (InputError, MemoryError):
        raise
    except Exception as error:  # errors of urllib and fsspec, and assertions about names
        raise InputError(
            f"{source!r}: PyG could not load or download it ({first_line(error)}); check the name and the network, or give "
            "the root that holds it with ?root="
        ) from error


def _load(source: str, kind: type, arguments: dict[str, str]) -> COOGraph:
    class Unread(kind):  # type: ignore[misc, valid-type]
        """The data set up to where PyG would read what it has processed, which may run code in the file."""

        def _download(self):
            if all(Path(each).exists() for each in self.processed_paths):
                raise _Files(self.processed_paths)
            super()._download()

        def load(self, *_):
            raise _Files(self.processed_paths)

    dataset, paths = (), []
    try:
        dataset = Unread(**arguments)  # ends here where it is made by a rule
    except _Files as files:
        paths = files.args[0]
    if len(paths) == 1:
        return read_pyg_file(Path(paths[0]), source)
    if len(dataset) == 1:
        return from_pyg(dataset[0], source)
    raise InputError(f"{source!r}: this data set has several graphs; choose one with a single graph")


def _class_and_name(source: str, text: str) -> tuple[type, str]:
    """Return the class of a data set, and its name there, or "" for a class with one."""
    home = import_optional("torch_geometric.datasets", source, INSTALL_PYG)
    dataset = import_optional("torch_geometric.data", source, INSTALL_PYG).Dataset
    classes = {}
    for found in (getattr(home, name) for name in home.__all__):
        if inspect.isclass(found) and issubclass(found, dataset):
            parameters = inspect.signature(found).parameters.values()
            if {each.name for each in parameters if each.default is each.empty} <= {"root", "name", "kwargs"}:
                classes[found.__name__.lower()] = found
    known = {name.lower(): (classes[kind.lower()], name) for name, kind in _CLASS_OF.items()}
    first, _, name = text.partition("/")
    if first.lower() in classes:
        return classes[first.lower()], name
    if text.lower() in known:
        return known[text.lower()]
    close = difflib.get_close_matches(first.lower(), [*known, *classes], n=5, cutoff=0.5)
    names = [known[each][1] if each in known else classes[each].__name__ for each in close] or [*_CLASS_OF]
    raise InputError(
        f"{source!r}: PyG has no data set {text!r} with a single graph; similar names are {', '.join(names)}; others are those of "
        "classes of torch_geometric.datasets, pyg:CLASS or pyg:CLASS/NAME"
    )
