"""The structure that sparse attention reads, and how any graph becomes one.

It does not import DGL: whoever passes a DGL graph has done so.
"""

import dataclasses
import sys
import weakref

import torch

_CACHE = "_dgl_gt_csc"
# For each living edge_index, by its id: a weak reference to it, a copy of it, the numbers of nodes, and the CSC by
# device. The copy is compared at every call, because a tensor's version does not show changes through .data or numpy.
_KEPT: dict = {}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CSC:
    """The edges of a graph, grouped by destination row, with the reverse index for the backward pass.

    Make it with :meth:`CSC.build`, which checks the arrays, or with ``dgl_gt.csc(graph)``. ``dataclasses.replace``
    makes a copy with another ``head_offset``.

    Attributes
    ----------
    indptr : torch.Tensor, (N_dst + 1,) int64
        Row i's in-edges are at positions ``indptr[i]:indptr[i + 1]``.
    indices : torch.Tensor, (E,) int32 or int64
        Source row of each position.
    edge_ids : torch.Tensor, (E,) int64, or None
        Row of ``bias`` for each position, a permutation of ``range(E)``. None means the position itself.
    global_edge_ids : torch.Tensor, (E,) int64, or None
        Dropout key of each position, which makes the mask the same on any number of ranks. None means ``edge_ids``.
    num_src : int
        Number of source rows (keys and values).
    head_offset : int
        Global number of the first head, for dropout where a rank holds only some of the heads.
    rev_indptr : torch.Tensor, (N_src + 1,) int64
        Source row j's out-edges are at ``rev_indptr[j]:rev_indptr[j + 1]`` of ``rev_dst`` and ``rev_position``.
    rev_dst : torch.Tensor, (E,) as `indices`
        Destination row of each out-edge.
    rev_position : torch.Tensor, (E,) int64
        Position of each out-edge among the in-edges.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    edge_ids: torch.Tensor | None
    global_edge_ids: torch.Tensor | None
    num_src: int
    head_offset: int
    rev_indptr: torch.Tensor
    rev_dst: torch.Tensor
    rev_position: torch.Tensor

    @classmethod
    @torch.inference_mode(False)
    def build(cls, indptr, indices, num_src, edge_ids=None, global_edge_ids=None, head_offset=0):
        """Check the arrays, make the reverse index, and return the CSC.

        The arguments are the attributes of these names, all on one device, which is that of the result. Contiguous arrays
        are kept without a copy. Under ``torch.inference_mode``, too, the arrays are ordinary tensors, which can be used
        in training later. ``ValueError`` says that a shape, dtype or device does not fit, that `indptr` is not a prefix
        sum, that a source row is not in ``range(num_src)``, or that `edge_ids` is not a permutation.
        """
        _check_arrays(indptr, indices, num_src, edge_ids, global_edge_ids)
        if head_offset < 0:
            raise ValueError(f"head_offset is {head_offset}; allowed: 0 or more")
        indices = _ordinary(indices)
        # The sort is stable, so a source's out-edges are in ascending order of destinations: sums over them always have
        # the same order, and neighbouring destinations are read together.
        rev_position = torch.sort(indices, stable=True).indices
        row_of_position = torch.repeat_interleave(
            torch.arange(len(indptr) - 1, dtype=indices.dtype, device=indices.device),
            indptr.diff(),
            output_size=len(indices),
        )
        return cls(
            indptr=_ordinary(indptr),
            indices=indices,
            edge_ids=_ordinary(edge_ids),
            global_edge_ids=_ordinary(global_edge_ids),
            num_src=int(num_src),
            head_offset=int(head_offset),
            rev_indptr=_ends(indices, num_src),
            rev_dst=row_of_position[rev_position],
            rev_position=rev_position,
        )

    def __repr__(self):
        ids = [name for name in ("edge_ids", "global_edge_ids") if getattr(self, name) is not None]
        return (
            f"CSC(num_dst={self.num_dst}, num_src={self.num_src}, num_edges={self.num_edges}, "
            f"indices={self.indices.dtype}, device={self.device}, ids={ids})"
        )

    @property
    def num_dst(self):
        """Number of destination rows (queries)."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self):
        """Number of edges, E."""
        return self.indices.shape[0]

    @property
    def device(self):
        """Device of all the arrays."""
        return self.indptr.device

    @torch.inference_mode(False)
    def to(self, device):
        """Return this CSC with its arrays on `device`; the same object if they are there already."""
        device = torch.device(device)
        if device == self.device:
            return self
        moved = {
            field.name: value.to(device)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return dataclasses.replace(self, **moved)


def _ordinary(x):
    """Return a contiguous tensor that can be saved for backward, or None for None."""
    return x if x is None else x.clone() if x.is_inference() else x.contiguous()


def _ends(rows, count):
    """Return ``indptr`` of this many rows, from the row of each edge."""
    indptr = torch.zeros(count + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(torch.bincount(rows, minlength=count), 0, out=indptr[1:])
    return indptr


def _check_array(name, x, dtypes, device, length=None):
    """Raise ``ValueError`` unless an array has one dimension, one of the dtypes, the device, and the length if given."""
    if x.dim() != 1 or x.dtype not in dtypes or (len(x) != length if length is not None else not len(x)):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)} and dtype {x.dtype}; allowed: "
            f"({'1 or more' if length is None else length},) and {' or '.join(map(str, dtypes))}"
        )
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, but indptr is on {device}; move them to one device")


def _check_arrays(indptr, indices, num_src, edge_ids, global_edge_ids):
    _check_array("indptr", indptr, (torch.int64,), indptr.device)
    decreases = bool((indptr.diff() < 0).any())
    if indptr[0] != 0 or decreases:
        raise ValueError(
            f"indptr starts at {int(indptr[0])}{' and decreases later' if decreases else ''}; it must start at 0 and never "
            "decrease: pass the sums of the in-degrees of the rows before each row"
        )
    count = indices.numel()
    _check_array("indices", indices, (torch.int32, torch.int64), indptr.device, count)
    if int(indptr[-1]) != count:
        raise ValueError(f"indptr ends at {int(indptr[-1])}, but there are {count} indices; make both numbers equal")
    if num_src < 0:
        raise ValueError(f"num_src is {num_src}; allowed: 0 or more")
    low, high = _bounds(indices)
    if low < 0 or high >= num_src:
        raise ValueError(
            f"indices span {low} to {high}; allowed: 0 to num_src - 1 = {num_src - 1}; correct them, or pass a larger num_src"
        )
    if indices.dtype == torch.int32 and len(indptr) > 2**31:
        raise ValueError(f"{len(indptr) - 1} destination rows do not fit int32 indices; pass indices as int64")
    for name, ids in (("edge_ids", edge_ids), ("global_edge_ids", global_edge_ids)):
        if ids is not None:
            _check_array(name, ids, (torch.int64,), indptr.device, count)
    low, high = (0, -1) if edge_ids is None else _bounds(edge_ids)
    if low < 0 or high >= count or (high >= 0 and int(torch.bincount(edge_ids).max()) > 1):
        raise ValueError(
            f"edge_ids span {low} to {high}; they must be a permutation of 0 to {count - 1}, in which no number is "
            "missing or occurs twice"
        )


def _bounds(numbers):
    """Return the lowest and the highest number of a tensor; 0 and -1 for an empty one."""
    return [int(bound) for bound in torch.aminmax(numbers)] if len(numbers) else (0, -1)


def csc(graph, device=None, num_nodes=None):
    """Return the structure of `graph` as a :class:`CSC`, made once and kept for as long as the graph lives.

    Attention and layers that are given a graph call this function. For an ``edge_index`` a copy is kept, too, and
    compared at every call, so that changed edges are noticed.

    Parameters
    ----------
    graph : dgl.DGLGraph, CSC, torch.Tensor or torch_geometric.data.Data
        A DGL graph or block with one edge type; or a CSC, which is returned as it is; or an ``edge_index`` as in PyG,
        (2, E) int32 or int64, with the source of each edge in row 0 and the destination in row 1; or a ``Data``, which
        stands for its ``edge_index``. After edges or nodes are added or removed, the next call makes the CSC again.
    device : torch.device, optional
        Device of the result; the graph's own device by default.
    num_nodes : int, or pair of int, optional
        Number of nodes of an ``edge_index``, which needs it (a ``Data`` has its own); or the numbers of sources and of
        destinations, if these are numbered separately.

    Returns
    -------
    CSC
        ``edge_ids`` are the graph's edge ids, or the columns of the ``edge_index``. They are also the keys of dropout.

    Raises
    ------
    ValueError
        `graph` is none of these, does not have exactly one edge type, or is an ``edge_index`` of another shape or
        dtype, or with a node that is not in ``range(num_nodes)``.
    """
    if isinstance(graph, CSC):
        return graph if device is None else graph.to(device)
    if is_pyg_data(graph):
        graph, num_nodes = graph.edge_index, graph.num_nodes if num_nodes is None else num_nodes
    if isinstance(graph, torch.Tensor):
        return _on(device, *_of_edge_index(graph, num_nodes))
    if not is_dgl_graph(graph):
        raise ValueError(
            f"graph is a {type(graph).__name__}; allowed: a DGLGraph, a DGL block, a dgl_gt.CSC, a Data of PyG with an "
            "edge_index, or an edge_index, a tensor (2, edges) of whole numbers"
        )
    if len(graph.canonical_etypes) != 1:
        raise ValueError(
            f"graph has {len(graph.canonical_etypes)} edge types {graph.canonical_etypes}; allowed: exactly one. "
            "Pass one relation, graph[etype], or a homogeneous form, dgl.to_homogeneous(graph)"
        )
    # At every change of the structure, in place or not, DGL makes a new index object; and when it copies a graph, it
    # copies this attribute with all others. So the entry holds the index for which it is valid.
    index, home, by_device = getattr(graph, _CACHE, (None, None, None))
    if index is not graph._graph:
        made = _build_from_dgl(graph)
        home, by_device = made.device, {made.device: made}
        setattr(graph, _CACHE, (graph._graph, home, by_device))
    return _on(device, home, by_device)


def is_dgl_graph(graph):
    """Return whether `graph` is a DGL graph or block. Whoever passes one has imported DGL."""
    dgl = sys.modules.get("dgl")
    return dgl is not None and isinstance(graph, dgl.DGLGraph)


def is_pyg_data(graph):
    """Return whether `graph` is a ``Data`` of PyG that has edges. Whoever passes one has imported PyG."""
    data = sys.modules.get("torch_geometric.data.data")
    return data is not None and isinstance(graph, data.Data) and graph.edge_index is not None


def _on(device, home, by_device):
    """Return a structure on a device, by default on its own, from those that are there."""
    device = home if device is None else torch.device(device)
    if device not in by_device:
        by_device[device] = by_device[home].to(device)
    return by_device[device]


@torch.inference_mode(False)  # the result is kept on the graph, and training needs it, too
def _build_from_dgl(graph):
    indptr, indices, edge_ids = graph.adj_tensors("csc")
    num_src = graph.num_src_nodes(graph.canonical_etypes[0][0])
    return CSC.build(indptr.long(), indices, num_src, edge_ids=_unless_in_order(edge_ids.long()))


def _unless_in_order(ids):
    """Return edge ids, or None where they are the positions themselves."""
    return None if torch.equal(ids, torch.arange(len(ids), device=ids.device)) else ids


def _of_edge_index(edge_index, num_nodes):
    """Return the device of an ``edge_index``, and its structure by device, which are kept while the tensor lives."""
    if edge_index.dim() != 2 or len(edge_index) != 2 or edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)} and dtype {edge_index.dtype}; allowed: (2, edges), with "
            "sources in row 0 and destinations in row 1, and torch.int32 or torch.int64"
        )
    counts = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    if len(counts) != 2 or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(
            f"num_nodes is {num_nodes!r}; an edge_index needs the number of nodes, or a tuple of the numbers of sources "
            "and of destinations; pass dgl_gt.csc(edge_index, num_nodes=...)"
        )
    key = id(edge_index)
    reference, copy, counts_then, by_device = _KEPT.get(key, (lambda: None, None, None, None))
    if reference() is not edge_index or counts_then != counts or not torch.equal(copy, edge_index):
        by_device = {edge_index.device: _build_from_edges(edge_index, *counts)}
        reference = weakref.ref(edge_index, lambda _: _KEPT.pop(key, None))
        _KEPT[key] = reference, edge_index.detach().clone(), counts, by_device
    return edge_index.device, by_device


@torch.inference_mode(False)  # the result is kept, and training needs it, too
def _build_from_edges(edge_index, num_src, num_dst):
    for ends, ids, count in zip(("sources", "destinations"), edge_index, (num_src, num_dst)):
        low, high = _bounds(ids)
        if low < 0 or high >= count:
            raise ValueError(
                f"the {ends} in edge_index span {low} to {high}; allowed: 0 to {count - 1}, because there are {count} "
                "nodes; correct the edges, or pass num_nodes (or the features) of all nodes"
            )
    source, destination = edge_index if max(num_src, num_dst) >= 2**31 else edge_index.int()
    order = torch.sort(destination, stable=True).indices  # a row's edges stay in the order of the columns
    return CSC.build(_ends(destination, num_dst), source[order], num_src, edge_ids=_unless_in_order(order))
