"""Choose the cut, strategy, halo depth and activation checkpointing that train a model quickest.

Figures of partitions, a training step and a hardware profile go in, and a :class:`Plan` comes out.
:func:`report_costs` says what a step costs.
"""

from dgl_gt.partition.predict.profile import PRESETS, Profile, read_profile

from .plan import Candidate, NothingFits, Plan
from .select import choose
from .step_costs import StepCosts, report_costs
from .step_traces import StepTraces

__all__ = [
    "PRESETS",
    "Candidate",
    "NothingFits",
    "Plan",
    "Profile",
    "StepCosts",
    "StepTraces",
    "choose",
    "read_profile",
    "report_costs",
]
