"""The settings of the tasks, a class for each, in a module without torch: commands check them before ranks start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from msgspec import Meta

from dgl_gt.model_config import EDGE_KINDS
from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.settings import Count, Flag, Settings, Share, between, described, one_of, setting

MEANINGS = ("number", "kind")  # of edge data
_ENCODINGS = r"\A([a-z_]+(,[a-z_]+)*)?\Z"
_NAMES = r"\A([^,]+(,[^,]+)*)?\Z"  # edge data may have any name, but one with a comma cannot be given here


@dataclass(frozen=True)
class Inputs:
    """What a model reads of the data: features, divided by their sums or not, encodings, and edge data with meanings."""

    encodings: tuple[str, ...] = ()
    normalizes_features: bool = False
    edge_features: dict[str, str | None] = field(default_factory=dict)  # one of ``MEANINGS``, or None if not stated


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


@dataclass(frozen=True)
class TaskConfig(Settings):
    """What the settings of all tasks have in common: which data the model reads, and the split."""

    titles: ClassVar[dict[str, str]] = {}  # of its metrics
    node_data: ClassVar[tuple[str, ...]] = ()  # that it reads besides what the model reads
    assumed_out_dim: ClassVar[int] = 40  # in predictions, which are made before the labels are read

    kind: Annotated[str, Meta(description="the name of a task")] = setting(
        "node_classification", "what is learned: node_classification", option="task"
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
    normalize_features: Flag = setting(False, "divide each node's features by the sum of their absolute values")
    split: Count = setting(0, "number of the split, counted from 0, if the masks hold several")

    def __post_init__(self):
        super().__post_init__()
        check_one_of("task", self.kind, tuple(TASKS))
        if TASKS[self.kind] is not type(self):
            raise InputError(f"task is {self.kind}; its settings are a {TASKS[self.kind].__name__}")
        _edge_columns(self.edge_features)

    @property
    def inputs(self) -> Inputs:
        """What a model reads of the data."""
        return Inputs(_split(self.encodings), self.normalize_features, _edge_columns(self.edge_features))

    @property
    def mask_of_loss(self) -> str:
        """The mask of the nodes that the loss reads; empty where it reads others, too."""
        return ""


@described
@dataclass(frozen=True)
class NodeClassificationConfig(TaskConfig):
    """The options of the task ``node_classification``: a class for each node.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    titles = {"accuracy": "accuracy", "roc_auc": "ROC-AUC"}
    node_data = ("label", *SPLIT_MASKS)

    label_smoothing: Share = setting(0.0, "share of a label that is spread over all classes")
    class_weights: Annotated[str, one_of(("none", "balanced"))] = setting(
        "none", "weights of classes in the loss: none, or balanced, which gives each class the same total weight"
    )
    entropy_unlabelled: Annotated[float, between(0.0, 1000.0)] = setting(
        0.0, "weight in the loss of the mean entropy of predictions for rows outside the training rows"
    )
    entropy_labelled: Annotated[float, between(0.0, 1000.0)] = setting(
        0.0, "weight with which the mean entropy of predictions for training rows is subtracted from the loss"
    )
    metric: Annotated[str, one_of(("auto", *titles))] = setting(
        "auto", "accuracy, roc_auc, or auto: ROC-AUC for two classes, else accuracy"
    )

    @property
    def mask_of_loss(self) -> str:
        return "" if self.entropy_unlabelled else "train_mask"


TASKS: dict[str, type[TaskConfig]] = {"node_classification": NodeClassificationConfig}
TITLES = {name: title for kind in TASKS.values() for name, title in kind.titles.items()}  # of metrics
