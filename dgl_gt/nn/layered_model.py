"""Models whose layers run one after the other, and so also part by part, with rows between them in files."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.exchange.sharded_graph import ShardedGraph

from .dropout import begin_pass
from .streamed import run_streamed


class LayeredModel(nn.Module):
    """Base class of a model of your own that may hold more graph than memory, see docs/spilling.md.

    A subclass makes ``layers``, and defines ``encode`` and ``decode``, in which each row depends on its own row alone. A
    layer is called as ``layer(graph, h)``. It gets the rows of sources, of which the first are those that it returns:
    ``h[: len(out)] + out`` adds a residual, as with blocks of DGL. ``graph`` is for modules of this package, such as
    ``BiasedMHA(...)(graph, h)`` and ``Dropout(...)(h, graph)``.

    Attributes
    ----------
    layers : ModuleList
    """

    layers: nn.ModuleList

    def encode(self, feat: Tensor, graph) -> Tensor:
        """Return what the first layer reads, (rows, C), each row from its features; by default these themselves."""
        return feat

    def decode(self, h: Tensor, graph) -> Tensor:
        """Return the result, (rows, out), each row from its row of the last layer; by default these themselves."""
        return h

    def forward(self, graph, feat: Tensor) -> Tensor:
        """Predict for all nodes, (N, out).

        Parameters
        ----------
        graph : DGLGraph, CSC, ShardedGraph, Data of PyG, or Tensor (2, E)
            Shards have a depth of 1.
        feat : Tensor, floating point, (N, in_dim)
            On a ``ShardedGraph``, features and results are those of the owned nodes.

        Raises
        ------
        ValueError
            The graph is of another type, or a shape does not fit. With ``spill``, a layer does not return (rows, C), or has a
            batch norm in training, which sums over all rows.
        """
        seeded = begin_pass(self, graph, feat)
        feat = seeded.view.input_rows(feat)
        if isinstance(graph, ShardedGraph) and graph.stream is not None:
            return run_streamed(self, graph.stream, seeded.seeds, feat, [None] * len(self.layers))
        h = self.encode(feat, seeded)
        for layer in self.layers:
            h = layer(seeded, h)
        return self.decode(h, seeded)
