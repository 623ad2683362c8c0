"""Recipes: models that are known to do well, each with a small space of settings that its authors found to matter.

Data and no code: a setting has a fixed value, or what it may be with its middle, which is a good first value. Settings
have the names of ``dgl_gt.train.config.SETTINGS``, and ``local_share`` is that of ``local_epochs`` in ``epochs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dgl_gt.partition.errors import check_one_of

SIZES = ("small", "base", "large")


@dataclass(frozen=True)
class Choice:
    """One of some values, in ascending order where they are numbers."""

    values: tuple
    middle: Any


@dataclass(frozen=True)
class Number:
    """A number of a range: a whole one, or a float by its logarithm or not."""

    least: float
    most: float
    middle: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        return isinstance(self.least, int)


@dataclass(frozen=True)
class Recipe:
    """A published model, and how it is trained.

    Attributes
    ----------
    title, source : str
        What it is, and where its settings and their ranges come from.
    fixed : dict
        Settings that are part of the model, and the task, if it is for one alone.
    space : dict of str to Choice or Number
        Settings that a search may change.
    epochs : int
        Epochs of a whole run.
    typed : bool
        Whether it is for typed graphs, and no others.
    encodings : str
        Encodings that the shards must have, with commas.
    """

    title: str
    source: str
    fixed: dict[str, Any]
    space: dict[str, Choice | Number]
    epochs: int
    typed: bool = False
    encodings: str = ""

    def fits(self, is_typed: bool, task: str) -> bool:
        """Whether it is for typed graphs, or for others, and for a task."""
        return self.typed == is_typed and self.fixed.get("task", task) == task


# Tuned GNNs, Luo et al., arXiv:2406.08993: width 64, 256 or 512, 1 to 10 layers, dropout 0.2 to 0.7, learning rate 0.001 to
# 0.01, the norms and the residual; weight decay 0 to 5e-4 (their run_gnn.sh). The middle is the most frequent there.
_TUNED: dict[str, Choice | Number] = {
    "layers": Number(1, 8, 3),
    "hidden": Choice((64, 128, 256, 512), 128),
    "dropout": Number(0.2, 0.7, 0.5),
    "norm": Choice(("layer", "batch", "none"), "layer"),
    "residual": Choice(("linear", "none"), "linear"),
    "input": Choice(("none", "linear"), "none"),
    "lr": Number(1e-3, 1e-2, 3e-3, log=True),
    "weight_decay": Choice((0.0, 5e-5, 5e-4), 5e-5),
    "normalize_features": Choice((False, True), False),
}
_ADAM = {"optimizer": "adam", "decay": "all", "warmup": 0}
_GNN = {"architecture": "gnn", "heads": 1, **_ADAM}
_LUO = "Luo et al., arXiv:2406.08993, and run_gnn.sh of their code"

# Of typed graphs, where the place of the norm decides on some and on others not at all (docs/models.md).
_TYPED: dict[str, Choice | Number] = {
    "hidden": Choice((32, 64, 128), 64),
    "ffn": Number(0, 4, 2),
    "norm_first": Choice((False, True), True),
    "dropout": Number(0.1, 0.7, 0.5),
    "lr": Number(5e-4, 1e-2, 3e-3, log=True),
    "weight_decay": Number(1e-5, 0.1, 1e-3, log=True),
}

_LINK_LOSSES = "bce", "square", "bpr"

RECIPES = {
    "gcn": Recipe("tuned GCN", _LUO, {**_GNN, "score": "gcn"}, _TUNED, 500),
    "gat": Recipe(
        "tuned GAT",
        _LUO,
        {**_GNN, "score": "additive"},
        {**_TUNED, "layers": Number(1, 6, 2), "hidden": Choice((32, 64, 128, 256), 64)},
        500,
    ),
    "sage": Recipe("tuned SAGE", _LUO, {**_GNN, "score": "mean"}, _TUNED, 500),
    "polynormer": Recipe(
        "Polynormer",
        # 5 to 10 layers of width 32 to 512, 1 to 4 global layers, dropout 0.2 to 0.7 and 0.1 to 0.5 of the input, 100 to 200
        # local epochs of some 1,000, a beta that is learned or starts at 0.1 to 0.5
        "Deng et al., arXiv:2403.01232, and run.sh of their code",
        {"architecture": "polynormer", "heads": 8, "gate": "free", **_ADAM},
        {
            "layers": Number(3, 8, 5),
            "hidden": Choice((32, 64, 128, 256), 64),
            "dropout": Number(0.2, 0.7, 0.4),
            "input_dropout": Number(0.0, 0.4, 0.2),
            "global_layers": Number(1, 4, 2),
            "global_dropout": Number(0.0, 0.6, 0.3),
            "gate_start": Choice((0.1, 0.5, 0.9), 0.1),
            "lr": Number(5e-4, 5e-3, 1e-3, log=True),
            "weight_decay": Choice((0.0, 5e-5, 5e-4), 5e-5),
            "local_share": Number(0.15, 0.5, 0.3),
        },
        500,
    ),
    "gt": Recipe(
        "graph transformer",
        # GPS and Exphormer in the comparison of Luo et al.: width 64 to 512, 1 to 10 layers, dropout 0.1 to 0.7; the residual is ours
        "examples/amazon_computer.yaml and examples/tolokers.yaml; Luo et al., arXiv:2406.08993, GTs_baselines",
        {"architecture": "transformer", "heads": 8},
        {
            "layers": Number(1, 5, 3),
            "hidden": Choice((32, 64, 128, 256), 64),
            "ffn": Number(0, 4, 2),
            "dropout": Number(0.1, 0.7, 0.4),
            "residual": Choice(("identity", "linear"), "linear"),
            "lr": Number(3e-4, 1e-2, 2e-3, log=True),
            "weight_decay": Number(1e-5, 0.1, 1e-3, log=True),
            "normalize_features": Choice((False, True), False),
        },
        300,
    ),
    "gcnii": Recipe(
        "GCNII",
        # 2 to 64 layers of width 64, alpha 0.1, lambda 0.5, dropout 0.6, weight decay 5e-4, and 0.01 of the maps; without these
        # it is APPNP's sum
        "Chen et al., arXiv:2007.02133; examples/cora_gcn.yaml",
        {**_GNN, "score": "gcn", "residual": "initial", "norm": "none", "activation": "relu"},
        {
            "layers": Choice((4, 8, 16, 32), 16),
            "hidden": Choice((64, 128, 256), 64),
            "dropout": Number(0.3, 0.8, 0.6),
            "input_dropout": Number(0.0, 0.8, 0.6),
            "initial_weight": Number(0.05, 0.5, 0.1),
            "map_weight": Choice((0.0, 0.5, 1.0), 0.5),
            "map_decay": Choice((0.0, 1e-3, 1e-2), 1e-2),
            "lr": Number(1e-3, 2e-2, 1e-2, log=True),
            "weight_decay": Number(1e-5, 1e-2, 5e-4, log=True),
            "normalize_features": Choice((False, True), True),
        },
        600,
    ),
    "sgformer": Recipe(
        "SGFormer around a tuned GCN",
        # weights of the graph 0.5 or 0.8
        "Wu et al., arXiv:2306.10759; sgformer.sh of Luo et al., arXiv:2406.08993",
        {**_GNN, "score": "gcn", "jumping": "sum", "global_attention": "sgformer", "residual": "linear"},
        {
            "layers": Number(1, 6, 3),
            "hidden": Choice((64, 128, 256), 128),
            "dropout": Number(0.1, 0.7, 0.5),
            "norm": Choice(("layer", "batch"), "batch"),
            "global_weight": Number(0.1, 0.6, 0.3),
            "global_dropout": Number(0.0, 0.6, 0.3),
            "lr": Number(5e-4, 1e-2, 2e-3, log=True),
            "weight_decay": Choice((0.0, 5e-5, 5e-4), 5e-5),
        },
        500,
    ),
    "mlp": Recipe(
        "MLP, the floor: each row by itself",
        "the ranges of the tuned GNNs; the sum over neighbours has the weight 0",
        {
            **_GNN,
            "score": "gcn",
            "residual": "initial",
            "initial_weight": 1.0,
            "map_weight": 1.7,
            "layers": 1,
            "input": "mlp",
            "activation": "relu",
        },
        {
            "hidden": Choice((64, 128, 256, 512), 128),
            "dropout": Number(0.1, 0.8, 0.5),
            "norm": Choice(("layer", "none"), "layer"),
            "lr": Number(5e-4, 2e-2, 3e-3, log=True),
            "weight_decay": Choice((0.0, 5e-5, 5e-4), 5e-4),
            "normalize_features": Choice((False, True), False),
        },
        300,
    ),
    "gae": Recipe(
        "graph autoencoder that sums the rows of all layers",
        # norms, residuals and the logistic loss find fewer links of cora; on ogbl-ddi that loss finds far more, and others have it
        "Kipf and Welling, arXiv:1611.07308; examples/cora_links.yaml",
        {
            **_GNN,
            "residual": "none",
            "norm": "none",
            "input": "none",
            "jumping": "sum",
            "activation": "relu",
            "task": "link_prediction",
        },
        {
            "layers": Number(1, 4, 2),
            "hidden": Choice((64, 128, 256, 512), 128),
            "score": Choice(("gcn", "mean"), "gcn"),
            "lr": Number(1e-3, 2e-2, 3e-3, log=True),
            "weight_decay": Choice((0.0, 5e-5, 5e-4), 5e-5),
            "normalize_features": Choice((False, True), False),
            "dropout": Number(0.0, 0.7, 0.5),
            "loss": Choice(_LINK_LOSSES, "square"),
        },
        500,
    ),
    "link_sage": Recipe(
        "SAGE for links",
        # 2 or 3 layers of width 256, dropout 0 or 0.5, learning rate 0.0005 to 0.01; no norm, and features as they are
        "Hu et al., arXiv:2005.00687, and their examples of links",
        {
            **_GNN,
            "score": "mean",
            "residual": "linear",
            "norm": "none",
            "input": "none",
            "activation": "relu",
            "weight_decay": 0.0,
            "task": "link_prediction",
        },
        {
            "layers": Number(1, 4, 2),
            "hidden": Choice((64, 128, 256, 512), 128),
            "lr": Number(5e-4, 2e-2, 5e-3, log=True),
            "normalize_features": Choice((False, True), False),
            "input_dropout": Number(0.0, 0.8, 0.0),
            "dropout": Number(0.0, 0.7, 0.5),
        },
        500,
    ),
    "rgcn": Recipe(
        "R-GCN with feed-forward networks",
        "examples/acm.yaml; Schlichtkrull et al., arXiv:1703.06103, for the means by relation",
        {"architecture": "transformer", "score": "mean", "heads": 8},
        {**_TYPED, "layers": Number(1, 6, 4)},
        120,
        typed=True,
    ),
    "hgt": Recipe(
        "heterogeneous graph transformer",
        "Hu et al., arXiv:2003.01332: 2 to 4 layers with 8 heads, dropout 0.2",
        {"architecture": "transformer", "heads": 8},
        {**_TYPED, "score": Choice(("dot", "hgt"), "dot"), "layers": Number(1, 4, 2)},
        120,
        typed=True,
    ),
    "hops": Recipe(
        "transformer of hop tokens",
        "docs/accuracy.md; Hu et al., arXiv:2310.14481, for the tokens",
        {"architecture": "transformer", "heads": 8},
        {
            "layers": Number(1, 3, 1),
            "hidden": Choice((32, 64, 128), 64),
            "dropout": Number(0.2, 0.7, 0.5),
            "input_dropout": Number(0.0, 0.5, 0.3),
            "lr": Number(5e-4, 1e-2, 1e-3, log=True),
            "weight_decay": Number(1e-5, 0.1, 1e-3, log=True),
        },
        80,
        typed=True,
        encodings="hops",
    ),
}

# What tasks add to the space of recipes that do not have it. Sharpening (arXiv:2605.20248) is a weight of the loss.
OF_TASKS: dict[str, dict[str, Choice | Number]] = {
    "node_classification": {"entropy_unlabelled": Choice((0.0, 0.1, 0.3, 1.0), 0.1)},
    "edge_regression": {"loss": Choice(("mse", "huber"), "mse")},
    "link_prediction": {
        "input_dropout": Number(0.0, 0.8, 0.7),  # examples/cora_links.yaml
        "loss": Choice(_LINK_LOSSES, "bce"),
        "decoder": Choice(("dot", "hadamard"), "dot"),
    },
}


def settings_of(name: str, size: str = "base", epochs: int | None = None) -> dict[str, Any]:
    """The settings of the middle of a recipe by their names, for a first run; the width is its smallest, middle or largest.

    Raises
    ------
    InputError
        There is no such recipe or size.
    """
    check_one_of("model", name, tuple(RECIPES))
    check_one_of("size", size, SIZES)
    recipe = RECIPES[name]
    found = recipe.fixed | {key: each.middle for key, each in recipe.space.items()}
    widths = recipe.space["hidden"]
    if size != "base" and isinstance(widths, Choice):
        found["hidden"] = widths.values[0 if size == "small" else -1]
    if recipe.encodings:
        found["encodings"] = recipe.encodings
    return in_epochs(found, epochs or recipe.epochs)


def in_epochs(settings: dict[str, Any], epochs: int) -> dict[str, Any]:
    """The settings for a run of at most this many epochs, which is evaluated some 250 times; those that are given win."""
    settings = {name: value for name, value in settings.items() if name != "epochs"}
    share = settings.pop("local_share", 0.0)
    found = {"epochs": epochs, "patience": max(20, epochs // 3), "evaluate_every": max(1, epochs // 250)}
    if share:
        found["local_epochs"] = max(1, int(share * epochs))
    return found | settings
