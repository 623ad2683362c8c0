"""Choose the cut, strategy, halo depth and activation checkpointing that train a model quickest.

Figures of partitions, a training step and a hardware profile go in, and a :class:`Plan` comes out.
:func:`report_costs` says what a step costs. Each name below is loaded at its first use: a mere import loads no torch.
"""

from dgl_gt.partition.lazy_names import lazy_names

_HOMES = {
    "PRESETS": "dgl_gt.partition.figures.profile",
    "Profile": "dgl_gt.partition.figures.profile",
    "read_profile": "dgl_gt.partition.figures.profile",
    "Candidate": "dgl_gt.plan.candidates",
    "NothingFits": "dgl_gt.plan.candidates",
    "Plan": "dgl_gt.plan.candidates",
    "choose": "dgl_gt.plan.select",
    "calibrate": "dgl_gt.plan.commands",
    "plan": "dgl_gt.plan.commands",
    "load_fastest": "dgl_gt.plan.trial",
    "StepCosts": "dgl_gt.plan.step_costs",
    "report_costs": "dgl_gt.plan.step_costs",
    "Tracer": "dgl_gt.plan.tracer",
    "tracer_of": "dgl_gt.plan.planned_step",
    "search_policy": "dgl_gt.plan.policy_search",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
