"""Reports of shards and of runs, which a notebook shows. Each name below is loaded at its first use."""

from dgl_gt.partition.lazy_names import lazy_names

_HOMES = {"Report": "dgl_gt.report.of_directory", "report": "dgl_gt.report.of_directory"}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
