"""The graphs and sizes over which attention is tested, and how its inputs are drawn."""

import dataclasses

import torch

from dgl_gt import CSC


@dataclasses.dataclass(frozen=True)
class Case:
    """One graph and one size; ``edges`` is a number of random edges or a literal list of (src, dst)."""

    name: str
    num_dst: int
    num_src: int
    edges: int | list
    heads: int = 2
    width: int = 3
    index_dtype: torch.dtype = torch.int64
    bias: bool = False
    dropout_p: float = 0.0
    packed: bool = False  # q, k and v are views of one tensor
    head_minor: bool = False  # the rows that are given lie so in memory


# Rows of more edges than a thread takes at once: in-edges of node 0, out-edges of node 1.
LARGE_HUB = [(source % 40, 0) for source in range(9001)] + [(1, row % 40) for row in range(8500)]
HUB = [(source % 40, 0) for source in range(700)] + [(0, row) for row in range(1, 40)]

CASES = [
    Case("plain", 20, 20, 90),
    Case("one head, width one", 20, 20, 90, heads=1, width=1),
    Case("more sources", 13, 31, 80, width=16, index_dtype=torch.int32),
    Case("fewer sources", 31, 13, 80, heads=3, width=33),
    Case("isolated rows", 40, 40, 12, heads=4, width=16, bias=True),
    Case("self loops and parallel edges", 3, 3, [(0, 0), (1, 1), (0, 1), (0, 1), (0, 1), (2, 0)], bias=True),
    Case("hub", 40, 40, HUB, heads=2, width=16, index_dtype=torch.int32, bias=True, dropout_p=0.3),
    Case("large hub", 40, 40, LARGE_HUB, heads=2, width=4, bias=True, dropout_p=0.1),
    Case("one edge each", 30, 30, [(node, (node + 1) % 30) for node in range(30)], heads=2, width=16),
    Case("width 8", 20, 20, 90, heads=3, width=8, bias=True, dropout_p=0.3),
    Case("width 24", 20, 20, 90, heads=1, width=24),
    Case("many chunks", 900, 700, 5000, heads=3, width=5, dropout_p=0.5, packed=False),
    Case("packed", 25, 25, 120, heads=4, width=16, bias=True, packed=True),
    Case("packed odd width", 25, 25, 120, heads=2, width=33, index_dtype=torch.int32, dropout_p=0.2, packed=True),
    Case("width 32", 20, 20, 90, width=32, bias=True, dropout_p=0.4),
    Case("width 64", 20, 20, 90, width=64),
    Case("eight heads", 40, 40, HUB, heads=8, width=16, bias=True, dropout_p=0.3),
    Case("eight heads of width 6", 25, 31, 200, heads=8, width=6, index_dtype=torch.int32, dropout_p=0.2),
    Case("sixteen heads of width one", 20, 20, 90, heads=16, width=1, bias=True, dropout_p=0.3),
    Case("sixteen heads", 20, 20, 90, heads=16, width=5, packed=True),
    Case("four heads of width 20", 20, 20, 90, heads=4, width=20, index_dtype=torch.int32, bias=True),
    Case("large hub, eight heads", 40, 40, LARGE_HUB, heads=8, width=2, bias=True, dropout_p=0.1),
    Case("given head-minor", 40, 40, HUB, heads=8, width=16, bias=True, dropout_p=0.3, head_minor=True),
    Case("given head-minor and packed", 25, 25, 120, heads=4, width=16, packed=True, head_minor=True),
    Case("given head-minor, sixteen heads", 31, 13, 80, heads=16, width=5, index_dtype=torch.int32, head_minor=True),
    Case("given head-minor, three heads", 13, 31, 80, heads=3, width=8, bias=True, head_minor=True),
    Case("no edge", 5, 4, 0, bias=True),
    Case("no edge, given head-minor", 5, 4, 0, heads=4, width=4, bias=True, head_minor=True),
    Case("no destination", 0, 6, 0, width=16),
    Case("no source", 6, 0, 0, bias=True, dropout_p=0.1),
]


def draw_csc(case, seed=0, **build_options):
    """Return the case's CSC, with edge ids in random order."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(case.edges, int):
        src = torch.randint(0, max(case.num_src, 1), (case.edges,), generator=generator)
        dst = torch.randint(0, max(case.num_dst, 1), (case.edges,), generator=generator)
    else:
        src, dst = torch.tensor(case.edges).T
    shuffle = torch.randperm(len(src), generator=generator)
    return from_edges(src[shuffle], dst[shuffle], case.num_src, case.num_dst, case.index_dtype, **build_options)


def from_edges(src, dst, num_src, num_dst, index_dtype=torch.int64, global_ids=None, head_offset=0):
    """Return the CSC of edges given in order of edge id; `global_ids` too is in order of edge id."""
    order = torch.sort(dst, stable=True).indices
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    return CSC.build(
        indptr,
        src[order].to(index_dtype),
        num_src,
        edge_ids=order,
        global_edge_ids=None if global_ids is None else global_ids[order],
        head_offset=head_offset,
    )


def draw_inputs(case, dtype, seed=1):
    """Return leaf tensors that need gradients and, made of them, q, k, v, bias."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    def draw_rows(*shape):
        rows = draw(*shape, case.heads, case.width)
        return head_minor(rows) if case.head_minor else rows

    if case.packed:
        packed = draw_rows(case.num_dst, 3)
        leaves, (q, k, v) = [packed], packed.unbind(1)
    else:
        q, k, v = (draw_rows(rows) for rows in (case.num_dst, case.num_src, case.num_src))
        leaves = [q, k, v]
    bias = None
    if case.bias:
        bias = draw(case.edges if isinstance(case.edges, int) else len(case.edges), case.heads)
        leaves.append(bias)
    return leaves, (q, k, v, bias)


def head_minor(rows):
    """Return a leaf with the same rows (rows, ..., H, D), whose heads lie side by side in memory."""
    return rows.detach().transpose(-2, -1).contiguous().transpose(-2, -1).requires_grad_(rows.requires_grad)


def draw_upstream(out, lse, seed=2):
    """Return gradients of the two results; that of `out` is a transposed view, and lse has none where -inf."""
    generator = torch.Generator().manual_seed(seed)
    grad_out = torch.randn(out.shape[::-1], generator=generator, dtype=torch.float64).to(out.dtype).permute(2, 1, 0)
    grad_lse = torch.randn(lse.shape, generator=generator, dtype=torch.float64).to(lse.dtype)
    return grad_out, grad_lse.masked_fill(lse.detach() == -torch.inf, 0)
