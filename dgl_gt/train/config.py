"""The settings of a training run: model, task, optimiser, exchange, checkpoints, and the run itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from dgl_gt.exchange.policy.policy import Policy, is_policy_file, parse_mode, read_policy
from dgl_gt.model_config import ARCHITECTURES, PRECISIONS, GraphTransformerConfig, ModelConfig
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import TypedWidths
from dgl_gt.partition.figures.strategies import ACTIVATION_CHECKPOINTS, AUTO, CHOICES, strategy_of
from dgl_gt.partition.system.yaml_file import check_keys, read_yaml
from dgl_gt.settings import Count, Flag, Settings, between, described, one_of, option_name, setting, types_of

from .task_config import NodeClassificationConfig
from .task_settings import SHORT_NAMES, TASKS, TaskConfig

OPTIMIZERS = ("adamw", "adam")
SCHEDULES = ("constant", "cosine", "plateau")
DECAYED = ("weights", "all")
ON_NAN = ("stop", "skip")
DECAY_OF_TYPED = {"optimizer": "adam", "weight_decay": 0.005, "decay": "all"}
DEFAULT = "default"  # in place of a strategy: the cut's
KINDS: dict[str, tuple[str, dict]] = {  # of sections with a class for each value of one of their settings
    "model": ("architecture", ARCHITECTURES),
    "task": ("kind", TASKS),
}
CHOOSE_KIND = tuple((section, key) for section, (key, _) in KINDS.items())
_SECONDS = {"s": 1, "m": 60, "h": 3600}


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
    map_decay: Annotated[float, between(0.0, 1000.0)] = setting(
        0.0, "weight decay of the maps of GCNII's residual (map_weight), where it is more than weight_decay"
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
        The strategy or the policy is unknown.
    """

    strategy: Annotated[str, Meta(description="the name of a strategy")] = setting(
        DEFAULT,
        f"how rows travel between ranks: {', '.join((*CHOICES, AUTO))}; by default halo, and mirror on vertex cuts",
    )
    depth: Annotated[int, between(1, 1000)] = setting(
        1, "layers between two exchanges; more than 1 needs shards made with --halo-depth"
    )
    policy: Annotated[
        str, Meta(min_length=1, description="a transmission policy, or the name of a .yaml file with one")
    ] = setting(
        "exact",
        "what ranks send each other in training steps: exact, bf16, int8, int4, stale=K, sampled=Q, alone or a .yaml file "
        "of rules, see docs/approximate.md; all but exact are approximate",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.strategy not in (DEFAULT, AUTO):
            strategy_of(self.strategy, (DEFAULT, *CHOICES, AUTO))
        if self.strategy == AUTO and self.depth != 1:
            raise InputError(f"depth is {self.depth}, but strategy auto chooses it; bound it with --max-depth")
        if not is_policy_file(self.policy):
            parse_mode(self.policy)

    @property
    def choice(self) -> tuple[str | None, int]:
        """The strategy and the depth, as :func:`dgl_gt.load` takes them."""
        return None if self.strategy == DEFAULT else self.strategy, self.depth

    @cached_property
    def rules(self) -> Policy:
        """The policy; a file of rules is read once. ``InputError`` says why it cannot be read."""
        return read_policy(self.policy)


@described
@dataclass(frozen=True)
class CheckpointConfig(Settings):
    """When a run writes checkpoints, section ``checkpoints``.

    Raises
    ------
    InputError
        A value is out of range.
    """

    every: Annotated[
        str,
        Meta(
            pattern=r"\A[1-9][0-9]{0,8}[smh]?\Z",
            description="a number of epochs such as 50, or a time such as 30s, 10m or 2h",
        ),
    ] = setting("10m", "epochs (50) or time (30s, 10m, 2h) from one checkpoint to the next", option="checkpoint_every")

    def __post_init__(self):
        if isinstance(self.every, (int, np.integer)) and not isinstance(self.every, bool):
            object.__setattr__(self, "every", str(self.every))
        super().__post_init__()

    @property
    def interval(self) -> tuple[int | None, float | None]:
        """Epochs, or else seconds, from one checkpoint to the next."""
        number, unit = re.fullmatch(r"(\d+)([smh]?)", self.every).groups()
        return (None, int(number) * _SECONDS[unit]) if unit else (int(number), None)


@described
@dataclass(frozen=True)
class TrainConfig(Settings):
    """The settings of a training run, in sections, as in ``--config FILE.yaml``.

    :func:`read_config` and :meth:`changed` take the settings of all sections by their names alone, and they alone tell a
    value that was asked for from a default: typed graphs have defaults of their own (docs/models.md), which replace equal
    values of sections that were given whole.

    Raises
    ------
    InputError
        A value is out of range, or contradicts another one; the message names it and says what is allowed.
    """

    model: ModelConfig = GraphTransformerConfig()
    task: TaskConfig = NodeClassificationConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    epochs: Annotated[int, between(1, 10**9)] = setting(200, "largest number of epochs")
    local_epochs: Count = setting(
        0, "epochs that train the layers without polynormer's attention, which then starts from the best weights so far"
    )
    evaluate_every: Annotated[int, between(1, 10**9)] = setting(1, "epochs from one evaluation to the next")
    patience: Count = setting(50, "stop after this many epochs without a better validation metric; 0 means never")
    seed: Annotated[int, between(0, 2**62 - 1)] = setting(0, "seed of the initial weights and of dropout")
    precision: Annotated[str, one_of((*PRECISIONS, "auto"))] = setting(
        "fp32",
        "fp32; bf16 for products and attention, while weights, gradients and the optimiser stay in fp32; or auto: what is "
        "faster in a product that is timed before training",
    )
    activation_checkpoint: Annotated[str, one_of(ACTIVATION_CHECKPOINTS)] = setting(
        "none",
        "what the backward pass computes again: none; full, each layer with its exchanges; or keep_exchanges, each layer "
        "without them",
    )
    on_nan: Annotated[str, one_of(ON_NAN)] = setting(
        "stop", "what to do if the loss is not finite: stop with an error, or skip the step"
    )

    init: Annotated[str, Meta(description="a model directory")] = setting(
        "", "model to start from, which `dgl-gt train --out` has written, for any task; its head is taken where it fits"
    )
    frozen: Flag = setting(False, "with init: train the head alone, which is what comes after the rows of nodes")

    given: ClassVar[frozenset[str]] = frozenset()  # what `changed` was called with, by name

    def __post_init__(self):
        super().__post_init__()
        if self.frozen and not self.init:
            raise InputError("frozen is true, and init names no model to start from; add it, or leave frozen out")
        if self.frozen and self.local_epochs:
            raise InputError(
                f"frozen is true, and local_epochs is {self.local_epochs}, which trains the layers; leave one of them out"
            )
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
        if "task" in settings:
            settings["task"] = SHORT_NAMES.get(str(settings["task"]), settings["task"])
        of_section: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            section, each = SETTINGS[name]
            of_section.setdefault(section, {})[each.name] = value
        of_run = of_section.pop("", {})
        found = replace(self, **of_run, **{name: self._changed(name, values) for name, values in of_section.items()})
        object.__setattr__(found, "given", frozenset((*self.given, *settings)))
        return found

    def _changed(self, section: str, values: dict[str, Any]) -> Settings:
        """A section with other values; one of another kind has its own defaults, and the settings that differ from ours."""
        ours = getattr(self, section)
        key, kinds = KINDS.get(section, ("", {}))
        name = values.get(key, getattr(ours, key, None))
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None:  # there is one kind, or this one is refused
            return replace(ours, **values)
        kept = {each.name: getattr(ours, each.name) for each in fields(ours)}
        if kind is not type(ours):
            kept = {each: value for each, value in kept.items() if value != getattr(type(ours), each)}
        values = kept | values
        option = option_name(kind.__dataclass_fields__[key])
        for other in sorted(values.keys() - kind.__dataclass_fields__.keys()):
            owners = " or ".join(each for each, its in kinds.items() if other in its.__dataclass_fields__)
            raise InputError(
                f"{other} is {values[other]!r}, but nothing reads it where {option} is {name}; leave it out, or choose the "
                f"{option} {owners}"
            )
        return kind(**values | {key: name})

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
SETTINGS = {  # by name, the section of each setting ("" for none) and its field, of all kinds of the section
    option_name(each): (section, each)
    for section in SECTIONS
    for kind in (KINDS[section][1].values() if section in KINDS else [SECTIONS[section]])
    for each in fields(kind)
    if each.metadata
}
PATHS = {
    f"{section}.{each.name}".lstrip("."): name for name, (section, each) in SETTINGS.items()
}  # model.hidden: hidden


def with_typed_defaults(config: TrainConfig, features: int | TypedWidths) -> TrainConfig:
    """The config with the defaults of typed graphs in place of what is not given, if the graph is typed.

    Layers take means over each relation, unless something is set that enters attention scores; norms follow them, and more
    is dropped. Classes of nodes are learned with a weight decay in the gradient, unless the optimiser's kind or a decay is
    given. If no type has features to read, there is no decay, and all have trained rows as wide as the layers. Hop tokens
    keep the usual defaults.
    """
    if not isinstance(features, TypedWidths) or config.task.encodings:
        return config
    model, found = config.model, dict[str, Any]()
    if isinstance(model, GraphTransformerConfig):
        has_scores = config.task.edge_features or model.attention_dropout
        found = {} if has_scores else {"score": "mean"}
        found |= {"norm_first": False, "dropout": 0.5}
        is_default = {name for name in found if getattr(model, name) == getattr(GraphTransformerConfig, name)}
        found = {name: found[name] for name in sorted(is_default - config.given)}
    is_decay_given = not DECAY_OF_TYPED.keys().isdisjoint(config.given) or config.optimizer.weight_decay
    if not any(features.as_dict().values()):
        found |= {} if config.task.node_embedding else {"node_embedding": model.hidden}
    elif isinstance(config.task, NodeClassificationConfig) and not is_decay_given:
        found |= DECAY_OF_TYPED
    return config.changed(**found)


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
    if ":" in str(values.get("metric", "")) and overrides.get("metric") is None:
        raise InputError(f"{path}: metric is {values['metric']!r}; no file may name a function: give it as --metric")
    overrides = {key: value for key, value in overrides.items() if value is not None}
    for section, (key, kinds) in KINDS.items() if "shape" in content else ():
        option = PATHS[f"{section}.{key}"]
        kind = kinds.get(str(values.get(option)))
        if kind and overrides.get(option, values[option]) != values[option]:
            # A run's own file has all settings of its kind; those of its defaults are not the user's.
            is_default = {
                each for each, value in values.items() if value == getattr(kind, SETTINGS[each][1].name, None)
            }
            values = {
                each: value for each, value in values.items() if SETTINGS[each][0] != section or each not in is_default
            }
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
