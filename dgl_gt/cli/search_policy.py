"""``dgl-gt plan --search-policy``."""

from __future__ import annotations

from pathlib import Path

from dgl_gt.train.config import TrainConfig
from dgl_gt.transmission.policy import is_policy_file
from partition import console
from partition.console import table
from partition.errors import InputError
from partition.predict.profile import Profile
from partition.predict.strategies import WITH_POLICY
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest
from partition.system.atomic_write import new_file
from partition.system.output_checks import check_file
from partition.system.units import size

from .options import run_on_parts

MAX_LOSS = 0.5  # points


def run_search(args, config: TrainConfig, profile: Profile):
    """Search for a policy on ranks, one for each part of the shards, and write it."""
    out = Path(args.search_policy)
    if not is_policy_file(args.search_policy):
        raise InputError(f"--search-policy is {args.search_policy}; it must end in .yaml")
    if len(args.source) != 1:
        raise InputError(
            f"--search-policy needs one shard directory, and {len(args.source)} are named; choose the cut first, with "
            "`dgl-gt plan` on all of them"
        )
    if args.max_loss and args.max_loss >= 100:
        raise InputError(f"--max-loss is {args.max_loss:g}; it must be below 100, in points of the validation metric")
    check_file(out, force=args.force)
    (args.directory,) = args.source
    if read_manifest(args.directory)["parts"] == 1:
        raise InputError(
            f"{args.directory} has one part, and one rank exchanges nothing; partition into two parts or more"
        )
    args.nproc = args.timeout = args.strategy = None
    args.depth = 1
    return run_on_parts(args, lambda: _search_on_rank(args, config, profile, out))


def _search_on_rank(args, config: TrainConfig, profile: Profile, out: Path):
    """Search on this rank; rank 0 writes the policy. Returns plain values, and a table of them."""
    import yaml

    from dgl_gt import load
    from dgl_gt.train.policy_search import CHECKED_STEPS, search_policy

    figures, max_loss = read_figures(read_manifest(args.directory)), args.max_loss or MAX_LOSS
    strategy, comm = _strategy(args, config, profile, figures)
    sg = load(args.directory, strategy)
    with sg.comm.together(), console.Progress() as progress:
        report = progress if comm.rank == 0 else lambda text: None
        found = search_policy(sg, figures, config, profile, max_loss, report)
    rules = found.policy.described() or [{"mode": "full"}]
    if comm.rank == 0:
        with new_file(out, force=args.force) as file:
            file.write(yaml.safe_dump({"rules": rules}, sort_keys=False).encode())
    values = {
        "rules": rules,
        "strategy": strategy,
        "metric": found.metric,
        "max_loss_points": max_loss,
        "measured_loss_points": found.loss,
        "predicted_seconds": found.seconds,
        "predicted_exact_seconds": found.exact_seconds,
        "sent_bytes": found.sent_bytes,
        "exact_sent_bytes": found.exact_sent_bytes,
        "transmissions": [
            {
                "layer": place.layer,
                "direction": place.direction,
                "peers": place.peers and [list(pair) for pair in place.peers],
                "mode": str(found.modes[place]),
                "loss_points": {str(mode): loss for mode, loss in losses.items()},
            }
            for place, losses in found.losses.items()
        ],
    }
    return (
        values,
        f"{_text(values, found, CHECKED_STEPS)}\n\nwrote {out}; use it with dgl-gt train --strategy {strategy} --policy {out}",
    )


def _strategy(args, config: TrainConfig, profile: Profile, figures):
    """The strategy with the fastest exact steps among those that follow policies, and the ranks; rank 0 chooses."""
    from dgl_gt import load
    from dgl_gt.selector import choose
    from dgl_gt.train import step_traces
    from dgl_gt.train.task import node_classification

    sg = load(args.directory)
    plan = error = None
    with sg.comm.together():
        classes = node_classification(sg, config.split, config.inputs).classes
        try:
            if sg.comm.rank == 0:
                step = step_traces(config, figures.features, classes)
                options = {"rank_memory": args.rank_memory, "max_depth": 1, "strategies": WITH_POLICY}
                plan = choose([(args.directory, figures)], step, profile, **options).choice.strategy
        except InputError as caught:
            error = caught
        sg.comm.raise_together(error)
        return sg.comm.broadcast_object(plan), sg.comm


def _pairs(peers) -> str:
    """Sender and receiver of the first pairs, and how many more there are."""
    more = f" and {len(peers) - 3} more" if len(peers) > 3 else ""
    return ", ".join(f"{sender} to {receiver}" for sender, receiver in peers[:3]) + more


def _text(values: dict, found, epochs: int) -> str:
    rows = []
    for each in values["transmissions"]:
        between = "" if each["peers"] is None else f", {_pairs(each['peers'])}"
        losses = ", ".join(f"{mode} {loss:.2f}" for mode, loss in each["loss_points"].items())
        rows.append([f"layer {each['layer']}, {each['direction']}{between}", each["mode"], losses])
    saved = 1 - found.sent_bytes / found.exact_sent_bytes if found.exact_sent_bytes else 0.0
    lines = [
        table(["transmission", "mode", f"points of {found.metric} that each mode lost"], rows),
        "",
        f"strategy                  {values['strategy']}",
        f"a step, predicted         {found.seconds:.3g} s instead of {found.exact_seconds:.3g} s",
        f"sent in a step            {size(found.sent_bytes)}, {saved:.1%} less than {size(found.exact_sent_bytes)}",
        f"lost in {epochs} epochs         {found.loss:+.2f} points of {found.metric} (allowed: {values['max_loss_points']:g})",
    ]
    return "\n".join(lines)
