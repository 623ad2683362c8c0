"""The options of the command ``partition``, and the arguments of :func:`dgl_gt.partition.partition` that they become."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

from dgl_gt.partition.distributed.engine import MEMORY_BYTES, MOST_WORKERS, connected, local
from dgl_gt.partition.figures.costs import read_costs
from dgl_gt.partition.figures.profile import PRESETS, read_profile
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.sources.options import IDS
from dgl_gt.partition.sources.text_table import SHOWN, parses
from dgl_gt.partition.system.units import parse_size
from dgl_gt.partition.system.user_files import regular_file

from .config import CUTS, PartitionConfig
from .errors import InputError, whole_number

READING = (
    *("num_nodes", "node_data", "node_table", "id", "ends", "fill_missing"),
    *("ids", "label", "features", "skip", "keys"),
)
FILL = "X|mean|zero"  # the form of --self-loop-fill
FILL_HELP = (
    "edge data of the self-loops that are added: a number, the mean over the node's in-edges, or zero; or one for each edge "
    "data, as in weight=mean,type=0"
)


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the source and the options of ``partition``."""
    command.add_argument("source", metavar="SOURCE", help="the graph, see below")
    command.add_argument("--parts", type=int, metavar="P", help="number of parts, one per rank")
    command.add_argument("--out", metavar="DIR", help="shard directory to write")
    command.add_argument(
        "--dry-run", action="store_true", help="print estimates of memory, disk and time; write nothing"
    )
    command.add_argument("--seed", type=int, help="the same seed gives the same shards (default: 0)")
    text = "write the part of each node in place of shards: an edge cut, for DGL's dispatch_data.py and GraphStorm"
    command.add_argument("--assignment-only", action="store_true", help=text)
    text = "format of --assignment-only: NODE_TYPE.txt and partition_meta.json (the default)"
    command.add_argument("--format", choices=("dgl",), help=text)
    command.add_argument("--force", action="store_true", help="replace DIR if it holds shards")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    _add_cut(command.add_argument_group("cut"))
    _add_memory(command.add_argument_group("memory"))
    _add_engine(command.add_argument_group("many workers"))
    add_reading(command.add_argument_group("reading the source"))
    _add_graph(command.add_argument_group("changes to the graph"))


def _add_cut(group) -> None:
    group.add_argument(
        "--cut",
        choices=CUTS,
        help="assign nodes to parts (edge), edges to parts (vertex), or make both cuts and keep the one that is "
        "predicted to train faster (auto); default: edge, or vertex if --memory is too small for METIS",
    )
    group.add_argument("--attempts", type=int, metavar="A", help="edge cuts to make; the best one is kept (default: 1)")
    group.add_argument(
        "--costs",
        metavar="FILE.json",
        help="file with the costs of a training step of your model on your machines, by which attempts and cuts are compared; "
        "`dgl-gt plan --save-costs` writes it (default: costs of the default model of `dgl-gt train`)",
    )
    group.add_argument("--halo-depth", type=int, metavar="R", help="hops of halo that an edge cut stores (default: 1)")
    group.add_argument(
        "--target-weights", metavar="W,W,..", help="relative size of each part: P numbers, or a file of them"
    )
    text = "edge data with weights of edges: an edge cut of little weight, in place of few halo rows"
    group.add_argument("--cut-weights", metavar="NAME", help=text)
    text = "node data with weights of nodes, such as a METIS file's (weight): parts have even sums of these, in place of even times"
    group.add_argument("--node-weights", metavar="NAME", help=text)
    group.add_argument(
        "--profile",
        metavar="FILE.yaml",
        help="hardware profile of the ranks that will train, written by `dgl-gt calibrate`: parts are sized by the speeds "
        "of their ranks, and placed so that heavy traffic uses fast links",
    )
    group.add_argument(
        "--preset", metavar="NAME", help=f"profile that comes with dgl-gt, in place of --profile: {', '.join(PRESETS)}"
    )
    group.add_argument(
        "--like",
        metavar="DIR",
        help="shards of an earlier state of this graph: nodes stay in their parts, and new ones go to their neighbours",
    )
    group.add_argument(
        "--move",
        type=float,
        metavar="X",
        help="with --like, move nodes if that lowers the predicted step by more than this share, such as 0.05",
    )
    group.add_argument(
        "--max-imbalance",
        metavar="X",
        help="upper bound on a part's nodes, edges and training nodes, relative to its share: one number X for all, "
        "or edges=X,nodes=Y,train=Z",
    )
    text = "keep the nodes of each type of a typed graph even, beside the predicted times of parts"
    group.add_argument("--balance", choices=("types",), help=text)


def add_bound(group, text: str) -> None:
    """Add the bound on memory."""
    group.add_argument(
        "--memory",
        type=size_in_bytes,
        metavar="SIZE",
        help=f"bound on memory, such as 4GiB; {text}",
    )


def _add_memory(group) -> None:
    add_bound(group, "if METIS needs more, a method that needs less is used")
    group.add_argument(
        "--rank-memory",
        type=size_in_bytes,
        metavar="SIZE",
        help="memory for the tensors of a training rank, excluding about 0.5 GiB for its process (unlike --rank-memory of "
        "train and plan); cuts that need more are refused",
    )


def _add_engine(group) -> None:
    text = "cut by many workers: those of a Dask scheduler (dask), or processes of this machine (local); see docs/distributed_partitioning.md"
    group.add_argument("--engine", choices=("dask", "local"), help=text)
    text = "address of the scheduler: tcp://127.0.0.1:PORT, or tls://HOST:PORT"
    group.add_argument("--scheduler", metavar="ADDRESS", help=text)
    text = "allow a tcp:// scheduler on another machine: whoever reaches it can run code on all workers"
    group.add_argument("--insecure", action="store_true", help=text)
    group.add_argument(
        "--workers", type=int, metavar="W", help="processes of --engine local (default: one per processor)"
    )
    text = "memory of a worker for each task at once, such as 8GiB (default: 4GiB)"
    group.add_argument("--worker-memory", type=size_in_bytes, metavar="SIZE", help=text)
    group.add_argument("--resume", action="store_true", help="go on where the same command ended")


def add_reading(group) -> None:
    """Add the options that say how a source is read, which :func:`reading` collects."""
    group.add_argument(
        "--num-nodes",
        type=int,
        metavar="N",
        help="number of nodes, if SOURCE does not say (default: rows of --node-data, or largest id + 1)",
    )
    group.add_argument(
        "--node-data",
        action="append",
        metavar="FILE",
        help="add node data: a .npz, .csv, .tsv or .txt file (feat, label, masks), or a .npy file named after its column, such as "
        "feat.npy; may be repeated",
    )
    group.add_argument(
        "--node-table",
        metavar="PATH",
        help="table with a row for each node: .parquet, .csv or .tsv files, a folder or a pattern of them, or their address "
        "(s3://...)",
    )
    group.add_argument("--id", metavar="COLUMN", help="column of --node-table that holds the ids which edges use")
    group.add_argument("--ends", metavar="SRC,DST", help="columns of a table of edges that are source and destination")
    group.add_argument(
        "--fill-missing",
        metavar=FILL,
        help="what missing cells of tables get: a number, the mean of the column, or zero; or one for each column, as in "
        "age=mean,visits=0",
    )
    group.add_argument(
        "--ids",
        choices=IDS,
        help="what node ids are: numbers from 0, also of nodes without edges (as-they-are), numbers of which the used ones are "
        "numbered anew (compact), or any text (names); ids that are not kept as they are come back in predictions "
        "(default: as-they-are, or compact if more than half are unused, or names if they are text)",
    )
    group.add_argument("--label", metavar="COLUMN", help="column of a node table that is the label")
    group.add_argument("--features", metavar="COLUMN,..", help="columns of node tables that are features")
    group.add_argument("--skip", metavar="COLUMN,..", help="columns of node tables to leave out")
    group.add_argument(
        "--keys",
        metavar="KEY=NAME,..",
        help="names of arrays in an .npz or .mat file, such as edge_index=links,x=embeddings,y=group",
    )


def _add_graph(group) -> None:
    group.add_argument("--self-loops", action="store_true", help="add a self-loop to each node that has none")
    group.add_argument("--self-loop-fill", metavar=FILL, help=FILL_HELP)
    group.add_argument("--undirected", action="store_true", help="add the reverse of each edge that has none")
    text = "edge data reverse_kind: 0 for an edge of SOURCE, 1 for a reverse and 2 for a self-loop that were added"
    group.add_argument("--reverse-kind", action="store_true", help=text)
    group.add_argument(
        "--random-features", type=int, metavar="WIDTH", help="add random features to a graph that has none"
    )
    text = "shares of the labelled nodes for training, validation and test, such as 60/20/20, for a graph without masks"
    group.add_argument("--split", metavar="SHARES", help=text)
    group.add_argument("--stratify", action="store_true", help="split each class by itself")
    group.add_argument(
        "--encode",
        metavar="NAME=K,..",
        help="compute structural encodings of the whole graph, separated by commas, and store them: laplacian=K, random_walk=K, "
        "degree, anchors=A, hops=K or hops=KxW as node data, shortest_path=K as edge data",
    )
    group.add_argument(
        "--link-split",
        metavar="SPLIT",
        help="for link prediction, take the links of validation and test out of the graph: shares of training, validation and test "
        "(0.8,0.1,0.1), masks (edge data val_mask and test_mask), or an .npz file with val_edge and test_edge",
    )
    text = "relation of a typed graph whose links --link-split splits, such as user,rates,item"
    group.add_argument("--relation", metavar="S,R,D", help=text)
    group.add_argument(
        "--expander",
        type=int,
        metavar="D",
        help="add the edges of a random graph in which each node has D neighbours (an even number), in both directions",
    )
    group.add_argument(
        "--virtual-nodes", type=int, metavar="V", help="add V nodes that are joined with every node, in both directions"
    )


def settings(args) -> dict:
    """Arguments of :func:`dgl_gt.partition.partition`: the options that are given."""
    if args.format is not None and not args.assignment_only:
        raise InputError(f"--format {args.format} is a format of --assignment-only; add that, or leave --format out")
    found = _given(args, [each.name for each in fields(PartitionConfig)])
    if "parts" not in found:
        if args.like is None:
            raise InputError("--parts is missing: say how many parts to make")
        found["parts"] = read_manifest(args.like)["parts"]
    if args.profile is not None or args.preset is not None:
        found["profile"] = read_profile(args.profile, args.preset)
    return found


def check_engine(args) -> None:
    """Raise :class:`InputError` where options of many workers do not fit together."""
    for name, engine in _OF_ENGINES.items():
        value = getattr(args, name)
        if value not in (None, False) and (args.engine is None or engine not in (None, args.engine)):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for --engine {engine or 'dask or local'}; add that, or leave {option} out")
    if args.workers is not None:
        whole_number("workers (--workers)", args.workers, 1, MOST_WORKERS)


@contextmanager
def engine_options(args) -> Iterator[dict]:
    """Give the arguments of :func:`dgl_gt.partition.partition` that are for many workers, which run meanwhile."""
    check_engine(args)
    if args.engine is None:
        yield {}
        return
    memory_bytes = args.worker_memory or MEMORY_BYTES
    is_local = args.engine == "local"
    with (
        local(args.workers, memory_bytes) if is_local else connected(args.scheduler, insecure=args.insecure) as running
    ):
        yield {"engine": running, "worker_memory": args.worker_memory, "resume": args.resume}


_OF_ENGINES = {"scheduler": "dask", "insecure": "dask", "workers": "local", "worker_memory": None, "resume": None}


def reading(args) -> dict:
    """Arguments of :func:`dgl_gt.partition.load_graph` that say how the source is read: the options that are given."""
    return _given(args, READING)


# ---- values of options, read from their texts


def size_in_bytes(text: str) -> int:
    """Convert an option's text, such as 4GiB, to bytes."""
    try:
        return parse_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _fill(option: str, text: str):
    """Convert the text of --self-loop-fill or --fill-missing to a number or a word, or to a dict of these by column."""
    if "=" in text:
        return {name: _fill(option, value) for name, value in _pairs(option, text, str.rpartition).items()}
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text  # refused by its name where it means nothing


self_loop_fill = partial(_fill, "--self-loop-fill")


def _imbalance(text: str):
    """Convert the text of --max-imbalance to a number, or to a dict of numbers by kind."""
    if "=" not in text:
        return _number("--max-imbalance", text)
    return {name: _number("--max-imbalance", value) for name, value in _pairs("--max-imbalance", text).items()}


def _part_weights(text: str) -> list[float]:
    """Read the numbers of --target-weights from its text or from the file that it names."""
    words = text.replace(",", " ").split()
    if not all(parses(float, word) for word in words):
        try:
            words = regular_file(text).read_text().replace(",", " ").split()
        except (OSError, ValueError):  # InputError is a ValueError, too
            raise InputError(f"--target-weights: {text!r} is not a readable file of numbers, nor numbers") from None
    return [_number(f"--target-weights {text}", word) for word in words]


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: {text.strip()!r} is not a number; write numbers, such as 1.5") from None


def _column_names(option: str, text: str) -> list[str]:
    """Convert the text of --features or --skip to names of columns."""
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""])]
    except csv.Error:  # for example for a lone carriage return
        names = []
    if not all(names) or not names:
        raise InputError(
            f"{option} is {text[:SHOWN]!r}; write names of columns with commas between them, none of them empty"
        )
    return names


def _pairs(option: str, text: str, split: Callable = str.partition) -> dict[str, str]:
    """Convert a text such as ``a=1,b=2`` to a dict."""
    pairs = [split(pair, "=") for pair in text.split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if not all(found) or not all(found.values()) or len(found) < len(pairs):
        raise InputError(f"{option} {text!r} must hold NAME=VALUE, with commas between pairs, each NAME once")
    return found


_FROM_TEXT: dict[str, Callable] = {  # read after argparse, which would print all options beside what is wrong
    "max_imbalance": _imbalance,
    "target_weights": _part_weights,
    "costs": read_costs,
    "fill_missing": partial(_fill, "--fill-missing"),
    "self_loop_fill": self_loop_fill,
    "features": partial(_column_names, "--features"),
    "ends": partial(_column_names, "--ends"),
    "skip": partial(_column_names, "--skip"),
    "keys": partial(_pairs, "--keys"),
}


def _given(args, names) -> dict:
    given = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    return {name: _FROM_TEXT[name](value) if name in _FROM_TEXT else value for name, value in given.items()}


def show_at_first(command: argparse.ArgumentParser, common: tuple[str, ...]) -> None:
    """Let ``--help`` show these options alone, and a new option ``--help-all`` all of them."""
    rare = [each for each in command._actions if each.option_strings and each.dest not in ("help", *common)]
    texts = [each.help for each in rare]
    for each in rare:
        each.help = argparse.SUPPRESS

    class HelpAll(argparse.Action):
        def __call__(self, parser, *_):
            for each, text in zip(rare, texts):
                each.help = text
            parser.print_help()
            parser.exit()

    command.add_argument("--help-all", action=HelpAll, nargs=0, help="show all options, and exit")
