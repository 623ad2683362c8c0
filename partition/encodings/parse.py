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
_EXAMPLES = {
    "laplacian": "laplacian=16",
    "random_walk": "random_walk=16",
    "anchors": "anchors=32",
    "hops": "hops=3",
    "shortest_path": "shortest_path=4",
}


@dataclass(frozen=True)
class Encoding:
    """One encoding to compute.

    Attributes
    ----------
    name : str
        One of ``NAMES``, which is also the name of the node data or edge data.
    size : int
        Number of eigenvectors, steps, landmarks or hops; 2 for ``degree``.
    width : int or None
        Most columns per hop, only for ``hops``; wider features are projected.
    """

    name: str
    size: int
    width: int | None = None

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
    """Return the encodings that a text such as ``"laplacian=16,degree"`` names; none for None.

    Raises
    ------
    InputError
        A name is unknown or given twice, or a number is missing, out of range or not allowed.
    """
    if text is None:
        return ()
    check_type("encode", text, str)
    encodings = tuple(_parse_one(text, word.strip()) for word in text.split(","))
    for each in encodings:
        if [other.name for other in encodings].count(each.name) > 1:
            raise InputError(f"{_said(text)}: it names {each.name} twice; give each encoding at most once")
    return encodings


def _parse_one(text: str, word: str) -> Encoding:
    name, equals, value = (part.strip() for part in word.partition("="))
    if name not in NAMES:
        found = f"there is no encoding {reprlib.repr(name)}" if name else "an encoding is missing"
        raise InputError(f"{_said(text)}: {found}; write {_FORMS}")
    if name == "degree":
        if equals:
            raise InputError(f"{_said(text)}: degree takes no number; write degree alone")
        return Encoding("degree", 2)
    size, by, width = value.partition("x") if name == "hops" else (value, "", "")
    found = Encoding(name, _number(size), _number(width) if by else None)
    if not 1 <= found.size <= MAX_SIZES[name] or (by and not 1 <= found.width <= MAX_WIDTH):
        columns = f", and hops=KxW a width W from 1 to {MAX_WIDTH:,}, as in hops=3x64" if name == "hops" else ""
        raise InputError(
            f"{_said(text)}: {name} takes a whole number from 1 to {MAX_SIZES[name]:,}, as in {_EXAMPLES[name]}{columns}"
        )
    return found


def _number(text: str) -> int:
    """Return a whole number, or 0, which is never allowed, for other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text.strip(), re.ASCII) else 0


def _said(text: str) -> str:
    return f"encode is {reprlib.repr(text)}"
