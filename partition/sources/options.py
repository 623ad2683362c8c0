"""How a source is to be read: the options of ``load_graph`` that say what its ids, columns and keys mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dgl_gt.partition.errors import InputError, check_one_of, whole_number

from .node_columns import ColumnRoles

IDS = ("as-they-are", "compact", "names")


@dataclass(frozen=True)
class SourceOptions:
    """Options of :func:`dgl_gt.partition.load_graph`, checked by :func:`source_options`."""

    num_nodes: int | None = None
    node_data: object = None
    ids: str | None = None
    roles: ColumnRoles = ColumnRoles()
    keys: Mapping[str, str] = field(default_factory=dict)


def source_options(
    *, num_nodes=None, node_data=None, ids=None, label=None, features=None, skip=None, keys=None
) -> SourceOptions:
    """Check arguments of :func:`dgl_gt.partition.load_graph`, which describes them."""
    if ids is not None:
        check_one_of("ids", ids, IDS)
    if label is not None and not isinstance(label, str):
        raise InputError(f"label is {label!r}; it must be the name of a column")
    if keys is not None and not (isinstance(keys, Mapping) and all(isinstance(each, str) for each in keys.values())):
        raise InputError(f"keys is {keys!r}; it must be a dict of names in the file by names that load_graph reads")
    roles = ColumnRoles(label, _names("features", features), _names("skip", skip))
    if twice := {label, *roles.features}.intersection(roles.skip):
        raise InputError(f"skip (--skip) names {twice.pop()!r}, which is to be read, too; leave it out of one of them")
    return SourceOptions(
        num_nodes=None if num_nodes is None else whole_number("num_nodes", num_nodes, 1),
        node_data=node_data,
        ids=ids,
        roles=roles,
        keys=dict(keys or {}),
    )


def _names(what: str, names) -> tuple[str, ...]:
    if names is None:
        return ()
    if not isinstance(names, (list, tuple, set)) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{what} is {names!r}; it must be a list of names of columns")
    if len({*names}) < len(names):
        raise InputError(f"{what} names a column twice, in {', '.join(names)}; name each once")
    return tuple(names)


def split_source_name(source: str, allowed: dict[str, Callable]) -> tuple[str, dict]:
    """Split ``prefix:name?key=value&...`` into the name and its options.

    ``allowed`` has for each option the function that converts its text and raises ValueError for a wrong value.
    """
    name, _, query = source.partition(":")[2].partition("?")
    options: dict = {}
    for pair in filter(None, query.split("&")):  # not a URL's query: "+" and "%" stand for themselves
        key, _, text = pair.partition("=")
        if key not in allowed:
            raise InputError(f"{source!r}: unknown option {key!r}; allowed are {', '.join(allowed)}")
        if key in options:
            raise InputError(f"{source!r}: option {key!r} is given twice; give it once")
        try:
            options[key] = allowed[key](text)
        except ValueError:
            kind = {int: "a whole number", float: "a number"}.get(allowed[key], "a non-empty text")
            raise InputError(f"{source!r}: {key}={text!r} is wrong; it must be {kind}") from None
    return name, options


def nonempty_text(text: str) -> str:
    """Return the text; raise ValueError if it is empty."""
    if not text:
        raise ValueError("empty")
    return text
