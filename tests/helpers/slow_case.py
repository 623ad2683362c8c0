"""Cases of a parametrized test that run only with ``--slow``."""

import pytest


def slow(*values):
    """A case that shows what a quicker one shows, too."""
    return pytest.param(*values, marks=pytest.mark.slow)
