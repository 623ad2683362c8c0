"""Values of options of the command line, read from their texts."""

from __future__ import annotations

import argparse
import csv

from dgl_gt.partition.cuts.balance import KINDS
from dgl_gt.partition.system.units import parse_size
from dgl_gt.partition.system.user_files import regular_file

from .errors import InputError

FILL = "X|mean|zero"  # the form of --self-loop-fill
FILL_HELP = (
    "edge data of the self-loops that are added: a number, the mean over the node's in-edges, or zero; or one for each edge "
    "data, as in weight=mean,type=0"
)


def size_in_bytes(text: str) -> int:
    """Convert an option's text, such as 4GiB, to bytes."""
    try:
        return parse_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def self_loop_fill(text: str):
    """Convert the text of --self-loop-fill to a number or a word, or to a dict of these by edge data."""
    if "=" not in text:
        return _number_or_word(text)
    return {name: _number_or_word(value) for name, _, value in (pair.rpartition("=") for pair in text.split(","))}


def _number_or_word(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text  # refused by its name where it means nothing


def imbalance(text: str):
    """Convert the text of --max-imbalance to a number, or to a dict of numbers by kind."""
    if "=" not in text:
        return _number("--max-imbalance", text)
    pairs = [(name.strip(), value) for name, _, value in (pair.partition("=") for pair in text.split(","))]
    if len(dict(pairs)) < len(pairs):
        raise InputError(f"--max-imbalance {text!r} names a kind twice; give each of {', '.join(KINDS)} at most once")
    return {name: _number("--max-imbalance", value) for name, value in pairs}


def part_weights(text: str) -> list[float]:
    """Read the numbers of --target-weights from its text or from the file that it names."""
    words = text.replace(",", " ").split()
    try:
        return [float(word) for word in words]
    except ValueError as error:
        wrong = str(error).rpartition(": ")[2]  # the text that float could not convert
        try:
            words = regular_file(text).read_text().replace(",", " ").split()
        except (OSError, ValueError):  # InputError is a ValueError, too
            raise InputError(
                f"--target-weights: {wrong} is not a number, and {text!r} is not a readable file of "
                "numbers; give one number per part, or such a file"
            ) from None
    return [_number(f"--target-weights {text}", word) for word in words]


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: {text.strip()!r} is not a number; write numbers, such as 1.5") from None


def column_names(option: str, text: str) -> list[str]:
    """Convert the text of --features or --skip to names of columns."""
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""])]
    except csv.Error as error:
        raise InputError(f"{option} {text!r} holds no names of columns ({error})") from error
    if "" in names:
        raise InputError(f"{option} {text!r} has an empty name; write names of columns with commas between them")
    return names


def key_names(text: str) -> dict[str, str]:
    """Convert the text of --keys to names in a file, by our names."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(key.strip() and mark and name.strip() for key, mark, name in pairs):
        raise InputError(
            f"--keys {text!r} must hold KEY=NAME, with commas between pairs, such as edge_index=links,y=group"
        )
    return {key.strip(): name.strip() for key, _, name in pairs}
