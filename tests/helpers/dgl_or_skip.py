"""``from dgl_or_skip import dgl``: DGL, or, where it is absent, an object that skips the test that uses it."""

import pytest


class _Absent:
    def __getattr__(self, name):
        if name.startswith(("_", "pytest")):  # pytest looks for these on everything that a test module holds
            raise AttributeError(name)
        pytest.skip("DGL is not installed")


try:
    import dgl
except ModuleNotFoundError:
    dgl = _Absent()
