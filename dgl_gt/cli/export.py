"""The verb ``export``: shards for DGL, and a trained model for other programs."""

from __future__ import annotations

from dgl_gt.partition import console
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.storage import is_file, located
from dgl_gt.run_files.run_directory import WEIGHTS

from .options import add_json

_DGL = "dgl"


def add_commands(commands) -> None:
    """Add ``export`` to an argparse subparsers object."""
    command = commands.add_parser(
        "export",
        help="write shards for DGL, or a trained model as ONNX, TorchScript or a compiled library",
        description="Write shards as a partition directory of dgl.distributed, or with --to a trained model as one file that "
        "takes features and an edge_index and runs without dgl-gt.",
    )
    command.add_argument("directory", metavar="DIR", help="shard directory, or with --to a model directory")
    command.add_argument("out", metavar="OUT", help="directory to write; for a model a .onnx, .pt or .pt2 file")
    text = "onnx, torchscript or aoti (compiled by AOTInductor, as .pt2) for a model (default: dgl, for shards)"
    command.add_argument("--to", metavar="FORMAT", default=_DGL, help=text)
    text = "name of DGL's graph and its .json file (default: name of DIR)"
    command.add_argument("--name", metavar="NAME", help=text)
    command.add_argument("--force", action="store_true", help="replace OUT if it holds such an export")
    add_json(command)
    command.set_defaults(command=_export)


def _export(args) -> tuple[dict, str]:
    return _shards(args) if args.to == _DGL else _model(args)


def _shards(args) -> tuple[dict, str]:
    from dgl_gt.partition.shards.dgl_export import export_dgl

    if is_file(located(args.directory) / WEIGHTS):
        raise InputError(f"{args.directory} holds a model; add --to onnx, --to torchscript or --to aoti")
    with console.Stages() as progress:
        path = export_dgl(args.directory, args.out, graph_name=args.name, force=args.force, progress=progress)
    manifest = read_manifest(args.directory)
    parts = manifest["parts"]
    if manifest["links"]:
        console.print_source_notes([], ["the links of --link-split, for which DGL has no format"])
    text = f"wrote {path}; read it with dgl.distributed.load_partition({str(path)!r}, part)"
    return {"config": str(path), "parts": parts}, text


def _model(args) -> tuple[dict, str]:
    from dgl_gt.train.export import export_model

    if args.name is not None:
        raise InputError(f"--name is {args.name}, which names a graph of DGL; leave it out with --to {args.to}")
    found = export_model(args.directory, args.out, args.to, force=args.force)
    inputs, output = found["inputs"], ", ".join(map(str, found["output"]))
    rows = [(name, ", ".join(map(str, shape)), found["dtypes"][name]) for name, shape in inputs.items()]
    lines = [
        f"wrote {args.out}: it returns ({output}) for",
        *(f"  {name:<11} ({shape}) {dtype}" for name, shape, dtype in rows),
    ]
    if found["encodings"]:
        lines.append(
            f"feat is the features and then the encodings {', '.join(found['encodings'])}, as the model reads them"
        )
    lines.append(f"largest difference from the model, on a random graph: {found['largest_difference']:.1e}")
    return {"out": args.out, **found}, "\n".join(lines)
