"""Sparse attention and keyed dropout: torch operators, the kernels behind them, and the merge of partial results."""
