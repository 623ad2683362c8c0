"""How attention crosses ranks: one strategy per file, all behind the protocol of :mod:`dgl_gt.exchange.protocol`."""

from .as_strategy import as_strategy, strategies_of_layers
from .local import Local
from .protocol import Project, Strategy

__all__ = ["Local", "Project", "Strategy", "as_strategy", "strategies_of_layers"]
