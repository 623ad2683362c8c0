"""YAML files that hold keys and values: the part of YAML that settings and figures need, and no more."""

from __future__ import annotations

import reprlib
from pathlib import Path

import yaml

from partition.errors import InputError
from partition.system.units import size

_MOST_BYTES = 4 << 20  # a profile of five hundred ranks has a quarter of a million links
_MOST_LEVELS = 20
_PLAIN = ("null", "bool", "int", "float", "str")


def read_text(path, most_bytes: int = _MOST_BYTES) -> str:
    """The text of a regular file in UTF-8.

    Raises
    ------
    InputError
        The file cannot be read, is not a regular one, is too large, or holds something else.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"cannot read {path}: it is not a regular file")
        if path.is_file() and path.stat().st_size > most_bytes:
            raise InputError(f"cannot read {path}: it holds more than {size(most_bytes)}, which no such file does")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: not a text file in UTF-8") from error


def read_yaml(path) -> dict:
    """A YAML mapping, read safely; {} of an empty file.

    Of YAML it takes maps, lists, numbers, text, true, false and null: no anchors, aliases, tags, dates or merged maps.
    A key is text or a whole number, and is given once.

    Raises
    ------
    InputError
        The file cannot be read, is not YAML, or holds something else.
    """
    text = read_text(path)
    try:
        values = yaml.load(text, _Loader)  # a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{where} is not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter of numbers and of escaped characters
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold keys and values")
    return values


class _Loader(yaml.SafeLoader):
    """Refuses what the safe loader would take: what costs memory, what raises other errors, and what is ambiguous."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream):
        super().__init__(stream)
        self._level = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not taken here", problem_mark=event.start_mark)
        if event.tag:
            problem = f"tags such as {reprlib.repr(event.tag)} are not taken here"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self._level += 1
        if self._level > _MOST_LEVELS:
            problem = f"it goes more than {_MOST_LEVELS} levels deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_yaml_int(self, node):
        value = super().construct_yaml_int(node)
        if abs(value) >= 2**63:
            raise yaml.MarkedYAMLError(problem="a number is beyond 64 bits", problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node, deep=False):
        values = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                problem = f"the key {reprlib.repr(key)} is neither text nor a whole number"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            if key in values:
                problem = f"the key {reprlib.repr(key)} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            values[key] = self.construct_object(value_node, deep=deep)
        return values


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
