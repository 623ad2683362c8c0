"""The settings of the tasks, a class for each, in a module without torch: commands check them before ranks start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.settings import Count, Flag, Share, between, described, one_of, setting, with_default

from .metric_kinds import METRICS, is_hits
from .task_settings import TASKS, TaskConfig

NEGATIVES = ("uniform", "degree", "swap")
LINK_LOSSES = ("bce", "bpr", "margin", "square")
DECODERS = ("mlp", "hadamard", "bilinear", "dot")


@dataclass(frozen=True)
class LabelTaskConfig(TaskConfig):
    """What the settings of tasks with labels have in common: the column of labels, the split, and the metric."""

    label: Annotated[str, Meta(min_length=1, description="the name of node data, or of edge data")] = setting(
        "label",
        "node data, or edge data, to learn; where there is no label it has -1, or NaN among numbers with a fraction",
    )
    metric: Annotated[str, Meta(description="the name of a metric")] = setting(
        "auto",
        f"how models are compared: {', '.join(METRICS)}, hits@20 or with another number, by what suits the task; package.module:function of predictions and "
        "labels; or auto",
    )
    split: Count = setting(0, "number of the split, counted from 0, if the masks hold several")

    def __post_init__(self):
        super().__post_init__()
        if self.metric not in ("auto", *self.metrics) and ":" not in self.metric:
            raise InputError(
                f"metric is {self.metric!r}; for the task {self.kind} it must be auto, {', '.join(self.metrics)}, or "
                "package.module:function"
            )

    @property
    def node_data(self) -> tuple[str, ...]:
        return self.label, *SPLIT_MASKS

    @property
    def mask_of_loss(self) -> str:
        return "train_mask"


@described
@dataclass(frozen=True)
class NodeClassificationConfig(LabelTaskConfig):
    """The options of the task ``node_classification``: a class for each node.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    metrics = "accuracy", "roc_auc", "f1_macro", "f1_micro"

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

    @property
    def has_class_names(self) -> bool:
        return self.label == "label"

    @property
    def mask_of_loss(self) -> str:
        return "" if self.entropy_unlabelled else super().mask_of_loss


@described
@dataclass(frozen=True)
class NodeMultilabelConfig(LabelTaskConfig):
    """The options of the task ``node_multilabel``: labels (N, L) of 0 and 1, with a logistic loss for each.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    metrics = "f1_micro", "f1_macro", "f1_micro_topk", "average_precision", "roc_auc"

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(TaskConfig, "kind", "node_multilabel")
    positive_weights: Annotated[str, one_of(("none", "balanced"))] = setting(
        "none", "weights of labels that are 1 in the loss: none, or balanced, as much in total as those that are 0"
    )


@described
@dataclass(frozen=True)
class NodeRegressionConfig(LabelTaskConfig):
    """The options of the task ``node_regression``: numbers (N,) or (N, T), of which the model sees the standardised ones.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    metrics = "rmse", "mae", "r2"

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(TaskConfig, "kind", "node_regression")
    loss: Annotated[str, one_of(("mse", "l1", "huber"))] = setting(
        "mse", "loss of a number: mse, l1, or huber, which is quadratic below one standard deviation"
    )

    @property
    def assumed_out_dim(self) -> int:
        return 1


@dataclass(frozen=True)
class OnEdgesConfig(LabelTaskConfig):
    """What the settings of tasks on edges have in common: how rows of both ends give a result."""

    decoder: Annotated[str, one_of(DECODERS)] = setting(
        "mlp",
        "how rows of both ends give the result of an edge: mlp, of both rows and the numbers in edge_features; hadamard, an mlp of "
        "their product; bilinear; or dot, for one number",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.label in self.inputs.edge_features:
            raise InputError(f"edge_features has {self.label!r}, which is what is learned; leave it out")
        for name in ("entropy_unlabelled", "entropy_labelled"):
            if getattr(self, name, 0.0):
                raise InputError(f"{name} is {getattr(self, name)}, which is for classes of nodes; leave it out")

    @property
    def node_data(self) -> tuple[str, ...]:
        return ()

    @property
    def edge_data(self) -> tuple[str, ...]:
        return self.label, *SPLIT_MASKS

    @property
    def pair_scorer(self) -> str:
        return self.decoder

    @property
    def assumed_out_dim(self) -> int:
        return 1 if self.decoder == "dot" else super().assumed_out_dim

    @property
    def has_class_names(self) -> bool:
        return False


@described
@dataclass(frozen=True)
class EdgeClassificationConfig(OnEdgesConfig, NodeClassificationConfig):
    """The options of the task ``edge_classification``: a class for each edge.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(
        TaskConfig, "kind", "edge_classification"
    )


@described
@dataclass(frozen=True)
class EdgeMultilabelConfig(OnEdgesConfig, NodeMultilabelConfig):
    """The options of the task ``edge_multilabel``: labels (E, L) of 0 and 1, with a logistic loss for each.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(TaskConfig, "kind", "edge_multilabel")


@described
@dataclass(frozen=True)
class EdgeRegressionConfig(OnEdgesConfig, NodeRegressionConfig):
    """The options of the task ``edge_regression``: numbers (E,) or (E, T), of which the model sees the standardised ones.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(TaskConfig, "kind", "edge_regression")


@described
@dataclass(frozen=True)
class LinkPredictionConfig(TaskConfig):
    """The options of the task ``link_prediction``: scores of pairs of nodes, higher for links than for other pairs.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    metrics = "roc_auc", "average_precision", "mrr"

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(TaskConfig, "kind", "link_prediction")
    metric: Annotated[str, Meta(description="the name of a metric")] = with_default(LabelTaskConfig, "metric", "auto")
    decoder: Annotated[str, one_of(DECODERS)] = with_default(OnEdgesConfig, "decoder", "dot")
    loss: Annotated[str, one_of(LINK_LOSSES)] = setting(
        "bce",
        "loss: of numbers mse, l1, or huber, which is quadratic below one standard deviation; of links bce; or of each link with "
        "each of its pairs that are none bpr, margin (a hinge of 1) or square (1 less the difference of scores, squared)",
    )
    negatives: Annotated[str, one_of(NEGATIVES)] = setting(
        "uniform",
        "pairs that are no links, drawn in each step: uniform, degree (each end in proportion to its degree), or swap (a link with one "
        "end drawn anew)",
    )
    negatives_per_link: Annotated[int, between(1, 1000)] = setting(1, "such pairs for each link of a step")
    negatives_may_be_links: Flag = setting(False, "draw such pairs without a look at the edges of the graph")
    pairs_per_step: Annotated[int, between(0, 2**40)] = setting(
        65536, "links of a step, about; an epoch has as many steps as it takes to see each link once. 0 is all of them"
    )
    exclude: Annotated[str, one_of(("none", "target"))] = setting(
        "none", "edges that a step leaves out of the graph: none, or target, those between the ends of its links"
    )
    top: Annotated[int, between(1, 10_000)] = setting(10, "links that predict writes for each node")

    def __post_init__(self):
        super().__post_init__()
        if self.metric not in ("auto", *self.metrics) and not is_hits(self.metric) and ":" not in self.metric:
            raise InputError(
                f"metric is {self.metric!r}; for the task {self.kind} it must be auto, {', '.join(self.metrics)}, hits@20 "
                "or with another number, or package.module:function"
            )

    @property
    def reads_links(self) -> bool:
        return True

    @property
    def pair_scorer(self) -> str:
        return self.decoder

    @property
    def assumed_out_dim(self) -> int:
        return 1


@described
@dataclass(frozen=True)
class PretrainConfig(TaskConfig):
    """The options of the task ``pretrain``: features of hidden nodes, and edges, are predicted from the rest of the graph.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    kind: Annotated[str, Meta(description="the name of a task")] = with_default(TaskConfig, "kind", "pretrain")
    mask_share: Share = setting(0.5, "share of the nodes whose features a step hides and predicts")
    edge_weight: Annotated[float, between(0.0, 1000.0)] = setting(
        0.1, "weight in the loss of telling edges from other pairs, beside that of features, which is 1"
    )
    pairs_per_step: Annotated[int, between(0, 2**40)] = with_default(LinkPredictionConfig, "pairs_per_step", 65536)

    @property
    def reads_pairs(self) -> bool:
        return True


for _kind in (
    *(NodeClassificationConfig, NodeMultilabelConfig, NodeRegressionConfig),
    *(EdgeClassificationConfig, EdgeMultilabelConfig, EdgeRegressionConfig),
    *(LinkPredictionConfig, PretrainConfig),
):
    TASKS[_kind.kind] = _kind
