"""The text of ``--encode``: which encodings it names, with which sizes, and which sizes are allowed."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass

from dgl_gt.partition.errors import InputError, check_type

NAMES = ("laplacian", "random_walk", "degree", "anchors", "hops", "shortest_path")
MAX_SIZES = {"laplacian": 128, "random_walk": 128, "anchors": 1024, "hops": 32, "shortest_path": 6}
MAX_WIDTH = 4096  # columns per hop
_FORMS = "laplacian=K, random_walk=K, degree, anchors=A, hops=K, hops=KxW or shortest_path=K, with commas between them"


@dataclass(frozen=True)
class Encoding:
    """One encoding to compute; its name is also that of its node data or edge data."""

    name: str  # one of ``NAMES``
    size: int  # number of eigenvectors, steps, landmarks or hops; 2 for ``degree``
    width: int | None = None  # most columns per hop, only for ``hops``; wider features are projected

    @property
    def is_of_edges(self) -> bool:
        """Whether the encoding becomes edge data."""
        return self.name == "shortest_path"

    def columns(self, features: int = 0) -> int:
        """Return the number of columns; ``features`` is the width of ``feat``, which only ``hops`` reads."""
        if self.is_of_edges:
            return 2
        if self.name != "hops":
            return self.size
        return self.size * (features if self.width is None else min(features, self.width))


def parse_encodings(text: str | None) -> tuple[Encoding, ...]:
    """The encodings that a text such as ``"laplacian=16,degree"`` names; :class:`InputError` if one is wrong."""
    if text is None:
        return ()
    check_type("encode", text, str)
    encodings = tuple(_parse_one(text, word.strip()) for word in text.split(","))
    names = [each.name for each in encodings]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"encode is {reprlib.repr(text)}: it names {name} twice; give each encoding at most once")
    return encodings


def _parse_one(text: str, word: str) -> Encoding:
    name, equals, value = (part.strip() for part in word.partition("="))
    if name == "degree" and not equals:
        return Encoding("degree", 2)
    if name not in MAX_SIZES:
        raise InputError(f"encode is {reprlib.repr(text)}: there is no encoding {reprlib.repr(word)}; write {_FORMS}")
    size, by, width = value.partition("x") if name == "hops" else (value, "", "")
    encoding = Encoding(name, _number(size), _number(width) if by else None)
    if not 1 <= encoding.size <= MAX_SIZES[name] or encoding.width is not None and not 1 <= encoding.width <= MAX_WIDTH:
        columns = f", and hops=KxW a width W from 1 to {MAX_WIDTH:,}, as in hops=3x64" if name == "hops" else ""
        raise InputError(
            f"encode is {reprlib.repr(text)}: {name} takes a whole number from 1 to {MAX_SIZES[name]:,}, as in "
            f"{name}=4{columns}"
        )
    return encoding


def _number(text: str) -> int:
    """A whole number, or 0, which is never allowed, for other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text.strip(), re.ASCII) else 0
