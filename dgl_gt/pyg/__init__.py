"""Models of PyG across ranks: ``distribute`` for a script that has a rank's rows, ``distribute_whole`` for one that has all."""

from .layers import data_of, distribute
from .whole import distribute_whole

__all__ = ["data_of", "distribute", "distribute_whole"]
