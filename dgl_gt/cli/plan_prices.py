"""``dgl-gt plan --prices``: clusters of rented machines by the hours and the money of a run."""

from __future__ import annotations

import math
import shlex
import warnings

from dgl_gt.partition import console
from dgl_gt.partition.command_options import READING
from dgl_gt.partition.errors import SourceWarning
from dgl_gt.partition.figures.profile import PRESETS, read_profile
from dgl_gt.train.config import TrainConfig

_OF_GRAPHS = (*READING, "self_loops", "self_loop_fill", "undirected", "random_features", "seed")
_OF_TRAINING = ("config", "set", "layers", "hidden", "heads", "ffn", "precision", "epochs", "model_factory")


def quote(args, config: TrainConfig, traces_of, additions: dict) -> tuple[dict, str]:
    """Quotes for all clusters, as JSON values and as text; ``additions`` say how a graph is read."""
    from dgl_gt.plan.forecast import forecast_clusters, read_sources
    from dgl_gt.plan.prices import doubts, quotes, quotes_table, read_prices, text_of_quote

    clusters, currency = read_prices(args.prices)
    warnings.simplefilter("ignore", SourceWarning)  # said in the form of the command line
    with console.Stages() as progress:
        seed = args.seed or 0
        sources = read_sources(args.source, seed, progress, console.print_source_notes, **additions)
        plans = forecast_clusters(
            sources,
            [(each.profile, each.ranks) for each in clusters],
            traces_of,
            max_depth=args.max_depth,
            figures_of=args.figures_of,
            seed=seed,
            progress=progress,
        )
    found = quotes(clusters, plans, config.epochs, args.deadline or math.inf)
    best, fastest = found[0], min(found, key=lambda each: each.hours)
    commands, unsure = _commands(args, best), doubts(found, config.evaluate_every, args.figures_of is not None)
    values = {"currency": currency, "epochs": config.epochs, "deadline_s": args.deadline}
    values |= {"quotes": [each.as_dict() for each in found], "commands": commands, "unsure": unsure}
    lines = [f"cheapest{' in time' if args.deadline else ''}: {text_of_quote(best, currency)}"]
    lines += [f"  {command}" for command in commands]
    lines += [f"fastest: {text_of_quote(fastest, currency)}"] if fastest is not best else []
    lines += ["", quotes_table(found, config.epochs, currency), "", "unsure:", *(f"- {line}" for line in unsure)]
    return values, "\n".join(lines)


def _commands(args, best) -> list[str]:
    """The commands that partition the graph, unless it is in shards, and train on the best cluster."""
    choice, cluster = best.plan.choice, best.cluster
    shards, lines = "shards" if args.figures_of else choice.directory or "shards", []
    if args.figures_of or choice.directory is None:
        source = "GRAPH" if args.figures_of else args.source[0]
        words = ["dgl-gt", "partition", source, "--parts", choice.parts, "--out", shards, "--cut", choice.cut]
        words += ["--halo-depth", choice.depth] if choice.depth > 1 else []
        name, link = cluster.profile.name, cluster.profile.link_bytes_per_s
        if choice.parts == choice.ranks > 1 and (
            name not in PRESETS or link == read_profile(preset=name).link_bytes_per_s
        ):
            words += ["--preset" if name in PRESETS else "--profile", name]
        lines.append([*words, *_as_given(args, _OF_GRAPHS)])
    ranks, parts = choice.ranks, choice.parts
    words = ["train", shards, "--strategy", choice.strategy]
    words += ["--depth", choice.depth] if choice.depth > 1 else []
    words += ["--activation-checkpoint", choice.activation_checkpoint] if choice.activation_checkpoint != "none" else []
    words += ["--spill", "."] if choice.spilled else []
    if cluster.machines > 1:
        each = ["--nnodes", cluster.machines, "--nproc-per-node", ranks // cluster.machines]
        start = ["torchrun", *each, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500", "-m", "dgl_gt"]
    else:
        start = ["dgl-gt"]
        words += ["--nproc", ranks] if parts != ranks else []
    lines.append([*start, *words, "--out", "run", *_as_given(args, _OF_TRAINING)])
    return [shlex.join(map(str, line)) for line in lines]


def _as_given(args, names: tuple[str, ...]) -> list[str]:
    """These options as the user gave them."""
    words = []
    for name in names:
        value, option = getattr(args, name), f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            value = ",".join(f"{column}={each}" for column, each in value.items())
        for each in value if isinstance(value, list) else [value]:
            if each is not None and each is not False:
                words += [option] if each is True else [option, str(each)]
    return words
