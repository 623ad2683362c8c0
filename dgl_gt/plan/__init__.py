"""Choose the cut, strategy, halo depth and activation checkpointing that train a model quickest.

Figures of partitions, a training step and a hardware profile go in, and a :class:`Plan` comes out.
:func:`report_costs` says what a step costs. Each name below is loaded at its first use: a mere import loads no torch.
"""

from importlib import import_module

_HOMES = {
    "PRESETS": "dgl_gt.partition.figures.profile",
    "Profile": "dgl_gt.partition.figures.profile",
    "read_profile": "dgl_gt.partition.figures.profile",
    "Candidate": "dgl_gt.plan.plan",
    "NothingFits": "dgl_gt.plan.plan",
    "Plan": "dgl_gt.plan.plan",
    "choose": "dgl_gt.plan.select",
    "StepCosts": "dgl_gt.plan.step_costs",
    "report_costs": "dgl_gt.plan.step_costs",
    "Tracer": "dgl_gt.plan.tracer",
    "tracer_of": "dgl_gt.plan.planned_step",
    "search_policy": "dgl_gt.plan.policy_search",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__():
    return __all__
