"""What settings of a model may be, without torch. Settings and the model itself check them."""

# The smallest and the largest sizes are far beyond any use, so that what they refuse is a mistake.
MODEL_LIMITS = {"layers": (1, 1000), "hidden": (1, 1_000_000), "heads": (1, 1_000_000), "ffn": (0, 1000)}
PRECISIONS = ("fp32", "bf16")
LAYERS = ("transformer", "convolution")
SCORES = ("dot", "additive", "gcn", "mean")
RESIDUALS = ("none", "identity", "linear")
NORMS = ("layer", "rms", "batch", "none")
ACTIVATIONS = ("relu", "gelu", "swiglu")
GATES = ("none", "sigmoid", "free", "constant")
INPUTS = ("activated", "linear", "mlp", "none")
OUTPUTS = ("linear", "mlp")
JUMPING = ("last", "sum", "concat")
GLOBAL_ATTENTIONS = ("none", "polynormer", "sgformer")
