"""What type checkers read of the names that ``partition.py`` loads lazily."""

from partition import *  # noqa: F403
