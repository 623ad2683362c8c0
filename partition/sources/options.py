"""The options of ``load_graph``: what a source's ids, columns and keys mean, and what is added to its graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dgl_gt.partition.errors import InputError, check_flags, check_one_of, whole_number
from dgl_gt.partition.transforms.added_edges import check_fill, check_fill_values
from dgl_gt.partition.transforms.node_split import shares_of

IDS = ("as-they-are", "compact", "names")
_MAX_FEATURES = 10**18  # far beyond any use


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The arguments of :func:`dgl_gt.partition.load_graph`, which describes them; :class:`InputError` if one is wrong."""

    num_nodes: int | None = None
    node_data: object = None
    node_table: object = None
    id: str | None = None
    ends: Collection[str] | None = None
    fill_missing: object = None
    memory: int | None = None
    ids: str | None = None
    label: str | None = None
    features: Collection[str] | None = None
    skip: Collection[str] | None = None
    keys: Mapping[str, str] | None = None
    self_loops: bool = False
    self_loop_fill: object = None
    undirected: bool = False
    reverse_kind: bool = False
    random_features: int | None = None
    split: str | None = None
    stratify: bool = False
    seed: int = 0

    def __post_init__(self):
        if self.ids is not None:
            check_one_of("ids", self.ids, IDS)
        features, skip = _names("features", self.features), _names("skip", self.skip)
        if self.id is not None and not isinstance(self.id, str):
            raise InputError(f"id is {self.id!r}; it must be the name of a column")
        ends = None if self.ends is None else _names("ends", self.ends)
        if ends is not None and len(ends) != 2:
            raise InputError(f"ends (--ends) is {', '.join(ends)}; it must name two columns, SOURCE,DESTINATION")
        if self.id is not None and self.node_table is None:
            raise InputError(
                f"id (--id) is {self.id!r}, but there is no table of nodes; add node_table (--node-table), or leave it out"
            )
        check_fill_values("fill_missing (--fill-missing)", self.fill_missing)
        if self.label is not None and not isinstance(self.label, str):
            raise InputError(f"label is {self.label!r}; it must be the name of a column")
        if twice := {self.label, *features}.intersection(skip):
            raise InputError(f"skip (--skip) names {twice.pop()!r}, which is to be read, too; name it once")
        keys = {} if self.keys is None else self.keys
        if not (isinstance(keys, Mapping) and all(isinstance(each, str) for each in keys.values())):
            raise InputError(f"keys is {keys!r}; it must be a dict of names in the file by names that load_graph reads")
        flags = ("self_loops", "undirected", "reverse_kind", "stratify")
        check_flags(**{name: getattr(self, name) for name in flags})
        if self.reverse_kind and not (self.undirected or self.self_loops):
            raise InputError(
                "reverse_kind (--reverse-kind) is given, but no edges are added that it could mark; add undirected "
                "(--undirected) or self_loops (--self-loops), or leave it out"
            )
        if self.split is not None:
            shares_of(self.split)  # raises unless they are shares
        elif self.stratify:
            raise InputError(
                "stratify (--stratify) is given, but nodes are not split; add split (--split), or leave it out"
            )
        check_fill(None, self.self_loop_fill)
        if self.self_loop_fill is not None and not self.self_loops:
            raise InputError(
                f"self_loop_fill (--self-loop-fill) is {self.self_loop_fill!r}, but no self-loops are added; add self_loops "
                "(--self-loops), or leave it out"
            )
        if self.random_features is not None:
            whole_number("random_features", self.random_features, 1, _MAX_FEATURES)
        num_nodes = None if self.num_nodes is None else whole_number("num_nodes", self.num_nodes, 1)
        vars(self).update(features=features, skip=skip, keys=dict(keys))
        memory = None if self.memory is None else whole_number("memory", self.memory, 1)
        vars(self).update(ends=ends, memory=memory)
        vars(self).update(num_nodes=num_nodes, seed=whole_number("seed", self.seed, 0))

    @property
    def named_columns(self) -> set[str]:
        """The columns of node tables of which the user says what they are."""
        filled = self.fill_missing if isinstance(self.fill_missing, Mapping) else ()
        return {*([] if self.label is None else [self.label]), *(self.features or ()), *(self.skip or ()), *filled}


def _names(what: str, names) -> tuple[str, ...]:
    names = () if names is None else names
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
            if not text:
                raise ValueError("empty")
            options[key] = allowed[key](text)
        except ValueError:
            kinds = {int: "a whole number", float: "a number", str: "a non-empty text"}
            kind = next(words for parse, words in kinds.items() if parse is allowed[key])
            raise InputError(f"{source!r}: {key}={text!r} is wrong; it must be {kind}") from None
    return name, options
