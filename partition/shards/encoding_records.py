"""What a manifest says of encodings: which of a graph's records are written, and what each record must be."""

from __future__ import annotations

from dgl_gt.partition.transforms.exphormer import MAX_VIRTUAL_NODES, VIRTUAL_NODE
from dgl_gt.partition.transforms.parse import MAX_SIZES, MAX_WIDTH

from .schema import fields, list_of, misfit, none_or, number, some_of, whole

_SEED = whole()
_TYPES = {
    "shortest_path": ("edge_data", "uint8"),
    VIRTUAL_NODE: ("node_data", "uint8"),
}  # by default node data, float32
_RECORDS = {
    "laplacian": fields(columns=whole(1, MAX_SIZES["laplacian"]), eigenvalues=list_of(number(0.0, 2.0)), seed=_SEED),
    "random_walk": fields(
        columns=whole(1, MAX_SIZES["random_walk"]),
        exact_columns=whole(1, MAX_SIZES["random_walk"]),
        probes=whole(),
        seed=_SEED,
    ),
    "degree": fields(columns=whole(2, 2)),
    "anchors": fields(columns=whole(1, MAX_SIZES["anchors"]), landmarks=list_of(whole())),
    "hops": fields(columns=whole(), hops=whole(1, MAX_SIZES["hops"]), width=none_or(whole(1, MAX_WIDTH)), seed=_SEED),
    "shortest_path": fields(columns=whole(2, 2), most=whole(1, MAX_SIZES["shortest_path"])),
    VIRTUAL_NODE: fields(columns=whole(1, MAX_VIRTUAL_NODES)),
}
ENCODINGS = some_of(**_RECORDS)


def records_of(graph) -> dict:
    """Return the records of those encodings of a graph that its node data and edge data still hold."""
    found = {}
    for name, record in graph.encodings.items():
        kind, column = _expected(name, record)
        values = getattr(graph, kind).get(name)
        if values is not None and column == {"dtype": str(values.dtype), "shape": list(values.shape[1:])}:
            found[name] = record
    return found


def _expected(name: str, record: dict) -> tuple[str, dict]:
    """Return where the data of an encoding are, ``"node_data"`` or ``"edge_data"``, and their dtype and row shape."""
    kind, dtype = _TYPES.get(name, ("node_data", "float32"))
    return kind, {"dtype": dtype, "shape": [record["columns"]]}


def check_records(manifest: dict) -> None:
    """Raise :class:`dgl_gt.partition.errors.InputError` unless the records of a manifest agree with its node data and counts."""
    for name, record in manifest["encodings"].items():
        where, columns = f"manifest.encodings[{name!r}]", record["columns"]
        kind, column = _expected(name, record)
        if manifest[kind].get(name) != column:
            raise misfit(manifest[kind].get(name), f"manifest.{kind}[{name!r}]", f"{column}")
        for key, most in (("eigenvalues", columns), ("landmarks", min(columns, manifest["nodes"]))):
            if len(record.get(key, ())) > most:
                raise misfit(record[key], f"{where}.{key}", f"a list of at most {most}")
        if any(landmark >= manifest["nodes"] for landmark in record.get("landmarks", ())):
            raise misfit(record["landmarks"], f"{where}.landmarks", f"a list of numbers below {manifest['nodes']}")
        if record.get("exact_columns", 0) > columns:
            raise misfit(record["exact_columns"], f"{where}.exact_columns", f"at most {columns}")
        if "probes" in record and (record["probes"] == 0) != (record["exact_columns"] == columns):
            raise misfit(record["probes"], f"{where}.probes", "0 exactly where all columns are exact")
        if columns % record.get("hops", 1) or columns // record.get("hops", 1) > (record.get("width") or columns):
            raise misfit(columns, f"{where}.columns", "hops times the columns per hop")
