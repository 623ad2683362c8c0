"""The smallest and the largest sizes that a graph transformer can have. Settings and the model itself check them."""

# They are far beyond any use, so that what they refuse is a mistake.
MODEL_LIMITS = {"layers": (1, 1000), "hidden": (1, 1_000_000), "heads": (1, 1_000_000), "ffn": (1, 1000)}
