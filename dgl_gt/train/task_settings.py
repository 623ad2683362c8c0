"""What the settings of all tasks have in common, in a module without torch: commands check them before ranks start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from msgspec import Meta

from dgl_gt.model_config import EDGE_KINDS
from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.settings import Flag, Settings, between, setting

ASSUMED_CLASSES = 40
MEANINGS = ("number", "kind")  # of edge data
_ENCODINGS = r"\A([a-z_]+(,[a-z_]+)*)?\Z"
_NAMES = r"\A([^,]+(,[^,]+)*)?\Z"  # edge data may have any name, but one with a comma cannot be given here


@dataclass(frozen=True)
class Inputs:
    """What a model reads: features, divided by their sums or not, encodings, edge data with meanings, and trained rows."""

    encodings: tuple[str, ...] = ()
    normalizes_features: bool = False
    edge_features: dict[str, str | None] = field(default_factory=dict)  # one of ``MEANINGS``, or None if not stated
    node_embedding: int = 0  # width of a trained row of each node
    tokens_of: str | None = (
        None  # node type whose hop tokens suffice, "" for the one that has labels; None for all types
    )


def _split(names: str) -> tuple[str, ...]:
    """The names in a list with commas, each once."""
    return tuple(dict.fromkeys(filter(None, names.split(","))))


def _edge_columns(text: str) -> dict[str, str | None]:
    """What ``weight:number,type:kind,length`` says about each column: ``number``, ``kind`` or nothing, which is None."""
    columns: dict[str, str | None] = {}
    for word in _split(text):
        name, colon, meaning = word.rpartition(":")
        is_stated = colon and meaning in MEANINGS
        name = name if is_stated else word
        if name in columns:
            raise InputError(f"edge_features names {name!r} twice, in {text!r}; name it once")
        columns[name] = meaning if is_stated else None
    return columns


TASKS: dict[str, type[TaskConfig]] = {}  # by kind; task_config.py has them
SHORT_NAMES = {"node": "node_classification", "edge": "edge_classification", "link": "link_prediction"}


@dataclass(frozen=True)
class TaskConfig(Settings):
    """What the settings of all tasks have in common: which data the model reads."""

    metrics: ClassVar[tuple[str, ...]] = ()  # names; the first one is the default

    kind: Annotated[str, Meta(description="the name of a task")] = setting(
        "node_classification",
        "what is learned of nodes: node_classification, a class; node_multilabel, several labels; node_regression, numbers; "
        "of edges: edge_classification, edge_multilabel, edge_regression; link_prediction; or pretrain, which needs no labels. "
        "node and edge stand for classification, and link for link_prediction",
        option="task",
    )
    encodings: Annotated[str, Meta(pattern=_ENCODINGS, description="names of encodings with commas between them")] = (
        setting("", "encodings in the shards to append to the features, such as laplacian,degree")
    )
    edge_features: Annotated[str, Meta(pattern=_NAMES, description="names of edge data with commas between them")] = (
        setting(
            "",
            "edge data from which each layer makes a bias of its scores, as in weight:number,type:kind; kinds are whole "
            f"numbers from 0 to {EDGE_KINDS - 1}. By default edge_kind and shortest_path are kinds, and all others numbers",
        )
    )
    node_embedding: Annotated[int, between(0, 2**16)] = setting(
        0, "width of a trained row of each node, which the model reads after the features, or where there are none"
    )
    type: Annotated[str, Meta(description="the name of a node type")] = setting(
        "", "node type that is learned on a typed graph; by default the only one that has labels"
    )
    relation: Annotated[str, Meta(description="the name of a relation")] = setting(
        "",
        "relation whose edges are learned on a typed graph, as in user,rates,item; by default the only one with labels",
    )
    normalize_features: Flag = setting(False, "divide each node's features by the sum of their absolute values")

    def __post_init__(self):
        super().__post_init__()
        check_one_of("task", self.kind, tuple(TASKS))
        if TASKS[self.kind] is not type(self):
            raise InputError(f"task is {self.kind}; its settings are a {TASKS[self.kind].__name__}")
        _edge_columns(self.edge_features)
        unread = "type" if self.reads_pairs else "relation"
        if getattr(self, unread):
            learned = "a relation (--relation)" if self.reads_pairs else "a node type (--type)"
            raise InputError(
                f"{unread} is {getattr(self, unread)!r}, and the task {self.kind} learns {learned}; leave {unread} out"
            )

    @property
    def inputs(self) -> Inputs:
        """What a model reads of the data."""
        edges = _edge_columns(self.edge_features)
        tokens_of = None if self.reads_pairs else self.type
        return Inputs(_split(self.encodings), self.normalize_features, edges, self.node_embedding, tokens_of)

    @property
    def reads_links(self) -> bool:
        """Whether the task reads the links that were split off."""
        return False

    @property
    def assumed_out_dim(self) -> int:
        """Numbers of a result in predictions, which are made before the labels are read."""
        return ASSUMED_CLASSES

    @property
    def has_class_names(self) -> bool:
        """Whether the names of classes in the shards are those of the results."""
        return False

    @property
    def node_data(self) -> tuple[str, ...]:
        """The node data that the task reads, besides what the model reads."""
        return ()

    @property
    def edge_data(self) -> tuple[str, ...]:
        """The edge data that the task reads, besides what the model reads."""
        return ()

    @property
    def mask_of_loss(self) -> str:
        """The mask of the rows that the loss reads; empty where it reads others, too."""
        return ""

    @property
    def pair_scorer(self) -> str:
        """How results of edges are made of rows of both ends; empty for a task on nodes."""
        return ""

    @property
    def reads_pairs(self) -> bool:
        """Whether the loss reads rows of both ends of edges, or of other pairs."""
        return bool(self.pair_scorer)
