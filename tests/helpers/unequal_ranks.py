"""Profiles of ranks and links that differ, which tests write by hand, without torch."""

import numpy as np
from msgspec.structs import replace

from dgl_gt.partition.figures.profile import Profile, read_profile


def profile_of(speeds=(1.0, 1.0), links=None, memory_bytes=None) -> Profile:
    """The default profile with ranks of these speeds, and links of so many bytes per second into rank i from rank j."""
    base, ranks = read_profile(), len(speeds)

    def slower(value):
        return [value / speed for speed in speeds]

    attention = base.attention
    attention = replace(
        attention,
        **{name: slower(getattr(attention, name)) for name in ("edge_s", "head_s", "row_column_s", "near_column_s")},
        far_column_s={key: slower(seconds) for key, seconds in attention.far_column_s.items()},
    )
    return replace(
        base,
        name="by hand",
        ranks=ranks,
        memory_bytes=memory_bytes or base.memory_bytes,
        products={width: [rate * speed for speed in speeds] for width, rate in base.products.items()},
        stream_bytes_per_s=[base.stream_bytes_per_s * speed for speed in speeds],
        attention=attention,
        link_bytes_per_s=[[1e9] * ranks] * ranks if links is None else np.asarray(links, float).tolist(),
    )


def two_hosts(ranks: int, within=1e9, between=1e7) -> np.ndarray:
    """Links of ranks on two hosts, the even ranks on one and the odd ranks on the other."""
    host = np.arange(ranks) % 2
    return np.where(host[:, None] == host[None], within, between)


def slow_pair(ranks: int, one: int, other: int, rate=1e9, slow=1e7) -> np.ndarray:
    """Links that are alike, but for the one between two ranks."""
    links = np.full((ranks, ranks), rate)
    links[one, other] = links[other, one] = slow
    return links
