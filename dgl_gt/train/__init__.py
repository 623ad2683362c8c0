"""Full-graph training over ranks. Each name below is loaded at its first use: a mere import loads no torch."""

from importlib import import_module

_HOMES = {
    "TrainConfig": "dgl_gt.train.config",
    "read_config": "dgl_gt.train.config",
    "train": "dgl_gt.train.trainer",
    "train_and_save": "dgl_gt.train.run",
    "TrainResult": "dgl_gt.train.trainer",
    "RunRecord": "dgl_gt.run_files.run_record",
    "load_model": "dgl_gt.train.saved_model",
    "save_model": "dgl_gt.train.saved_model",
    "predict": "dgl_gt.train.predictions",
    "ModelFactory": "dgl_gt.train.model",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__():
    return __all__
