"""Stands in front of DGL when DGL_GT_WITHOUT_DGL=1 is set: every process of the tests then works as if DGL were absent."""

raise ModuleNotFoundError("No module named 'dgl': DGL_GT_WITHOUT_DGL hides it", name="dgl")
