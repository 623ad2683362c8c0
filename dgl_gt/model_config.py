"""The settings of the models, a class for each architecture, in a module without torch: commands check them before ranks start."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from dgl_gt.partition.errors import InputError

from .settings import Flag, Settings, Share, between, described, one_of, setting, with_default

# The smallest and the largest sizes are far beyond any use, so that what they refuse is a mistake.
MODEL_LIMITS = {"layers": (1, 1000), "hidden": (1, 1_000_000), "heads": (1, 1_000_000), "ffn": (0, 1000)}
MAP_WEIGHTS = (0.0, 1.7)  # of map_weight; above it, the weight of the first layer's map exceeds 1
EDGE_KINDS = 256  # number of kinds that a column of whole numbers in the edge features may have
PRECISIONS = ("fp32", "bf16")
TRANSFORMER_RESIDUALS = ("identity", "linear")
OPTION_VALUES = {  # allowed values of the options that take a name
    "architecture": ("transformer", "gnn", "polynormer"),
    "score": ("dot", "additive", "gcn", "mean"),
    "residual": ("none", "identity", "linear", "initial"),
    "norm": ("layer", "rms", "batch", "none"),
    "activation": ("relu", "gelu", "swiglu"),
    "gate": ("none", "sigmoid", "free", "constant"),
    "input": ("activated", "linear", "mlp", "none"),
    "output": ("linear", "mlp"),
    "jumping": ("last", "sum", "concat"),
    "global_attention": ("none", "polynormer", "sgformer"),
    "edge_input": ("linear", "mlp", "raw"),
    "edge_role": ("bias", "key_value"),
}
_READERS = {  # settings that only some values of another one read
    "attention_dropout": ("score", ("dot", "additive", "hgt")),
    "initial_weight": ("residual", ("initial",)),
    "map_weight": ("residual", ("initial",)),
    "gate_start": ("gate", ("free", "constant")),
    "global_layers": ("global_attention", ("polynormer", "sgformer")),
    "global_dropout": ("global_attention", ("polynormer", "sgformer")),
    "global_weight": ("global_attention", ("sgformer",)),
    "edge_hidden": ("edge_input", ("linear", "mlp")),
}

_OF_TYPED = {  # what the settings of a transformer may be on a typed graph
    "score": ("dot", "hgt", "mean"),
    "residual": ("identity",),
    "activation": ("relu", "gelu"),
    "jumping": ("last",),
    "global_attention": ("none",),
    "edge_update": (False,),
}
_OF_STREAMED = {  # and what those of a model may be whose layers run part by part
    "residual": ("identity", "linear", "none"),
    "norm": ("layer", "rms", "none"),
    "jumping": ("last",),
    "global_attention": ("none",),
    "edge_update": (False,),
}
_OF_TOKENS = {  # and where it reads hop tokens
    "score": ("dot",),
    "attention_dropout": (0.0,),
    "norm": ("layer", "rms", "none"),
    "input": ("activated", "linear"),
}

Architecture = Annotated[str, one_of(OPTION_VALUES["architecture"])]
Score = Annotated[str, one_of(OPTION_VALUES["score"])]
Residual = Annotated[str, one_of(OPTION_VALUES["residual"])]
Norm = Annotated[str, one_of(OPTION_VALUES["norm"])]
Input = Annotated[str, one_of(OPTION_VALUES["input"])]
Jumping = Annotated[str, one_of(OPTION_VALUES["jumping"])]
Gate = Annotated[str, one_of(OPTION_VALUES["gate"])]
GlobalAttention = Annotated[str, one_of(OPTION_VALUES["global_attention"])]
Weight = Annotated[float, between(0.0, 1.0)]


@dataclass(frozen=True)
class ModelConfig(Settings):
    """What the settings of all architectures have in common."""

    architecture: Architecture = setting("transformer", "the model: transformer, gnn or polynormer")
    layers: Annotated[int, between(*MODEL_LIMITS["layers"])] = setting(2, "number of layers")
    hidden: Annotated[int, between(*MODEL_LIMITS["hidden"])] = setting(64, "width C of the layers")
    heads: Annotated[int, between(*MODEL_LIMITS["heads"])] = setting(
        8, "number of attention heads H, which must divide hidden"
    )
    dropout: Share = setting(0.2, "share of features to drop")
    attention_dropout: Share = setting(0.0, "share of attention weights to drop")
    score: Score = setting(
        "dot", "what a layer does along edges: attention with dot or additive scores, gcn (a sum by degrees) or mean"
    )
    residual: Residual = setting(
        "identity",
        "what a layer adds to its result: identity (the row itself), linear (its projection), initial (GCNII's) or none",
    )
    norm: Norm = setting("layer", "norm of the layers: layer, rms, batch or none")
    norm_first: Flag = setting(True, "normalise the input of each layer (pre-norm) instead of its result (post-norm)")
    activation: Annotated[str, one_of(OPTION_VALUES["activation"])] = setting(
        "gelu", "activation of feed-forward networks, input and output: relu, gelu or swiglu"
    )
    input: Input = setting(
        "activated", "projection before the layers: activated (linear with an activation), linear, mlp or none"
    )
    output: Annotated[str, one_of(OPTION_VALUES["output"])] = setting(
        "linear", "projection after the layers: linear or mlp"
    )
    input_dropout: Share = setting(0.0, "share of node features to drop")
    jumping: Jumping = setting("last", "what the output reads: the last layer, or the sum or concat of all")
    global_attention: GlobalAttention = setting(
        "none", "attention of every node to every node: none, polynormer or sgformer"
    )
    global_layers: Annotated[int, between(*MODEL_LIMITS["layers"])] = setting(1, "number of layers of global attention")
    global_dropout: Share = setting(0.0, "share of features to drop in global attention")
    global_weight: Weight = setting(0.5, "weight of sgformer's attention when it is averaged with the layers")

    def __post_init__(self):
        super().__post_init__()
        if ARCHITECTURES[self.architecture] is not type(self):
            raise InputError(
                f"architecture is {self.architecture}; its settings are a {ARCHITECTURES[self.architecture].__name__}"
            )
        if self.hidden % self.heads:
            raise InputError(f"hidden is {self.hidden}; it must be a multiple of heads ({self.heads})")
        given = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        for name, (owner, values) in _READERS.items():
            if name in given and getattr(self, owner) not in values:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but nothing reads it where {owner} is {getattr(self, owner)}; leave it "
                    f"out, or choose the {owner} {' or '.join(values)}"
                )

    def check_streamed(self) -> None:
        """Raise :class:`InputError` if the settings do not fit a model whose layers run part by part."""
        rules = {name: allowed for name, allowed in _OF_STREAMED.items() if hasattr(self, name)}
        self._check_values(rules, "with spill (--spill)")

    def _check_values(self, rules: dict[str, tuple], where: str) -> None:
        for name, allowed in rules.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; {where} it must be {' or '.join(map(repr, allowed))}"
                )

    def check_with_edges(self, has_edges: bool) -> None:
        """Raise :class:`InputError` if the settings do not fit a model with edge features, or one without."""
        if has_edges:
            raise InputError(
                f"architecture is {self.architecture!r}, but edge features need 'transformer'; choose it, or leave out "
                "the edge features"
            )


@described
@dataclass(frozen=True)
class GraphTransformerConfig(ModelConfig):
    """The options of :class:`dgl_gt.nn.GraphTransformer`, architecture ``transformer``.

    Raises
    ------
    InputError
        A value is out of range, or contradicts another one; the message names it and says what is allowed.
    """

    residual: Annotated[str, one_of(TRANSFORMER_RESIDUALS)] = setting(
        "identity", "what a layer adds to its result: identity (the row itself) or linear (its projection)"
    )
    input: Annotated[str, one_of(OPTION_VALUES["input"][:-1])] = setting(
        "activated", "projection before the layers: activated (linear with an activation), linear or mlp"
    )
    score: Annotated[str, one_of((*OPTION_VALUES["score"], "hgt"))] = setting(
        "dot",
        "what a layer does along edges: attention with dot or additive scores, gcn (a sum by degrees) or mean; on typed graphs dot, "
        "hgt (with maps of each relation) or mean",
    )
    ffn: Annotated[int, between(*MODEL_LIMITS["ffn"])] = setting(
        2, "width of the layers' feed-forward networks, as a multiple of hidden; 0 for none"
    )
    edge_hidden: Annotated[int, between(*MODEL_LIMITS["hidden"])] = setting(16, "width of the edge embeddings")
    edge_input: Annotated[str, one_of(OPTION_VALUES["edge_input"])] = setting(
        "linear",
        "first edge embeddings: linear (a map of the numbers and a row for each kind), mlp, or raw (the numbers)",
    )
    edge_role: Annotated[str, one_of(OPTION_VALUES["edge_role"])] = setting(
        "bias",
        "what a layer adds edge embeddings to: bias (to scores, a number a head) or key_value (to keys and values)",
    )
    edge_update: Flag = setting(False, "whether each layer but the last updates the edge embeddings")

    def check_typed(self) -> None:
        """Raise :class:`InputError` if the settings do not fit a model for typed graphs."""
        self._check_values(_OF_TYPED, "on a typed graph")

    def check_tokens(self) -> None:
        """Raise :class:`InputError` if the settings do not fit a model that reads hop tokens."""
        self._check_values(_OF_TYPED | _OF_TOKENS, "with hop tokens")

    def check_with_edges(self, has_edges: bool) -> None:
        if has_edges and self.score not in ("dot", "hgt"):
            raise InputError(
                f"score is {self.score!r}, but edge features need the score 'dot', or on typed graphs 'hgt'; choose one, or leave out "
                "the edge features"
            )
        for name in ("edge_hidden", "edge_input", "edge_role", "edge_update"):
            if getattr(self, name) != getattr(type(self), name) and not has_edges:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but the model has no edge features; leave it out, or give it edge features"
                )


@described
@dataclass(frozen=True)
class GNNConfig(ModelConfig):
    """The options of :class:`dgl_gt.nn.GNN`, architecture ``gnn``.

    Raises
    ------
    InputError
        A value is out of range, or contradicts another one; the message names it and says what is allowed.
    """

    architecture: Architecture = with_default(ModelConfig, "architecture", "gnn")
    score: Score = with_default(ModelConfig, "score", "gcn")
    residual: Residual = with_default(ModelConfig, "residual", "linear")
    norm_first: Flag = with_default(ModelConfig, "norm_first", False)
    initial_weight: Weight = setting(0.1, "for the residual initial: weight of the rows before the first layer")
    map_weight: Annotated[float, between(*MAP_WEIGHTS)] = setting(
        0.5,
        "for the residual initial: lambda; the linear map of layer l has the weight log(lambda / l + 1); 0 for no map",
    )
    gate: Gate = setting("none", "Polynormer's gate in the layers: none, sigmoid, free or constant")
    gate_start: Annotated[float, between(-1000.0, 1000.0)] = setting(
        0.9, "initial value of a free gate, or value of a constant gate"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.input == "none" and (self.residual in ("identity", "initial") or self.score == "dot"):
            name, value = ("score", "dot") if self.score == "dot" else ("residual", self.residual)
            raise InputError(
                f"input is 'none', but with {name} {value!r} a layer must take as many features as it returns; choose "
                "another input"
            )


@described
@dataclass(frozen=True)
class PolynormerConfig(GNNConfig):
    """The options of :class:`dgl_gt.nn.Polynormer`, architecture ``polynormer``: those of a GNN, with other defaults.

    Raises
    ------
    InputError
        A value is out of range, or contradicts another one; the message names it and says what is allowed.
    """

    architecture: Architecture = with_default(ModelConfig, "architecture", "polynormer")
    score: Score = with_default(ModelConfig, "score", "additive")
    norm: Norm = with_default(ModelConfig, "norm", "none")
    input: Input = with_default(ModelConfig, "input", "linear")
    jumping: Jumping = with_default(ModelConfig, "jumping", "sum")
    gate: Gate = with_default(GNNConfig, "gate", "sigmoid")
    global_attention: GlobalAttention = with_default(ModelConfig, "global_attention", "polynormer")


ARCHITECTURES: dict[str, type[ModelConfig]] = {
    "transformer": GraphTransformerConfig,
    "gnn": GNNConfig,
    "polynormer": PolynormerConfig,
}
