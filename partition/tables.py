"""The tables that the command line prints."""

from __future__ import annotations

from dgl_gt.partition.figures.figures import MEANINGS
from dgl_gt.partition.memory_bound import METHOD_NAMES, Needs, SourceSizes
from dgl_gt.partition.shards.counts import describe_transforms
from dgl_gt.partition.system.units import format_bytes, format_count

from .console import table


def quality_table(manifest: dict) -> str:
    """A table of a partition's parts and one of its quality, from its manifest."""
    quality, cut = manifest["quality"], manifest["cut"]
    copies = {"edge": "halo", "vertex": "mirrors"}[cut]
    parts = table(
        ["part", "owned nodes", f"{copies} nodes" if cut == "edge" else copies, "edges", "rows sent", "size"],
        [
            [i, *(f"{part[key]:,}" for key in ("owned", copies, "edges", "sent")), format_bytes(part["bytes"])]
            for i, part in enumerate(manifest["per_part"])
        ],
    )
    figures = "\n".join(
        f"{title.lower():<13} {_figure(key, quality[key]):>12}  {meaning}"
        for key, (title, meaning) in MEANINGS.items()
        if quality.get(key) is not None
    )
    isolated = manifest["isolated_nodes"]
    figures += f"\n{'isolated':<13} {isolated:>12,}  nodes without an edge to another node"
    depth = f", halo depth {manifest['halo_depth']}" if manifest["halo_depth"] > 1 else ""
    sizes = f"{format_count(manifest['nodes'], 'node')}, {format_count(manifest['edges'], 'edge')}"
    counts = f"{sizes}, {format_count(manifest['parts'], 'part')}, {cut} cut{depth}"
    notes = [f"added: {added}"] if (added := describe_transforms(manifest["transforms"])) else []
    notes += [_mapping(manifest["mapping"], manifest["shares"])] if manifest["mapping"] else []
    notes += [f"encodings: {_encodings(manifest['encodings'])}"] if manifest["encodings"] else []
    return "\n\n".join([f"{manifest['source']}: {counts}", parts, figures, *notes])


def _figure(key: str, number: float) -> str:
    if key.endswith("_ratio"):
        return f"{number:.2%}"
    if key == "cut_weight":
        return f"{number:,.10g}"
    return f"{number:,}" if isinstance(number, int) else f"{number:.3f}"


_SEARCHES = {"all orders": "trying all orders", "swaps": "swapping pairs"}


def _mapping(mapping: dict, shares: list[float]) -> str:
    """Say how parts were fitted to ranks."""
    sizes = (
        "equal parts" if mapping["shares"] == "equal" else f"parts of {', '.join(f'{share:.1%}' for share in shares)}"
    )
    before, mapped, after = (mapping[key] for key in ("unmapped_s", "mapped_s", "predicted_s"))
    moved = f"; {after:.3g} s after nodes have moved" if after < mapped else ""
    return (
        f"ranks of {mapping['profile']}: {sizes}\npredicted step: {before:.3g} s with the parts in the order in which "
        f"they were cut, {mapped:.3g} s with each on the rank that suits it best (found by {_SEARCHES[mapping['search']]}){moved}"
    )


def _encodings(records: dict) -> str:
    """Name encodings with their columns, and say which columns are estimates or empty."""
    named = []
    for name, record in records.items():
        notes = [format_count(record["columns"], "column")]
        if record.get("probes"):
            notes.append(
                f"estimated with {record['probes']} random vectors from column {record['exact_columns'] + 1} on"
            )
        filled = len(record.get("eigenvalues", record.get("landmarks", range(record["columns"]))))
        if filled < record["columns"]:
            empty = record["columns"] - filled
            notes.append("the last one is zero" if empty == 1 else f"the last {empty} are zero")
        named.append(f"{name} ({', '.join(notes)})")
    return ", ".join(named)


def estimates_table(source: str, sizes: SourceSizes, estimates: dict[str, Needs], chosen: str | None) -> str:
    """A table of the memory, disk and time that each way to cut a graph is estimated to take."""
    rows = [
        [
            METHOD_NAMES[method] + (" (would be used)" if method == chosen else ""),
            format_bytes(each.memory_bytes),
            format_bytes(each.disk_bytes),
            f"{each.seconds:,.0f} s" if each.seconds >= 1 else "under 1 s",
        ]
        for method, each in estimates.items()
    ]
    counts = (
        f"{format_count(sizes.nodes, 'node')}, {format_count(sizes.edges, 'edge')}, {format_count(sizes.parts, 'part')}"
    )
    return f"{source}: {counts}; estimates only, nothing is written\n\n{table(['method', 'peak memory', 'disk', 'time'], rows)}"
