"""What a model is given of a graph: features with encodings, edge data, and pairs of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.dropout import dropout_seed
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import user_node_count

from .edge_inputs import column_name, edge_rows
from .required_data import learned_type, required
from .task_settings import Inputs, TaskConfig

_OF_SIGNS = -1  # in place of a layer, in the seed of the signs of a step


@dataclass(frozen=True)
class Pairs:
    """Pairs of nodes, of which a model gives results.

    Attributes
    ----------
    rows : callable
        Called with the rows of owned nodes, (N_owned, C), it returns those of the ends, (R, C); a collective.
    source, destination : Tensor, int64, (n,)
        Which of these rows are the ends.
    edges : Tensor, int64, (n,), optional
        The part's edges that the pairs are, if they are edges.
    both_ways : bool
        Whether a result is the mean of those of both directions.
    """

    rows: Callable[[torch.Tensor], torch.Tensor]
    source: torch.Tensor
    destination: torch.Tensor
    edges: torch.Tensor | None = None
    both_ways: bool = False


def edge_pairs(graph: ShardedGraph, chosen: torch.Tensor | None = None) -> Pairs:
    """The ends of all edges of a rank's part, or of some of them, int64 (n,)."""
    src, dst = graph.edges()
    chosen = torch.arange(len(src), device=src.device) if chosen is None else chosen
    return Pairs(graph.pull, src[chosen], dst[chosen], chosen)


@dataclass(frozen=True)
class ModelInputs:
    """The arguments of a model: ``model(graph, feat, **edges)``.

    Attributes
    ----------
    graph : ShardedGraph
    feat : Tensor, in torch's default dtype, (N_owned, F)
        With a halo of several hops (N_held, F), the rows that the first layer reads. Of a typed graph, a dict with the
        rows of the owned nodes of each type that has features.
    edges : dict of str to Tensor
        ``edge_feat`` (E, edge_feats) in that dtype and ``edge_kind`` (E, edge_kinds) int32, of those that the model reads. Of
        a typed graph, dicts with those of each relation that has them.
    signed : range
        Columns of ``feat`` that are eigenvectors, whose signs training flips.
    reads : Inputs
        What the rows were made of.
    pairs : Pairs, optional
        The pairs whose results are wanted of a model that gives results of pairs.
    """

    graph: ShardedGraph
    feat: torch.Tensor | dict[str, torch.Tensor]
    edges: dict[str, Any] = field(default_factory=dict)
    signed: range = range(0)
    reads: Inputs = Inputs()
    pairs: Pairs | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        """Widths of the rows, as arguments of a model: ``in_dim``, ``edge_feats`` and ``edge_kinds``.

        Of a typed graph, ``in_dim`` has the width of each type, 0 without features, and ``relations`` are those of the graph;
        where hop tokens are read, ``token_width`` is that of one.
        """
        if isinstance(self.feat, dict):
            found = self.feat
            widths = {name: found[name].shape[1] if name in found else 0 for name in self.graph.ntypes}
            sizes: dict[str, Any] = {
                "in_dim": widths,
                "relations": [list(each) for each in self.graph.canonical_etypes],
            }
            if self.reads.encodings:
                sizes["token_width"] = self.graph.manifest["encodings"]["hops"]["width"]
            for name, of_relation in self.edges.items():
                sizes[f"{name}s"] = {relation: columns.shape[1] for relation, columns in of_relation.items()}
            return sizes
        widths = {name: self.edges[name].shape[1] if name in self.edges else 0 for name in ("edge_feat", "edge_kind")}
        return {
            "in_dim": self.feat.shape[1] + self.reads.node_embedding,
            **{f"{name}s": width for name, width in widths.items()},
        }

    def on(self, graph: ShardedGraph) -> ModelInputs:
        """The inputs on a graph of the same nodes with a sample of the edges."""
        return replace(self, graph=graph, edges=edge_rows(graph, self.reads))

    def in_step(self, seed: int, step: int) -> ModelInputs:
        """The inputs of a training step, in which eigenvectors have random signs, the same on all ranks."""
        if not self.signed:
            return self
        return replace(self, feat=flip_signs(self.feat, self.signed, dropout_seed(seed, step, _OF_SIGNS)))


def read_inputs(sg: ShardedGraph, inputs: Inputs) -> ModelInputs:
    """The inputs of a model on a graph; ``InputError`` says what the shards lack, or what of their data does not fit."""
    if sg.schema is not None:
        return ModelInputs(sg, _features_by_type(sg, inputs), edge_rows(sg, inputs), reads=inputs)
    graph = sg.taking_held_rows() if sg.depth > 1 else sg
    return ModelInputs(graph, features(sg, inputs), edge_rows(sg, inputs), signed_columns(sg, inputs.encodings), inputs)


def _features_by_type(sg: ShardedGraph, inputs: Inputs) -> dict[str, torch.Tensor]:
    """``feat`` of the owned nodes of each type that has it, or hop tokens in its place, where the encoding is asked for.

    ``InputError`` names a setting that typed graphs do not have.
    """
    if inputs.encodings:
        return _tokens_by_type(sg, inputs)
    found = {}
    for name in sg.ntypes:
        feat = sg.nodes[name].data.get("feat")
        if feat is None:
            continue
        if feat.dim() != 2 or not feat.shape[1]:
            raise InputError(
                f"{name}/feat of {sg.manifest['source']} has row shape {tuple(feat.shape[1:])}; it must be (N, F), with F at least 1"
            )
        feat = feat.to(torch.get_default_dtype())
        found[name] = functional.normalize(feat, p=1.0) if inputs.normalizes_features else feat
    return found


def _tokens_by_type(sg: ShardedGraph, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The hop tokens of the owned nodes of each type whose results matter, side by side."""
    if inputs.encodings != ("hops",):
        raise InputError(
            f"encodings is {','.join(inputs.encodings)!r}, and {sg.manifest['source']} is a typed graph, of which models read 'hops' "
            "alone; leave the others out"
        )
    for name, given in (
        ("normalize_features", inputs.normalizes_features),
        ("node_embedding", inputs.node_embedding),
        ("edge_features", ",".join(inputs.edge_features)),
    ):
        if given:
            raise InputError(f"{name} is {given}, and hop tokens are read in place of features; leave it out")
    _check_stored(sg, "hops")
    names = sg.ntypes if inputs.tokens_of is None else [learned_type(sg, inputs.tokens_of)]
    return {name: sg.nodes[name].data["hops"].to(torch.get_default_dtype()) for name in names}


def _check_stored(sg: ShardedGraph, encoding: str) -> None:
    stored = sg.manifest["encodings"]
    if encoding not in stored:
        raise InputError(
            f"encodings has {encoding!r}, but the shards of {sg.manifest['source']} hold "
            f"{', '.join(stored) or 'no encodings'}; partition again with --encode {encoding}=..., or leave it out"
        )


def features(sg: ShardedGraph, inputs: Inputs) -> torch.Tensor:
    """``feat`` and encodings, side by side, in torch's default dtype, of the rows that the first layer reads.

    These are the owned rows, (N_owned, F), or with a deep halo all held rows, (N_held, F). ``InputError`` says that
    there is no ``feat`` or no such encoding, or that the shape of ``feat`` is not (N, F) with F at least 1.
    """
    if inputs.node_embedding and sg.depth > 1:
        raise InputError(
            f"depth is {sg.depth}, and node_embedding {inputs.node_embedding}, rows that ranks exchange in every layer; leave one of "
            "them out"
        )
    if inputs.node_embedding and "feat" not in sg.ndata:
        feat = torch.empty(sg.num_nodes(), 0, device=sg.device)
    else:
        feat = required(sg, "feat")
    if sg.depth > 1:
        feat = sg.srcdata["feat"]
    if feat.dim() != 2 or not feat.shape[1] + inputs.node_embedding:
        raise InputError(
            f"feat of {sg.manifest['source']} has row shape {tuple(feat.shape[1:])}; it must be (N, F), with F at least 1"
        )
    dtype = torch.get_default_dtype()
    feat = feat.to(dtype)
    if inputs.normalizes_features:
        feat = functional.normalize(feat, p=1.0)  # rows of zeros stay zero
    if not inputs.encodings:
        return feat
    for name in inputs.encodings:
        _check_stored(sg, name)
    data = sg.srcdata if sg.depth > 1 else sg.ndata
    edge_encodings = [name for name in inputs.encodings if name not in data]
    if edge_encodings:
        raise InputError(f"encodings has {edge_encodings[0]!r}, which describes edges; name it in edge_features")
    # A column of eigenvectors has length 1; its numbers grow to the size of features for the model.
    factors = [user_node_count(sg.manifest) ** 0.5 if name == "laplacian" else 1.0 for name in inputs.encodings]
    encoded = [data[name].to(dtype) * factor for name, factor in zip(inputs.encodings, factors)]
    return torch.cat([feat, *encoded], 1)


def signed_columns(sg: ShardedGraph, encodings: tuple[str, ...]) -> range:
    """The columns that hold eigenvectors in the result of :func:`features`; none without the encoding ``laplacian``."""
    widths = [sg.ndata["feat"].shape[1] if "feat" in sg.ndata else 0, *(sg.ndata[name].shape[1] for name in encodings)]
    if "laplacian" not in encodings:
        return range(0)
    index = encodings.index("laplacian") + 1
    return range(sum(widths[:index]), sum(widths[: index + 1]))


def flip_signs(feat: torch.Tensor, columns: range, seed: int) -> torch.Tensor:
    """Return rows in which some columns have random signs, the same for all rows and on all ranks that share the seed.

    The sign of an eigenvector is arbitrary, and a model that sees both does not rely on it (Dwivedi and Bresson,
    arXiv:2012.09699).
    """
    signs = torch.ones(feat.shape[1])
    generator = torch.Generator().manual_seed(seed)
    signs[columns.start : columns.stop] = 2.0 * torch.randint(2, (len(columns),), generator=generator) - 1
    return feat * signs.to(feat.device)


def describe_unused_data(manifest: dict, task: TaskConfig) -> str | None:
    """A phrase that names the node data and edge data of the shards that training does not read; None without any."""
    inputs = task.inputs
    known = {"feat", *task.node_data, *inputs.encodings}
    typed = manifest["schema"] is not None  # names of data then begin with their type
    unused = [f"node data {key!r}" for key in manifest["node_data"] if column_name(key, typed) not in known]
    known_edges = {*task.edge_data, *inputs.edge_features}
    unused += [f"edge data {key!r}" for key in manifest["edge_data"] if column_name(key, typed) not in known_edges]
    return f"not used by train: {', '.join(unused)}" if unused else None
