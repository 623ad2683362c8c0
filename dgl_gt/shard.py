"""One part of an edge cut in memory: tensors and the index of its peers. Passive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from partition.errors import InputError
from partition.manifest import read_manifest, verify

from .ops.csc import CSC


@dataclass(frozen=True)
class Shard:
    """One part: owned rows first, then halo rows grouped by owner.

    Attributes
    ----------
    csc : CSC
        In-edges of the owned rows; N_dst = owned, N_src = held. Bias rows are the part's edges in CSC order.
    num_owned, num_held : int
    node_ids : Tensor, int64, (held,)
        The user's node ids.
    edge_ids : Tensor, int64, (E,)
        The user's edge ids.
    send_rows : Tensor, int64, (sum(send_counts),)
        Owned rows that peers hold as halo, grouped by peer, in the peer's order.
    send_counts, recv_counts : list of int, (P,)
    node_data : dict of str to Tensor, (N_owned, ...)
    edge_data : dict of str to Tensor, (E, ...)
    part : int
    manifest : dict
        The whole partition's figures, see docs/format.md.
    """

    csc: CSC
    num_owned: int
    num_held: int
    node_ids: torch.Tensor
    edge_ids: torch.Tensor
    send_rows: torch.Tensor
    send_counts: list[int]
    recv_counts: list[int]
    node_data: dict[str, torch.Tensor]
    edge_data: dict[str, torch.Tensor]
    part: int
    manifest: dict

    def check_rows(self, x: torch.Tensor) -> None:
        """Raise ``ValueError`` unless ``x`` has one row for each owned node."""
        if len(x) != self.num_owned:
            raise ValueError(
                f"got {len(x)} rows, but this rank owns {self.num_owned}: pass one for each owned node, as in sg.ndata"
            )

    def to(self, device) -> Shard:
        """This shard with its tensors on a device."""
        return replace(
            self,
            csc=self.csc.to(device),
            **{key: getattr(self, key).to(device) for key in ("node_ids", "edge_ids", "send_rows")},
            node_data={key: value.to(device) for key, value in self.node_data.items()},
            edge_data={key: value.to(device) for key, value in self.edge_data.items()},
        )


def read_shard(directory, part: int) -> Shard:
    """Read one part, after checking its checksums.

    Raises
    ------
    InputError
        Not a shard directory, another format version, or a damaged file of this part.
    """
    manifest = read_manifest(directory)
    if manifest["cut"] != "edge":
        raise InputError(
            f"{directory} holds a {manifest['cut']} cut, and no strategy trains on one yet: partition with --cut edge"
        )
    verify(directory, manifest, [part])
    folder = Path(directory) / f"part{part}"
    structure = _read(folder / "structure.safetensors")
    # Shards of a deeper halo begin with those of one hop.
    num_owned, parts = manifest["per_part"][part]["owned"], manifest["parts"]
    recv_ptr, send_ptr = (structure[key][: parts + 1] for key in ("recv_ptr", "send_ptr"))
    indptr = structure["indptr"][: num_owned + 1]
    num_held, num_edges = num_owned + int(recv_ptr[-1]), int(indptr[-1])
    edge_ids = structure["edge_ids"][:num_edges]
    return Shard(
        csc=CSC.build(indptr, structure["indices"][:num_edges], num_held, global_edge_ids=edge_ids),
        num_owned=num_owned,
        num_held=num_held,
        node_ids=structure["node_ids"][:num_held],
        edge_ids=edge_ids,
        send_rows=structure["send_rows"][: int(send_ptr[-1])],
        send_counts=send_ptr.diff().tolist(),
        recv_counts=recv_ptr.diff().tolist(),
        node_data=_read(folder / "node_data.safetensors", rows=num_owned),
        edge_data=_read(folder / "edge_data.safetensors", rows=num_edges),
        part=part,
        manifest=manifest,
    )


def _read(path: Path, rows: int | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file, or the first rows of each."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_slice(key)[:rows] for key in file.keys()}
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
