"""Builds the site with Sphinx: ``make docs``. The pages are Markdown (MyST); the API page comes from docstrings."""

import importlib
import inspect
import re

project = "dgl-gt"
author = copyright = "the dgl-gt authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = "dgl-gt"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "  # of a block with prompts, only the commands are copied
exclude_patterns = ["figures/*.py"]
myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # "Attributes" of a docstring may also be annotated fields
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more than the annotations


def setup(app):
    app.connect("source-read", fill_in_public_names)
    app.connect("autodoc-process-docstring", plain_footnotes)


def fill_in_public_names(app, page, source):
    """Turn ``<!-- public names of PACKAGE -->`` into an entry for each name in the package's ``__all__``.

    So no public name is forgotten, and none has to be listed twice. What two packages have is described once.
    """
    described = {}  # the first path of each class or function
    source[0] = re.sub(r"<!-- public names of (\S+) -->", lambda match: entries(match[1], described), source[0])


def entries(package: str, described: dict) -> str:
    module = importlib.import_module(package)
    names = {name: getattr(module, name) for name in getattr(module, "__all__", ()) if not name.startswith("__")}
    found = []
    for name, value in names.items():
        path = f"{package}.{name}"
        if callable(value) and described.setdefault(value, path) != path:
            found.append(f"### {path}\n\nThis is {described[value]}.\n")
        elif not inspect.ismodule(value):
            found.append(entry(path, value))
    return "\n".join(found)


def entry(path: str, value) -> str:
    if inspect.isclass(value):
        directive, options = "autoclass", "   :members:\n" if not issubclass(value, Exception) else ""
    elif callable(value):
        directive, options = "autofunction", ""
    else:
        directive, options = "autodata", ""
    return f"### {path}\n\n```{{eval-rst}}\n.. {directive}:: {path}\n{options}```\n"


def plain_footnotes(app, what, name, value, options, lines):
    """Write a docstring's footnotes as a list: reStructuredText inside Markdown cannot link them."""
    for index, line in enumerate(lines):
        lines[index] = re.sub(r"\[(\d+)\]_", r"[\1]", re.sub(r"^\s*\.\. \[(\d+)\]", r"* [\1]", line))
