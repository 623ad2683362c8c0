"""Choose the cut, strategy, halo depth and activation checkpointing that train a model quickest.

Figures of partitions and a hardware profile go in, and a :class:`Plan` comes out. :func:`report_costs` says what a
step of any model costs.
"""

from .hardware_profile import PRESETS, Profile, read_profile
from .plan import Candidate, NothingFits, Plan
from .select import choose
from .step_costs import StepCosts, report_costs

__all__ = [
    "PRESETS",
    "Candidate",
    "NothingFits",
    "Plan",
    "Profile",
    "StepCosts",
    "choose",
    "read_profile",
    "report_costs",
]
