"""Every option of every command, as its help lists them, and hostile values for each."""

from __future__ import annotations

import contextlib
import functools
import io
import re

HOSTILE = (
    *(
        "",
        " ",
        "-1",
        "0",
        "1",
        "2",
        "7",
        "1.5",
        "1e22",
        "1e308",
        "-1e308",
        "1e-320",
        "nan",
        "inf",
        "-inf",
        "1_000",
        "٣",
    ),
    *(
        "0x10",
        "True",
        "null",
        "[]",
        "{}",
        "9" * 20,
        "9" * 5000,
        str(2**31),
        str(2**63),
        "a" * 250,
        "a" * 5000,
        "-",
        "--",
    ),
    *(
        "\x1b[31mred\x1b[0m",
        "a\nb",
        "a\rb",
        "é",
        "名前",
        "\udcff",
        "🙂",
        "missing",
        "in",
        ".",
        "..",
        "1,2",
        "1,,2",
        ",",
    ),
    *(
        "=",
        "nodes=2",
        "edges=nan",
        "edges=1.1,edges=2",
        "4GiB",
        "4 GB",
        "-4GiB",
        "1e3GiB",
        "0B",
        "4B",
        "nanGiB",
        "9" * 99 + "GiB",
    ),
    *("laplacian=3,degree", "random_walk=2,random_walk=3", "hops=2x3", "anchors=9999", "degree=1", "laplacian="),
    *("%s%n", "{0}", "$(id)", "edge", "vertex", "auto", "halo", "heads", "ring", "mirror", "gather", "local", "8xA100"),
)
# These ask for an hour of honest work when they are large.
SMALL_ONLY = {"--epochs", "--attempts", "--nproc"}
NEVER = {"--help", "--version"}


@functools.cache
def option_names(command: str) -> tuple[str, ...]:
    """As ``dgl-gt COMMAND --help`` lists them."""
    return tuple(_listed(command))


@functools.cache
def _listed(command: str) -> dict[str, bool]:
    """Option -> whether it takes a value."""
    from dgl_gt.cli.main import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([command, "--help"])
    options = {}
    for line in re.findall(r"^  (-.*)$", text.getvalue(), re.M):
        for name, value in re.findall(r"(--[a-z][a-z-]*)( [A-Z{]\S*)?", line.split("   ")[0]):
            options[name] = bool(value)
    return {name: takes for name, takes in options.items() if name not in NEVER}


def option_values(command: str, option: str, dice) -> list[str]:
    """One hostile value, or none for a switch."""
    if not _listed(command)[option]:
        return []
    value = dice.pick(HOSTILE)
    if option in SMALL_ONLY and value.strip().replace("_", "").isdigit() and len(value) > 1:
        value = "-" + value
    return [value]
