"""The counts of a manifest: figures as JSON values, what these must be, and figures back from them."""

from __future__ import annotations

import numpy as np

from dgl_gt.partition.figures.figures import Figures, HostCounts, host_sizes

from .schema import Check, dict_of, fields, list_of, misfit, number, one_of, text, whole

_COUNT = whole()
_OF_PART = ("owned", "edges", "cut_edges", "near_edges", "sent", "bytes")
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
    }


def read_figures(manifest: dict) -> Figures:
    """The figures of a partition, from its manifest.

    Parameters
    ----------
    manifest : dict
        See :func:`dgl_gt.partition.read_manifest`, which checks it.
    """
    parts = manifest["per_part"]

    def column(name: str) -> np.ndarray:
        return np.array([part[name] for part in parts], np.int64)

    if manifest["cut"] == "edge":
        none = np.zeros(len(parts), np.int64)
        counts = {field: column(name) for name, field in _BY_HOP.items()} | dict.fromkeys(_OF_MIRRORS, none)
    else:
        names = {"copies_by_hop": "mirrors", "sent_by_hop": "sent", "edges_by_hop": "edges"}
        counts = {field: column(name)[:, None] for field, name in names.items()}
        counts |= {name: column(name) for name in _OF_MIRRORS}
        counts["sent_edges_by_hop"] = 0 * counts["edges_by_hop"]
    node_data, edge_data = (
        {name: (each["dtype"], tuple(each["shape"])) for name, each in manifest[key].items()}
        for key in ("node_data", "edge_data")
    )
    return Figures(
        cut=manifest["cut"],
        shares=np.array(manifest["shares"], np.float64),
        received_rows=np.array(manifest["received_rows"], np.int64),
        hosts={
            int(size): HostCounts(**{name: np.array(counts, np.int64) for name, counts in host.items()})
            for size, host in manifest["hosts"].items()
        },
        masked={name: np.array(counts, np.int64) for name, counts in manifest["masked"].items()},
        **{name: column(name) for name in ("owned", "cut_edges", "near_edges")},
        **counts,
        node_data=node_data,
        edge_data=edge_data,
    )


def counts_table(cut: str, halo_depth: int, parts: int) -> dict[str, Check]:
    """What each field of a manifest that holds figures must be."""
    if cut == "edge":
        by_hop = list_of(_COUNT, halo_depth)
        part = fields(**dict.fromkeys((*_OF_PART, "halo"), _COUNT), **dict.fromkeys(_BY_HOP, by_hop))
    else:
        part = fields(**dict.fromkeys((*_OF_PART, "mirrors", *_OF_MIRRORS), _COUNT))
    sizes = {str(size): parts // size for size in host_sizes(parts)} if cut == "edge" else {}
    columns = dict_of(fields(dtype=text("bool|u?int(8|16|32|64)|float(16|32|64)"), shape=list_of(_COUNT)))
    return {
        "cut": one_of("edge", "vertex"),
        "halo_depth": whole(1) if cut == "edge" else whole(0, 0),
        "parts": whole(max(parts, 1), parts),
        "nodes": whole(1),
        "edges": _COUNT,
        "shares": list_of(number(1e-12, 1.0), parts),
        "per_part": list_of(part, parts),
        "received_rows": list_of(list_of(_COUNT, parts), parts),
        "hosts": fields(
            **{
                size: fields(received_rows=list_of(list_of(_COUNT, hosts), hosts), cut_edges=list_of(_COUNT, hosts))
                for size, hosts in sizes.items()
            }
        ),
        "masked": dict_of(list_of(_COUNT, parts)),
        "node_data": columns,
        "edge_data": columns,
    }


def check_sums(manifest: dict, part_files: tuple[str, ...]) -> None:
    """Raise :class:`dgl_gt.partition.errors.InputError` unless the counts of a manifest agree with each other."""
    per_part, ptr, rows, files = (manifest[key] for key in ("per_part", "ptr", "received_rows", "files"))
    copies = "halo" if manifest["cut"] == "edge" else "mirrors"
    expected = {"nodes": ptr[-1], "edges": sum(part["edges"] for part in per_part)}
    found = {"nodes": manifest["nodes"], "edges": manifest["edges"]}
    expected["the sum of shares"], found["the sum of shares"] = 1.0, round(sum(manifest["shares"]), 6)
    for index, part in enumerate(per_part):
        expected |= {
            f"per_part[{index}].owned": ptr[index + 1] - ptr[index],
            f"per_part[{index}].{copies}": sum(rows[index]),
            f"per_part[{index}].sent": sum(line[index] for line in rows),
            f"per_part[{index}].bytes": sum(files[f"part{index}/{name}"]["bytes"] for name in part_files),
            f"received_rows[{index}][{index}]": 0,
        }
        found |= {f"per_part[{index}].{key}": part[key] for key in ("owned", copies, "sent", "bytes")}
        found[f"received_rows[{index}][{index}]"] = rows[index][index]
        for key in ("cut_edges", "near_edges"):
            expected[f"per_part[{index}].{key}"] = min(part[key], part["edges"])  # some of the edges, or all
            found[f"per_part[{index}].{key}"] = part[key]
        if manifest["cut"] == "edge":
            for key, total in (("halo_by_hop", "halo"), ("sent_by_hop", "sent")):
                expected[f"the sum of per_part[{index}].{key}"] = part[total]
                found[f"the sum of per_part[{index}].{key}"] = sum(part[key])
            expected[f"per_part[{index}].edges_by_hop[0]"] = part["edges"]
            found[f"per_part[{index}].edges_by_hop[0]"] = part["edges_by_hop"][0]
        else:
            expected[f"per_part[{index}].returned_edges"] = min(part["returned_edges"], part["cut_edges"])
            found[f"per_part[{index}].returned_edges"] = part["returned_edges"]
    if manifest["cut"] == "edge":
        for hop in range(manifest["halo_depth"]):
            copied, sent = (sum(part[key][hop] for part in per_part) for key in ("edges_by_hop", "sent_edges_by_hop"))
            where = f"the sum of per_part[...].sent_edges_by_hop[{hop}]"
            expected[where], found[where] = copied if hop else 0, sent
    for name, counts in manifest["masked"].items():
        for index, (count, part) in enumerate(zip(counts, per_part)):
            expected[f"masked[{name!r}][{index}]"] = min(count, part["owned"])  # some of the nodes, or all
            found[f"masked[{name!r}][{index}]"] = count
    for size, host in manifest["hosts"].items():
        for index, (rows, cut_edges) in enumerate(zip(host["received_rows"], host["cut_edges"])):
            where, of_host = f"hosts[{size!r}]", per_part[index * int(size) : (index + 1) * int(size)]
            copies_of_host, most = (
                sum(part["halo_by_hop"][0] for part in of_host),
                sum(part["cut_edges"] for part in of_host),
            )
            expected |= {
                f"{where}.received_rows[{index}][{index}]": 0,
                f"{where}.cut_edges[{index}]": min(cut_edges, most),
            }
            found |= {f"{where}.received_rows[{index}][{index}]": rows[index], f"{where}.cut_edges[{index}]": cut_edges}
            expected[f"the sum of {where}.received_rows[{index}]"] = min(sum(rows), copies_of_host)
            found[f"the sum of {where}.received_rows[{index}]"] = sum(rows)
    for where, value in expected.items():
        if found[where] != value:
            raise misfit(found[where], where, f"{value}, as other counts say")
