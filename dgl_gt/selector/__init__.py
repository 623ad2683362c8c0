"""Chooses cut, strategy, depth and activation checkpointing from figures of partitions, ranks and links."""

from .hardware_profile import PRESETS, Profile, read_profile
from .select import Plan, choose

__all__ = ["PRESETS", "Plan", "Profile", "choose", "read_profile"]
