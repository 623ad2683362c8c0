"""Choose the cut, strategy, halo depth and activation checkpointing that train a model quickest.

Figures of partitions and a hardware profile go in, and a :class:`Plan` comes out.
"""

from .hardware_profile import PRESETS, Profile, read_profile
from .plan import Candidate, NothingFits, Plan
from .select import choose

__all__ = ["PRESETS", "Candidate", "NothingFits", "Plan", "Profile", "choose", "read_profile"]
