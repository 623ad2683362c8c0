"""Graph transformer attention for DGL graphs, on one device or on many.

Importing the package loads neither torch nor DGL: each public name below is loaded at its first use (PEP 562). Type
checkers read ``__init__.pyi`` instead; a test holds that both have the same names.
"""

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

if "partition" not in sys.modules:  # by its place, as a module of the user's may come first on the path
    _spec = PathFinder.find_spec("partition", [str(Path(__file__).parents[1])])
    sys.modules["partition"] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["partition"])
_offline = sys.modules["partition"]
if not hasattr(_offline, "DGL_GT"):
    raise ImportError(
        f"the module 'partition' at {getattr(_offline, '__file__', None) or list(_offline.__path__)[0]} is not dgl-gt's, which "
        "has a package of that name; rename yours, or uninstall the other one"
    )

__version__ = "0.1.0"

_ATTRIBUTES = {
    "sparse_attention": "dgl_gt.ops.attention",
    "csc": "dgl_gt.as_csc",
    "CSC": "dgl_gt.structure",
    "merge": "dgl_gt.ops.merge",
    "load": "dgl_gt.exchange.load",
    "ShardedGraph": "dgl_gt.exchange.sharded_graph",
    "Comm": "dgl_gt.comm.group",
    "RankError": "dgl_gt.comm.failure",
    "InputError": "partition.errors",
    "report_costs": "dgl_gt.selector.step_costs",
}
_SUBMODULES = ("nn", "partition", "selector", "train")

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
