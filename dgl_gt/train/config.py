"""The settings of a training run: model, task, optimiser, exchange, and the run itself."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from dgl_gt.exchange.policy.policy import Policy, is_policy_file, parse_mode, read_policy
from dgl_gt.model_config import ARCHITECTURES, EDGE_KINDS, PRECISIONS, GraphTransformerConfig, ModelConfig
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS
from dgl_gt.partition.system.yaml_file import check_keys, read_yaml
from dgl_gt.settings import Count, Flag, Settings, Share, between, described, one_of, option_name, setting, types_of

METRIC_TITLES = {"accuracy": "accuracy", "roc_auc": "ROC-AUC"}
METRICS = ("auto", *METRIC_TITLES)
ASSUMED_CLASSES = 40  # in predictions, which are made before the labels are read
OPTIMIZERS = ("adamw", "adam")
SCHEDULES = ("constant", "cosine", "plateau")
DECAYED = ("weights", "all")
ON_NAN = ("stop", "skip")  # what train does where the loss is not finite
CLASS_WEIGHTS = ("none", "balanced")

_ENCODINGS = r"\A([a-z_]+(,[a-z_]+)*)?\Z"
_NAMES = r"\A([^,]+(,[^,]+)*)?\Z"  # edge data may have any name, but one with a comma cannot be given here
MEANINGS = ("number", "kind")  # of edge data


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


@described
@dataclass(frozen=True)
class TaskConfig(Settings):
    """What is learned from which data, section ``task``.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

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
    label_smoothing: Share = setting(0.0, "share of a label that is spread over all classes")
    class_weights: Annotated[str, one_of(CLASS_WEIGHTS)] = setting(
        "none", "weights of classes in the loss: none, or balanced, which gives each class the same total weight"
    )
    entropy_unlabelled: Annotated[float, between(0.0, 1000.0)] = setting(
        0.0, "weight in the loss of the mean entropy of predictions for rows outside the training rows"
    )
    entropy_labelled: Annotated[float, between(0.0, 1000.0)] = setting(
        0.0, "weight with which the mean entropy of predictions for training rows is subtracted from the loss"
    )
    metric: Annotated[str, one_of(METRICS)] = setting(
        "auto", "accuracy, roc_auc, or auto: ROC-AUC for two classes, else accuracy"
    )
    split: Count = setting(0, "number of the split, counted from 0, if the masks hold several")

    def __post_init__(self):
        super().__post_init__()
        _edge_columns(self.edge_features)

    @property
    def inputs(self) -> Inputs:
        """What a model reads of the data."""
        return Inputs(_split(self.encodings), self.normalize_features, _edge_columns(self.edge_features))


@described
@dataclass(frozen=True)
class OptimizerConfig(Settings):
    """How weights are updated, section ``optimizer``.

    Raises
    ------
    InputError
        A value is out of range; the message names it and says what is allowed.
    """

    kind: Annotated[str, one_of(OPTIMIZERS)] = setting(
        "adamw", "adamw, or adam, whose weight decay is part of the gradient", option="optimizer"
    )
    lr: Annotated[float, between(1e-12, 1000.0)] = setting(3e-3, "learning rate")
    weight_decay: Annotated[float, between(0.0, 1000.0)] = setting(0.0, "weight decay")
    decay: Annotated[str, one_of(DECAYED)] = setting(
        "weights", "which parameters decay: weights (not biases, norms or gates), or all"
    )
    schedule: Annotated[str, one_of(SCHEDULES)] = setting(
        "constant",
        "learning rate after warmup: constant; cosine, which falls towards 0; or plateau, which halves it "
        "after a quarter of patience without a better validation metric",
    )
    warmup: Count = setting(10, "number of epochs in which the learning rate rises to lr")


@described
@dataclass(frozen=True)
class ExchangeConfig(Settings):
    """What ranks send each other, section ``exchange``.

    Raises
    ------
    InputError
        The policy is unknown.
    """

    policy: Annotated[
        str, Meta(min_length=1, description="a transmission policy, or the name of a .yaml file with one")
    ] = setting(
        "exact",
        "what ranks send each other in training steps: exact, bf16, int8, int4, stale=K, sampled=Q, alone or a .yaml file "
        "of rules, see docs/approximate.md; all but exact are approximate",
    )

    def __post_init__(self):
        super().__post_init__()
        if not is_policy_file(self.policy):
            parse_mode(self.policy)

    @cached_property
    def rules(self) -> Policy:
        """The policy; a file of rules is read once. ``InputError`` says why it cannot be read."""
        return read_policy(self.policy)


@described
@dataclass(frozen=True)
class TrainConfig(Settings):
    """The settings of a training run, in sections, as in ``--config FILE.yaml``.

    :func:`read_config` and :meth:`changed` take the settings of all sections by their names alone.

    Raises
    ------
    InputError
        A value is out of range, or contradicts another one; the message names it and says what is allowed.
    """

    model: ModelConfig = GraphTransformerConfig()
    task: TaskConfig = TaskConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    epochs: Annotated[int, between(1, 10**9)] = setting(200, "largest number of epochs")
    local_epochs: Count = setting(
        0, "epochs that train the layers without polynormer's attention, which then starts from the best weights so far"
    )
    evaluate_every: Annotated[int, between(1, 10**9)] = setting(1, "epochs from one evaluation to the next")
    patience: Count = setting(50, "stop after this many epochs without a better validation metric; 0 means never")
    seed: Annotated[int, between(0, 2**62 - 1)] = setting(0, "seed of the initial weights and of dropout")
    precision: Annotated[str, one_of(PRECISIONS)] = setting(
        "fp32",
        "fp32, or bf16 for products and attention; weights, gradients and the optimiser stay in fp32",
    )
    activation_checkpoint: Annotated[str, one_of(ACTIVATION_CHECKPOINTS)] = setting(
        "none",
        "what the backward pass computes again: none; full, each layer with its exchanges; or keep_exchanges, each layer "
        "without them",
    )

    def __post_init__(self):
        super().__post_init__()
        self.model.check_with_edges(bool(self.task.edge_features))
        if self.optimizer.schedule == "plateau" and not self.patience:
            raise InputError(
                "schedule is plateau, which counts in quarters of patience, but patience is 0; set patience"
            )
        if self.local_epochs and self.model.global_attention != "polynormer":
            raise InputError(
                f"local_epochs is {self.local_epochs}, but nothing reads it where global_attention is "
                f"{self.model.global_attention}; leave it out, or choose the global_attention polynormer"
            )
        if self.local_epochs >= self.epochs:
            raise InputError(f"local_epochs is {self.local_epochs}; it must be below epochs ({self.epochs})")

    def changed(self, **settings) -> TrainConfig:
        """Return this config with other values of some settings, of whatever section, by their names alone."""
        check_keys(settings, SETTINGS, "settings")
        of_section: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            section, each = SETTINGS[name]
            of_section.setdefault(section, {})[each.name] = value
        of_run = of_section.pop("", {})
        sections = {
            name: replace(getattr(self, name), **values) for name, values in of_section.items() if name != "model"
        }
        if "model" in of_section:
            sections["model"] = self._changed_model(of_section["model"])
        return replace(self, **of_run, **sections)

    def _changed_model(self, values: dict[str, Any]) -> ModelConfig:
        """The model with other values; one of another architecture has its own defaults, and the settings that differ from ours."""
        name = values.get("architecture", self.model.architecture)
        kind = ARCHITECTURES.get(name) if isinstance(name, str) else None
        if kind is None:
            return replace(self.model, **values)  # says what is allowed
        ours = {each.name: getattr(self.model, each.name) for each in fields(self.model)}
        if kind is not type(self.model):
            ours = {key: value for key, value in ours.items() if value != getattr(type(self.model), key)}
        values = ours | values
        for other in sorted(values.keys() - kind.__dataclass_fields__.keys()):
            owners = " or ".join(each for each, its in ARCHITECTURES.items() if other in its.__dataclass_fields__)
            raise InputError(
                f"{other} is {values[other]!r}, but nothing reads it where architecture is {name}; leave it out, or choose the "
                f"architecture {owners}"
            )
        return kind(**values | {"architecture": name})

    def flat(self) -> dict[str, Any]:
        """Return all settings by their names alone."""
        found = {}
        for name, (section, each) in SETTINGS.items():
            owner = getattr(self, section) if section else self
            if hasattr(owner, each.name):
                found[name] = getattr(owner, each.name)
        return found


SECTIONS = {each.name: types_of(TrainConfig)[each.name] for each in fields(TrainConfig) if not each.metadata} | {
    "": TrainConfig
}
SETTINGS = {  # by name, the section of each setting ("" for none) and its field; for the model, those of all architectures
    option_name(each): (section, each)
    for section in SECTIONS
    for kind in (ARCHITECTURES.values() if section == "model" else [SECTIONS[section]])
    for each in fields(kind)
    if each.metadata
}
PATHS = {
    f"{section}.{each.name}".lstrip("."): name for name, (section, each) in SETTINGS.items()
}  # model.hidden: hidden


def policy_of(config: TrainConfig) -> Policy:
    """The transmission policy of a config; ``InputError`` if it cannot be read, or does not fit the config."""
    policy = config.exchange.rules
    policy.check_model(config.activation_checkpoint)
    return policy


def by_path(values: dict) -> dict[str, Any]:
    """Settings by path, such as ``model.hidden``, from a mapping with sections."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    return found


def read_config(path=None, **overrides) -> TrainConfig:
    """A config from a YAML file, or the defaults, with the overrides that are not None.

    Parameters
    ----------
    path : path, optional
        YAML file with settings by section: ``epochs: 100``, ``model: {hidden: 64}``.
    **overrides
        Settings that win over the file, by their names alone: ``hidden=64``.

    Returns
    -------
    TrainConfig

    Raises
    ------
    InputError
        The file cannot be read, or it has an unknown key or a value out of range.
    """
    content = {} if path is None else read_yaml(path)
    values = _flat(content, str(path))
    overrides = {key: value for key, value in overrides.items() if value is not None}
    kind = ARCHITECTURES.get(str(values.get("architecture")))
    if kind and "shape" in content and overrides.get("architecture", kind.architecture) != kind.architecture:
        # A run's own file has all settings of its architecture; those of its defaults are not the user's.
        is_default = {key for key, value in values.items() if value == getattr(kind, key, None)}
        values = {key: value for key, value in values.items() if SETTINGS[key][0] != "model" or key not in is_default}
    try:
        return TrainConfig().changed(**values | overrides)
    except InputError as error:
        if str(error).split()[0] in values.keys() - overrides.keys():  # the first word is the setting
            raise InputError(f"{path}: {error}") from None
        raise


def _flat(values: dict, where: str) -> dict[str, Any]:
    """Settings by their names alone, from a mapping with sections; the ``shape`` in a run's own file is left out."""
    shape = values.get("shape")
    if isinstance(shape, dict) and "model_factory" in shape:
        made_by = shape["model_factory"]
        raise InputError(
            f"{where}: {made_by} made the model of this run; leave out shape, and give --model-factory {made_by}"
        )
    names = [PATHS.get(key, key) for key in values if key not in SECTIONS]
    if sections := {name: SETTINGS[name][0] for name in names if name in SETTINGS and SETTINGS[name][0]}:
        example = "; ".join(f"{name} in {section}" for name, section in sections.items())
        raise InputError(f"{where}: these settings stand in sections, as in model: {{hidden: 64}}: {example}")
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key and key in SECTIONS and not isinstance(value, dict):
            raise InputError(f"{where}: {key} is {value!r}; it must be a mapping, such as {key}: {{...}}")
        if key != "shape":
            found |= by_path({key: value}) if key in SECTIONS else {key: value}
    check_keys(found, PATHS, where)
    return {PATHS[path]: value for path, value in found.items()}
