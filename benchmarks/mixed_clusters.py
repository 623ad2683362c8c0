"""What plans are predicted to bring on mixed clusters: a simulation from profiles, on the cuts of real graphs.

    python benchmarks/mixed_clusters.py [--clusters tag,glad,hosts] [--graphs ogbn_arxiv_nofeat,large] [--json]

`tag`: 16 GPUs of the kinds in TAG's testbed (arXiv 2302.06126): 4 V100 in one host, 8 GTX 1080 Ti and 4 P100 in hosts
of two. `glad`: 12 edge servers of three kinds with speeds 1, 2 and 4, after GLAD's (arXiv 2210.17281), every other link
at a tenth. `hosts`: 4 hosts of 8 A100, 100 Gbit/s between hosts. Speeds are datasheet peaks; the links are written
below.

Each training step of a graph transformer (3 layers, 8 heads) is traced, and its time predicted, in four ways:
`plan` is what `dgl-gt plan` chooses on parts fitted to the ranks; `even` is an even edge cut with the default strategy
`halo_h`; `replicas` are data-parallel: every rank has the whole graph and computes it for its share of the loss, and
gradients are summed. `needed` are replicas that compute only what a random share of 1/P of the nodes needs: its
in-edges in the last layer, those within one hop in the layer before, and so on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
from machine import DATA
from msgspec.structs import replace

from dgl_gt.partition import load_graph, make_edge_cut, make_vertex_cut, read_profile
from dgl_gt.partition.console import table
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.shards.layout import Layout, mapped_layout
from dgl_gt.plan import choose, tracer_of
from dgl_gt.train import read_config

LAYERS, HEADS, CLASSES, WIDTH, LARGE = 3, 8, 40, 128, "sample:communities?nodes=300000&features=128"
# Datasheet peaks: single precision (FLOP/s), memory bandwidth (bytes/s), memory (bytes)
GPUS = {"V100": (15.7e12, 900e9, 32e9), "1080Ti": (11.3e12, 484e9, 11e9), "P100": (9.3e12, 732e9, 16e9)}
TAG_HOSTS = [["V100"] * 4, *[["1080Ti"] * 2] * 4, *[["P100"] * 2] * 2]
NVLINK, PCIE, ETHERNET_100G = 150e9, 12e9, 12.5e9  # bytes/s


def tag() -> Profile:
    """GPUs in hosts: NVLink between V100, PCIe between others, 100 Gbit/s between hosts."""
    kinds = [kind for host in TAG_HOSTS for kind in host]
    host = np.repeat(np.arange(len(TAG_HOSTS)), [len(each) for each in TAG_HOSTS])
    is_v100 = np.array(kinds) == "V100"
    within = np.where(is_v100[:, None] & is_v100[None], NVLINK, PCIE)
    link = np.where(host[:, None] == host[None], within, ETHERNET_100G)
    flops, stream, memory = (np.array(column) for column in zip(*(GPUS[kind] for kind in kinds)))
    return _with_speeds("8xA100", "tag", flops, stream, memory, link)


def glad() -> Profile:
    """Processors of one, two and four times the cores of the preset ``default``, on 1 Gbit/s and 100 Mbit/s."""
    speed, base = np.tile([1.0, 2.0, 4.0], 4), read_profile(preset="default")
    apart = np.abs(np.arange(12)[:, None] - np.arange(12)[None])
    link = np.where(apart % 2 == 0, 125e6, 12.5e6)
    return _with_speeds(
        "default",
        "glad",
        {width: speed * flops for width, flops in base.products.items()},
        speed * base.stream_bytes_per_s,
        np.full(12, 16e9),
        link,
    )


def hosts() -> Profile:
    """Hosts of 8 A100, as in the preset, with one adapter of 100 Gbit/s for each two GPUs."""
    base = read_profile(preset="8xA100")
    return replace(base, name="hosts", ranks=32, link_bytes_per_s=replace(base.link_bytes_per_s, between=6.25e9))


CLUSTERS = {"tag": tag, "glad": glad, "hosts": hosts}


def _with_speeds(preset: str, name: str, products, stream, memory, link) -> Profile:
    """A preset's profile for ranks with these speeds; edges and sums go by the bandwidth of memory."""
    base, ranks = read_profile(preset=preset), len(stream)
    slower = base.stream_bytes_per_s / stream
    products = products if isinstance(products, dict) else {128: products}

    def scaled(seconds: float) -> list[float]:
        return (seconds * slower).tolist()

    attention = replace(
        base.attention,
        edge_s=scaled(base.attention.edge_s),
        row_column_s=scaled(base.attention.row_column_s),
        near_column_s=scaled(base.attention.near_column_s),
        far_column_s={key: scaled(seconds) for key, seconds in base.attention.far_column_s.items()},
    )
    return replace(
        base,
        name=name,
        ranks=ranks,
        memory_bytes=memory.tolist(),
        stream_bytes_per_s=np.asarray(stream).tolist(),
        simple_bytes_per_s=(base.simple_bytes_per_s / slower).tolist(),
        products={width: np.asarray(flops).tolist() for width, flops in products.items()},
        attention=attention,
        reduce_bytes_per_s=float(np.min(link)),
        link_bytes_per_s=link.tolist(),
    )


def needed_share(graph, ranks: int) -> float:
    """Share of the edges that a random 1/P of the nodes needs, as a mean over the layers."""
    reached = np.random.default_rng(0).random(graph.num_nodes) < 1 / ranks
    destinations, shares = graph.destinations(), []
    for _ in range(LAYERS):
        used = reached[destinations]
        shares.append(used.mean())
        reached[graph.indices[used]] = True
    return float(np.mean(shares))


def cell(name: str, graph, profile: Profile, hidden: int) -> dict:
    ranks, started = profile.ranks, time.perf_counter()
    traces = tracer_of(read_config(layers=LAYERS, hidden=hidden, heads=HEADS), WIDTH, CLASSES)
    weights = profile.unequal_weights()
    even = [(None, Layout(graph, make_edge_cut(graph, ranks)).figures)]
    defaults = choose(even, traces, profile, strategies=("halo_h",))
    fitted = [  # by the costs of this model, as `dgl-gt plan --save-costs` writes them
        (make_edge_cut(graph, ranks, target_weights=weights, costs=defaults.costs, profile=profile), defaults.costs),
        (make_vertex_cut(graph, ranks, target_weights=weights), default_costs()),
    ]
    cuts = [(None, mapped_layout(graph, cut, 1, costs, profile).figures) for cut, costs in fitted]
    plan = choose(cuts, traces, profile)
    gradients_s = plan.choice.seconds_by_term["gradients_s"]
    replicas = plan.one_rank_seconds + gradients_s
    needed = plan.one_rank_seconds * needed_share(graph, ranks) + gradients_s
    return {
        "cluster": profile.name,
        "graph": name,
        "ranks": ranks,
        "plan": plan.choice.title,
        "seconds": {
            "plan": plan.choice.seconds,
            "even": defaults.choice.seconds,
            "replicas": replicas,
            "needed": needed,
        },
        "terms": {"plan": plan.choice.seconds_by_term, "even": defaults.choice.seconds_by_term},
        "took_s": time.perf_counter() - started,
    }


def summary(cells: list[dict]) -> str:
    rows = []
    for each in cells:
        seconds = each["seconds"]
        rows.append([each["cluster"], each["graph"], each["ranks"], each["plan"]])
        rows[-1] += [f"{value * 1000:,.1f}" for value in seconds.values()]
        rows[-1] += [f"{seconds[way] / seconds['plan']:.2f}x" for way in ("even", "replicas", "needed")]
    header = "cluster|graph|ranks|plan|plan (ms)|even|replicas|needed|even / plan|replicas / plan|needed / plan"
    return table(header.split("|"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted steps on mixed clusters.")
    parser.add_argument("--clusters", type=lambda text: text.split(","), default=list(CLUSTERS))
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=["ogbn_arxiv_nofeat", "large"])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cells = []
    for name in args.graphs:
        source = LARGE if name == "large" else DATA / f"{name}.npz"
        graph = load_graph(source, **({"random_features": WIDTH} if name.endswith("nofeat") else {}))
        for cluster in args.clusters:
            cells.append(cell(name, graph, CLUSTERS[cluster](), args.hidden))
            print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
    print(json.dumps(cells) if args.json else summary(cells))


if __name__ == "__main__":
    main()
