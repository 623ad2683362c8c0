"""The counts of a manifest (docs/format.md): made, read and compared."""

from __future__ import annotations

import reprlib

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures, HostCounts, TypedCounts, host_sizes
from dgl_gt.partition.schema import Relation, Schema
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.transforms.exphormer import VIRTUAL_NODE
from dgl_gt.partition.transforms.hop_tokens import token_counts

_OF_MIRRORS = ("returned", "returns", "returned_edges")
_BY_HOP = {"halo_by_hop": "copies_by_hop"}
_BY_HOP |= {name: name for name in ("sent_by_hop", "edges_by_hop", "sent_edges_by_hop")}


def manifest_counts(figures: Figures, part_bytes: list[int]) -> dict:
    """The fields of a manifest that hold figures and the size of each part's files; docs/format.md describes them."""
    columns = {
        "owned": figures.owned,
        "halo" if figures.cut == "edge" else "mirrors": figures.copies_by_hop.sum(axis=1),
        "edges": figures.edges,
        "cut_edges": figures.cut_edges,
        "near_edges": figures.near_edges,
        "sent": figures.sent_by_hop.sum(axis=1),
    }
    if figures.cut == "edge":
        columns |= {name: getattr(figures, field) for name, field in _BY_HOP.items()}
    else:
        columns |= {name: getattr(figures, name) for name in _OF_MIRRORS}
    columns["bytes"] = np.array(part_bytes)
    return {
        "cut": figures.cut,
        "halo_depth": figures.halo_depth,
        "parts": figures.parts,
        "nodes": figures.nodes,
        "edges": int(figures.edges.sum()),
        "shares": figures.shares.tolist(),
        "per_part": [
            {name: column[part].tolist() for name, column in columns.items()} for part in range(figures.parts)
        ],
        "received_rows": figures.received_rows.tolist(),
        "hosts": {
            str(size): {name: counts.tolist() for name, counts in vars(host).items()}
            for size, host in figures.hosts.items()
        },
        "masked": {name: column.tolist() for name, column in figures.masked.items()},
        "schema": None if figures.schema is None else _written_schema(figures.schema),
        "typed": None if figures.typed is None else {key: each.tolist() for key, each in vars(figures.typed).items()},
    }


def _written_schema(schema: Schema) -> dict:
    return {"nodes": dict(schema.nodes), "edges": [[*each, count] for each, count in schema.edges.items()]}


def read_schema(manifest: dict) -> Schema | None:
    """The types of the nodes and edges of shards, from their manifest; None where there is one of each."""
    if (written := manifest["schema"]) is None:
        return None
    return Schema(written["nodes"], {Relation(*names): count for *names, count in written["edges"]})


def read_figures(manifest: dict) -> Figures:
    """The figures of a partition, from its manifest.

    Parameters
    ----------
    manifest : dict
        See :func:`dgl_gt.partition.read_manifest`, which checks it.
    """

    def column(name: str) -> np.ndarray:
        return np.array([part[name] for part in manifest["per_part"]], np.int64)

    if manifest["cut"] == "edge":
        none = np.zeros(len(manifest["per_part"]), np.int64)
        counts = {field: column(name) for name, field in _BY_HOP.items()} | dict.fromkeys(_OF_MIRRORS, none)
    else:
        names = {"copies_by_hop": "mirrors", "sent_by_hop": "sent", "edges_by_hop": "edges"}
        counts = {field: column(name)[:, None] for field, name in names.items()}
        counts |= {name: column(name) for name in _OF_MIRRORS}
        counts["sent_edges_by_hop"] = 0 * counts["edges_by_hop"]
    return Figures(
        cut=manifest["cut"],
        shares=np.array(manifest["shares"], np.float64),
        received_rows=np.array(manifest["received_rows"], np.int64),
        hosts={
            int(size): HostCounts(**{name: np.array(host[name], np.int64) for name in ("received_rows", "cut_edges")})
            for size, host in manifest["hosts"].items()
        },
        masked={name: np.array(counts, np.int64) for name, counts in manifest["masked"].items()},
        **{name: column(name) for name in ("owned", "cut_edges", "near_edges")},
        **counts,
        **{
            kind: {name: (each["dtype"], tuple(each["shape"])) for name, each in manifest[kind].items()}
            for kind in ("node_data", "edge_data")
        },
        schema=read_schema(manifest),
        typed=_read_typed(manifest),
    )


def _read_typed(manifest: dict) -> TypedCounts | None:
    if (typed := manifest["typed"]) is None:
        return None
    parts, hops = manifest["parts"], max(manifest["halo_depth"], 1)
    types, relations = (len(manifest["schema"][kind]) for kind in ("nodes", "edges"))
    of_hops = parts, hops, relations
    shapes = {
        "nodes": (parts, 1 + hops, types),
        "own_sources": (parts, relations),
        "cut_edges": (parts, relations),
        "whole_sources": (relations,),
    }
    return TypedCounts(
        **{key: np.array(values, np.int64).reshape(shapes.get(key, of_hops)) for key, values in typed.items()}
    )


def user_node_count(manifest: dict) -> int:
    """N, the number of the user's nodes; virtual nodes have the ids from N on."""
    return manifest["nodes"] - manifest["transforms"].get("virtual_nodes", {"nodes": 0})["nodes"]


def user_edge_count(manifest: dict) -> int:
    """The number of edges without those that transforms added, which have the ids from there on."""
    return manifest["edges"] - sum(each["edges"] for each in manifest["transforms"].values())


def describe_transforms(records: dict) -> str:
    """What was added, such as ``"2 virtual nodes with 800 edges"``; empty where nothing was."""
    words = []
    if "expander" in records:
        record = records["expander"]
        words.append(f"{format_count(record['edges'], 'expander edge')} of degree {record['degree']}")
    if "virtual_nodes" in records:
        record = records["virtual_nodes"]
        words.append(f"{format_count(record['nodes'], 'virtual node')} with {format_count(record['edges'], 'edge')}")
    return ", ".join(words)


def encoding_columns(name: str, record: dict) -> tuple[str, dict[str, dict]]:
    """Where the data of an encoding are, ``"node_data"`` or ``"edge_data"``, and the dtype and row shape of each column."""
    dtype = "uint8" if name in ("shortest_path", VIRTUAL_NODE) else "float32"
    kind = "edge_data" if name == "shortest_path" else "node_data"
    widths = {name: record["columns"]}
    if "tokens" in record:
        widths = {f"{of_type}/{name}": count * record["width"] for of_type, count in record["tokens"].items()}
    return kind, {each: {"dtype": dtype, "shape": [width]} for each, width in widths.items()}


def check_counts(manifest: dict, part_files: tuple[str, ...]) -> None:
    """Raise :class:`InputError` unless the counts of a manifest, whose types are right, agree with each other."""
    try:
        figures = read_figures(manifest)
    except ValueError as error:
        raise InputError(f"per_part, shares, received_rows, hosts or masked: {error}") from None
    parts, received, files = figures.parts, figures.received_rows, manifest["files"]
    copies = "halo" if figures.cut == "edge" else "mirrors"
    column = {key: [part[key] for part in manifest["per_part"]] for key in (copies, "sent", "edges", "bytes")}
    sizes = [sum(files[f"part{part}/{name}"]["bytes"] for name in part_files) for part in range(parts)]
    _same("halo_depth", manifest["halo_depth"], figures.halo_depth)
    _same("parts", manifest["parts"], parts)
    _same("nodes", manifest["nodes"], figures.nodes)
    _same("edges", manifest["edges"], figures.edges.sum())
    _same("shares", round(figures.shares.sum(), 6), 1)
    _same("ptr", manifest["ptr"], np.append(0, np.cumsum(figures.owned)))
    _same("received_rows", received.diagonal(), np.zeros(parts))
    _same(copies, column[copies], received.sum(axis=1))
    _same("copies by hop", figures.copies_by_hop.sum(axis=1), received.sum(axis=1))
    _same("sent", column["sent"], received.sum(axis=0))
    _same("sent_by_hop", figures.sent_by_hop.sum(axis=1), received.sum(axis=0))
    _same("edges_by_hop", column["edges"], figures.edges)
    copied = np.append(0, figures.edges_by_hop[:, 1:].sum(axis=0))
    _same("sent_edges_by_hop", figures.sent_edges_by_hop.sum(axis=0), copied)
    _same("bytes", column["bytes"], sizes)
    _within("cut_edges", figures.cut_edges, figures.edges)
    _within("near_edges", figures.near_edges, figures.edges)
    _within("returned_edges", figures.returned_edges, figures.cut_edges)
    for name, count in figures.masked.items():
        _within(f"masked.{name}", count, figures.owned)
    _same("hosts", sorted(manifest["hosts"]), sorted(map(str, host_sizes(parts))) if figures.cut == "edge" else [])
    for size, host in figures.hosts.items():
        halo, cut_edges = (each.reshape(-1, size).sum(axis=1) for each in (figures.copies_within(1), figures.cut_edges))
        _same(f"hosts.{size}.received_rows", host.received_rows.shape, (len(halo), len(halo)))
        _same(f"hosts.{size}.received_rows", host.received_rows.diagonal(), 0 * halo)
        _within(f"hosts.{size}.received_rows", host.received_rows.sum(axis=1), halo)
        _within(f"hosts.{size}.cut_edges", host.cut_edges, cut_edges)
    for name, record in manifest["encodings"].items():
        kind, described = encoding_columns(name, record)
        for each, column in described.items():
            _same(f"{kind}.{each}", manifest[kind].get(each), column)
        columns, hops = record["columns"], record.get("hops", 1)
        _within(f"{name}.eigenvalues", len(record.get("eigenvalues", [])), columns)
        _within(f"{name}.landmarks", max(record.get("landmarks", []), default=0), figures.nodes - 1)
        _within(f"{name}.landmarks", len(record.get("landmarks", [])), columns)
        _within(f"{name}.exact_columns", record.get("exact_columns", 0), columns)
        _same(f"{name}.probes", record.get("probes", 1) > 0, record.get("exact_columns") != columns)
        if "tokens" in record:
            _check_tokens(record, figures.schema)
            continue
        _same(f"{name}.columns", columns % hops, 0)
        _within(f"{name}.columns", columns // hops, record.get("width") or columns)
    _check_transforms(manifest, figures)
    _check_typed(figures)
    if manifest["mapping"]:
        _same("mapping.rank_of_part", sorted(manifest["mapping"]["rank_of_part"]), range(parts))
    _within("transforms", sum(each["edges"] for each in manifest["transforms"].values()), manifest["edges"])


def _check_tokens(record: dict, schema: Schema | None) -> None:
    _same("hops.tokens", record["tokens"], {} if schema is None else token_counts(schema, record["hops"]))
    _same("hops.columns", record["columns"], (record["width"] or 0) * sum(record["tokens"].values()))


def _check_transforms(manifest: dict, figures: Figures) -> None:
    virtual, users = manifest["transforms"].get("virtual_nodes", {"nodes": 0, "edges": 0}), user_node_count(manifest)
    _within("transforms.virtual_nodes.nodes", virtual["nodes"], figures.nodes - 1)
    _same("transforms.virtual_nodes.edges", virtual["edges"], 2 * virtual["nodes"] * users)
    _same(
        VIRTUAL_NODE,
        manifest["encodings"].get(VIRTUAL_NODE, {"columns": virtual["nodes"]})["columns"],
        virtual["nodes"],
    )
    expander = manifest["transforms"].get("expander", {"degree": 0, "edges": 0})
    _same("transforms.expander", (expander["degree"] % 2, expander["edges"] % 2), (0, 0))
    _within("transforms.expander.edges", expander["edges"], expander["degree"] * users)


def _check_typed(figures: Figures) -> None:
    schema, typed = figures.schema, figures.typed
    _same("typed", typed is None, schema is None)
    if schema is None or typed is None:
        return
    for kind, data in (("node", figures.node_data), ("edge", figures.edge_data)):
        for name in data:
            schema.rows_of(kind, name)  # raises if it is of no type
    held = np.concatenate([figures.owned[:, None], figures.copies_by_hop], axis=1)
    _same("typed.nodes", typed.nodes.sum(axis=2), held)
    _same("typed.nodes of owned rows", typed.nodes[:, 0].sum(axis=0), [*schema.nodes.values()])
    _same("typed.edges", typed.edges.sum(axis=2), figures.edges_by_hop)
    _same("typed.edges of owned rows", typed.edges[:, 0].sum(axis=0), [*schema.edges.values()])
    _within("typed.sources", typed.sources, typed.edges.cumsum(axis=1))
    _same("typed.cut_edges", typed.cut_edges.sum(axis=1), figures.cut_edges)
    _within("typed.own_sources", typed.own_sources, typed.sources[:, 0])
    _within("typed.whole_sources", typed.whole_sources, typed.sources[:, 0].sum(axis=0))


def _same(where: str, value, expected) -> None:
    if not np.array_equal(value, expected):
        raise _disagreement(where, value, expected)


def _within(where: str, value, most) -> None:
    if np.shape(value) != np.shape(most) or not np.less_equal(value, most).all():
        raise _disagreement(where, value, most, "at most ")


def _disagreement(where: str, value, expected, how: str = "") -> InputError:
    value, expected = (reprlib.repr(np.asarray(each).tolist()) for each in (value, expected))
    return InputError(f"{where} is {value}, but must be {how}{expected}, as other fields say")
