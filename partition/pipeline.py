"""From a graph to shards in one call: ``dgl-gt partition`` and users of Python run :func:`partition`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields

from dgl_gt.partition.cuts.edge_cut import cut_nodes
from dgl_gt.partition.cuts.permutation import check_parts
from dgl_gt.partition.cuts.streamed_cut import open_stream, streamed_cut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.cuts.weights import check_weights
from dgl_gt.partition.distributed.pipeline import check_options, partition_on
from dgl_gt.partition.distributed.stages import Engine
from dgl_gt.partition.errors import InputError, check_flags, whole_number
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.shards.dgl_assignment import ASSIGNMENT, check_node_type, write_assignment
from dgl_gt.partition.shards.layout import check_memory, choose_cut, mapped_layout
from dgl_gt.partition.shards.manifest import SHARDS
from dgl_gt.partition.shards.write import write_shards
from dgl_gt.partition.sources.load import build_graph, open_source
from dgl_gt.partition.sources.table_files import names_tables
from dgl_gt.partition.system.atomic_write import new_directory
from dgl_gt.partition.system.memory import (
    available_memory_bytes,
    peak_memory_bytes,
    resident_memory_bytes,
    return_freed_memory,
)
from dgl_gt.partition.system.output_checks import check_target
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.partition.transforms.encode import add_encodings, check_encodable
from dgl_gt.partition.transforms.link_split import split_links

from .config import PartitionConfig
from .growth import check_like, grown
from .memory_bound import (
    METHOD_NAMES,
    check_disk_space,
    check_memory_bound,
    choose_method,
    measure_source,
    metis_need,
)
from .notebook import stages
from .transforms.exphormer import check_transforms, transformed


def partition(
    source,
    parts: int,
    out,
    *,
    cut: str | None = None,
    halo_depth: int = 1,
    attempts: int = 1,
    max_imbalance=None,
    balance: str | None = None,
    target_weights=None,
    cut_weights: str | None = None,
    node_weights: str | None = None,
    owner=None,
    costs: Costs | None = None,
    profile: Profile | None = None,
    memory: int | None = None,
    rank_memory: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress=None,
    num_nodes: int | None = None,
    node_data=None,
    node_table=None,
    id: str | None = None,
    ends=None,
    fill_missing=None,
    ids: str | None = None,
    label: str | None = None,
    features=None,
    skip=None,
    keys=None,
    self_loops: bool = False,
    self_loop_fill=None,
    undirected: bool = False,
    reverse_kind: bool = False,
    random_features: int | None = None,
    split: str | None = None,
    stratify: bool = False,
    encode: str | None = None,
    expander: int | None = None,
    virtual_nodes: int | None = None,
    link_split: str | None = None,
    relation: str | None = None,
    like=None,
    move: float | None = None,
    assignment_only: bool = False,
    engine=None,
    worker_memory: int | None = None,
    resume: bool = False,
) -> dict:
    """Partition a graph and write its shards.

    Parameters
    ----------
    source : str, path, DGLGraph, Data of PyG, networkx graph, scipy matrix, array, tensor, tuple or Graph
        See :func:`dgl_gt.partition.load_graph`.
    parts : int
        P, the number of parts, 1 <= P <= N.
    out : path
        The shard directory to make; it appears when it is complete.
    cut : {"edge", "vertex", "auto"}, optional
        The kind of cut. In an edge cut every node has one owner, and an edge lives with the owner of its destination.
        In a vertex cut every edge has one owner, and a node with edges in several parts has a master and mirrors; this
        suits graphs with hubs. ``"auto"`` makes both and keeps the one with the lower predicted step time; the
        manifest's ``choice`` says why. The default is an edge cut, or a vertex cut if ``memory`` is too small for
        METIS.
    halo_depth : int
        Hops of halo that each part of an edge cut stores, 1 to 100, with the in-edges of all hops but the last.
    attempts, max_imbalance, balance, owner, cut_weights, node_weights
        Options of edge cuts, see :func:`dgl_gt.partition.make_edge_cut`.
    target_weights : sequence of float, (P,), optional
        The load of each part relative to the others; equal by default.
    costs : Costs, optional
        Costs of a training step, by which cuts are compared; by default those of the default model of ``dgl-gt train``
        on this machine or the default profile (:func:`dgl_gt.partition.default_costs`). See :func:`dgl_gt.partition.read_costs`.
    profile : Profile, optional
        The ranks that will train (:func:`dgl_gt.partition.read_profile`): each part gets a load in proportion to the speed
        of its rank, and parts are numbered so that those with much traffic between them are on ranks with fast links.
    memory : int, optional
        Bound on the peak memory of this process and its children, bytes; it includes 80 MiB for the interpreter, and
        is lowered to what the system has available. The first method that fits is used: METIS, neighbour expansion (a
        vertex cut), or streaming over edges on disk (a vertex cut). ``dgl-gt partition --dry-run`` prints estimates.
    rank_memory : int, optional
        Memory for the tensors of a training rank (bytes), not counting about 0.5 GiB for its process. A cut whose
        largest part needs more is refused.
    seed : int
        The same seed gives the same shards.
    force : bool
        Replace ``out`` if it holds shards.
    progress : callable, optional
        Called as ``progress(stage)``. By default a notebook shows the stage.
    num_nodes, node_data, node_table, id, ends, fill_missing, ids, label, features, skip, keys
        See :func:`dgl_gt.partition.load_graph`.
    self_loops, self_loop_fill, undirected, reverse_kind
        See :func:`dgl_gt.partition.load_graph`.
    random_features, split, stratify
        See :func:`dgl_gt.partition.load_graph`.
    encode : str, optional
        Structural encodings to compute before the cut and to store as node data or edge data, see
        :func:`dgl_gt.partition.encode`. They describe the graph without expander edges and virtual nodes.
    expander, virtual_nodes : int, optional
        Degree of the expander edges, and number of virtual nodes. They are added before the cut, and after self-loops
        and reverse edges, so virtual nodes get no self-loops; see :func:`dgl_gt.partition.add_expander_edges` and
        :func:`dgl_gt.partition.add_virtual_nodes`.
    link_split : str, optional
        Take the links of validation and test out of the graph, for link prediction: three shares such as "0.8,0.1,0.1",
        of training, validation and test; "masks", the edge data ``val_mask`` and ``test_mask``; or the name of an ``.npz``
        file with ``val_edge`` and ``test_edge``, whole numbers (2, n), and perhaps ``train_edge``, ``val_neg`` and
        ``test_neg``, which are (2, n), or (n, K, 2) where each link has negatives of its own. This comes after self-loops
        and reverse edges, and before all else that is computed. By default a data set's own split is taken, if it has one.
    relation : str, optional
        Of a typed graph, the relation whose links ``link_split`` splits, such as "user,rates,item". The relation with its
        reverse edges loses the links of validation and test, too, and pairs that are no links have ends of its types.
    like : path, optional
        Shards of an edge cut of an earlier state of this graph: nodes with the same id stay in their parts, and new ones
        go where most of their neighbours are. ``notes`` say how far the predicted step is from that of a fresh cut.
    move : float, optional
        With ``like``, nodes may move where that lowers the predicted step by more than this share of it.
    assignment_only : bool
        Write the part of each node, as DGL's ``dispatch_data.py`` and GraphStorm read it, in place of shards: an edge cut as
        ``NODE_TYPE.txt`` of each type and ``partition_meta.json``.
    engine : DaskEngine, optional
        Many workers cut a graph that one machine cannot hold, see docs/distributed_partitioning.md. Their files are in a
        hidden folder beside ``out``, or in the cache where that is a URL.
    worker_memory : int, optional
        With ``engine``, memory of a worker for each of its threads, bytes; by default 4 GiB. The same seed and ``worker_memory`` give the
        same shards, whatever the number of workers.
    resume : bool
        With ``engine``, go on where a run of the same arguments ended.

    Returns
    -------
    dict
        The manifest, see docs/format.md; with ``assignment_only`` without what it says of files. Its ``left_out`` lists data of the source that are not in the shards.

    Raises
    ------
    InputError
        The source or an argument is wrong; nothing has been written.

    Examples
    --------
    >>> from dgl_gt.partition import partition
    >>> manifest = partition("sample:communities?nodes=1000", parts=2, out="communities-2")  # doctest: +SKIP
    """
    arguments = locals()  # all of them, by name
    config = PartitionConfig(**{each.name: arguments[each.name] for each in fields(PartitionConfig)})
    if engine is not None:
        return _on_engine(engine, source, config, out, force, resume, progress, worker_memory)
    if resume or worker_memory is not None:
        name = "resume" if resume else "worker_memory"
        raise InputError(f"{name} is given, which is for many workers: give an engine, too, or leave it out")
    kind = ASSIGNMENT if config.assignment_only else SHARDS
    with new_directory(out, kind, force=force) as folder, ExitStack() as until_written:
        progress = until_written.enter_context(stages(progress))
        progress = _progress(progress, is_bounded=config.memory is not None)
        peak_before, resident_before = peak_memory_bytes(), resident_memory_bytes()
        memory = None if config.memory is None else _lowered_to_available(config.memory, progress)
        progress("reading the graph")
        graph = open_source(source, config)
        check_extras(graph, config)
        method = "metis"
        if memory is not None:
            sizes = measure_source(graph, config)
            if config.owner is None:
                check_parts(sizes.nodes, config.parts)
            peak = peak_memory_bytes()
            reading_bytes = peak - resident_before if peak > peak_before else 0
            method = choose_method(sizes, memory, config.cut, reading_bytes)
            why = f"within {format_bytes(memory)}: "
            if method != "metis":
                why = f"{metis_need(sizes)}, which exceeds {format_bytes(memory)}: vertex cut by "
            progress(why + METHOD_NAMES[method])
        if method == "streaming":
            graph = open_stream(graph)
            isolated = graph.count_isolated()
            check_disk_space(graph, out, method)
            streamed = streamed_cut(graph, config.parts, folder / "edges", progress, config.target_weights)
            cuts = [until_written.enter_context(streamed)]
        else:
            graph = build_graph(graph, config)
            if config.link_split is not None or graph.link_split is not None:
                progress("splitting the links")
                graph = split_links(graph, config.link_split, config.seed, config.relation)
            isolated = graph.count_isolated()
            graph = transformed(graph, **config.transforms, seed=config.seed)
            graph = add_encodings(graph, config.encodings, seed=config.seed, progress=progress)
            if not config.assignment_only:
                check_disk_space(graph, out, method)
            if config.like is not None:
                graph, config = grown(graph, config, progress)
            cuts = _cuts_in_memory(graph, method, config, progress)
        if memory is not None:
            return_freed_memory()
        layout, choice = _layout_of_choice(graph, cuts, config)
        del cuts  # the other cut takes memory
        if memory is not None:
            quality = layout.quality
            check_memory_bound(sizes, method, memory, quality["max_copies_factor"], quality["edge_balance"])
        made = {"seed": config.seed, "choice": choice, "method": method, "isolated_nodes": isolated}
        if config.assignment_only:
            return write_assignment(layout, folder, **made)
        made["id_map"] = names_tables(source, config.ends)
        return write_shards(layout, folder, **made, progress=progress)


def _on_engine(engine, source, config: PartitionConfig, out, force, resume, progress, worker_memory) -> dict:
    """Partition by tasks on many workers."""
    check_options(config)
    check_flags(resume=resume)
    if not isinstance(engine, Engine):
        raise InputError(f"engine is {engine!r}; it must be a DaskEngine (dgl_gt.partition.DaskEngine(client))")
    memory_bytes = None if worker_memory is None else whole_number("worker_memory", worker_memory, 1)
    check_target(out, SHARDS, force=force)
    with stages(progress) as progress:
        progress("reading the graph")
        opened = open_source(source, config)
        check_extras(opened, config)
        more = {"force": force, "resume": resume, "progress": progress, "memory_bytes": memory_bytes}
        return partition_on(engine, opened, config, out, id_map=names_tables(source, config.ends), **more)


def _progress(progress, *, is_bounded: bool):
    """What is called at every stage; within a memory bound it also returns what the stage before has freed."""

    def returning(stage: str) -> None:
        return_freed_memory()
        progress(stage)

    return returning if is_bounded else progress


def check_extras(source, config: PartitionConfig) -> None:
    """Raise :class:`InputError` if the source lacks what the options need of its data."""
    if config.assignment_only:
        check_node_type(source)
    if config.like is not None:
        check_like(config)
    check_encodable(source, config.encodings, config.random_features)
    check_transforms(source, **config.transforms)
    check_weights(source, config.cut_weights, config.node_weights)
    if source.link_split is not None and config.memory is not None:
        raise InputError(
            f"{source.name} has links that are split off, whose memory is not bounded, and memory (--memory) is given; leave it out"
        )


def _layout_of_choice(graph, cuts: list, config: PartitionConfig):
    """The layout of the cut to write, and why it was chosen; None where there was one alone."""
    costs, profile = config.costs, config.profile
    layouts = [mapped_layout(graph, each, config.halo_depth, costs, profile) for each in cuts]
    choice = choose_cut(layouts, costs, config.rank_memory, profile) if config.cut == "auto" else None
    (layout,) = (each for each in layouts if choice is None or each.figures.cut == choice["cut"])
    check_memory(layout.figures, costs, config.rank_memory, is_only=len(layouts) == 1)
    return layout, choice


def _cuts_in_memory(graph, method: str, config: PartitionConfig, progress) -> list:
    """Make one cut, or with ``"auto"`` both kinds if METIS fits into the memory bound."""
    cuts = []
    if method == "expansion" or config.cut in ("vertex", "auto"):  # comes first, because it may refuse the graph
        options = {"seed": config.seed, "by_metis": method == "metis", "target_weights": config.target_weights}
        cuts.append(make_vertex_cut(graph, config.parts, **options, progress=progress))
    if method == "metis" and config.cut != "vertex":
        cuts.append(cut_nodes(graph, config.parts, config, progress))
    return cuts


def _lowered_to_available(memory: int, progress) -> int:
    """Return the bound on memory, or what the system has available if that is less (bytes)."""
    available = available_memory_bytes() + resident_memory_bytes()
    if available >= memory:
        return memory
    progress(f"only {format_bytes(available)} of {format_bytes(memory)} are available")
    return available
