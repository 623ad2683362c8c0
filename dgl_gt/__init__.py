"""Graph transformers and GNNs on graphs of PyG, of DGL or of plain tensors, on one device or on many.

Importing the package loads neither torch nor DGL: each public name below is loaded at its first use (PEP 562). Type
checkers read ``__init__.pyi`` instead; a test holds that both have the same names.
"""

import importlib

__version__ = "0.2.0"

_ATTRIBUTES = {
    "sparse_attention": "dgl_gt.ops.attention",
    "csc": "dgl_gt.structure",
    "CSC": "dgl_gt.structure",
    "merge": "dgl_gt.ops.merge",
    "launch": "dgl_gt.ranks.launch_function",
    "load": "dgl_gt.exchange.load",
    "ShardedGraph": "dgl_gt.exchange.sharded_graph",
    "Comm": "dgl_gt.comm.group",
    "typed_graph": "dgl_gt.exchange.typed_graphs",
    "RankError": "dgl_gt.comm.failure",
    "InputError": "dgl_gt.partition.errors",
    "report_costs": "dgl_gt.plan.step_costs",
}
_SUBMODULES = ("nn", "partition", "plan", "pyg", "report", "train")

__all__ = [*_ATTRIBUTES, *_SUBMODULES, "__version__"]


def __getattr__(name):
    if name in _ATTRIBUTES:
        value = getattr(importlib.import_module(_ATTRIBUTES[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return __all__
