"""YAML files of settings and figures: the part of YAML that they need, and values of declared types."""

from __future__ import annotations

import re
import reprlib
import typing
from difflib import get_close_matches

import msgspec
import yaml

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.partition.system.user_files import reading, regular_file

_MAX_BYTES = 4 << 20  # a profile of five hundred ranks has a quarter of a million links
_MAX_NAMED = 20  # allowed keys in a message
_PLAIN_TYPES = ("null", "bool", "int", "float", "str")


def check_keys(values: dict, allowed, where: str) -> None:
    """Refuse a key that is not allowed; ``where`` begins the message of the :class:`InputError`."""
    unknown = sorted(values.keys() - set(allowed), key=str)
    if unknown:
        key, names, words = str(unknown[0]), sorted(allowed), "allowed are"
        if len(names) > _MAX_NAMED:
            names, words = get_close_matches(key, names, 3, 0.0), "the most similar that are allowed are"
        raise InputError(f"{where}: unknown key {reprlib.repr(unknown[0])}; {words} {', '.join(names)}")


def typed(value, kind, name: str = ""):
    """``value`` converted to a type that :mod:`msgspec` understands, such as a ``msgspec.Struct``.

    If a key is missing, or a value is not of its type, ``InputError`` names the key, after ``name`` if there is one,
    shows the value, and says what is allowed in the words of the type's ``msgspec.Meta(description=...)``.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: bytes of an option that are not text
        problem = str(error)
    place = problem.rpartition(" - at ")[2] if " - at " in problem else ""  # such as `$.attention.edge_s[1]`
    keys = re.findall(r"\.(\w+)", place)
    path = [*filter(None, [name]), *keys]
    missing = re.match(r"Object missing required field `(\w+)`", problem)
    if missing:
        raise InputError(f"it has no {'.'.join([*path, missing[1]])}; add it")
    for key in keys:
        value = value[key]
        kind = typing.get_type_hints(_struct_in(kind), include_extras=True)[key]
    raise InputError(f"{'.'.join(path)} is {reprlib.repr(value)}; it must be {kind.__metadata__[0].description}")


def _struct_in(kind) -> type | None:
    """The ``msgspec.Struct`` that a type is, or that it has among its alternatives."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next(filter(None, map(_struct_in, typing.get_args(kind))), None)


def read_text(path, max_bytes: int = _MAX_BYTES) -> str:
    """The text of a regular file in UTF-8; ``InputError`` says why it cannot be read."""
    path = regular_file(path)
    with reading(path):
        content = path.read_bytes() if path.stat().st_size <= max_bytes else None
    if content is None:
        raise InputError(f"{path} holds more than {format_bytes(max_bytes)}; name a smaller file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8; name another file, or convert it") from error


def read_yaml(path) -> dict:
    """A YAML mapping, read safely; {} for an empty file.

    The file may hold maps, lists, numbers, text, true, false and null. Anchors, aliases, tags, dates and merged maps
    are refused with ``InputError``. A key must be text or a whole number, and may be given once.
    """
    values = parse_yaml(read_text(path), path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold keys and values, such as 'layers: 3'")
    return values


def parse_yaml(text: str, name):
    """The value of a text in YAML, as :func:`read_yaml` reads it; ``name`` begins the message of an error."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{name}{where} is not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # for bad numbers, escapes and nesting
        raise InputError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error


class _Loader(yaml.SafeLoader):
    """Refuses what the safe loader accepts but costs memory, raises other errors, or is ambiguous."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in _PLAIN_TYPES]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag:
            raise _error("anchors, aliases and tags are not allowed here; write the value in full", event)
        return super().compose_node(parent, index)

    def construct_yaml_str(self, node):
        value = super().construct_yaml_str(node)
        value.encode()  # a UnicodeEncodeError, which is a ValueError, for half of a character
        return value

    def construct_yaml_int(self, node):
        value = super().construct_yaml_int(node)
        if abs(value) >= 2**63:
            raise _error("a number does not fit 64 bits", node)
        return value

    def construct_mapping(self, node, deep=False):
        values = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int)) or isinstance(key, bool) or key in values:
                problem = f"the key {reprlib.repr(key)} must be text or a whole number, and be given once"
                raise _error(problem, key_node)
            values[key] = self.construct_object(value_node, deep=deep)
        return values


def _error(problem: str, where) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_yaml_str)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# YAML 1.1 reads 3e-3, which has no point, as text; YAML 1.2 reads it as the number that is meant.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), [*"-+0123456789"])
