"""Ways to damage bytes, text, trees of values (JSON, YAML) and the files that hold arrays."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np

DEEP = "@deep@"  # stands for lists nested deeper than json.dumps can write

NUMBERS = (-1, 0, 1, 3, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30, 1e308, -1e308, 1.5, float("nan"), float("inf"))
TEXTS = ("", " ", "2", "nan", "a" * 300, "\x1b[31mred", "line\nline", "é名前", "<script>", "%s{0}", "../..", "\ud800")
VALUES = (*NUMBERS, *TEXTS, None, True, False, [], {}, [1], {"a": 1}, [[[[1]]]], [None] * 3, 10**400, "x" * 100_000)


class Dice:
    """A numpy Generator that also picks from sequences of anything."""

    def __init__(self, *seed: int):
        self.rng = np.random.default_rng(seed)

    def below(self, end: int) -> int:
        return int(self.rng.integers(max(end, 1)))

    def pick(self, options):
        return options[self.below(len(options))]

    def some(self, options, most: int) -> list:
        return [options[i] for i in self.rng.permutation(len(options))[: 1 + self.below(most)]]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability


def damaged(data: bytes, dice: Dice) -> bytes:
    """Return the bytes with one to three changes: flipped bits, a cut, a span of zeros, a repeated span, junk."""
    for _ in range(1 + dice.below(3)):
        at = dice.below(len(data)) if dice.chance(0.5) else dice.below(min(len(data), 200))
        span = 1 + dice.below(16)
        match dice.below(7):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + bytes(span) + data[at + span :]
            case 2:
                data = data[:at] + data[at : at + span] + data[at:]
            case 3:
                data = data[:at] + dice.rng.bytes(span) + data[at + span :]
            case 4:
                data = data + dice.rng.bytes(span)
            case 5:
                data = data[:at] + b"\xff" * 8 + data[at + 8 :]
            case _ if data:
                data = data[:at] + bytes([data[at] ^ (1 << dice.below(8))]) + data[at + 1 :]
    return data


def damaged_text(text: str, dice: Dice) -> bytes:
    """A text table with hostile cells, lines, line ends or encoding."""
    lines = text.split("\n")
    for _ in range(1 + dice.below(2)):
        at = dice.below(len(lines)) if dice.chance(0.5) else dice.below(min(3, len(lines)))
        words = (
            "-1",
            "nan",
            "inf",
            "1e400",
            "99999999999",
            str(2**63),
            "1" * 30,
            "1" * 5000,
            "0x1",
            "1.5",
            "1_0",
            "٣",
            "",
        )
        junk = (
            *words,
            "a",
            '"',
            '"1',
            "'",
            "\0",
            "\ufeff",
            "\x1b[31m",
            "1 2 3 4",
            "#",
            "%",
            ";",
            "\t",
            " ",
            "\x1a",
            "é",
            "True",
        )
        match dice.below(9):
            case 0 | 1 | 2:
                mark = next((mark for mark in ",;\t " if mark in lines[at]), ",")
                cells = lines[at].split(mark)
                cells[dice.below(len(cells))] = dice.pick(junk)
                lines[at] = mark.join(cells)
            case 3:
                lines[at] = dice.pick(junk)
            case 4:
                lines.insert(
                    at, dice.pick(("", "1,2,3,4,5", "src,dst", "a", "1", "," * 50, "1," * 70_000, "1" * 140_000))
                )
            case 5:
                lines[at] = lines[at] + dice.pick((",1", ",", " 7", "\t", ' "', ",x"))
            case 6:
                lines[at] = lines[at].replace(",", dice.pick((";", "\t", " ", ",,", "|", ", ")))
            case 7:
                del lines[at]
                lines = lines or [""]
            case 8:
                lines = lines[:at]
                lines = lines or [""]
    end = dice.pick(("\n", "\n", "\n", "\r", "\r\n", "\n\r", "\u2028", "\x0b"))
    encoding = dice.pick(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"))
    return end.join(lines).encode(encoding, "replace")


def altered(tree, dice: Dice, values=VALUES):
    """Return the tree with one to three values that are replaced, off by one, dropped, repeated or of another type."""
    for _ in range(1 + (dice.below(3) if dice.chance(0.3) else 0)):
        places = list(_places(tree))
        if not places:
            return dice.pick(values)
        holder, key = dice.pick(places)
        value = holder[key]
        match dice.below(9):
            case 0:
                del holder[key]
            case 1 if isinstance(value, (int, float)):
                holder[key] = value + dice.pick((-1, 1, -2, 0.5 if abs(value) < 2**63 else 3, 2**32))
            case 2:
                holder[key] = {"key": value} if dice.chance(0.5) else [value]
            case 3:
                holder[key] = str(value)
            case 4 if isinstance(value, list):
                holder[key] = value * 2 if dice.chance(0.5) else value[:-1]
            case 5 if isinstance(holder, dict):
                holder[dice.pick(("extra", "", "a\x1b[31m", "__class__", "parts"))] = dice.pick(values)
            case 6 if isinstance(value, (dict, list)):
                holder[key] = DEEP
            case _:
                holder[key] = dice.pick(values)
    return tree


def _places(tree):
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def json_text(tree, dice: Dice) -> str:
    depth = dice.pick((50, 500, 5000, 100_000))
    return json.dumps(tree, indent=1).replace(f'"{DEEP}"', "[" * depth + "]" * depth)


def signed(manifest) -> str:
    """A manifest's text with the right checksum, as docs/format.md has it."""
    if not isinstance(manifest, dict):
        return json.dumps(manifest)
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum}, indent=1) + "\n"


def sign_files(shards: Path) -> None:
    """Write the sizes and checksums of the files that are there into the manifest."""
    manifest = json.loads((shards / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (shards / name).read_bytes() if (shards / name).is_file() else b""
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (shards / "manifest.json").write_text(signed(manifest))


def safetensors(data: bytes, dice: Dice) -> bytes:
    """Return a safetensors file whose header is wrong, or whose bytes are damaged."""
    if dice.chance(0.3):
        return damaged(data, dice)
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = list(header)
    if not names or dice.chance(0.2):
        return struct.pack("<Q", dice.pick((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))) + data[8:]
    entry = header[dice.pick(names)]
    match dice.below(6):
        case 0:
            entry["dtype"] = dice.pick(
                ("F64", "F32", "I32", "I64", "BOOL", "BF16", "F16", "U8", "F8_E5M2", "X", 3, None)
            )
        case 1:
            entry["shape"] = dice.pick(([], [0], [1], [-1], [2**62], [2**62, 4], [1] * 70, "x", [1.5], [True], None))
        case 2:
            entry["data_offsets"] = dice.pick(
                ([0, 0], [8, 0], [0, 2**63], [-8, 8], [0, len(body) + 8], [1, 9], "x", [])
            )
        case 3:
            first = dice.pick(names)
            header[dice.pick(names)] = header[first]
        case 4:
            body = dice.pick((np.full(len(body), 255, np.uint8).tobytes(), bytes(len(body)), dice.rng.bytes(len(body))))
        case _:
            header = altered(header, dice)
    text = json_text(header, dice).encode()
    return struct.pack("<Q", len(text)) + text + body


def hostile_array(good: np.ndarray, dice: Dice) -> np.ndarray:
    """An array like the good one, of another type, shape, or with hostile values."""
    good = np.atleast_1d(good).copy()
    if dice.chance(0.4):
        kinds = (
            np.float64,
            np.float16,
            np.longdouble,
            np.complex128,
            np.bool_,
            np.uint8,
            np.int8,
            np.uint64,
            ">i4",
            "S3",
        )
        return good.astype(dice.pick((*kinds, "U5", "M8[s]", "m8[s]", object, [("a", "i4"), ("b", "f8")], "V4", ">f8")))
    if dice.chance(0.5):
        shapes = (good[None], good[..., None], good.ravel(), good[:0], good[:1], good[..., :0], good[..., :-1], good.T)
        return dice.pick(
            (*shapes, np.zeros(()), np.zeros((0,) * 5), np.concatenate([good, good]), good.reshape(-1)[:1])
        )
    values = (-1, np.iinfo(np.int64).max, np.iinfo(np.int64).min, 2**31, 2**40, 10**6, 60)
    if good.dtype.kind == "f":
        values = (np.nan, np.inf, -np.inf, 1e38, 1e-45)
    elif good.dtype.kind == "b":
        return dice.pick((np.zeros_like(good), np.ones_like(good), good.astype(int) * 2, good.astype(float) * np.nan))
    flat = good.reshape(-1)
    if not len(flat):
        return np.zeros(3, good.dtype)
    flat[dice.below(len(flat)) if dice.chance(0.7) else slice(None)] = np.array(dice.pick(values)).astype(good.dtype)
    return good


def npy(array: np.ndarray, dice: Dice, lie: bool) -> bytes:
    """Return an array as .npy; with ``lie``, its header is wrong."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    if not lie:
        return buffer.getvalue()
    body = array.tobytes() if array.dtype != object else b""
    n = int(array.size)
    shapes = (
        f"({n * 2},)",
        "(-1,)",
        f"({2**62},)",
        f"({2**31}, {2**31})",
        f"({2**33},)",
        "(True,)",
        "(1.5,)",
        "('a',)",
    )
    shapes += (f"({n},)", "()", "[2, 3]", "5", "None", "(1,)*9", "(" + "1," * 70 + ")", f"(2, {2**34})", f"({10**30},)")
    descrs = (
        "'<i8'",
        "'|O'",
        "'<f4'",
        "'|V0'",
        "'|S0'",
        "'|u1'",
        "'<i9'",
        "[('a','<i8')]",
        "[]",
        "3",
        "'('",
        "'<M8[ns]'",
    )
    shape, descr = repr(array.shape), repr(array.dtype.str)
    if dice.chance(0.6):
        shape = dice.pick(shapes)
    else:
        descr = dice.pick(descrs)
    order = dice.pick(("False", "False", "True", "2", "None"))
    extras = ("", "", "", "'x': 1, ", "'shape': (1,), ", "**{}, ", "\0", "(" * 300)
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {dice.pick(extras)}}}".encode()
    text = dice.pick((text, text, text, b"", text[:-5], b"[" * 9000, text * 2, b"{}", b"open('x','w')"))
    text += b" " * (-len(text) % 64) + b"\n"
    version = dice.pick((b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    length = struct.pack("<H" if version[0] == 1 else "<I", min(len(text), 65535))
    return b"\x93NUMPY" + version + length + text + body


def npz(arrays: dict[str, np.ndarray], dice: Dice) -> bytes:
    """Return an .npz with one hostile member, or with a damaged zip structure."""
    buffer = io.BytesIO()
    victim = "edge_index" if dice.chance(0.3) else dice.pick(list(arrays))
    how = dice.below(6)
    packing = dice.pick(
        (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for key, array in arrays.items():
            hit = key == victim
            if hit and how == 0:
                continue
            data = npy(hostile_array(array, dice) if hit and how in (1, 2) else array, dice, lie=hit and how == 3)
            name = f"{key}.npy"
            if hit and how == 4:
                name = dice.pick((key, f"{key}.npy/", f"../{key}.npy", f"{key}.NPY", f"/{key}.npy", f"{key}.npy.npy"))
                data = dice.pick((data, b"", damaged(data, dice), data[:100]))
            archive.writestr(zipfile.ZipInfo(name), data, packing)
        if how == 5 and dice.chance(0.5):
            archive.writestr(zipfile.ZipInfo(f"{victim}.npy"), npy(hostile_array(arrays[victim], dice), dice, False))
            archive.comment = b"x" * dice.below(60000)
    data = buffer.getvalue()
    if how == 5:
        data = dice.pick((damaged(data, dice), b"junk" * 10 + data, data + b"junk", _zip_field(data, dice)))
    return data


def _zip_field(data: bytes, dice: Dice) -> bytes:
    """Overwrite a field of a header in the zip: flags (encrypted), method, sizes, name length, offset."""
    mark = dice.pick((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"))
    places = [i for i in range(len(data)) if data.startswith(mark, i)]
    if not places:
        return data[: len(data) // 2]
    at = dice.pick(places) + 4 + 2 * dice.below(20)
    return (
        data[:at] + dice.pick((b"\x01\x00", b"\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x63\0")) + data[at + 2 :]
    )
