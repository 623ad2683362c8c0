"""The partition directory of ``dgl.distributed``: from shards of an edge cut to it, and from it to shards."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from partition.cuts.edge_cut import make_edge_cut
from partition.cuts.metis import check_seed
from partition.errors import InputError
from partition.system.atomic_write import new_directory
from partition.system.optional_packages import INSTALL_DGL, first_line, need
from partition.system.output_checks import Kind

from .dgl_import import EDGE_TYPE, NODE_TYPE, read_book, read_whole
from .layout import Layout
from .manifest import SHARDS, read_manifest, verify
from .write import write_shards

_FILES = {
    "node_feats": "node_feat.dgl",
    "edge_feats": "edge_feat.dgl",
    "part_graph": "graph.dgl",
    "original_ids": "original_ids.safetensors",  # ours, as DGL drops them
}


def _kind(name: str) -> Kind:
    """What :func:`export_dgl` writes under a name."""
    files = "|".join(map(re.escape, _FILES.values()))
    return Kind(
        "a partition directory", f"{name}.json", lambda book: book.get("part_method") == "dgl-gt", rf"part\d+/({files})"
    )


def export_dgl(directory, out, *, graph_name: str | None = None, force: bool = False, progress=None) -> Path:
    """Write the shards of an edge cut as ``dgl.distributed.partition_graph(num_hops=1)`` would have written this cut.

    Node ids are the shards' new ids, edge ids count the edges part by part in the shards' order, the halo is that of
    DGL: all in- and out-neighbours, whatever the shards' halo depth. The user's ids, which DGL drops, are kept in
    ``part{i}/original_ids.safetensors``: ``node_ids`` and ``edge_ids``, int64, of the inner nodes and inner edges.

    Parameters
    ----------
    directory : path
        Shards, see docs/format.md; their checksums are verified first.
    out : path
        The directory to make; it appears when it is complete.
    graph_name : str, optional
        DGL's name of the graph, and that of the json file; by default the name of ``directory``.
    force : bool
        Replace ``out`` where it holds a partition of this name.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    Path
        The json file, for ``dgl.distributed.load_partition`` and ``DistGraph``.

    Raises
    ------
    InputError
        No shards or damaged ones, a vertex cut, an unfit name, ``out`` that cannot be written, no DGL.
    """
    directory = Path(directory).absolute()
    manifest = read_manifest(directory)
    if manifest["cut"] != "edge":
        raise InputError(
            f"{directory} holds a {manifest['cut']} cut, for which DGL has no format: its parts have all in-edges of "
            "their nodes; partition the graph with --cut edge and export that"
        )
    name = directory.name if graph_name is None else graph_name
    if not re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII) or name == "manifest":
        raise InputError(
            f"{name!r} cannot be DGL's name of the graph, hence of a file; give one (--name, or graph_name in Python) of "
            "up to 100 letters, digits, '_', '.' and '-', other than 'manifest'"
        )
    dgl, torch = (need(package, "exporting to DGL", INSTALL_DGL) for package in ("dgl", "torch"))
    with new_directory(out, _kind(name), force=force) as folder:
        _say(progress, "verifying checksums")
        verify(directory, manifest)
        shards = _Shards(directory, manifest)
        entries = {}
        for index in range(manifest["parts"]):
            _say(progress, f"writing part {index + 1} of {manifest['parts']}")
            entries[f"part-{index}"] = _write_part(dgl, torch, shards, index, folder)
        book = {
            "graph_name": name,
            "num_nodes": manifest["nodes"],
            "num_edges": manifest["edges"],
            "part_method": "dgl-gt",
            "num_parts": manifest["parts"],
            "halo_hops": 1,
            "node_map": {NODE_TYPE: _ranges(shards.ptr)},
            "edge_map": {EDGE_TYPE: _ranges(shards.edge_ptr)},
            "ntypes": {NODE_TYPE: 0},
            "etypes": {EDGE_TYPE: 0},
            # ours: DGL stores bool as uint8
            **{f"bool_{kind}": _bools(manifest[kind]) for kind in ("node_data", "edge_data")},
            **entries,
        }
        (folder / f"{name}.json").write_text(json.dumps(book, indent=4) + "\n")
    return Path(out).absolute() / f"{name}.json"


def import_dgl(config_json, out, *, seed: int = 0, force: bool = False, progress=None) -> dict:
    """Make shards of a partition directory of a homogeneous graph, with the owners that it has.

    Written by :func:`export_dgl`, the graph gets the user's ids back, and the same ``seed`` gives the same shards. In
    one of ``dgl.distributed.partition_graph`` the ids are DGL's new ones, as it does not store others; masks of 0 and 1
    become bool and labels int64, as with every source.

    Parameters
    ----------
    config_json : path
        The json file that ``dgl.distributed.load_partition`` takes.
    out : path
        The shard directory to make; it appears when it is complete.
    seed : int
        Of the order of rows inside parts.
    force : bool
        Replace ``out`` where it holds shards.
    progress : callable, optional
        Called as ``progress(stage)``, and as ``progress(stage, peak_memory_bytes)`` for child processes.

    Returns
    -------
    dict
        The manifest, see docs/format.md.

    Raises
    ------
    InputError
        Files that are missing, damaged, outside the json's directory or at odds with it; a heterogeneous graph; parts
        that are not ranges of ids; data that cannot be trained on; ``out`` that cannot be written; no DGL.
    """
    seed = check_seed(seed)
    with new_directory(out, SHARDS, force=force) as folder:
        _say(progress, "reading the partition")
        book = read_book(Path(config_json).absolute())
        graph, owner = read_whole(book, progress)
        cut = make_edge_cut(graph, len(book.files), seed=seed, owner=owner, progress=progress)
        return write_shards(Layout(graph, cut), folder, seed=seed, progress=progress)


class _Shards:
    """Structure of shards in new ids, one part at a time.

    ``ptr`` and ``edge_ptr`` (K + 1,) bound the parts' node and edge ids, ``new_ids`` (N,) maps the user's node ids.
    """

    def __init__(self, directory: Path, manifest: dict):
        self.directory, self.manifest = directory, manifest
        self.ptr = np.asarray(manifest["ptr"], np.int64)
        self.new_ids = np.empty(manifest["nodes"], np.int64)
        edges = [0]
        for index in range(manifest["parts"]):
            structure = self.structure(index, "node_ids", "indptr")
            begin, end = self.ptr[index : index + 2]
            self.new_ids[structure["node_ids"][: end - begin]] = np.arange(begin, end)
            edges.append(structure["indptr"][-1])
        self.edge_ptr = np.cumsum(edges)

    def read(self, index: int, file: str, keys) -> dict:
        with safe_open(self.directory / f"part{index}" / f"{file}.safetensors", "numpy") as tensors:
            return {key: tensors.get_tensor(key) for key in keys}

    def structure(self, index: int, *keys: str) -> dict:
        """Arrays of a part's structure; ``indptr`` and ``indices`` without the in-edges of deeper halos' rows."""
        arrays = self.read(index, "structure", {"indptr", *keys})
        arrays["indptr"] = arrays["indptr"][: self.ptr[index + 1] - self.ptr[index] + 1]
        if "indices" in arrays:
            arrays["indices"] = arrays["indices"][: arrays["indptr"][-1]]
        return arrays

    def edges(self, index: int, source: int | None = None) -> np.ndarray:
        """Source, destination and id of a part's edges, (3, edges) int64; of those alone that another part feeds."""
        part = self.structure(index, "indices", "node_ids", "recv_ptr")
        at = np.arange(len(part["indices"]))
        if source is not None:
            rows = self.ptr[index + 1] - self.ptr[index] + part["recv_ptr"][source : source + 2]
            at = np.flatnonzero((part["indices"] >= rows[0]) & (part["indices"] < rows[1]))
        target = np.searchsorted(part["indptr"], at, side="right") - 1 + self.ptr[index]
        return np.stack([self.new_ids[part["node_ids"][part["indices"][at]]], target, at + self.edge_ptr[index]])


def _write_part(dgl, torch, shards: _Shards, index: int, folder: Path) -> dict:
    """Write a part's files, return their paths as the json has them."""
    begin, end = shards.ptr[index : index + 2]
    inner = shards.edges(index)
    # DGL also keeps the out-edges of inner nodes to other parts: its out-degrees and sampling of out-edges need them
    leaving = [shards.edges(i, source=index) for i, rows in enumerate(shards.manifest["received_rows"]) if rows[index]]
    src, dst, edge_ids = np.concatenate([inner, *leaving], axis=1)
    is_remote = [(ends < begin) | (ends >= end) for ends in (src, dst)]
    halo = np.union1d(src[is_remote[0]], dst[is_remote[1]])
    src, dst = (
        torch.from_numpy(np.where(remote, np.searchsorted(halo, ends) + end - begin, ends - begin))
        for ends, remote in zip((src, dst), is_remote)
    )
    node_ids = np.concatenate([np.arange(begin, end), halo])
    graph = dgl.graph((src, dst), num_nodes=len(node_ids))
    graph.ndata["_ID"] = torch.from_numpy(node_ids)
    graph.ndata["part_id"] = torch.from_numpy(np.searchsorted(shards.ptr, node_ids, side="right") - 1)
    graph.ndata["inner_node"] = (torch.arange(len(node_ids)) < int(end - begin)).to(torch.uint8)
    graph.edata["_ID"] = torch.from_numpy(edge_ids)
    graph.edata["inner_edge"] = (torch.arange(len(edge_ids)) < inner.shape[1]).to(torch.uint8)

    part = folder / f"part{index}"
    part.mkdir()
    original = shards.read(index, "structure", ("node_ids", "edge_ids"))
    original = {"node_ids": original["node_ids"][: end - begin], "edge_ids": original["edge_ids"][: inner.shape[1]]}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            dgl.save_graphs(str(part / _FILES["part_graph"]), [graph])
            for kind, type_name, rows in (("node", NODE_TYPE, end - begin), ("edge", EDGE_TYPE, inner.shape[1])):
                data = shards.read(index, f"{kind}_data", shards.manifest[f"{kind}_data"])
                data = {f"{type_name}/{key}": torch.from_numpy(value[:rows]) for key, value in data.items()}
                dgl.data.utils.save_tensors(str(part / _FILES[f"{kind}_feats"]), data)
        save_file(original, part / _FILES["original_ids"])
    except dgl.DGLError as error:  # how DGL reports a full disk
        raise OSError(first_line(error)) from error
    return {key: f"{part.name}/{file}" for key, file in _FILES.items()}


def _ranges(ptr: np.ndarray) -> list:
    return np.stack([ptr[:-1], ptr[1:]], axis=1).tolist()


def _bools(columns: dict) -> list[str]:
    return [key for key, column in columns.items() if column["dtype"] == "bool"]


def _say(progress, stage: str) -> None:
    if progress:
        progress(stage)
