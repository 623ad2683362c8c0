"""Options that set fields of :class:`dgl_gt.train.config.TrainConfig`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import get_type_hints

from dgl_gt.train.config import TrainConfig

_METAVARS = {int: "N", float: "X", str: "NAME"}
_LISTS = ("encodings", "edge_features")


def add_settings(command, names: tuple[str, ...] | None = None) -> None:
    """Add an option for each of these settings, by default for all; one that is not given is None."""
    types = get_type_hints(TrainConfig)
    for setting in fields(TrainConfig):
        if names is not None and setting.name not in names:
            continue
        kind = {"type": types[setting.name], "metavar": _METAVARS.get(types[setting.name])}
        if setting.name in _LISTS:
            kind["metavar"] = "NAME[:number|:kind],..." if setting.name == "edge_features" else "NAME,..."
        if kind["type"] is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        text = f"{setting.metadata['help']} (default: {'none' if setting.default == '' else setting.default})"
        command.add_argument("--" + setting.name.replace("_", "-"), dest=setting.name, default=None, help=text, **kind)
