"""The unpartitioned graph, against which ranks are compared."""

import numpy as np
import torch

from dgl_gt.structure import CSC


def csc_of(graph) -> CSC:
    """The in-edges of a Graph, whose biases are in the user's edge order."""
    ids = torch.from_numpy(graph.edge_ids.astype(np.int64))
    return CSC.build(torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), graph.num_nodes, edge_ids=ids)
