"""Names of a package that are loaded at their first use, so that a mere import costs nothing (PEP 562)."""

from importlib import import_module


def lazy_names(package: str, homes: dict[str, str]):
    """Return ``__getattr__`` and ``__dir__`` for a package whose public names lie in these modules."""

    def load(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load, lambda: sorted(homes)
