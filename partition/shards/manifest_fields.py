"""What each field of a manifest must be (docs/format.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from dgl_gt.partition.figures.mapping import Mapping
from dgl_gt.partition.transforms.encodings import MAX_SIZES, MAX_WIDTH
from dgl_gt.partition.transforms.exphormer import MAX_DEGREE, MAX_VIRTUAL_NODES

Count = Annotated[int, Meta(ge=0, le=2**44)]  # the sum over 2**18 parts fits into int64
Seed = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[float, Meta(ge=0, le=1e300)]
Share = Annotated[float, Meta(ge=0, le=1)]


class _Column(Struct):
    dtype: Annotated[str, Meta(pattern=r"\A(bool|u?int(8|16|32|64)|float(16|32|64))\Z")]
    shape: list[Count]


class _File(Struct):
    bytes: Count
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Part(Struct):
    owned: Count
    edges: Count
    cut_edges: Count
    near_edges: Count
    sent: Count
    bytes: Count


class _EdgePart(_Part):
    halo: Count
    halo_by_hop: list[Count]
    sent_by_hop: list[Count]
    edges_by_hop: list[Count]
    sent_edges_by_hop: list[Count]


class _VertexPart(_Part):
    mirrors: Count
    returned: Count
    returns: Count
    returned_edges: Count


class _Host(Struct):
    received_rows: list[list[Count]]
    cut_edges: list[Count]


class _Quality(Struct):
    volume: Count
    replication_factor: Number
    max_copies_factor: Number
    node_balance: Number
    edge_balance: Number
    train_balance: Number | None


class _EdgeQuality(_Quality, kw_only=True):
    cut_ratio: Share
    halo: Count
    cut_weight: Number | UnsetType = UNSET
    cut_weight_ratio: Share | UnsetType = UNSET
    weight_balance: Number | UnsetType = UNSET


class _VertexQuality(_Quality):
    mirrors: Count


class _Candidate(Struct):
    cut: Literal["edge", "vertex"]
    predicted_seconds: Number
    rank_memory_bytes: Count
    quality: _Quality


class _Choice(Struct):
    cut: Literal["edge", "vertex"]
    reason: str
    model: dict[str, str | bool | int | float]
    profile: str
    candidates: list[_Candidate]


class _Laplacian(Struct):
    columns: Annotated[int, Meta(ge=1, le=MAX_SIZES["laplacian"])]
    eigenvalues: list[Annotated[float, Meta(ge=0, le=2)]]
    seed: Seed


class _RandomWalk(Struct):
    columns: Annotated[int, Meta(ge=1, le=MAX_SIZES["random_walk"])]
    exact_columns: Annotated[int, Meta(ge=1, le=MAX_SIZES["random_walk"])]
    probes: Count
    seed: Seed


class _Degree(Struct):
    columns: Literal[2]


class _Anchors(Struct):
    columns: Annotated[int, Meta(ge=1, le=MAX_SIZES["anchors"])]
    landmarks: list[Count]


class _Hops(Struct):
    columns: Count
    hops: Annotated[int, Meta(ge=1, le=MAX_SIZES["hops"])]
    width: Annotated[int, Meta(ge=1, le=MAX_WIDTH)] | None
    seed: Seed
    tokens: dict[str, Count] | UnsetType = UNSET


class _ShortestPath(Struct):
    columns: Literal[2]
    most: Annotated[int, Meta(ge=1, le=MAX_SIZES["shortest_path"])]


class _VirtualNode(Struct):
    columns: Annotated[int, Meta(ge=1, le=MAX_VIRTUAL_NODES)]


class _Encodings(Struct, forbid_unknown_fields=True):
    laplacian: _Laplacian | UnsetType = UNSET
    random_walk: _RandomWalk | UnsetType = UNSET
    degree: _Degree | UnsetType = UNSET
    anchors: _Anchors | UnsetType = UNSET
    hops: _Hops | UnsetType = UNSET
    shortest_path: _ShortestPath | UnsetType = UNSET
    virtual_node: _VirtualNode | UnsetType = UNSET


class _Expander(Struct):
    degree: Annotated[int, Meta(ge=2, le=MAX_DEGREE)]
    edges: Count
    seed: Seed


class _VirtualNodes(Struct):
    nodes: Annotated[int, Meta(ge=1, le=MAX_VIRTUAL_NODES)]
    edges: Count


class _Transforms(Struct, forbid_unknown_fields=True):
    expander: _Expander | UnsetType = UNSET
    virtual_nodes: _VirtualNodes | UnsetType = UNSET


class _Links(Struct):
    pairs: dict[Literal["train", "val", "test", "val_neg", "test_neg"], Count]
    is_undirected: bool
    own_negatives: bool
    relation: tuple[str, str, str] | None


class _Schema(Struct):
    nodes: dict[str, Count]
    edges: list[tuple[str, str, str, Count]]


class _Typed(Struct, forbid_unknown_fields=True):
    nodes: list[list[list[Count]]]
    edges: list[list[list[Count]]]
    sources: list[list[list[Count]]]
    own_sources: list[list[Count]]
    cut_edges: list[list[Count]]
    whole_sources: list[Count]


class _Manifest(Struct, tag_field="cut"):
    parts: Annotated[int, Meta(ge=1)]
    nodes: Annotated[int, Meta(ge=1)]
    edges: Count
    ptr: list[Count]
    shares: list[Annotated[float, Meta(ge=1e-12, le=1)]]
    received_rows: list[list[Count]]
    masked: dict[str, list[Count]]
    node_data: dict[str, _Column]
    edge_data: dict[str, _Column]
    method: Literal["metis", "expansion", "streaming"]
    source: str
    seed: Seed | None
    choice: _Choice | None
    mapping: Mapping | None
    left_out: list[str]
    notes: list[str]
    isolated_nodes: Count
    node_names: Literal["integers", "text"] | None
    class_names: list[str] | None
    encodings: _Encodings
    transforms: _Transforms
    links: _Links | None
    schema: _Schema | None
    typed: _Typed | None
    files: dict[str, _File]
    versions: dict[str, str | None]


class EdgeManifest(_Manifest, tag="edge"):
    """The manifest of an edge cut."""

    halo_depth: Annotated[int, Meta(ge=1, le=2**62)]
    per_part: list[_EdgePart]
    hosts: dict[str, _Host]
    quality: _EdgeQuality


class VertexManifest(_Manifest, tag="vertex"):
    """The manifest of a vertex cut."""

    halo_depth: Literal[0]
    per_part: list[_VertexPart]
    hosts: Annotated[dict[str, _Host], Meta(max_length=0)]
    quality: _VertexQuality
