"""YAML files that hold keys and values."""

from __future__ import annotations

from pathlib import Path

import yaml

from partition.errors import InputError


def read_yaml(path) -> dict:
    """A YAML mapping, read safely; {} of an empty file.

    Raises
    ------
    InputError
        The file cannot be read, is not YAML, or holds something else.
    """
    try:
        values = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values or {}, dict):
        raise InputError(f"{path} must hold keys and values")
    return values or {}
