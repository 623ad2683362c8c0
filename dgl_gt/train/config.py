"""The settings of a training run: model, optimiser, schedule."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, get_type_hints

from msgspec import Meta

from dgl_gt.exchange.policy.policy import Policy, is_policy_file, parse_mode, read_policy
from dgl_gt.model_limits import EDGE_KINDS, MAP_WEIGHTS, MODEL_LIMITS, OPTION_VALUES, PRECISIONS, check_contradictions
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS
from dgl_gt.partition.system.yaml_file import check_keys, read_yaml, typed

METRIC_TITLES = {"accuracy": "accuracy", "roc_auc": "ROC-AUC"}
METRICS = ("auto", *METRIC_TITLES)
ASSUMED_CLASSES = 40  # in predictions, which are made before the labels are read
OPTIMIZERS = ("adamw", "adam")
SCHEDULES = ("constant", "cosine", "plateau")
DECAYED = ("weights", "all")
ON_NAN = ("stop", "skip")  # what train does where the loss is not finite
CLASS_WEIGHTS = ("none", "balanced")
OF_MODEL = (  # settings of the model, which are arguments of GraphTransformer
    "layers",
    "hidden",
    "heads",
    "ffn",
    "dropout",
    "attention_dropout",
    "norm_first",
    "layer",
    "score",
    "residual",
    "norm",
    "activation",
    "input",
    "output",
    "input_dropout",
    "jumping",
    "gate",
    "gate_start",
    "global_attention",
    "global_layers",
    "global_dropout",
    "global_weight",
    "edge_hidden",
    "edge_update",
    "initial_weight",
    "map_weight",
)


def _between(least, most) -> Meta:
    """Limits far beyond any use, so that a value outside of them is a mistake."""
    kind, style = ("number", "g") if isinstance(most, float) else ("whole number", ",")
    return Meta(ge=least, le=most, description=f"a {kind} from {least:{style}} to {most:{style}}")


def _one_of(names: tuple[str, ...]) -> Meta:
    return Meta(pattern=f"^({'|'.join(names)})$", description=f"{', '.join(names[:-1])} or {names[-1]}")


_ENCODINGS = r"^([a-z_]+(,[a-z_]+)*)?$"
_NAMES = r"^([^,]+(,[^,]+)*)?$"  # edge data may have any name, but one with a comma cannot be given here
MEANINGS = ("number", "kind")  # of edge data
_Count = Annotated[int, _between(0, 10**9)]
_Share = Annotated[float, Meta(ge=0, lt=1, description="at least 0 and below 1")]
_Flag = Annotated[bool, Meta(description="true or false")]


def _setting(default, help_text: str):
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class Inputs:
    """What a model reads of the data: features, divided by their sums or not, encodings, and edge data with meanings."""

    encodings: tuple[str, ...] = ()
    normalizes_features: bool = False
    edge_features: dict[str, str | None] = field(default_factory=dict)  # one of ``MEANINGS``, or None if not stated


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run; each is a key of ``--config FILE.yaml`` and an option of ``dgl-gt train``.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    layers: Annotated[int, _between(*MODEL_LIMITS["layers"])] = _setting(2, "number of layers")
    hidden: Annotated[int, _between(*MODEL_LIMITS["hidden"])] = _setting(64, "width C of the layers")
    heads: Annotated[int, _between(*MODEL_LIMITS["heads"])] = _setting(
        8, "number of attention heads H, which must divide hidden"
    )
    ffn: Annotated[int, _between(*MODEL_LIMITS["ffn"])] = _setting(
        2, "feed-forward width of transformer layers, as a multiple of hidden; 0 for none"
    )
    dropout: _Share = _setting(0.2, "share of features to drop")
    attention_dropout: _Share = _setting(0.0, "share of attention weights to drop")
    norm_first: _Flag = _setting(True, "normalise the input of each layer (pre-norm) instead of its result (post-norm)")
    layer: Annotated[str, _one_of(OPTION_VALUES["layer"])] = _setting(
        "transformer", "kind of layer: transformer or convolution"
    )
    score: Annotated[str, _one_of(OPTION_VALUES["score"])] = _setting(
        "dot", "what a layer does along edges: attention with dot or additive scores, gcn (a sum by degrees) or mean"
    )
    residual: Annotated[str, _one_of(OPTION_VALUES["residual"])] = _setting(
        "identity",
        "what a layer adds to its result: identity (the row itself), linear (its projection), initial (GCNII's) or none",
    )
    initial_weight: Annotated[float, _between(0.0, 1.0)] = _setting(
        0.1, "for --residual initial: weight of the rows before the first layer"
    )
    map_weight: Annotated[float, _between(*MAP_WEIGHTS)] = _setting(
        0.5,
        "for --residual initial: lambda; the linear map of layer l has the weight log(lambda / l + 1); 0 for no map",
    )
    norm: Annotated[str, _one_of(OPTION_VALUES["norm"])] = _setting(
        "layer", "norm of the layers: layer, rms, batch or none"
    )
    activation: Annotated[str, _one_of(OPTION_VALUES["activation"])] = _setting(
        "gelu", "activation of feed-forward networks, input and output: relu, gelu or swiglu"
    )
    input: Annotated[str, _one_of(OPTION_VALUES["input"])] = _setting(
        "activated", "projection before the layers: activated (linear with an activation), linear, mlp or none"
    )
    output: Annotated[str, _one_of(OPTION_VALUES["output"])] = _setting(
        "linear", "projection after the layers: linear or mlp"
    )
    input_dropout: _Share = _setting(0.0, "share of node features to drop")
    jumping: Annotated[str, _one_of(OPTION_VALUES["jumping"])] = _setting(
        "last", "what the output reads: the last layer, or the sum or concat of all"
    )
    gate: Annotated[str, _one_of(OPTION_VALUES["gate"])] = _setting(
        "none", "Polynormer's gate in convolution layers: none, sigmoid, free or constant"
    )
    gate_start: Annotated[float, _between(-1000.0, 1000.0)] = _setting(
        0.9, "initial value of a free gate, or value of a constant gate"
    )
    global_attention: Annotated[str, _one_of(OPTION_VALUES["global_attention"])] = _setting(
        "none", "attention of every node to every node: none, polynormer or sgformer"
    )
    global_layers: Annotated[int, _between(*MODEL_LIMITS["layers"])] = _setting(
        1, "number of layers of global attention"
    )
    global_dropout: _Share = _setting(0.0, "share of features to drop in global attention")
    global_weight: Annotated[float, _between(0.0, 1.0)] = _setting(
        0.5, "weight of sgformer's attention when it is averaged with the layers"
    )
    encodings: Annotated[str, Meta(pattern=_ENCODINGS, description="names of encodings with commas between them")] = (
        _setting("", "encodings in the shards to append to the features, such as laplacian,degree")
    )
    edge_features: Annotated[str, Meta(pattern=_NAMES, description="names of edge data with commas between them")] = (
        _setting(
            "",
            "edge data of the shards from which each layer makes a bias of its scores, with what they are, as in "
            f"weight:number,type:kind; kinds are whole numbers from 0 to {EDGE_KINDS - 1}, and have a learned row each. By default "
            "edge_kind and shortest_path are kinds, and all others numbers",
        )
    )
    edge_hidden: Annotated[int, _between(*MODEL_LIMITS["hidden"])] = _setting(16, "width of the edge embeddings")
    edge_update: _Flag = _setting(False, "whether each layer but the last updates the edge embeddings")
    normalize_features: _Flag = _setting(False, "divide each node's features by the sum of their absolute values")
    local_epochs: _Count = _setting(
        0, "epochs that train the layers without polynormer's attention, which then starts from the best weights so far"
    )
    epochs: Annotated[int, _between(1, 10**9)] = _setting(200, "largest number of epochs")
    optimizer: Annotated[str, _one_of(OPTIMIZERS)] = _setting(
        "adamw", "adamw, or adam, whose weight decay is part of the gradient"
    )
    lr: Annotated[float, _between(1e-12, 1000.0)] = _setting(3e-3, "learning rate")
    weight_decay: Annotated[float, _between(0.0, 1000.0)] = _setting(0.0, "weight decay")
    decay: Annotated[str, _one_of(DECAYED)] = _setting(
        "weights", "which parameters decay: weights (not biases, norms or gates), or all"
    )
    schedule: Annotated[str, _one_of(SCHEDULES)] = _setting(
        "constant",
        "learning rate after warmup: constant; cosine, which falls towards 0; or plateau, which halves it "
        "after a quarter of patience without a better validation metric",
    )
    warmup: _Count = _setting(10, "number of epochs in which the learning rate rises to lr")
    label_smoothing: _Share = _setting(0.0, "share of a label that is spread over all classes")
    class_weights: Annotated[str, _one_of(CLASS_WEIGHTS)] = _setting(
        "none", "weights of classes in the loss: none, or balanced, which gives each class the same total weight"
    )
    entropy_unlabelled: Annotated[float, _between(0.0, 1000.0)] = _setting(
        0.0, "weight in the loss of the mean entropy of predictions for rows outside the training rows"
    )
    entropy_labelled: Annotated[float, _between(0.0, 1000.0)] = _setting(
        0.0, "weight with which the mean entropy of predictions for training rows is subtracted from the loss"
    )
    evaluate_every: Annotated[int, _between(1, 10**9)] = _setting(1, "epochs from one evaluation to the next")
    patience: _Count = _setting(50, "stop after this many epochs without a better validation metric; 0 means never")
    metric: Annotated[str, _one_of(METRICS)] = _setting(
        "auto", "accuracy, roc_auc, or auto: ROC-AUC for two classes, else accuracy"
    )
    split: _Count = _setting(0, "number of the split, counted from 0, if the masks hold several")
    seed: Annotated[int, _between(0, 2**62 - 1)] = _setting(0, "seed of the initial weights and of dropout")
    precision: Annotated[str, _one_of(PRECISIONS)] = _setting(
        "fp32",
        "fp32, or bf16: matrix products, attention and what follows them in bfloat16 with sums in float32; weights, "
        "gradients and the optimiser stay in float32",
    )
    activation_checkpoint: Annotated[str, _one_of(ACTIVATION_CHECKPOINTS)] = _setting(
        "none",
        "what a layer keeps for the backward pass. none: everything; full: its input only, so that the backward pass "
        "computes and exchanges again; keep_exchanges: its input and the rows that it received, so that the backward "
        "pass computes again without exchanging",
    )

    policy: Annotated[
        str, Meta(min_length=1, description="a transmission policy, or the name of a .yaml file with one")
    ] = _setting(
        "full",
        "what ranks send each other in training steps: full, bf16, int8 or int4; stale=K (send every K steps; K may be "
        "auto) or sampled=Q (send a share Q of the copies), either with a precision, as in stale=4,int8; on a vertex cut "
        "none, or none,edges=Q (train on a share Q of the edges); or a .yaml file of rules. All but full are "
        "approximate; evaluations are exact",
    )

    def __post_init__(self):
        for name, kind in _types().items():
            typed(getattr(self, name), kind, name)
        if not is_policy_file(self.policy):
            parse_mode(self.policy)
        if self.hidden % self.heads:
            raise InputError(f"hidden is {self.hidden}; it must be a multiple of heads ({self.heads})")
        _edge_columns(self.edge_features)
        options = {name: getattr(self, name) for name in ("layer", "residual", "input", "gate", "score")}
        check_contradictions(**options, has_edges=bool(self.edge_features))
        if self.schedule == "plateau" and not self.patience:
            raise InputError(
                "schedule is plateau, which counts in quarters of patience, but patience is 0; set patience"
            )
        self._check_unread()
        if self.local_epochs >= self.epochs:
            raise InputError(f"local_epochs is {self.local_epochs}; it must be below epochs ({self.epochs})")

    def _check_unread(self) -> None:
        """Refuse a setting that differs from its default although nothing of this model reads it."""
        readers = {
            "ffn": ("layer", ("transformer",)),
            "attention_dropout": ("score", ("dot", "additive")),
            "initial_weight": ("residual", ("initial",)),
            "map_weight": ("residual", ("initial",)),
            "gate_start": ("gate", ("free", "constant")),
            "global_layers": ("global_attention", ("polynormer", "sgformer")),
            "global_dropout": ("global_attention", ("polynormer", "sgformer")),
            "global_weight": ("global_attention", ("sgformer",)),
            "local_epochs": ("global_attention", ("polynormer",)),
        }
        for name in ("edge_hidden", "edge_update"):
            if getattr(self, name) != getattr(type(self), name) and not self.edge_features:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but there are no edge_features; leave it out, or set edge_features"
                )
        for name, (owner, values) in readers.items():
            value, default, chosen = getattr(self, name), getattr(type(self), name), getattr(self, owner)
            if value != default and chosen not in values:
                raise InputError(
                    f"{name} is {value}, but nothing reads it where {owner} is {chosen}; leave it out, or choose "
                    f"the {owner} {' or '.join(values)}"
                )

    @property
    def inputs(self) -> Inputs:
        """What a model of this config reads of the node data."""
        return Inputs(_split(self.encodings), self.normalize_features, _edge_columns(self.edge_features))


def policy_of(config: TrainConfig) -> Policy:
    """The transmission policy of a config.

    Raises
    ------
    InputError
        It cannot be read, or the config does not fit it.
    """
    policy = read_policy(config.policy)
    policy.check_model(config.activation_checkpoint)
    return policy


def _split(names: str) -> tuple[str, ...]:
    """The names in a list with commas, each once."""
    return tuple(dict.fromkeys(filter(None, names.split(","))))


def _edge_columns(text: str) -> dict[str, str | None]:
    """What ``weight:number,type:kind,length`` says about each column: ``number``, ``kind`` or nothing, which is None."""
    columns: dict[str, str | None] = {}
    for word in _split(text):
        name, colon, meaning = word.rpartition(":")
        if not colon or meaning not in MEANINGS:
            name, meaning = word, None
        if name in columns:
            raise InputError(f"edge_features names {name!r} twice, in {text!r}; name it once")
        columns[name] = meaning
    return columns


@cache
def _types() -> dict:
    return get_type_hints(TrainConfig, include_extras=True)


def _described() -> str:
    """Return the settings as the parameters of a docstring, from the texts of the options of ``dgl-gt train``."""
    lines = ["Parameters", "----------"]
    for setting in fields(TrainConfig):
        kind = _types()[setting.name]
        lines.append(f"{setting.name} : {kind.__origin__.__name__}, default {setting.default!r}")
        text, allowed = setting.metadata["help"], kind.__metadata__[0].description
        text = f"{text[:1].upper()}{text[1:]}."
        if not all(word in text for word in allowed.replace(" or ", ", ").split(", ")):
            text += f" Allowed: {allowed}."
        lines.append(textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
    return textwrap.indent("\n".join(lines), "    ")


# What help() shows: plain types in the signature, and every setting.
TrainConfig.__init__.__annotations__ = get_type_hints(TrainConfig)
TrainConfig.__doc__ = (TrainConfig.__doc__ or "").replace("    Raises\n", f"{_described()}\n\n    Raises\n")


def read_config(path=None, **overrides) -> TrainConfig:
    """A config from a YAML file, or the defaults, with the overrides that are not None.

    Parameters
    ----------
    path : path, optional
        YAML file with settings.
    **overrides
        Settings that win over the file, by name.

    Returns
    -------
    TrainConfig

    Raises
    ------
    InputError
        The file cannot be read, or it has an unknown key or a value out of range.
    """
    values = {} if path is None else read_yaml(path)
    check_keys(values, _types(), str(path))
    overrides = {key: value for key, value in overrides.items() if value is not None}
    try:
        return TrainConfig(**values | overrides)
    except InputError as error:
        if str(error).split()[0] in values.keys() - overrides.keys():  # the first word is the setting
            raise InputError(f"{path}: {error}") from None
        raise
