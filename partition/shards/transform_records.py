"""What a manifest says of transforms: what each record must be, and which nodes are the user's."""

from __future__ import annotations

from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.transforms.exphormer import MAX_DEGREE, MAX_VIRTUAL_NODES, VIRTUAL_NODE

from .schema import fields, misfit, some_of, whole

TRANSFORMS = some_of(
    expander=fields(degree=whole(2, MAX_DEGREE), edges=whole(), seed=whole()),
    virtual_nodes=fields(nodes=whole(1, MAX_VIRTUAL_NODES), edges=whole()),
)


def user_node_count(manifest: dict) -> int:
    """Return N, the number of the user's nodes; virtual nodes have the ids from N on."""
    return manifest["nodes"] - manifest["transforms"].get("virtual_nodes", {"nodes": 0})["nodes"]


def describe_transforms(records: dict) -> str:
    """Say what was added, such as ``"2 virtual nodes with 800 edges"``; empty where nothing was."""
    words = []
    if "expander" in records:
        record = records["expander"]
        words.append(f"{format_count(record['edges'], 'expander edge')} of degree {record['degree']}")
    if "virtual_nodes" in records:
        record = records["virtual_nodes"]
        words.append(f"{format_count(record['nodes'], 'virtual node')} with {format_count(record['edges'], 'edge')}")
    return ", ".join(words)


def check_transform_records(manifest: dict) -> None:
    """Raise :class:`dgl_gt.partition.errors.InputError` unless the records of a manifest agree with its counts."""
    where, records, nodes = "manifest.transforms", manifest["transforms"], user_node_count(manifest)
    if nodes < 1:
        raise misfit(records["virtual_nodes"]["nodes"], f"{where}['virtual_nodes'].nodes", f"below {manifest['nodes']}")
    expander, virtual = records.get("expander"), records.get("virtual_nodes")
    if expander and (expander["degree"] % 2 or expander["edges"] % 2):
        raise misfit(expander, f"{where}['expander']", "an even degree and an even number of edges")
    if expander and expander["edges"] > expander["degree"] * nodes:
        raise misfit(expander["edges"], f"{where}['expander'].edges", f"at most {expander['degree'] * nodes}")
    if virtual and virtual["edges"] != 2 * virtual["nodes"] * nodes:
        raise misfit(virtual["edges"], f"{where}['virtual_nodes'].edges", f"{2 * virtual['nodes'] * nodes}")
    if sum(each["edges"] for each in records.values()) > manifest["edges"]:
        raise misfit(records, where, f"of at most {manifest['edges']} edges")
    column = manifest["encodings"].get(VIRTUAL_NODE)
    if column and column["columns"] != (virtual or {}).get("nodes"):
        raise misfit(column["columns"], f"manifest.encodings[{VIRTUAL_NODE!r}].columns", "the number of virtual nodes")
