"""What the selector returns: ways to train with their predictions, the chosen one and why, or why there is none."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import Costs


@dataclass(frozen=True)
class Candidate:
    """One way to train, and the predictions for one training step.

    Predictions are None for a candidate that cannot run at all.

    Attributes
    ----------
    cut : {"edge", "vertex"}
    strategy : str
        A strategy of :func:`dgl_gt.load`.
    depth : int
        Hops of halo that one exchange fills.
    activation_checkpoint : {"none", "keep_exchanges", "full"}
    directory : str or None
        Shard directory; None where the cut was made only to plan.
    seconds : float or None
        Time of a step (s).
    seconds_by_term : dict of str to float, or None
        What the time is spent on (s).
    sent_bytes : int or None
        Bytes that all ranks send in a step; exact.
    peak_bytes : int or None
        Tensors of the rank that needs most, at the peak of a step (bytes).
    peak_bytes_by_term : dict of str to int, or None
        Those that outlive a step (``kept``), and all others, on the rank with the largest process (bytes).
    memory_bytes : int or None
        Largest process: its tensors, the interpreter and its libraries (bytes).
    memory_ratio : float or None
        Memory that a rank's process needs, divided by the memory that the rank has; the largest of all ranks. Above 1,
        the candidate does not fit.
    refused : str or None
        Why the candidate cannot be chosen; None if it can.
    """

    cut: str
    strategy: str
    depth: int
    activation_checkpoint: str
    directory: str | None = None
    seconds: float | None = None
    seconds_by_term: dict | None = None
    sent_bytes: int | None = None
    peak_bytes: int | None = None
    peak_bytes_by_term: dict | None = None
    memory_bytes: int | None = None
    memory_ratio: float | None = None
    refused: str | None = None

    @property
    def title(self) -> str:
        """The candidate in a few words."""
        depth = f" of depth {self.depth}" if self.depth > 1 else ""
        checkpoint = (
            f", activation checkpoint {self.activation_checkpoint}" if self.activation_checkpoint != "none" else ""
        )
        return f"{self.strategy}{depth} on the {self.cut} cut{checkpoint}"


@dataclass(frozen=True)
class Plan:
    """How to train: the chosen candidate, why it was chosen, and all others.

    Attributes
    ----------
    choice : Candidate
        The quickest candidate that fits.
    runner_up : Candidate or None
        The second quickest that fits.
    reason : str
        Why the choice was made, in a sentence.
    candidates : list of Candidate
        All candidates: those that fit, the quickest first, then those that are refused.
    profile : dict
        ``name`` and ``kind`` of the hardware profile; the kind is ``measured``, ``datasheet`` or ``default``.
    model : dict
        Settings of the model, or the name of the function that makes the step; and what its ``variant`` says of the
        chosen cut, see :class:`dgl_gt.plan.Tracer`.
    ranks : int
        Number of ranks P.
    one_rank_seconds : float or None
        Predicted time of a step on the slowest rank alone, as if it held the whole graph (s). None if a traced step
        does not run on one rank.
    costs : Costs
        Linear costs of the step, by which :func:`dgl_gt.partition.partition` compares cuts.
    """

    choice: Candidate
    runner_up: Candidate | None
    reason: str
    candidates: list[Candidate]
    profile: dict
    model: dict
    ranks: int
    one_rank_seconds: float | None
    costs: Costs

    @property
    def load_options(self) -> dict:
        """Strategy and depth, as keyword arguments of :func:`dgl_gt.load`."""
        return {"strategy": self.choice.strategy, "depth": self.choice.depth}

    def as_dict(self) -> dict:
        """The plan as ``dgl-gt plan --json`` prints it, see docs/cli.md."""
        choice = self.choice
        return {
            "choice": {
                **{
                    key: getattr(choice, key)
                    for key in ("cut", "strategy", "depth", "activation_checkpoint", "directory")
                },
                "predicted_seconds": choice.seconds,
                "predicted_sent_bytes": choice.sent_bytes,
                "predicted_peak_bytes": choice.peak_bytes,
                "predicted_memory_bytes": choice.memory_bytes,
                "reason": self.reason,
            },
            "candidates": [asdict(each) for each in self.candidates],
            "profile": self.profile,
            "model": self.model,
            "ranks": self.ranks,
            "one_rank_seconds": self.one_rank_seconds,
        }


class NothingFits(InputError):
    """No candidate fits the memory of the ranks.

    Attributes
    ----------
    least_bytes : int
        Largest process of the candidate that comes nearest (bytes).
    fixed_bytes : int
        Tensors that a rank needs however many ranks there are: parameters, and the state of the optimiser (bytes).
    """

    def __init__(self, message: str, least_bytes: int, fixed_bytes: int):
        super().__init__(message)
        self.least_bytes, self.fixed_bytes = least_bytes, fixed_bytes

    def __reduce__(self):  # so that it can come from another process
        return NothingFits, (str(self), self.least_bytes, self.fixed_bytes)
