"""What :func:`dgl_gt.partition.partition` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from dgl_gt.partition.cuts.balance import shares
from dgl_gt.partition.cuts.edge_cut import OF_EDGE_CUTS, EdgeCutOptions
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.sources.options import SourceOptions
from dgl_gt.partition.transforms.encodings import Encoding, parse_encodings

from .errors import InputError, check_flags, check_one_of, check_type, whole_number
from .transforms.exphormer import check_transforms
from .transforms.link_split import check_split

CUTS = ("edge", "vertex", "auto")
_OF_SHARDS = ("encode", "expander", "virtual_nodes", "link_split")  # an assignment is of the user's nodes and edges
_MAX_HALO_DEPTH = 100  # hops; the halos of a connected graph hold every node long before


@dataclass(frozen=True, kw_only=True)
class PartitionConfig(SourceOptions, EdgeCutOptions):
    """Arguments of :func:`dgl_gt.partition.partition`, which describes them, after all checks that need no graph.

    Those of :func:`dgl_gt.partition.load_graph` and of edge cuts are among them. ``cut`` is ``"edge"`` where others ask
    for that, ``target_weights`` are those of the profile if there is one, and ``costs`` are the default where none are
    given. :class:`InputError` says what is wrong.
    """

    parts: int
    cut: str | None = None
    halo_depth: int = 1
    rank_memory: int | None = None
    encode: str | None = None
    expander: int | None = None
    virtual_nodes: int | None = None
    link_split: str | None = None
    relation: str | None = None
    like: object = None
    move: float | None = None
    assignment_only: bool = False

    def __post_init__(self):
        EdgeCutOptions.__post_init__(self)
        SourceOptions.__post_init__(self)
        check_flags(assignment_only=self.assignment_only)
        added = [name for name in _OF_SHARDS if getattr(self, name) is not None]
        if self.assignment_only and added:
            raise InputError(
                f"{added[0]} (--{added[0].replace('_', '-')}) is for shards, and assignment_only (--assignment-only) is given; leave "
                "one of them out"
            )
        bounds = {"rank_memory": self.rank_memory}
        vars(self).update(
            {name: whole_number(name, value, 1) for name, value in bounds.items() if value is not None},
            parts=whole_number("parts", self.parts, 1),
            halo_depth=whole_number("halo_depth", self.halo_depth, 1, _MAX_HALO_DEPTH),
        )
        vars(self).update(cut=self._resolved_cut(), target_weights=self._resolved_weights())
        for kind in ("vertex", "edge") if self.cut == "auto" else (self.cut or "edge",):
            self.costs.of(kind)  # raises if they do not cover this kind of cut
        if self.target_weights is not None:
            shares(self.parts, self.target_weights)  # raises unless they are valid weights for this many parts
        check_transforms(None, **self.transforms)
        parse_encodings(self.encode)  # raises unless it names encodings
        self._check_like()
        if self.relation is not None and self.link_split is None:
            raise InputError(
                f"relation (--relation) is {self.relation!r}, but no links are split; add link_split (--link-split), or leave it out"
            )
        if self.link_split is not None:
            check_split(self.link_split)
            if self.memory is not None:
                raise InputError(
                    f"link_split (--link-split) is {self.link_split}, whose memory is not bounded, and memory (--memory) is given; leave "
                    "one of them out"
                )

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """What ``encode`` names."""
        return parse_encodings(self.encode)

    @property
    def transforms(self) -> dict[str, int | None]:
        """Keyword arguments of :func:`dgl_gt.partition.transforms.exphormer.transformed`."""
        return {"expander": self.expander, "virtual_nodes": self.virtual_nodes}

    def _check_like(self) -> None:
        """Raise :class:`InputError` where ``like`` or ``move`` does not fit the other arguments."""
        if self.like is None and self.move is not None:
            raise InputError(
                f"move (--move) is {self.move!r}, but there are no shards to be like; add like (--like), or leave it out"
            )
        is_share = isinstance(self.move, Real) and not isinstance(self.move, bool) and 0 <= self.move < 1
        if self.move is not None and not is_share:
            raise InputError(
                f"move (--move) is {self.move!r}; it must be a share of the predicted step, from 0 to below 1"
            )
        if self.like is not None:
            others = ("owner", "profile", "cut_weights", "node_weights", "max_imbalance", "balance")
            given = [name for name in others if getattr(self, name) is not None] + ["attempts"] * (self.attempts > 1)
            if given:
                raise InputError(
                    f"like (--like) and {given[0]} (--{given[0].replace('_', '-')}) are given, and both say where nodes go; leave one out"
                )

    def _resolved_cut(self) -> str | None:
        """The cut to make: ``"edge"`` if options are given that only edge cuts have, else ``cut``."""
        if self.cut is not None:
            check_one_of("cut", self.cut, CUTS)
        given = [name for name in OF_EDGE_CUTS if getattr(self, name) is not None]
        given += ["like"] if self.like is not None else []
        given += ["halo_depth"] if self.halo_depth > 1 else []
        given += ["assignment_only"] if self.assignment_only else []
        given += ["attempts"] if self.attempts > 1 and self.cut != "auto" else []
        if given and self.cut not in (None, "edge"):
            name = given[0] if given[0] == "owner" else f"{given[0]} (--{given[0].replace('_', '-')})"
            raise InputError(f"{name} applies only to edge cuts; leave it out, or choose cut='edge' (--cut edge)")
        return "edge" if given else self.cut

    def _resolved_weights(self):
        """The load of each part, from the profile if there is one; None for equal loads."""
        profile = self.profile
        if profile is None:
            return self.target_weights
        check_type("profile", profile, Profile)
        profile.check_ranks(self.parts)
        for name, value in (("target_weights (--target-weights)", self.target_weights), ("owner", self.owner)):
            if value is not None:
                raise InputError(
                    f"{name} and a profile ({profile.name}) are given, and both say how large parts are; leave one out"
                )
        return profile.unequal_weights()
