"""How attention crosses ranks: one strategy a file, all behind the protocol of :mod:`dgl_gt.exchange.protocol`."""

from .local import Local
from .protocol import Project, Strategy, as_strategy

__all__ = ["Local", "Project", "Strategy", "as_strategy"]
