"""Amounts of memory as users write them and as they are printed."""

import pytest

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.units import format_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("123456", 123456),
        ("5b", 5),
        ("5 B", 5),
        ("2k", 2048),
        ("2KiB", 2048),
        ("2kb", 2000),
        ("500MB", 500_000_000),
        ("500 MB", 500_000_000),
        ("500M", 500 << 20),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("4G", 4 << 30),
        ("  4 GB ", 4_000_000_000),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
        ("1e3", 1000),
        ("1e3MB", 1_000_000_000),
        ("2t", 2 << 40),
        ("2TiB", 2 << 40),
        ("2TB", 2_000_000_000_000),
        (str(2**52 + 1), 2**52 + 1),
    ],
)
def test_amounts_of_memory(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "-1", "-4GiB", "0", "0GiB", "0.4", "nan", "inf", "infGiB", "1e400", "4PiB", "4XB", "4bb", "4ib"]
    + ["4 G B", "4GiBs", "four", "4,5GB", "0x10", "1GiB 2MiB", "9e18k", "9223372036854775808", "4/2", "4GiB\n5"],
)
def test_no_amounts_of_memory(text):
    with pytest.raises(InputError, match="is not an amount of memory"):
        parse_size(text)


@pytest.mark.parametrize("count", [1, 1023, 1024, 1536, 5 << 20, 7 << 30, 3 << 40])
def test_what_is_printed_can_be_given(count):
    assert parse_size(format_bytes(count)) == pytest.approx(count, rel=0.05)
