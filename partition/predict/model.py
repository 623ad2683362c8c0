"""The graph transformer that predictions are made for."""

from __future__ import annotations

from dataclasses import dataclass

from partition.errors import whole_number

# Least and most of each size. They are far beyond any use, so that what they refuse is a slip.
MODEL_LIMITS = {
    "layers": (1, 1000),
    "hidden": (1, 1_000_000),
    "heads": (1, 1_000_000),
    "ffn": (1, 1000),
    "itemsize": (1, 16),
    "features": (0, 10**9),
    "classes": (0, 10**9),
}


@dataclass(frozen=True)
class Model:
    """The sizes of a graph transformer. Training and planning have the same defaults.

    Attributes
    ----------
    layers, hidden, heads : int
        Number of layers L, width C and number of heads H.
    ffn : int
        Width of the feed-forward networks, as a multiple of C.
    itemsize : int
        Size of a number (bytes).
    features, classes : int
        Width of the input and of the output; with 0, predictions leave out the first or the last projection.

    Raises
    ------
    InputError
        A size is no whole number, or out of range.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    ffn: int = 2
    itemsize: int = 4
    features: int = 0
    classes: int = 0

    def __post_init__(self):
        for name, (least, most) in MODEL_LIMITS.items():
            whole_number(name, getattr(self, name), least, most)

    @property
    def row_bytes(self) -> int:
        """Size of a row of C numbers (bytes)."""
        return self.hidden * self.itemsize

    @property
    def lse_bytes(self) -> int:
        """Size of one row's log-sum-exps, which are float32, or float64 for a float64 model (bytes)."""
        return self.heads * max(4, self.itemsize)

    @property
    def parameters(self) -> int:
        """Number of parameters of ``dgl_gt.nn.GraphTransformer``, with norms before attention and feed-forward."""
        width = self.hidden
        layer = 4 * width**2 + 2 * self.ffn * width**2 + (4 + self.ffn + 1 + 4) * width
        ends = (self.features + 1) * width + (width + 1) * self.classes + 2 * width
        return self.layers * layer + ends
