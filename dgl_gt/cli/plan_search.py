"""``dgl-gt plan --search-policy``: ranks search for a transmission policy, and rank 0 writes it."""

from __future__ import annotations

from pathlib import Path

from dgl_gt.exchange.policy.policy import is_policy_file
from dgl_gt.partition import console
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.train.config import TrainConfig

from .options import run_on_parts

MAX_LOSS = 0.5  # points


def search(args, config: TrainConfig, profile: Profile):
    """Search for a policy on ranks, one for each part of the shards, and write it."""
    out = located(args.search_policy)
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
    (directory,) = args.source
    if read_manifest(directory)["parts"] == 1:
        raise InputError(f"{directory} has one part, and one rank exchanges nothing; partition into two parts or more")
    bounded = args.rank_memory is not None
    return run_on_parts(
        args.argv, directory, lambda: _search_on_rank(directory, args, config, profile, out), bounded=bounded
    )


def _search_on_rank(directory: str, args, config: TrainConfig, profile: Profile, out: Path):
    """Search on this rank; rank 0 writes the policy. Returns plain values, and a table of them."""
    import yaml

    from dgl_gt.plan.policy_search import CHECKED_STEPS, load_for_policies, search_policy

    figures, max_loss = read_figures(read_manifest(directory)), args.max_loss or MAX_LOSS
    sg = load_for_policies(directory, config, profile, args.rank_memory)
    strategy, leads = sg.strategy.name, sg.comm.rank == 0
    with sg.comm.together(), console.Stages() as progress:
        found = search_policy(sg, figures, config, profile, max_loss, progress if leads else lambda text: None)
    rules = found.policy.described() or [{"mode": "exact"}]
    if leads:
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
        f"{_text_of_search(values, found, CHECKED_STEPS)}\n\nwrote {out}; use it with dgl-gt train --strategy {strategy} --policy {out}",
    )


def _pairs(peers) -> str:
    """Sender and receiver of the first pairs, and how many more there are."""
    more = f" and {len(peers) - 3} more" if len(peers) > 3 else ""
    return ", ".join(f"{sender} to {receiver}" for sender, receiver in peers[:3]) + more


def _text_of_search(values: dict, found, epochs: int) -> str:
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
        f"sent in a step            {format_bytes(found.sent_bytes)}, {saved:.1%} less than {format_bytes(found.exact_sent_bytes)}",
        f"lost in {epochs} epochs         {found.loss:+.2f} points of {found.metric} (allowed: {values['max_loss_points']:g})",
    ]
    return "\n".join(lines)
