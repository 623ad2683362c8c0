"""Checkpoints of a run: when they are due, what they hold besides the state, and going on from one."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.policy import is_policy_file
from dgl_gt.partition.errors import InputError
from dgl_gt.run_files.checkpoint_file import CHECKPOINT_FILE, write_checkpoint
from dgl_gt.run_files.run_directory import checkpoints_in, no_checkpoint
from dgl_gt.run_files.tensor_file import read_bytes

from .config import TrainConfig
from .interval import Interval
from .module_places import first_not_finite
from .run_state import RunState
from .saved_model import BestModelWriter

KEPT = 2  # one more than is needed if no file is ever damaged


class Identity(dict):
    """What a run and the checkpoint that it goes on from must have in common, by name, as values that JSON can hold."""

    def __init__(self, config: TrainConfig, factory_name: str | None, data: dict, model: torch.nn.Module):
        settings = {name: value for name, value in config.flat().items() if name not in free_settings(config)}
        if is_policy_file(config.exchange.policy):  # what the file says, not only its name
            settings["policy"] = str(config.exchange.rules.described())
        shapes = {name: [str(value.dtype), *value.shape] for name, value in model.state_dict().items()}
        super().__init__(settings=settings, model_factory=factory_name, data=data, tensors=shapes)

    def check(self, path: Path, other) -> None:
        """Raise :class:`InputError` that names what differs in a checkpoint."""
        differing = []
        for kind, label in (("settings", ""), ("data", "data: "), ("tensors", "model: ")):
            mine, theirs = self[kind], other[kind]
            differing += [
                f"{label}{name} was {_shown(theirs, name)} and is now {_shown(mine, name)}"
                for name in (*mine, *(theirs.keys() - mine.keys()))
                if mine.get(name) != theirs.get(name)
            ]
        if self["model_factory"] != other["model_factory"]:
            differing.append(f"model_factory was {other['model_factory']} and is now {self['model_factory']}")
        if differing:
            more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
            raise InputError(
                f"{path} belongs to another run: {'; '.join(differing[:5])}{more}. Use the settings and the data of that run, or "
                "start a new one in another directory"
            )


def free_settings(config: TrainConfig) -> tuple[str, ...]:
    """The settings that may change when a run is resumed, because they do not change how weights are updated."""
    free = ["activation_checkpoint"]  # does not change the result
    free += [] if config.optimizer.schedule == "cosine" else ["epochs"]
    free += [] if config.optimizer.schedule == "plateau" else ["patience", "evaluate_every"]
    return tuple(free)


def _shown(values: dict, name: str) -> str:
    return repr(values[name]) if name in values else "absent"


class Checkpoints:
    """Writes the checkpoints of a run into its directory, and reads them; every rank has one. Rank 0 has a writer."""

    def __init__(
        self, folder: Path, interval: Interval, comm: Comm, device: torch.device, writer: BestModelWriter | None
    ):
        self._folder, self._interval, self._comm, self._device = folder, interval, comm, device
        self._writer = writer
        self._written_s = time.monotonic()

    def is_due(self, epoch: int) -> bool:
        """Whether a checkpoint is due after ``epoch`` epochs; ranks may differ, and rank 0 decides."""
        if self._interval.epochs:
            return epoch % self._interval.epochs == 0
        return time.monotonic() - self._written_s >= self._interval.seconds

    def write(self, state: RunState, identity: Identity) -> Path | None:
        """Write a checkpoint; every rank calls it. Rank 0 gets its path.

        If it cannot be written, a warning says so, training goes on, and earlier checkpoints stay.
        """
        random = _random_states(self._comm, self._device)
        self._written_s = time.monotonic()
        if self._writer is None:
            return None
        values = state.values() | {"identity": identity, "ranks": self._comm.world_size}
        if damaged := first_not_finite(state.model.state_dict()):
            print(f"dgl-gt: warning: no checkpoint after epoch {state.epoch}: {damaged} is not finite", file=sys.stderr)
            return None
        try:
            self._writer.make_directory(state.history)
            return write_checkpoint(self._folder, state.epoch, values, state.tensors() | random, KEPT)
        except (InputError, OSError) as error:
            earlier = []
            with suppress(OSError):
                earlier = checkpoints_in(self._folder)
            kept = f"the last one is {earlier[0].name}" if earlier else "there is none yet"
            print(f"dgl-gt: warning: no checkpoint after epoch {state.epoch}: {error}; {kept}", file=sys.stderr)
            return None

    def resume(self, state: RunState, identity: Identity, epochs: int) -> None:
        """Go on from the latest checkpoint that is whole, up to ``epochs`` epochs; every rank calls it.

        Raises
        ------
        InputError
            There is none; it is of other data, another model or other settings; or it has had as many epochs already.
        """
        content, path = b"", ""
        with self._comm.raising_together():
            if self._comm.rank == 0:
                content, path = self._latest()
        path = Path(self._comm.broadcast_object(str(path)))
        values, tensors = CHECKPOINT_FILE.unpack(_from_rank_0(content, self._comm))
        try:
            identity.check(path, values["identity"])
            _set_random_states(tensors, self._comm, self._device)
            state.restore(values, tensors)
        except (
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RuntimeError,
            ValueError,
            msgspec.MsgspecError,
        ) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} does not fit this run ({error}); remove it to use an earlier one") from error
        if state.epoch >= epochs:
            raise InputError(f"epochs is {epochs}, but {path} was written after epoch {state.epoch}; raise epochs")
        self._written_s = time.monotonic()
        if self._comm.rank == 0:
            self._set_aside_after(path)

    def _set_aside_after(self, path: Path) -> None:
        """Rename the damaged checkpoints that are later than the one taken, so that they do not count as kept ones."""
        found = checkpoints_in(self._folder)
        for each in found[: found.index(path)]:
            with suppress(OSError):
                each.rename(each.with_name(f"{each.name}.damaged"))

    def _latest(self) -> tuple[bytes, Path]:
        """The content of the latest whole checkpoint, and its path; later ones are named on stderr."""
        found = checkpoints_in(self._folder)
        for path in found:
            try:
                content = read_bytes(path)
                CHECKPOINT_FILE.unpack(content)
                return content, path
            except InputError as error:
                text = str(error) if str(error).startswith(str(path)) else f"{path} {error}"
                print(f"dgl-gt: warning: {text}; looking for an earlier checkpoint", file=sys.stderr)
        raise no_checkpoint(self._folder, "no whole checkpoint" if found else "no checkpoint")


def _from_rank_0(content: bytes, comm: Comm) -> bytes:
    if comm.world_size == 1:
        return content
    sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
    length = comm.broadcast_object(len(content))
    return comm.broadcast(torch.empty(length, dtype=torch.uint8) if sent is None else sent).numpy().tobytes()


def _random_states(comm: Comm, device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators on every rank, (P, ...), on rank 0. Models of users draw from them."""
    states = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    gathered = {name: comm.gather_rows(value[None], to=0) for name, value in states.items()}
    return {name: torch.cat(rows) for name, rows in gathered.items() if rows is not None}


def _set_random_states(tensors: dict[str, Tensor], comm: Comm, device: torch.device) -> None:
    """Give this rank its state again; on more ranks than before, the states are given out once more from the start."""
    cpu, cuda = tensors["random/cpu"], tensors.get("random/cuda")
    torch.set_rng_state(cpu[comm.rank % len(cpu)].clone())
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda[comm.rank % len(cuda)].clone(), device)
