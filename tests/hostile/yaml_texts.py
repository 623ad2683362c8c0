"""YAML that is damaged, of the wrong types, or made to hurt its reader."""

from __future__ import annotations

import yaml
from damage import Dice, altered, damaged

_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
TEXTS = (
    "",
    "---\n---\n",
    "- 1\n- 2\n",
    "just words",
    "42",
    "null",
    "true",
    "a: 1\na: 2\n",
    "a: [1, 2\n",
    "a: 'x\n",
    "\ta: 1\n",
    "a: b: c\n",
    "a: \x00\n",
    "a: \x1b[31m\n",
    "%YAML 9.9\n---\na: 1\n",
    "%TAG ! x\n---\na: 1\n",
    "? [1, 2]\n: 3\n",
    "{[1]: 2}",
    "{{a: 1}: 2}",
    "=: 1\n",
    "layers: =\n",
    "<<: [1, 2]\n",
    "<<: {layers: 1}\n",
    "<<: *x\n",
    "layers: *x\n",
    "layers: &x 1\nheads: *x\n",
    "layers: &x [*x]\n",
    "&x layers: {*x : 1}\n",
    "layers: 2001-99-99\n",
    "layers: 2001-01-01\n",
    "layers: 2001-01-01T25:61:61Z\n",
    "layers: 1:99999999:00\n",
    "layers: 0b\n",
    "layers: 0x\n",
    "layers: 0o9\n",
    "layers: " + "9" * 5000 + "\n",
    "layers: 1e400\n",
    "lr: .nan\n",
    "lr: .inf\n",
    "lr: -.inf\n",
    "lr: 1:30.5\n",
    "lr: 1e308\n",
    "lr: 1e-320\n",
    "layers: 100000\n",
    "layers: 1000000000000\n",
    "hidden: 1000000\nheads: 1\n",
    "heads: 0\n",
    "seed: 4611686018427387904\n",
    'metric: "\\e[31m"\n',
    "metric: " + "x" * 100_000 + "\n",
    "x" * 100_000 + ": 1\n",
    "layers: !!int ''\n",
    "layers: !!int x\n",
    "layers: !!float x\n",
    "layers: !!bool x\n",
    "layers: !!binary '%%%'\n",
    "layers: !!timestamp x\n",
    "layers: !!set {1, 2}\n",
    "layers: !!omap [1]\n",
    "layers: !!pairs [1]\n",
    "layers: !!map [1]\n",
    "layers: !!seq {a: 1}\n",
    "layers: !!str [1]\n",
    "layers: !unknown 1\n",
    "layers: !!python/object/apply:os.mkdir [out/owned]\n",
    "layers: !!python/name:os.system\n",
    "layers: " + "[" * 5000 + "]" * 5000 + "\n",
    "layers: " + "[" * 900 + "]" * 900 + "\n",
    "{" * 3000,
    "- " * 3000,
    "".join(" " * i + "a:\n" for i in range(2000)),
    "layers: " + "a, " * 30_000 + "\n",
    _BOMB,
    "layers: 1\n" + _BOMB,
)
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1")


def yaml_text(tree, dice: Dice) -> bytes:
    """Return the bytes of a file: one of the texts above, or the tree with hostile values, or a damaged tree."""
    how = dice.below(10)
    if how < 4:
        return dice.pick(TEXTS).encode(dice.pick(ENCODINGS), "replace")
    try:
        text = yaml.safe_dump(altered(tree, dice) if how < 8 else tree)
    except (ValueError, yaml.YAMLError):
        text = str(tree)
    if how == 8:
        return damaged(text.encode(), dice)
    return text.encode(dice.pick(ENCODINGS) if how == 9 else "utf-8", "replace")
