"""What a manifest says of encodings: which of a graph's records are written, and what each record must be."""

from __future__ import annotations

from partition.encodings.parse import MOST, MOST_WIDTH, NAMES

from .schema import Check, dict_of, fields, list_of, misfit, none_or, number, one_of, whole

_SEED = whole()
_OF_NAME = {
    "laplacian": fields(columns=whole(1, MOST["laplacian"]), eigenvalues=list_of(number(0.0, 2.0)), seed=_SEED),
    "random_walk": fields(
        columns=whole(1, MOST["random_walk"]),
        exact_columns=whole(1, MOST["random_walk"]),
        probes=whole(),
        seed=_SEED,
    ),
    "degree": fields(columns=whole(2, 2)),
    "anchors": fields(columns=whole(1, MOST["anchors"]), landmarks=list_of(whole())),
    "hops": fields(columns=whole(), hops=whole(1, MOST["hops"]), width=none_or(whole(1, MOST_WIDTH)), seed=_SEED),
}


def records_of(graph) -> dict:
    """Return the records of those encodings of a graph that its node data still hold."""
    return {
        name: record
        for name, record in graph.encodings.items()
        if name in graph.node_data and _column(graph.node_data[name]) == _expected(record)
    }


def _column(values) -> dict:
    return {"dtype": str(values.dtype.newbyteorder("=")), "shape": list(values.shape[1:])}


def _expected(record: dict) -> dict:
    return {"dtype": "float32", "shape": [record["columns"]]}


def encodings_table() -> Check:
    """What the field ``encodings`` of a manifest must be."""

    def check(value, where: str) -> None:
        dict_of(fields())(value, where)
        for name, record in value.items():
            one_of(*NAMES)(name, f"a name in {where}")
            _OF_NAME[name](record, f"{where}[{name!r}]")

    return check


def check_records(manifest: dict) -> None:
    """Raise :class:`partition.errors.InputError` unless the records of a manifest agree with its node data and counts."""
    for name, record in manifest["encodings"].items():
        where, columns = f"the manifest.encodings[{name!r}]", record["columns"]
        if manifest["node_data"].get(name) != _expected(record):
            raise misfit(manifest["node_data"].get(name), f"the manifest.node_data[{name!r}]", f"{_expected(record)}")
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
