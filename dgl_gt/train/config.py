"""What a training run is told: model, optimiser, schedule."""

from __future__ import annotations

import dataclasses
import reprlib
from contextlib import suppress
from dataclasses import dataclass, field, fields

from dgl_gt.yaml_file import read_yaml
from partition.errors import InputError
from partition.predict.traffic import ACTIVATION_CHECKPOINTS, MODEL_LIMITS, Model
from partition.system.output_checks import Kind

METRICS = ("auto", "accuracy", "roc_auc")
WEIGHTS = "model.safetensors"
MODEL = Kind(
    "a model",
    "record.json",
    lambda record: {"strategy", "ranks", "losses", "metric"} <= record.keys(),
    r"model\.safetensors|config\.yaml",
)  # the directory of dgl_gt.train.saved_model, which needs torch
# What a setting may be, from and to: far beyond any use, so that what is refused is a slip.
LIMITS = {
    **{name: MODEL_LIMITS[name] for name in ("layers", "hidden", "heads", "ffn")},
    "epochs": (1, 10**9),
    "warmup": (0, 10**9),
    "patience": (0, 10**9),
    "split": (0, 10**9),
    "seed": (0, 2**62 - 1),
    "lr": (1e-12, 1000.0),
    "weight_decay": (0.0, 1000.0),
}


def _option(default, help_text: str):
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class TrainConfig:
    """A training run's settings; each is a key of ``--config FILE.yaml`` and an option of ``dgl-gt train``.

    Raises
    ------
    InputError
        A value out of range, naming it and what is allowed.
    """

    layers: int = _option(Model.layers, "transformer layers")
    hidden: int = _option(Model.hidden, "width C of the layers")
    heads: int = _option(Model.heads, "attention heads H; must divide hidden")
    ffn: int = _option(Model.ffn, "feed-forward width, as a multiple of hidden")
    dropout: float = _option(0.2, "dropout on features")
    attention_dropout: float = _option(0.0, "dropout on attention weights")
    norm_first: bool = _option(True, "layer norm before attention and feed-forward, not after")
    epochs: int = _option(200, "epochs at most")
    lr: float = _option(3e-3, "AdamW learning rate")
    weight_decay: float = _option(0.0, "AdamW weight decay")
    warmup: int = _option(10, "epochs over which the learning rate rises to lr")
    patience: int = _option(50, "stop after so many epochs without a better validation metric; 0: never")
    metric: str = _option("auto", "auto (ROC-AUC for two classes, else accuracy), accuracy or roc_auc")
    split: int = _option(0, "which split, where the masks hold several")
    seed: int = _option(0, "seed of initial weights and dropout")
    activation_checkpoint: str = _option(
        "none",
        "what a layer keeps for the backward pass. none: everything; full: its input, so that backward computes and "
        "exchanges again; keep_exchanges: its input and the rows that it received, so that backward computes again",
    )

    def __post_init__(self):
        for option in fields(self):
            _check_type(option, getattr(self, option.name))
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            style = "g" if isinstance(most, float) else ","
            _require(least <= value <= most, name, value, f"from {least:{style}} to {most:{style}}")
        for name in ("dropout", "attention_dropout"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "at least 0 and below 1")
        _require(self.metric in METRICS, "metric", self.metric, ", ".join(METRICS))
        _require(
            self.activation_checkpoint in ACTIVATION_CHECKPOINTS,
            "activation_checkpoint",
            self.activation_checkpoint,
            ", ".join(ACTIVATION_CHECKPOINTS),
        )
        _require(self.hidden % self.heads == 0, "hidden", self.hidden, f"a multiple of heads ({self.heads})")


def _require(holds: bool, name: str, value, allowed: str) -> None:
    if not holds:
        raise InputError(f"{name} is {reprlib.repr(value)}; it must be {allowed}")


def _check_type(option, value) -> None:
    kind = {"int": int, "float": (int, float), "bool": bool, "str": str}[option.type]
    if not isinstance(value, kind) or (isinstance(value, bool) and option.type != "bool"):
        raise InputError(f"{option.name} is {reprlib.repr(value)}; it must be of type {option.type}")


def read_config(path=None, **overrides) -> TrainConfig:
    """A config from a YAML file (or defaults), with overrides that are not None.

    Raises
    ------
    InputError
        Unreadable file, unknown keys, values out of range.
    """
    values = {} if path is None else read_yaml(path)
    known = {option.name for option in fields(TrainConfig)}
    unknown = sorted(set(values) - known, key=str)
    if unknown:
        raise InputError(f"{path}: unknown key {reprlib.repr(unknown[0])}; allowed are {', '.join(sorted(known))}")
    given = {key: value for key, value in overrides.items() if value is not None}
    of_file, values = values.keys() - given.keys(), values | given
    for option in fields(TrainConfig):
        if option.type == "float" and isinstance(values.get(option.name), str):
            with suppress(ValueError):  # YAML 1.1 reads 3e-3, which has no point, as text
                values[option.name] = float(values[option.name])
    try:
        return TrainConfig(**values)
    except InputError as error:  # its first word is the setting
        if str(error).split()[0] in of_file:
            raise InputError(f"{path}: {error}") from None
        raise


def as_dict(config: TrainConfig) -> dict:
    """Plain values, ready for YAML."""
    return dataclasses.asdict(config)
