"""What to say of a training run that runs out of memory."""

from __future__ import annotations

from partition.predict.model import Model
from partition.predict.step_memory import rank_memory_bytes
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest
from partition.system.units import size

from .config import TrainConfig

_CHANGE = "choose a smaller model, partition into more parts on more machines"
_CLASSES = 40  # as `dgl-gt plan` assumes: labels are not read for a prediction


def advice(directory, config: TrainConfig, strategy: str | None, depth: int) -> str:
    """What a training step was predicted to need on the largest rank, and what to change.

    Parameters
    ----------
    directory : path
        The shards.
    config : TrainConfig
    strategy : str or None
        None for the default one.
    depth : int
    """
    figures = read_figures(read_manifest(directory))
    sizes = config.layers, config.hidden, config.heads, config.ffn
    model = Model(*sizes, features=figures.features, classes=_CLASSES)
    needed = int(rank_memory_bytes(figures, model, strategy, depth, config.activation_checkpoint).max())
    return (
        f"a training step with --layers {config.layers} --hidden {config.hidden} is predicted to need {size(needed)} "
        f"for tensors on the largest rank; {_CHANGE}, or let `dgl-gt plan DIR --rank-memory SIZE` find a strategy "
        "that fits"
    )


def advice_for_auto() -> str:
    """What to change where ranks choose the strategy: what was predicted is theirs alone to know."""
    return f"{_CHANGE}, or let --rank-memory SIZE bound what --strategy auto chooses from"
