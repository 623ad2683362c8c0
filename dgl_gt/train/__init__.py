"""Full-graph training over ranks. Each name below is loaded at its first use: a mere import loads no torch."""

__all__ = ["load_model"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .saved_model import load

    return load
