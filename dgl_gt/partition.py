"""The documented import path of the offline package: all public names of the top-level ``partition``, loaded lazily."""

from partition import __all__, __dir__, __getattr__  # noqa: F401
