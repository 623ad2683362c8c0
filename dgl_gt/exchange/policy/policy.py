"""Transmission policies: what travels between which ranks, in which layer and direction, and in how many bits.

Stale rows follow DIGEST (Chai et al. 2022, arXiv 2206.00057) and PipeGCN (Wan et al. 2022, arXiv 2203.10428). Quantised
rows follow AdaQP (Wan et al. 2023, arXiv 2306.01381), samples follow BNS-GCN (Wan et al. 2022, arXiv 2203.10983), and
steps without an exchange follow CoFree-GNN (Cao et al. 2023, arXiv 2308.03209).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import WITH_POLICY, StrategyRules
from dgl_gt.partition.system.yaml_file import check_keys, read_yaml, typed

DIRECTIONS = ("rows", "gradients")  # to the ranks that need a row, and home to its owner
_BITS = {"exact": 32, "bf16": 16, "int8": 8, "int4": 4, "alone": 0}
MIN_COLUMNS = 32  # narrower rows, such as lse, are always sent as they are: packing them would save little
_MAX_STALE = 1000
ADAPTIVE = (
    0  # as the number of steps between transmissions: a clock decides, see dgl_gt.exchange.policy.transmission.Clock
)
EDGE_SAMPLES = 10  # of a part's edges that are drawn before a run, K in CoFree-GNN's DropEdge-K
_MIN_SHARE = 0.001
_ALLOWED = (
    f"{', '.join(_BITS)}, stale=K with K from 1 to {_MAX_STALE} or auto, or sampled=Q with Q from {_MIN_SHARE} to 1. "
    "bf16, int8 or int4 may follow stale or sampled, as in stale=4,int8; edges=Q may follow alone, as in alone,edges=0.5"
)
_Number = Annotated[int, Meta(ge=0)]
_SCOPE = {  # the keys of a rule, besides its mode
    "layers": Annotated[
        tuple[_Number, ...] | None, Meta(description="a list of layers, counted from 0, such as [0, 1]")
    ],
    "direction": Annotated[
        Literal[DIRECTIONS] | None, Meta(description=f"{' or '.join(DIRECTIONS)}; leave it out for both")
    ],
    "peers": Annotated[
        tuple[tuple[_Number, _Number], ...] | None,
        Meta(description="a list of pairs of ranks, such as [[0, 1], [1, 0]]"),
    ],
}


@dataclass(frozen=True)
class Mode:
    """How rows travel from one rank to another.

    ``bits`` per number are 16 (bfloat16), 8 or 4 (see :mod:`dgl_gt.ops.quantise`), 32 for rows in the dtype that they
    have, or 0 where nothing travels. ``every`` is the number of steps from one transmission to the next, k. Unless k is
    1, rows that are sent in one step are used from the next step on, for k steps; :data:`ADAPTIVE` lets k grow while
    rows change little. ``share`` is the share q of the copied rows that take part in a step, and ``edge_share``, where
    nothing travels, that of a part's edges; see :mod:`dgl_gt.exchange.policy.training_graphs`.
    """

    bits: int = 32
    every: int = 1
    share: float = 1.0
    edge_share: float = 1.0

    @property
    def is_exact(self) -> bool:
        """Whether rows arrive in every step as they are."""
        return self == Mode()

    @property
    def is_stale(self) -> bool:
        """Whether rows are used in later steps than that in which they are sent."""
        return self.every != 1

    def __str__(self) -> str:
        words = [f"stale={self.every or 'auto'}"] if self.is_stale else []
        words += [f"sampled={self.share}"] if self.share < 1 else []
        words += [name for name, bits in _BITS.items() if bits == self.bits and (bits < 32 or not words)]
        words += [f"edges={self.edge_share}"] if self.edge_share < 1 else []
        return ",".join(words)


@dataclass(frozen=True)
class Rule:
    """A mode, and the layers, the direction and the pairs (sender, receiver) for which it holds; None means all."""

    mode: Mode
    layers: tuple[int, ...] | None = None
    direction: str | None = None
    peers: tuple[tuple[int, int], ...] | None = None

    def holds(self, layer: int, direction: str, sender: int, receiver: int) -> bool:
        """Whether the rule is for this transmission."""
        return self.is_for(layer, direction) and (self.peers is None or (sender, receiver) in self.peers)

    def is_for(self, layer: int, direction: str) -> bool:
        """Whether the rule is for transmissions of this layer and direction between any ranks."""
        return (self.layers is None or layer in self.layers) and self.direction in (None, direction)


@dataclass(frozen=True)
class Policy:
    """Rules. The last rule that applies decides; where none applies, rows travel as they are.

    ``text`` is what a user calls the policy: its mode, or the name of its file. Without it, messages list the modes.
    """

    rules: tuple[Rule, ...] = ()
    text: str = field(default="", compare=False)

    def mode(self, layer: int, direction: str, sender: int, receiver: int) -> Mode:
        """Return how rows (or gradients, by ``direction``) of a layer, counted from 0, travel from a rank to another."""
        fitting = (rule.mode for rule in reversed(self.rules) if rule.holds(layer, direction, sender, receiver))
        return next(fitting, Mode())

    @property
    def is_exact(self) -> bool:
        """Whether no rule changes anything."""
        return all(rule.mode.is_exact for rule in self.rules)

    @property
    def exchanges_nothing(self) -> bool:
        """Whether ranks exchange no rows at all."""
        return any(rule.mode.bits == 0 for rule in self.rules)  # such a rule is alone, see read_policy

    @property
    def edge_share(self) -> float:
        """The share of a part's edges that take part in a step, where ranks exchange nothing."""
        return min((rule.mode.edge_share for rule in self.rules), default=1.0)  # such a rule is alone, too

    @property
    def sampled_share(self) -> float:
        """The share of the copied rows that take part in a step."""
        return min((rule.mode.share for rule in self.rules), default=1.0)  # such a rule is alone, too

    def without_sampling(self) -> Policy:
        """Return this policy without the sampling: the rows of a sample travel by it."""
        rules = tuple(replace(rule, mode=replace(rule.mode, share=1.0)) for rule in self.rules)
        return replace(self, rules=rules)

    def check(self, layers: int | None, ranks: int) -> None:
        """Raise :class:`InputError` if a rule names a layer or a rank that is not there; ``layers`` None means unknown."""
        for rule in self.rules:
            layer = max(rule.layers or (-1,))
            if layers is not None and layer >= layers:
                raise InputError(
                    f"the policy names layer {layer}, but the model has {layers} layers, counted from 0; name one of these"
                )
            pair = max(rule.peers or ((0, 0),), key=max)
            if max(pair) >= ranks > 1:  # a single rank exchanges nothing
                raise InputError(
                    f"the policy names the pair {list(pair)}, but there are {ranks} ranks, counted from 0; name two of these"
                )

    def check_strategy(self, strategy: StrategyRules, depth: int, cut: str) -> None:
        """Raise :class:`InputError` if steps of this strategy, depth and cut cannot follow the policy."""
        if self.is_exact:
            return
        if not strategy.sends_copies:
            raise InputError(
                f"policy is {self}, but the strategy {strategy} follows no policy; use --strategy "
                f"{' or '.join(WITH_POLICY)}, or policy 'exact'"
            )
        if depth > 1:
            raise InputError(
                f"policy is {self}, which needs --depth 1, but the depth is {depth}; use --depth 1, or policy 'exact'"
            )
        self.check_cut(cut)

    def check_cut(self, cut: str) -> None:
        """Raise :class:`InputError` if steps on this cut, edge or vertex, cannot follow the policy."""
        if self.exchanges_nothing and cut == "edge":
            raise InputError(
                "policy 'alone' needs a vertex cut, and this is an edge cut, where neighbours on other ranks would be "
                "lost; partition with --cut vertex, or choose another policy"
            )

    def goes_with(self, activation_checkpoint: str) -> bool:
        """Whether layers that are computed again in this mode can follow the policy."""
        return activation_checkpoint != "full" or self.is_exact or self.exchanges_nothing

    def check_model(self, activation_checkpoint: str, global_attention: str = "none") -> None:
        """Raise :class:`InputError` if a model with these settings cannot follow the policy."""
        if not self.goes_with(activation_checkpoint):
            raise InputError(
                f"policy is {self}, but activation_checkpoint 'full' exchanges again in the backward pass; choose "
                "'keep_exchanges' or 'none'"
            )
        if self.exchanges_nothing and global_attention != "none":
            raise InputError(
                f"with policy 'alone', each rank trains on its part in isolation, but global_attention is "
                f"{global_attention!r}, which reads all nodes; set it to 'none', or choose another policy"
            )

    def check_typed(self, source: str) -> None:
        """Raise :class:`InputError` unless the policy is exact, as typed graphs need; ``source`` is that of the graph."""
        if not self.is_exact:
            raise InputError(f"policy is {self}, and {source} is a typed graph, which takes exact alone; leave it out")

    def __str__(self) -> str:
        return self.text or "; ".join(str(rule.mode) for rule in self.rules) or "exact"

    def described(self) -> list[dict]:
        """Return the rules as plain values, as a policy file has them."""
        return [
            {"mode": str(rule.mode)}
            | {key: _plain(value) for key in _SCOPE if (value := getattr(rule, key)) is not None}
            for rule in self.rules
        ]


def _plain(value):
    """Return a value with lists in place of tuples."""
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def is_policy_file(text: str) -> bool:
    """Whether a policy is the name of a file, and not a mode."""
    return Path(text).suffix in (".yaml", ".yml")


def read_policy(text: str) -> Policy:
    """Return the policy that a text names: a mode for everything, such as ``stale=4,int8``, or a YAML file of rules.

    The file holds a list under the key ``rules``. Each rule has a ``mode``, and where it is not for everything,
    ``layers`` (numbers from 0), ``direction`` (``rows`` or ``gradients``) and ``peers`` (pairs of sender and receiver).
    :class:`InputError` says what is allowed, or why the file cannot be read.
    """
    if not is_policy_file(text):
        return Policy((Rule(parse_mode(text)),), text)
    values = read_yaml(text)
    check_keys(values, ("rules",), text)
    rules = values.get("rules")
    if not isinstance(rules, list):
        raise InputError(f"{text}: rules is {rules!r}; it must be a list of rules, such as '- mode: int8'")
    try:
        policy = Policy(tuple(map(_rule, rules)), str(text))
        for rule in policy.rules:
            if (rule.mode.bits == 0 or rule.mode.share < 1) and policy != Policy((Rule(rule.mode),)):
                raise InputError(
                    f"the mode {rule.mode} is for all layers and ranks; make it the only rule, with no other key"
                )
    except InputError as error:
        raise InputError(f"{text}: {error}") from None
    return policy


def parse_mode(text) -> Mode:
    """Return the mode of a text; :class:`InputError` says what is allowed."""
    words = [_read_word(word) for word in text.split(",")] if isinstance(text, str) else [None]
    found = dict(filter(None, words))
    if found.get("bits") == 0:
        fits = found.keys() <= {"bits", "edge_share"}
    else:  # of a sample, which each step draws anew, rows of earlier steps are of no use
        fits = "edge_share" not in found and not {"every", "share"} <= found.keys()
    if len(found) < len(words) or not fits:
        raise InputError(f"policy is {text!r}; it must be {_ALLOWED}. A .yaml file of rules is allowed, too")
    return Mode(**found)


def _read_word(word: str) -> tuple[str, float] | None:
    """Return the field of a mode that a word sets, and its value; None for a word that is not allowed."""
    if word in _BITS:
        return "bits", _BITS[word]
    kind, _, value = word.partition("=")
    if kind == "stale" and value == "auto":
        return "every", ADAPTIVE
    if kind == "stale" and re.fullmatch(r"\d{1,9}", value) and 1 <= int(value) <= _MAX_STALE:
        return "every", int(value)
    field = {"sampled": "share", "edges": "edge_share"}.get(kind)
    if field and re.fullmatch(r"[01]|[01]?\.\d{1,9}", value) and _MIN_SHARE <= float(value) <= 1:
        return field, float(value)
    return None


def _rule(values) -> Rule:
    keys = ("mode", *_SCOPE)
    if not isinstance(values, dict):
        raise InputError(f"a rule is {values!r}; it must be a mapping with the keys {', '.join(keys)}")
    check_keys(values, keys, "a rule")
    if "mode" not in values:
        raise InputError(f"the rule {values} has no mode; add one: {_ALLOWED}")
    scope = {key: typed(values[key], kind, key) for key, kind in _SCOPE.items() if key in values}
    return Rule(parse_mode(values["mode"]), **scope)
