"""Processes that are the ranks of a run: started, joined, watched and ended."""
