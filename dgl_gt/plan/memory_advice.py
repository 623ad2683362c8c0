"""What to change where a training run has run out of memory."""

from __future__ import annotations

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import CHOICES, default_strategy, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.train.config import TrainConfig

_CHANGE = "choose a smaller model, partition into more parts on more machines"
_SMALLER = "a smaller --hidden"
_TERMS = {  # what a rank holds, by the count on which it depends; and what makes it smaller
    "rows of its own nodes": (
        ("owned", "selected"),
        ("--activation-checkpoint full", "--precision bf16", _SMALLER, "more parts on more machines"),
    ),
    "rows of nodes of other ranks": (
        ("copies", "sent", "returned", "returns", "nodes"),
        ("another --strategy", _SMALLER, "a cut with fewer copies"),
    ),
    "edges": (("edges", "sent_edges", "cut_edges", "all_edges", "returned_edges"), ("more parts on more machines",)),
    "parameters, gradients and the optimiser": (("one",), (_SMALLER, "fewer --layers")),
}


def advice_for_strategy(
    directory, config: TrainConfig, strategy: str | None, depth: int, model_factory: str | None = None
) -> str:
    """What a training step was predicted to need on the largest rank, what most of that is for, and what to change."""
    from dgl_gt.train.model import find_factory  # here, because a launcher does without torch until memory runs out

    from .planned_step import tracer_of

    figures = read_figures(read_manifest(directory))
    rules = default_strategy(figures) if strategy is None else strategy_of(strategy, CHOICES)
    try:
        traces = tracer_of(config, figures.features, factory=find_factory(model_factory))
        trace = traces.of(figures, rules, min(depth, traces.max_depth), config.activation_checkpoint)
    except InputError as error:  # the model is too large to be traced
        return str(error)
    by_count = trace.largest_rank_bytes(figures)
    most, largest = max(
        (sum(some for count, some in by_count.items() if count.of in words), name)
        for name, (words, _) in _TERMS.items()
    )
    model = (
        f"of {model_factory}"
        if model_factory
        else f"with --layers {config.model.layers} --hidden {config.model.hidden}"
    )
    return (
        f"a training step {model} is predicted to need {format_bytes(sum(by_count.values()))} for tensors on the largest rank, and "
        f"{format_bytes(most)} of that for {largest}; choose {_changes(largest, config, model_factory)}, or let "
        "`dgl-gt plan DIR --rank-memory SIZE` find a strategy that fits"
    )


def _changes(largest: str, config: TrainConfig, model_factory: str | None) -> str:
    """What makes the largest term smaller, without what is done already and what a model of the user's has no option for."""
    done = (f"--activation-checkpoint {config.activation_checkpoint}", f"--precision {config.precision}")
    changes = [change for change in _TERMS[largest][1] if change not in done]
    if model_factory:
        own = {_SMALLER: "a smaller model", "fewer --layers": ""}
        changes = [own.get(change, change) for change in changes if own.get(change, change)]
    return " or ".join(filter(None, [", ".join(changes[:-1]), changes[-1]]))


def advice_for_auto() -> str:
    """What to change with ``--strategy auto``, where only the ranks know what was predicted."""
    return f"{_CHANGE}, or let --rank-memory SIZE bound what --strategy auto chooses from"
