"""Messages for a training run that runs out of memory."""

from __future__ import annotations

from partition.predict.model import Model
from partition.predict.step_memory import rank_memory_bytes
from partition.predict.strategies import default_form
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest
from partition.system.units import size

from .config import ASSUMED_CLASSES, TrainConfig

_GENERAL = "free memory, or partition into more parts on more machines"
_CHANGE = "choose a smaller model, partition into more parts on more machines"


def advice_for_strategy(directory, config: TrainConfig, strategy: str | None, depth: int) -> str:
    """What a training step on these shards was predicted to need on the largest rank, and what to change."""
    figures = read_figures(read_manifest(directory))
    sizes = config.layers, config.hidden, config.heads, config.ffn
    model = Model(*sizes, features=figures.features, classes=ASSUMED_CLASSES)
    needed = int(rank_memory_bytes(figures, model, default_form(strategy), depth, config.activation_checkpoint).max())
    return (
        f"a training step with --layers {config.layers} --hidden {config.hidden} is predicted to need {size(needed)} "
        f"for tensors on the largest rank; {_CHANGE}, or let `dgl-gt plan DIR --rank-memory SIZE` find a strategy "
        "that fits"
    )


def advice_for_auto() -> str:
    """What to change with ``--strategy auto``, where only the ranks know what was predicted."""
    return f"{_CHANGE}, or let --rank-memory SIZE bound what --strategy auto chooses from"


def out_of_memory_message(rank: int, problem: str, memory_advice=None) -> str:
    """The message for a rank that ran out of memory; ``memory_advice()`` gives its last part, unless it fails."""
    try:
        advice = memory_advice() if memory_advice else _GENERAL
    except Exception:  # for instance because the shards are gone, or memory is short here, too
        advice = _GENERAL
    return f"rank {rank} ran out of memory: {problem}; {advice}"
