"""The settings of a model, in a module without torch: commands check them before ranks start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dgl_gt.partition.errors import InputError

from .settings import Flag, Settings, Share, between, described, one_of, setting

# The smallest and the largest sizes are far beyond any use, so that what they refuse is a mistake.
MODEL_LIMITS = {"layers": (1, 1000), "hidden": (1, 1_000_000), "heads": (1, 1_000_000), "ffn": (0, 1000)}
MAP_WEIGHTS = (0.0, 1.7)  # of map_weight; above it, the weight of the first layer's map exceeds 1
EDGE_KINDS = 256  # number of kinds that a column of whole numbers in the edge features may have
PRECISIONS = ("fp32", "bf16")
TRANSFORMER_RESIDUALS = ("identity", "linear")
OPTION_VALUES = {  # allowed values of the options that take a name
    "layer": ("transformer", "convolution"),
    "score": ("dot", "additive", "gcn", "mean"),
    "residual": ("none", "identity", "linear", "initial"),
    "norm": ("layer", "rms", "batch", "none"),
    "activation": ("relu", "gelu", "swiglu"),
    "gate": ("none", "sigmoid", "free", "constant"),
    "input": ("activated", "linear", "mlp", "none"),
    "output": ("linear", "mlp"),
    "jumping": ("last", "sum", "concat"),
    "global_attention": ("none", "polynormer", "sgformer"),
}
_READERS = {  # settings that only some values of another one read
    "ffn": ("layer", ("transformer",)),
    "attention_dropout": ("score", ("dot", "additive")),
    "initial_weight": ("residual", ("initial",)),
    "map_weight": ("residual", ("initial",)),
    "gate_start": ("gate", ("free", "constant")),
    "global_layers": ("global_attention", ("polynormer", "sgformer")),
    "global_dropout": ("global_attention", ("polynormer", "sgformer")),
    "global_weight": ("global_attention", ("sgformer",)),
}


@described
@dataclass(frozen=True)
class ModelConfig(Settings):
    """The arguments of :class:`dgl_gt.nn.GraphTransformer` besides the widths of its input and result.

    Raises
    ------
    InputError
        A value is out of range, or contradicts another one; the message names it and says what is allowed.
    """

    layers: Annotated[int, between(*MODEL_LIMITS["layers"])] = setting(2, "number of layers")
    hidden: Annotated[int, between(*MODEL_LIMITS["hidden"])] = setting(64, "width C of the layers")
    heads: Annotated[int, between(*MODEL_LIMITS["heads"])] = setting(
        8, "number of attention heads H, which must divide hidden"
    )
    ffn: Annotated[int, between(*MODEL_LIMITS["ffn"])] = setting(
        2, "feed-forward width of transformer layers, as a multiple of hidden; 0 for none"
    )
    dropout: Share = setting(0.2, "share of features to drop")
    attention_dropout: Share = setting(0.0, "share of attention weights to drop")
    norm_first: Flag = setting(True, "normalise the input of each layer (pre-norm) instead of its result (post-norm)")
    layer: Annotated[str, one_of(OPTION_VALUES["layer"])] = setting(
        "transformer", "kind of layer: transformer or convolution"
    )
    score: Annotated[str, one_of(OPTION_VALUES["score"])] = setting(
        "dot", "what a layer does along edges: attention with dot or additive scores, gcn (a sum by degrees) or mean"
    )
    residual: Annotated[str, one_of(OPTION_VALUES["residual"])] = setting(
        "identity",
        "what a layer adds to its result: identity (the row itself), linear (its projection), initial (GCNII's) or none",
    )
    initial_weight: Annotated[float, between(0.0, 1.0)] = setting(
        0.1, "for --residual initial: weight of the rows before the first layer"
    )
    map_weight: Annotated[float, between(*MAP_WEIGHTS)] = setting(
        0.5,
        "for --residual initial: lambda; the linear map of layer l has the weight log(lambda / l + 1); 0 for no map",
    )
    norm: Annotated[str, one_of(OPTION_VALUES["norm"])] = setting(
        "layer", "norm of the layers: layer, rms, batch or none"
    )
    activation: Annotated[str, one_of(OPTION_VALUES["activation"])] = setting(
        "gelu", "activation of feed-forward networks, input and output: relu, gelu or swiglu"
    )
    input: Annotated[str, one_of(OPTION_VALUES["input"])] = setting(
        "activated", "projection before the layers: activated (linear with an activation), linear, mlp or none"
    )
    output: Annotated[str, one_of(OPTION_VALUES["output"])] = setting(
        "linear", "projection after the layers: linear or mlp"
    )
    input_dropout: Share = setting(0.0, "share of node features to drop")
    jumping: Annotated[str, one_of(OPTION_VALUES["jumping"])] = setting(
        "last", "what the output reads: the last layer, or the sum or concat of all"
    )
    gate: Annotated[str, one_of(OPTION_VALUES["gate"])] = setting(
        "none", "Polynormer's gate in convolution layers: none, sigmoid, free or constant"
    )
    gate_start: Annotated[float, between(-1000.0, 1000.0)] = setting(
        0.9, "initial value of a free gate, or value of a constant gate"
    )
    global_attention: Annotated[str, one_of(OPTION_VALUES["global_attention"])] = setting(
        "none", "attention of every node to every node: none, polynormer or sgformer"
    )
    global_layers: Annotated[int, between(*MODEL_LIMITS["layers"])] = setting(1, "number of layers of global attention")
    global_dropout: Share = setting(0.0, "share of features to drop in global attention")
    global_weight: Annotated[float, between(0.0, 1.0)] = setting(
        0.5, "weight of sgformer's attention when it is averaged with the layers"
    )
    edge_hidden: Annotated[int, between(*MODEL_LIMITS["hidden"])] = setting(16, "width of the edge embeddings")
    edge_update: Flag = setting(False, "whether each layer but the last updates the edge embeddings")

    def __post_init__(self):
        super().__post_init__()
        if self.hidden % self.heads:
            raise InputError(f"hidden is {self.hidden}; it must be a multiple of heads ({self.heads})")
        for name, (owner, values) in _READERS.items():
            value, default, chosen = getattr(self, name), getattr(type(self), name), getattr(self, owner)
            if value != default and chosen not in values:
                raise InputError(
                    f"{name} is {value}, but nothing reads it where {owner} is {chosen}; leave it out, or choose "
                    f"the {owner} {' or '.join(values)}"
                )

    def check_with_edges(self, has_edges: bool) -> None:
        """Raise :class:`InputError` if settings contradict each other, for a model with or without edge features."""
        _check_contradictions(self.layer, self.residual, self.input, self.gate, self.score, has_edges)
        for name in ("edge_hidden", "edge_update"):
            if getattr(self, name) != getattr(type(self), name) and not has_edges:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but the model has no edge features; leave it out, or give it edge features"
                )


def _check_contradictions(layer: str, residual: str, input: str, gate: str, score: str, has_edges: bool) -> None:
    if has_edges and (layer, score) != ("transformer", "dot"):
        name, value, needed = ("score", score, "dot") if layer == "transformer" else ("layer", layer, "transformer")
        raise InputError(
            f"{name} is {value!r}, but edge features need the {name} {needed!r}; choose {needed!r}, or leave out the edge features"
        )
    if layer == "transformer":
        if gate != "none":
            raise InputError(f"gate is {gate!r}, but transformer layers have no gate; choose layer 'convolution'")
        if input == "none":
            raise InputError("input is 'none', but transformer layers need an input projection; choose another input")
        if residual not in TRANSFORMER_RESIDUALS:
            raise InputError(
                f"residual is {residual!r}, but transformer layers need 'identity' or 'linear'; choose one of "
                "them, or the layer 'convolution'"
            )
    elif input == "none" and (residual in ("identity", "initial") or score == "dot"):
        name, value = ("score", score) if score == "dot" else ("residual", residual)
        raise InputError(
            f"input is 'none', but with {name} {value!r} a layer must take as many features as it returns; choose "
            "another input"
        )
