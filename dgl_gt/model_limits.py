"""The allowed values of a model's options, in a module without torch. Configs and the model itself check options here."""

from __future__ import annotations

from dgl_gt.partition.errors import InputError

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


def check_contradictions(*, layer: str, residual: str, input: str, gate: str, score: str, has_edges: bool) -> None:
    """Raise :class:`InputError` if options of a model contradict each other."""
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
