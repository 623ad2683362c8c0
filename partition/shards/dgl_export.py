"""Writes the shards of an edge cut as a partition directory of ``dgl.distributed``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from dgl_gt.partition.errors import INSTALL_DGL, InputError, first_line, import_optional
from dgl_gt.partition.system.atomic_write import new_directory
from dgl_gt.partition.system.distinct import unique
from dgl_gt.partition.system.output_checks import Kind
from dgl_gt.partition.system.storage import Url, located

from .counts import read_schema
from .dgl_import import EDGE_TYPE, NODE_TYPE
from .dgl_types import TypeRanges, checked_names
from .files import ShardReader, verify
from .manifest import read_manifest

_FILES = {
    "node_feats": "node_feat.dgl",
    "edge_feats": "edge_feat.dgl",
    "part_graph": "graph.dgl",
    "original_ids": "original_ids.safetensors",  # DGL keeps no original ids, so dgl-gt adds this file
}


def export_dgl(directory, out, *, graph_name: str | None = None, force: bool = False, progress=None) -> Path | Url:
    """Write the shards of an edge cut as ``dgl.distributed.partition_graph(num_hops=1)`` would have written this cut.

    Node ids are the shards' new ids. Edge ids count the edges part by part, in the shards' order. The halo is DGL's:
    all in- and out-neighbours, whatever the shards' halo depth. DGL drops the user's ids; they are kept in
    ``part{i}/original_ids.safetensors`` as ``node_ids`` and ``edge_ids``, int64, of the inner nodes and inner edges.

    Parameters
    ----------
    directory : path
        Shards, see docs/format.md. Their checksums are verified first.
    out : path
        Directory to make. It appears when it is complete.
    graph_name : str, optional
        Name that DGL gives the graph and the json file; by default the name of ``directory``.
    force : bool
        Whether to replace ``out`` where it holds a partition of this name.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    Path
        The json file, for ``dgl.distributed.load_partition`` and ``DistGraph``.

    Raises
    ------
    InputError
        The shards are missing, damaged or of a vertex cut; the name is unfit; ``out`` cannot be written; or DGL is not
        installed.
    """
    directory = located(directory).absolute()
    manifest = read_manifest(directory)
    if manifest["cut"] != "edge":
        raise InputError(
            f"{directory} holds a {manifest['cut']} cut, for which DGL has no format: in DGL, a part has all in-edges "
            "of its nodes; partition the graph with --cut edge and export that"
        )
    name = _checked_name(directory.name if graph_name is None else graph_name)
    try:
        os.fspath(Path(out).absolute()).encode()
    except UnicodeEncodeError:
        raise InputError(f"{str(out)!r} is not UTF-8, which DGL takes alone; choose another directory") from None
    dgl, torch = (import_optional(package, "exporting to DGL", INSTALL_DGL) for package in ("dgl", "torch"))
    report = progress or (lambda stage: None)
    with new_directory(out, _kind(name), force=force) as folder:
        report("verifying checksums")
        verify(directory, manifest)
        cut = _CutInNewIds(ShardReader(directory, manifest))
        files = {}
        for part in range(cut.reader.parts):
            report(f"writing part {part + 1} of {cut.reader.parts}")
            files[f"part-{part}"] = _write_part(dgl, torch, cut, part, folder)
        config = {**_config(name, manifest, cut), **files}
        (folder / f"{name}.json").write_text(json.dumps(config, indent=4, allow_nan=False) + "\n")
    return located(out).absolute() / f"{name}.json"


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII) or name == "manifest":
        raise InputError(
            f"{name!r} is not a valid graph name: DGL also uses it as a file name; choose up to 100 letters, digits, "
            "'_', '.' and '-', other than 'manifest' (--name, or graph_name in Python)"
        )
    return name


def _kind(name: str) -> Kind:
    """What :func:`export_dgl` writes under a name."""
    files = "|".join(map(re.escape, _FILES.values()))
    return Kind(
        "a partition directory",
        f"{name}.json",
        lambda config: config.get("part_method") == "dgl-gt",
        rf"part\d+/({files})",
    )


def _config(name: str, manifest: dict, cut: _CutInNewIds) -> dict:
    """DGL's json, without the parts' files."""
    config = {
        "graph_name": name,
        "num_nodes": manifest["nodes"],
        "num_edges": manifest["edges"],
        "part_method": "dgl-gt",
        "num_parts": manifest["parts"],
        "halo_hops": 1,
        "node_map": cut.nodes.ranges(),
        "edge_map": cut.edge_types.ranges(),
        "ntypes": {each: number for number, each in enumerate(cut.nodes.names)},
        "etypes": {each: number for number, each in enumerate(cut.edge_types.names)},
    }
    for kind in ("node_data", "edge_data"):  # DGL stores bool as uint8, so dgl-gt notes here which data were bool
        config[f"bool_{kind}"] = [key for key, column in manifest[kind].items() if column["dtype"] == "bool"]
    return config


class _CutInNewIds:
    """The edges of shards in the ids that DGL's directory has, one part at a time.

    A part's nodes and edges lie type by type, and those of a type in the order of the shards.
    """

    def __init__(self, reader: ShardReader):
        manifest = reader.manifest
        self.reader, self.schema = reader, read_schema(manifest)
        if self.schema is None:
            names, counts = ([NODE_TYPE], [EDGE_TYPE]), [[part["owned"] for part in manifest["per_part"]]]
            counts.append([part["edges"] for part in manifest["per_part"]])
        else:
            names, typed = checked_names(self.schema), manifest["typed"]
            counts = [[part[0] for part in typed[kind]] for kind in ("nodes", "edges")]
        self.nodes, self.edge_types = (TypeRanges.of_counts(*each) for each in zip(names, counts))
        self.ptr, self.edge_ptr = self.nodes.ptr, self.edge_types.ptr
        self._new_ids = np.empty(manifest["nodes"], np.int64)  # of the user's node ids
        for part, (begin, end) in enumerate(zip(self.ptr, self.ptr[1:])):
            ids = reader.structure(part, "node_ids")["node_ids"][: end - begin]
            self._new_ids[ids[self.order("node", ids)]] = np.arange(begin, end)

    def order(self, kind: str, ids: np.ndarray) -> np.ndarray:
        """The order, by type, of the user's ids of a part's ``"node"`` or ``"edge"`` rows."""
        if self.schema is None:
            return np.arange(len(ids))
        return np.argsort(self.schema.type_of(ids) if kind == "node" else self.schema.relation_of(ids), kind="stable")

    def edges(self, part: int, source: int | None = None) -> np.ndarray:
        """Return source, destination and id of a part's edges, (3, edges) int64.

        Where ``source`` is given, only the edges whose source that other part owns are returned.
        """
        arrays = self.reader.structure(part, "indptr", "indices", "node_ids", "recv_ptr", "edge_ids")
        at = self.order("edge", arrays["edge_ids"])
        ids = np.arange(self.edge_ptr[part], self.edge_ptr[part + 1])
        if source is not None:
            rows = self.ptr[part + 1] - self.ptr[part] + arrays["recv_ptr"][source : source + 2]
            chosen = np.flatnonzero((arrays["indices"][at] >= rows[0]) & (arrays["indices"][at] < rows[1]))
            at, ids = at[chosen], ids[chosen]
        target = np.searchsorted(arrays["indptr"], at, side="right") - 1
        ends = (arrays["node_ids"][rows] for rows in (arrays["indices"][at], target))
        return np.stack([*(self._new_ids[each] for each in ends), ids])

    def data(self, part: int, kind: str, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The node data or edge data of a part under DGL's names; ``ids`` are the user's ids of its rows."""
        data = self.reader.data(part, f"{kind}_data", rows=len(ids))
        ranges = self.nodes if kind == "node" else self.edge_types
        if self.schema is None:
            return {f"{ranges.names[0]}/{key}": value for key, value in data.items()}
        found, ends = {}, np.concatenate([[0], np.cumsum(ranges.counts[part])])
        for key, value in data.items():
            of, slash, name = key.partition("/")
            if slash:
                found[f"{of.replace(',', ':')}/{name}"] = value
                continue
            value = value[self.order(kind, ids)]
            found |= {f"{each}/{key}": value[at:to] for each, at, to in zip(ranges.names, ends, ends[1:])}
        return found

    def edges_around(self, part: int) -> np.ndarray:
        """A part's edges, then those that leave it to other parts, as :meth:`edges` does."""
        # DGL also keeps the out-edges of inner nodes: its out-degrees and its sampling of out-edges need them.
        receivers = [other for other, rows in enumerate(self.reader.manifest["received_rows"]) if rows[part]]
        leaving = [self.edges(other, source=part) for other in receivers]
        return np.concatenate([self.edges(part), *leaving], axis=1)


def _write_part(dgl, torch, cut: _CutInNewIds, part: int, folder: Path) -> dict:
    """Write a part's files; return their paths as DGL's json has them."""
    inner_nodes, inner_edges = (int(ptr[part + 1] - ptr[part]) for ptr in (cut.ptr, cut.edge_ptr))
    graph = _part_graph(dgl, torch, cut, part, inner_nodes, inner_edges)
    path = folder / f"part{part}"
    path.mkdir()
    original = cut.reader.structure(part, "node_ids", "edge_ids")
    original["node_ids"] = original["node_ids"][:inner_nodes]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            dgl.save_graphs(str(path / _FILES["part_graph"]), [graph])
            for kind in ("node", "edge"):
                data = cut.data(part, kind, original[f"{kind}_ids"])
                tensors = {key: torch.from_numpy(value) for key, value in data.items()}
                dgl.data.utils.save_tensors(str(path / _FILES[f"{kind}_feats"]), tensors)
        original = {f"{kind}_ids": original[f"{kind}_ids"] for kind in ("node", "edge")}
        original = {key: ids[cut.order(key.removesuffix("_ids"), ids)] for key, ids in original.items()}
        save_file(original, path / _FILES["original_ids"])
    except dgl.DGLError as error:  # how DGL reports a full disk
        raise OSError(first_line(error)) from error
    return {key: f"{path.name}/{file}" for key, file in _FILES.items()}


def _part_graph(dgl, torch, cut: _CutInNewIds, part: int, inner_nodes: int, inner_edges: int):
    """A part as a ``DGLGraph`` with the node and edge data that DGL expects."""
    begin, end = cut.ptr[part : part + 2]
    src, dst, edge_ids = cut.edges_around(part)
    is_remote = [(ends < begin) | (ends >= end) for ends in (src, dst)]
    halo = unique(np.concatenate([src[is_remote[0]], dst[is_remote[1]]]))
    src, dst = (
        torch.from_numpy(np.where(remote, np.searchsorted(halo, ends) + inner_nodes, ends - begin))
        for ends, remote in zip((src, dst), is_remote)
    )
    node_ids = np.concatenate([np.arange(begin, end), halo])
    graph = dgl.graph((src, dst), num_nodes=len(node_ids))
    graph.ndata["_ID"] = torch.from_numpy(node_ids)
    graph.ndata["part_id"] = torch.from_numpy(np.searchsorted(cut.ptr, node_ids, side="right") - 1)
    graph.ndata["inner_node"] = (torch.arange(len(node_ids)) < inner_nodes).to(torch.uint8)
    graph.edata["_ID"] = torch.from_numpy(edge_ids)
    graph.edata["inner_edge"] = (torch.arange(len(edge_ids)) < inner_edges).to(torch.uint8)
    if cut.schema is not None:
        graph.ndata["_TYPE"] = torch.from_numpy(cut.nodes.types_of(node_ids).astype(np.int32))
        graph.edata["_TYPE"] = torch.from_numpy(cut.edge_types.types_of(edge_ids).astype(np.int32))
    return graph
