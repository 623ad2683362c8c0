"""How attention crosses ranks: one strategy per file, all behind the protocol of :mod:`dgl_gt.exchange.view`."""

from .as_view import as_view, views_of
from .local import Local
from .view import Project, View

__all__ = ["Local", "Project", "View", "as_view", "views_of"]
