"""The structure that sparse attention reads: edges grouped by destination, and the same edges grouped by source."""

import dataclasses

import torch


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

        Parameters
        ----------
        indptr : torch.Tensor, (N_dst + 1,) int64
        indices : torch.Tensor, (E,) int32 or int64
        num_src : int
        edge_ids : torch.Tensor, (E,) int64, optional
        global_edge_ids : torch.Tensor, (E,) int64, optional
        head_offset : int, default 0

        Returns
        -------
        CSC
            On the device of `indptr`. Contiguous arrays are kept without a copy. Under ``torch.inference_mode``, too,
            the arrays are ordinary tensors, which can be used in training later.

        Raises
        ------
        ValueError
            A shape, dtype or device does not fit, `indptr` is not a prefix sum, a source row is not in
            ``range(num_src)``, or `edge_ids` is not a permutation.
        """
        _check_indptr(indptr)
        num_dst = len(indptr) - 1
        _check_indices(indices, indptr, num_src)
        _check_ids("edge_ids", edge_ids, indices)
        _check_ids("global_edge_ids", global_edge_ids, indices)
        _check_permutation(edge_ids)
        if head_offset < 0:
            raise ValueError(f"head_offset is {head_offset}; allowed: 0 or more")
        if indices.dtype == torch.int32 and num_dst >= 2**31:
            raise ValueError(f"{num_dst} destination rows do not fit int32 indices; pass indices as int64")

        indices = _ordinary(indices)
        # The sort is stable, so a source's out-edges are in ascending order of destinations: sums over them always have
        # the same order, and neighbouring destinations are read together.
        rev_position = torch.sort(indices, stable=True).indices
        row_of_position = torch.repeat_interleave(
            torch.arange(num_dst, dtype=indices.dtype, device=indices.device),
            indptr.diff(),
            output_size=len(indices),
        )
        rev_indptr = torch.zeros(num_src + 1, dtype=torch.int64, device=indptr.device)
        torch.cumsum(torch.bincount(indices, minlength=num_src), 0, out=rev_indptr[1:])
        return cls(
            indptr=_ordinary(indptr),
            indices=indices,
            edge_ids=_ordinary(edge_ids),
            global_edge_ids=_ordinary(global_edge_ids),
            num_src=int(num_src),
            head_offset=int(head_offset),
            rev_indptr=rev_indptr,
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


def _check_indptr(indptr):
    if indptr.dtype != torch.int64 or indptr.dim() != 1 or len(indptr) < 1:
        raise ValueError(
            f"indptr has shape {tuple(indptr.shape)} and dtype {indptr.dtype}; allowed: (N_dst + 1,) and torch.int64"
        )
    decreases = bool((indptr.diff() < 0).any())
    if indptr[0] != 0 or decreases:
        raise ValueError(
            f"indptr starts at {int(indptr[0])}{' and decreases later' if decreases else ''}; it must start at 0 and never "
            "decrease: pass the sums of the in-degrees of the rows before each row"
        )


def _check_indices(indices, indptr, num_src):
    if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
        raise ValueError(
            f"indices has shape {tuple(indices.shape)} and dtype {indices.dtype}; "
            "allowed: (E,) and torch.int32 or torch.int64"
        )
    if indices.device != indptr.device:
        raise ValueError(f"indices is on {indices.device}, but indptr is on {indptr.device}; move them to one device")
    if int(indptr[-1]) != len(indices):
        raise ValueError(
            f"indptr ends at {int(indptr[-1])}, but there are {len(indices)} indices; make both numbers equal"
        )
    if num_src < 0:
        raise ValueError(f"num_src is {num_src}; allowed: 0 or more")
    if len(indices):
        low, high = (int(bound) for bound in torch.aminmax(indices))
        if low < 0 or high >= num_src:
            raise ValueError(
                f"indices span {low} to {high}; allowed: 0 to num_src - 1 = {num_src - 1}; correct them, or pass a larger num_src"
            )


def _check_ids(name, ids, indices):
    if ids is None:
        return
    if ids.shape != indices.shape or ids.dtype != torch.int64:
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)} and dtype {ids.dtype}; "
            f"allowed: {tuple(indices.shape)}, one id for each edge, and torch.int64"
        )
    if ids.device != indices.device:
        raise ValueError(f"{name} is on {ids.device}, but indices is on {indices.device}; move them to one device")


def _check_permutation(edge_ids):
    if edge_ids is None or len(edge_ids) == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(edge_ids))
    if low < 0 or high >= len(edge_ids) or int(torch.bincount(edge_ids).max()) > 1:
        raise ValueError(
            f"edge_ids span {low} to {high}; they must be a permutation of 0 to {len(edge_ids) - 1}, in which no number is "
            "missing or occurs twice"
        )
