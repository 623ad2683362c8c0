"""Typed graphs for tests, with what is awkward: types that few parts hold, relations without edges, parallel edges."""

import numpy as np

from dgl_gt.partition import from_relations

WIDTHS = {"paper": 7, "author": 5}  # of the features; subjects have none


def typed_graph(seed: int = 0, papers: int = 60, authors: int = 80, subjects: int = 3, times: int = 1):
    """Papers, authors and subjects, and ``times`` as many edges; papers cite papers, also themselves; an author is a hub."""
    rng = np.random.default_rng(seed)

    def edges(sources, destinations, count):
        return rng.integers(0, sources, count), rng.integers(0, destinations, count)

    writes = edges(authors, papers, 150 * times)
    writes[0][:20] = 0
    writes[0][20:26], writes[1][20:26] = 1, 2  # parallel
    relations = {
        ("author", "writes", "paper"): writes,
        ("paper", "cites", "paper"): edges(papers, papers, 90 * times),
        ("paper", "about", "subject"): edges(papers, subjects, 70 * times),
        ("subject", "none", "author"): ([], []),
        ("paper", "written by", "author"): writes[::-1],
    }
    kinds = np.arange(papers) % 4
    node_data = {
        "paper": {
            "feat": rng.standard_normal((papers, WIDTHS["paper"])).astype(np.float32),
            "label": rng.integers(0, 3, papers),
            "train_mask": kinds < 2,
            "val_mask": kinds == 2,
            "test_mask": kinds == 3,
        },
        "author": {"feat": rng.standard_normal((authors, WIDTHS["author"])).astype(np.float32)},
    }
    edge_data = {
        ("author", "writes", "paper"): {"weight": rng.random(150 * times).astype(np.float32)},
        ("paper", "cites", "paper"): {
            "kind": rng.integers(0, 5, 90 * times),
            "weight": np.ones(90 * times, np.float32),
        },
    }
    return from_relations({"paper": papers, "author": authors, "subject": subjects}, relations, node_data, edge_data)
