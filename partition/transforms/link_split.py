"""Splits the links of a graph for link prediction: its edges keep those of training, the others are stored apart."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import LINK_SETS, SPLIT_MASKS, Graph, Links, compact, from_edges
from dgl_gt.partition.relations import relations_of, reverse_relation, with_relations
from dgl_gt.partition.schema import Relation
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.user_files import reading, regular_file

MASKS = "masks"
_HELD_OUT = ("val", "test")
_MAX_ROUNDS = 100  # of draws; a graph that is not nearly complete needs a few


def check_split(spec: str) -> tuple[float, ...] | None:
    """The shares that the text of a split gives, or None for one that names masks or a file; ``InputError`` if it is wrong."""
    if not isinstance(spec, str):
        raise InputError(f"link_split (--link-split) is {spec!r}; it must be a str: {_ALLOWED}")
    if spec == MASKS or spec.endswith(".npz"):
        return None
    try:
        shares = tuple(float(each) for each in spec.split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3 or not all(each > 0 for each in shares) or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise InputError(f"link_split (--link-split) is {spec!r}; it must be {_ALLOWED}")
    return shares


_ALLOWED = (
    "three shares above 0 that add up to 1 (0.8,0.1,0.1), masks (the edge data val_mask and test_mask), or the name of an "
    ".npz file with val_edge and test_edge"
)


def split_links(graph: Graph, spec: str | None, seed: int, relation: str | None = None) -> Graph:
    """The graph without the links of validation and test, and with :attr:`Graph.links`; remaining edges are numbered anew.

    ``spec`` is three shares, ``masks`` or the name of a file, see :func:`dgl_gt.partition.partition`; None for the split of
    the data set, :attr:`Graph.link_split`. Both directions between two nodes are in one set where ``spec`` is shares. As many
    pairs that are no links as there are links are drawn for validation, and for test, unless a file has some. Self-loops
    stay, and are no links. What is wrong with the split of a data set, such as a link in two sets, becomes a note.

    In a typed graph, the links are those of one ``relation``, and the relation with the same edges the other way, or
    called ``rev_NAME``, loses them, too. Nodes in files are numbers within their types.

    Raises
    ------
    InputError
        The split is wrong; a set is empty; a link of validation or test is an edge of the structure, too; a pair that
        should be no link is one; or nodes that are named do not exist.
    """
    if graph.schema is not None:
        return _split_relation(graph, spec, seed, relation)
    if relation is not None:
        raise InputError(f"relation (--relation) is {relation!r}, and {graph.name} has no relations; leave it out")
    links, held, notes = _sets(graph, _Pairs(graph), spec, seed)
    graph = graph if held is None else _kept(graph, ~held)
    return replace(graph, links=links, link_split=None, notes=(*graph.notes, *notes))


def _split_relation(graph: Graph, spec: str | None, seed: int, name: str | None) -> Graph:
    """The split of one relation of a typed graph."""
    schema = graph.schema
    assert schema is not None
    if name is None:
        raise InputError(
            f"{graph.name} has the relations {' '.join(map(str, schema.edges))}; name the one whose links are split with relation "
            "(--relation SOURCE,NAME,DESTINATION)"
        )
    number = schema.relation(name)
    relation, ends, relations = schema.relations[number], schema.ends[number], relations_of(graph)
    own, begins = relations[relation], schema.node_ptr[ends]
    what = f"{graph.name}: {relation}"
    alone = from_edges(own.src + begins[0], own.dst + begins[1], graph.num_nodes, None, own.data, what)
    alone = replace(alone, node_names=graph.node_names)
    known = _Pairs(alone, [slice(*each) for each in zip(begins.tolist(), schema.node_ptr[ends + 1].tolist())])
    links, held, notes = _sets(alone, known, spec, seed)
    called = Relation(relation.destination, f"rev_{relation.name}", relation.source)
    other = reverse_relation(relations, relation) or (called if called in relations else None)
    if held is not None:
        relations[relation] = own.without(held)
    if other is not None and other != relation:
        back = relations[other]
        gone = known.of_pairs(back.dst + begins[0], back.src + begins[1], links.pairs["val"], links.pairs["test"])
        if held is None and gone.any():
            raise InputError(
                f"{format_count(int(gone.sum()), 'edge')} of {graph.name}: {other} are links of validation or test in {spec}, the other "
                "way; take them out of the graph, or out of the file"
            )
        relations[other] = back.without(gone)
    graph = with_relations(graph, relations)
    return replace(graph, links=replace(links, relation=relation), notes=(*graph.notes, *notes))


def _sets(graph: Graph, known: _Pairs, spec: str | None, seed: int) -> tuple[Links, np.ndarray | None, list[str]]:
    """The links of each set; the edges that are to leave the graph, if any are; and what is wrong with a data set's split."""
    shares = check_split(spec) if spec else None
    rng, finds, own_negatives = np.random.default_rng(seed), _Finds(spec is None), False
    if shares is not None:
        pairs = _drawn(graph, known, shares, rng)
    elif spec == MASKS:
        pairs = _by_masks(graph, known)
    else:
        arrays = read_arrays(spec) if spec else graph.link_split or {}
        spec = spec or f"the link split of {graph.name}"
        pairs, own_negatives = _from_arrays(graph, known, spec, arrays, finds)
    for name in pairs:
        if not pairs[name].size:
            raise InputError(f"{graph.name}: the link split {spec} has no pair for {name}; give each set at least one")
    held = known.of_edges(pairs["val"], pairs["test"])
    is_taken_out = shares is not None or spec == MASKS
    if not is_taken_out and (leaks := int(held.sum())):
        finds.add(
            f"{format_count(leaks, 'edge')} of {graph.name} are links of validation or test in {spec}: a model would read what it has "
            "to predict",
            "take them out of the graph, or out of the file",
        )
    _check_sets(spec, known, pairs, own_negatives, finds)
    links = _distinct(np.concatenate([known.keys(*pairs[name]) for name in LINK_SETS[:3]] + [known.all]))
    for name in _HELD_OUT:
        negatives = f"{name}_neg"
        if negatives in pairs:
            _check_negatives(spec, negatives, pairs[negatives], known, links, finds)
        else:
            pairs[negatives] = _draw_negatives(graph, known, links, pairs[name].shape[1], rng)
    compacted = {name: compact(pairs[name], graph.num_nodes) for name in LINK_SETS}
    return Links(compacted, known.is_undirected, own_negatives), held if is_taken_out else None, finds.notes


class _Finds:
    """What is wrong with a split: an error in one of the user's, a note in that of a data set."""

    def __init__(self, is_of_data_set: bool):
        self._is_of_data_set = is_of_data_set
        self.notes: list[str] = []

    def add(self, text: str, advice: str) -> None:
        """Note the text; or raise :class:`InputError` with it and the advice."""
        if not self._is_of_data_set:
            raise InputError(f"{text}; {advice}")
        self.notes.append(text)


def _distinct(keys: np.ndarray) -> np.ndarray:
    """The numbers in ascending order, each once; ``numpy.unique`` takes many times as long for so many."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) != 0]


def _among(keys: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Whether each number is among others."""
    if not len(ascending):
        return np.zeros(len(keys), bool)
    return ascending[np.searchsorted(ascending, keys).clip(max=len(ascending) - 1)] == keys


class _Pairs:
    """The pairs of different nodes that have an edge, each as one number; without a direction if no edge lacks its reverse."""

    def __init__(self, graph: Graph, ranges: list[slice] | None = None):
        self.nodes = graph.num_nodes
        self.ranges = [slice(0, graph.num_nodes)] * 2 if ranges is None else ranges  # of sources, and of destinations
        self.src, self.dst = (each.astype(np.int64) for each in graph.edges())
        directed = _distinct((self.src * self.nodes + self.dst)[self.src != self.dst])
        both = _distinct(self._without_direction(directed // self.nodes, directed % self.nodes))
        self.is_undirected = len(directed) == 2 * len(both)
        self.all = both if self.is_undirected else directed

    def _without_direction(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return np.minimum(src, dst) * self.nodes + np.maximum(src, dst)

    def keys(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The number of each pair."""
        src, dst = src.astype(np.int64), dst.astype(np.int64)
        return self._without_direction(src, dst) if self.is_undirected else src * self.nodes + dst

    def pairs(self, keys: np.ndarray) -> np.ndarray:
        """The pairs, (2, n), that have these numbers."""
        return np.stack([keys // self.nodes, keys % self.nodes])

    def of_edges(self, *held: np.ndarray) -> np.ndarray:
        """Whether each edge is one of some pairs, bool, (E,)."""
        return self.of_pairs(self.src, self.dst, *held)

    def of_pairs(self, src: np.ndarray, dst: np.ndarray, *held: np.ndarray) -> np.ndarray:
        """Whether pairs are among others, bool, (n,)."""
        wanted = np.concatenate([self.keys(*each) for each in held])
        return _among(self.keys(src, dst), np.sort(wanted)) & (src != dst)


def _check_sets(spec: str, known: _Pairs, pairs: dict[str, np.ndarray], own_negatives: bool, finds: _Finds) -> None:
    """Leave each link in its set once, with its own negatives; two sets are to have no link in common."""
    keys = {}
    for name in LINK_SETS[:3]:
        found = known.keys(*pairs[name])
        order = np.argsort(found, kind="stable")
        first = np.sort(order[np.diff(found[order], prepend=-1) != 0])
        if own_negatives and name != "train":
            of_links = pairs[f"{name}_neg"].reshape(2, len(found), -1)
            pairs[f"{name}_neg"] = of_links[:, first].reshape(2, -1)
        pairs[name], keys[name] = pairs[name][:, first], np.sort(found[first])
    for name, other in (("train", "val"), ("train", "test"), ("val", "test")):
        if both := int(_among(keys[other], keys[name]).sum()):
            text = f"{spec}: {format_count(both, 'link')} of {other} are links of {name}, too"
            finds.add(text, "give each link to one set")


def _drawn(graph: Graph, known: _Pairs, shares: tuple[float, ...], rng) -> dict[str, np.ndarray]:
    """Random sets; the two directions between two nodes are in the same one."""
    keys = known.all
    of_both = known._without_direction(*known.pairs(keys))
    both = _distinct(of_both)
    number = np.searchsorted(both, of_both)
    if len(both) < 3:
        raise InputError(f"{graph.name} has {format_count(len(both), 'link')}; a split of links needs at least 3")
    val, test = (max(1, round(share * len(both))) for share in shares[1:])
    place = rng.permutation(len(both))[number]
    of_set = {"test": place < test, "val": (place >= test) & (place < test + val), "train": place >= test + val}
    return {name: known.pairs(keys[chosen]) for name, chosen in of_set.items()}


def _by_masks(graph: Graph, known: _Pairs) -> dict[str, np.ndarray]:
    """The sets that masks of edges name; without a mask of training, all other edges are of training."""
    found = {}
    for name in _HELD_OUT:
        mask = graph.edge_data.get(f"{name}_mask")
        if mask is None or mask.ndim != 1:
            what = "no" if mask is None else "several splits in the"
            raise InputError(
                f"{graph.name} has {what} edge data {name}_mask, which link_split masks needs; give each edge one bool"
            )
        found[name] = mask & (known.src != known.dst)
    rest = ~(found["val"] | found["test"])
    found["train"] = graph.edge_data.get("train_mask", rest) & rest & (known.src != known.dst)
    keys = {name: _distinct(known.keys(known.src[each], known.dst[each])) for name, each in found.items()}
    structure = _distinct(known.keys(known.src[rest], known.dst[rest]))
    for name in _HELD_OUT:
        for other, its in (("train", structure), *((each, keys[each]) for each in _HELD_OUT if each < name)):
            if both := len(np.intersect1d(keys[name], its, assume_unique=True)):
                raise InputError(
                    f"{graph.name}: {format_count(both, 'link')} of {name}_mask are links of {other}, too, by a parallel or a reverse "
                    "edge; give all edges between two nodes the same masks"
                )
    return {name: known.pairs(each) for name, each in keys.items()}


def read_arrays(path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file by name; ``InputError`` says that it cannot be read."""
    path = regular_file(path)
    with reading(path):
        try:
            if not zipfile.is_zipfile(path):
                raise zipfile.BadZipFile("no archive")
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise InputError(f"{path} cannot be read as an .npz file: {error}; write it with numpy.savez") from None


def _from_arrays(
    graph: Graph, known: _Pairs, path: str, arrays: dict[str, np.ndarray], finds: _Finds
) -> tuple[dict[str, np.ndarray], bool]:
    """The sets in arrays, and whether each link has negatives of its own.

    Without links of training, the edges of the graph are of training.
    """
    pairs: dict[str, np.ndarray] = {}
    own: dict[str, int] = {}
    for name in LINK_SETS:
        base, _, negative = name.partition("_")
        kind = negative or "edge"
        names = [f"{each}_{kind}" for each in ((base, "valid") if base == "val" else (base,))]
        given = [each for each in names if each in arrays]
        if given:
            array = arrays[given[0]]
            if negative and array.ndim == 3 and array.shape[0] == pairs[base].shape[1] and array.shape[2] == 2:
                own[base], array = array.shape[1], array.reshape(-1, 2).T
            elif negative and array.ndim == 3:
                raise InputError(
                    f"{path}: {given[0]} is {array.shape}; negatives of each link must be (n, K, 2), here with n {pairs[base].shape[1]}"
                )
            pairs[name] = _ends(graph, known, f"{path}: {given[0]}", array, finds)
        elif name in _HELD_OUT:
            raise InputError(f"{path} has no {' or '.join(names)} (it has {', '.join(arrays) or 'nothing'}); add it")
    if "train" not in pairs:
        pairs["train"] = known.pairs(known.all)
    if len(own) == 1:
        raise InputError(
            f"{path} has negatives of each link, (n, K, 2), for {next(iter(own))} alone; give them for val and for test, or for neither"
        )
    is_edge = _among(known.keys(*pairs["train"]), known.all)
    if not is_edge.all():
        finds.add(
            f"{path}: {format_count(int((~is_edge).sum()), 'pair')} of train_edge are no edges of {graph.name}",
            "add them to the graph, and choose task.exclude=target where a step should not read its own links",
        )
    return pairs, bool(own)


def _ends(graph: Graph, known: _Pairs, what: str, pairs: np.ndarray, finds: _Finds) -> np.ndarray:
    """Both ends of pairs, int64 (2, n), as numbers of nodes."""
    found = nodes_of(what, pairs, graph.node_names, known.ranges, graph.name)
    found += np.array([[rows.start] for rows in known.ranges])
    if (loops := found[0] == found[1]).any():
        finds.add(f"{what} has a pair of node {found[0][loops][0]} with itself", "leave it out")
    return found


def nodes_of(
    what: str, ids: np.ndarray, names: np.ndarray | None, ranges: Sequence[slice | range], source: str
) -> np.ndarray:
    """The numbers of the nodes that pairs of ids name, int64 (2, n); ``InputError`` names one that ``source`` lacks.

    Ids are (2, n) or (n, 2), text where ``names`` are text and the pairs come from a table, else whole numbers. ``ranges``
    are the nodes, of those that have ``names``, which may be first and second in a pair; numbers count from their first.
    """
    sides = []
    for of_side, rows in zip(_as_pairs(what, ids), ranges):
        of_rows = None if names is None else names[rows.start : rows.stop]
        sides.append(numbers_of(what, of_side, of_rows, rows.stop - rows.start, source))
    return np.stack(sides)


def _as_pairs(what: str, ids: np.ndarray) -> np.ndarray:
    if ids.ndim != 2 or 2 not in ids.shape or ids.dtype.kind not in "iuU":
        raise InputError(f"{what} is {ids.dtype} {ids.shape}; it must be whole numbers of shape (2, n) or (n, 2)")
    return ids if ids.shape[0] == 2 else ids.T


def numbers_of(what: str, ids: np.ndarray, names: np.ndarray | None, num_nodes: int, source: str) -> np.ndarray:
    """The numbers of the nodes that ids of any shape name, int64, as :func:`nodes_of` gives those of pairs."""
    if names is not None and (names.dtype.kind == "U") == (ids.dtype.kind == "U"):
        same = ids.astype(names.dtype) if ids.dtype.kind != "U" else ids
        order = np.argsort(names)
        found = order[np.searchsorted(names, same, sorter=order).clip(max=len(names) - 1)]
        lacks = names[found] != same
        if ids.dtype.kind != "U":  # numbers of another width or sign
            lacks |= (same.astype(ids.dtype) != ids) | ((same < 0) != (ids < 0))
    elif ids.dtype.kind == "U":
        word = next((each for each in ids.flat if not each.lstrip("-").isdigit()), ids.flat[0])
        raise InputError(f"{what} names node {str(word)!r}, and the nodes of {source} are numbers; name these")
    else:
        found, lacks = ids.astype(np.int64), (ids < 0) | (ids >= num_nodes)
    if lacks.any():
        has = f"numbered from 0 to {num_nodes - 1}" if names is None else f"named, the first one {names[0]}"
        raise InputError(f"{what} names node {ids[lacks][0]}, which {source} lacks; its nodes are {has}")
    return found


def _check_negatives(path: str, name: str, pairs: np.ndarray, known: _Pairs, links: np.ndarray, finds: _Finds) -> None:
    wrong = _among(known.keys(*pairs), links)
    if wrong.any():
        src, dst = pairs[:, wrong.argmax()]
        finds.add(
            f"{path}: {format_count(int(wrong.sum()), 'pair')} of {name} are links, the first one {src} to {dst}",
            "leave out pairs that are edges of the graph, or links of validation or test",
        )


def _draw_negatives(graph: Graph, known: _Pairs, links: np.ndarray, count: int, rng) -> np.ndarray:
    """Random pairs of different nodes that are no links, (2, count)."""
    found, have = [], 0
    for _ in range(_MAX_ROUNDS):
        tries, (of_src, of_dst) = max(64, 2 * (count - have)), known.ranges
        if of_src == of_dst:
            src, dst = rng.integers(of_src.start, of_src.stop, (2, tries))
        else:
            src, dst = (rng.integers(each.start, each.stop, tries) for each in known.ranges)
        free = (src != dst) & ~_among(known.keys(src, dst), links)
        found.append(np.stack([src[free], dst[free]]))
        have += found[-1].shape[1]
        if have >= count:
            return np.concatenate(found, axis=1)[:, :count]
    raise InputError(
        f"{graph.name}: nearly all pairs of nodes are links, so no others could be drawn for validation and test; give some in "
        "a file (val_neg, test_neg)"
    )


def _kept(graph: Graph, is_kept: np.ndarray) -> Graph:
    """The graph with some of its edges, in their order and numbered anew; without masks of edges."""
    src, dst = (each[is_kept] for each in graph.edges())
    edges = from_edges(src, dst, graph.num_nodes)
    data = {name: value[is_kept] for name, value in graph.edge_data.items() if name not in SPLIT_MASKS}
    return replace(graph, indptr=edges.indptr, indices=edges.indices, edge_ids=edges.edge_ids, edge_data=data)
