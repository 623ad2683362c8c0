"""Hostile graphs: each kind of source, damaged; ``sample:`` and data sets by name."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
from case import PARTITION, Case, take
from damage import Dice, damaged, damaged_text, hostile_array, npy, npz


def read_graph(dice: Dice, path, *options: str) -> Case:
    """Something that reads a graph from ``path``."""
    how = dice.below(20)
    if how < 9 and not options:
        return Case(call=f"dgl_gt.partition.load_graph({str(path)!r})")
    if how < 14:
        return Case(argv=["partition", str(path), "--parts", "2", "--dry-run", *options])
    if how < 15:
        return Case(argv=["plan", str(path), "--world-size", "2", "--random-features", "4"])
    extra = dice.pick(
        ([], [], ["--cut", "vertex"], ["--memory", "1GiB"], ["--undirected"], ["--self-loops"], ["--json"])
    )
    return Case(argv=["partition", str(path), *PARTITION, *extra, *options])


def npz_source(dice, material):
    name = dice.pick(("graph.npz", "graph.npz", "sparse.npz", "bare.npz"))
    with zipfile.ZipFile(material / name) as archive:
        arrays = {m.removesuffix(".npy"): np.lib.format.read_array(archive.open(m)) for m in archive.namelist()}
    Path("in/graph.npz").write_bytes(npz(arrays, dice))
    if dice.chance(0.15):
        take(material, "edges.csv")
        return read_graph(dice, "in/edges.csv", "--node-data", "in/graph.npz")
    return read_graph(dice, "in/graph.npz")


def npy_source(dice, material):
    good = np.load(material / dice.pick(("edges.npy", "feat.npy")))
    lie = dice.chance(0.6)
    data = npy(good if lie else hostile_array(good, dice), dice, lie)
    name = dice.pick(("edges.npy", "feat.npy", "label.npy", "train_mask.npy"))
    Path("in", name).write_bytes(damaged(data, dice) if dice.chance(0.2) else data)
    if name == "edges.npy":
        return read_graph(dice, "in/edges.npy")
    return read_graph(dice, take(material, "edges.npy"), "--node-data", f"in/{name}")


def text_source(dice, material):
    if dice.chance(0.03):
        name = dice.pick(("zeros", "ones", "cells")) + ".csv.gz"
        Path("in", name).symlink_to(material / name)
        return read_graph(dice, f"in/{name}")
    name = dice.pick(("edges.csv", "edges.csv", "edges.txt", "edges.tsv"))
    data = damaged_text((material / name).read_text(), dice)
    if dice.chance(0.2):
        data = gzip.compress(data, 1, mtime=0)
        name += ".gz"
        data = damaged(data, dice) if dice.chance(0.6) else data
    Path("in", name).write_bytes(data)
    return read_graph(dice, f"in/{name}")


def node_table(dice, material):
    Path("in/nodes.csv").write_bytes(damaged_text((material / "nodes.csv").read_text(), dice))
    return read_graph(dice, take(material, "edges.txt"), "--node-data", "in/nodes.csv")


def metis_source(dice, material):
    lines = (material / "metis.graph").read_text().split("\n")
    if dice.chance(0.5):
        numbers = ("0", "-1", "1", "61", str(10**9), str(10**30), "x", "1.5", "", "nan", "011", "111", "1 2 3", "\0")
        words = lines[0].split() + dice.pick(([], ["0"], ["1"], ["011"], ["111", "3"], ["11", str(10**9)]))
        words[dice.below(len(words))] = dice.pick(numbers)
        lines[0] = " ".join(words)
        data = "\n".join(lines).encode()
    else:
        data = damaged_text("\n".join(lines), dice)
    Path("in/m.graph").write_bytes(data)
    return read_graph(dice, "in/m.graph")


def dgl_file(dice, material):
    Path("in/g.bin").write_bytes(damaged((material / "graph.bin").read_bytes(), dice))
    return read_graph(dice, "in/g.bin")


def named_source(dice, material):
    names = ("communities", "", "x", "communities\x1b[31m", "communities" * 30)
    keys = ("nodes", "degree", "classes", "features", "signal", "seed", "x", "", "nodes")
    values = (
        "-1",
        "0",
        "1",
        "2",
        "60",
        "1e9",
        "nan",
        "inf",
        "",
        "x",
        str(2**31),
        str(2**63),
        "10000000000",
        "0.5",
        "%00",
    )
    query = "&".join(f"{dice.pick(keys)}={dice.pick(values)}" for _ in range(dice.below(4)))
    prefixes = (
        "sample:communities?nodes=60&",
        f"sample:{dice.pick(names)}?",
        "dgl:",
        "ogb:",
        "pyg:",
        "pyg:x/y?root=in&",
        "dgl:x?",
        "ogb:x?root=in&",
    )
    return read_graph(dice, dice.pick(prefixes) + query)
