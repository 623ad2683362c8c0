"""Full-graph training over ranks. Each name below is loaded at its first use: a mere import loads no torch."""

from importlib import import_module

_HOMES = {
    "TrainConfig": "config",
    "read_config": "config",
    "train": "trainer",
    "train_and_save": "run",
    "TrainResult": "trainer",
    "RunRecord": "run_record",
    "load_model": "saved_model",
    "save_model": "saved_model",
    "predict": "predictions",
    "step_traces": "planned_step",
    "search_policy": "policy_search",
    "ModelFactory": "model",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
