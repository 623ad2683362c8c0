"""What changes while a model trains, as objects for the trainer, and as tensors and plain values for a checkpoint.

A checkpoint also identifies its run: settings, parameter shapes, and a digest of the data.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.policy import is_policy_file
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import NodeEmbedding
from dgl_gt.ops.reference import splitmix64
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import LINK_SETS
from dgl_gt.partition.system.memory import peak_memory_bytes
from dgl_gt.run_files.run_record import PolicyOfRun

from .config import TrainConfig
from .optimizer import Schedule


@dataclass
class TrainHistory:
    """The losses and metrics of a run so far; the same on every rank."""

    metric_name: str
    lower_is_better: bool
    losses: list[float | None]  # of each epoch; None where the step was skipped
    validations: list[float]  # of each epoch that was evaluated
    best_epoch: int  # the one with the best validation metric, counted from 0
    validation: float  # at the best epoch, like the next one
    test: float


@dataclass
class TrainResult(TrainHistory):
    """The model and the measurements of a finished run; the same on every rank.

    Attributes
    ----------
    losses, validations, best_epoch, validation, test
        Training loss of each epoch (None where the step was skipped), validation metric of each epoch that was
        evaluated, the best one of these epochs, counted from 0, and the metrics at that epoch.
    model : Module
        Model with the parameters of the best epoch.
    seconds_per_epoch : float
        Median time of a training step (forward, backward, gradient sum, optimiser) on the slowest rank, without
        evaluation (s).
    exchange_share : float
        Share of that time in the boundary exchange, waiting included; mean over ranks.
    compute_seconds : list of float, (P,), or None
        Median time that each rank computes in a step, by the processor's clock of its main thread (s); None on a GPU.
    exchanged_bytes_per_epoch : int
        Bytes that all ranks together send in the boundary exchanges of one training step, forward and backward; the
        mean over the steps.
    policy : PolicyOfRun or None
        The ``rules`` of the transmission policy, and ``exact_bytes_per_epoch``, what ranks would have sent without it;
        None where all is exact.
    peak_memory_bytes : list of int, (P,)
        Peak resident memory of each rank's process, or of the CUDA allocator on a GPU (bytes).
    """

    model: nn.Module
    seconds_per_epoch: float
    exchange_share: float
    compute_seconds: list[float] | None
    exchanged_bytes_per_epoch: int
    policy: PolicyOfRun | None
    peak_memory_bytes: list[int]


@dataclass(frozen=True)
class EpochFigures:
    """What was measured in an epoch on this rank; where it was not evaluated, metrics are None and
    ``evaluation_bytes`` is 0.
    """

    loss: float
    validation: float | None
    test: float | None
    lr: float
    seconds: float
    exchange_s: float
    compute_s: float
    sent_bytes: int
    evaluation_bytes: int


@dataclass
class RunState:
    """A run after some epochs; the same on every rank, because every rank holds all parameters."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    history: TrainHistory
    epoch: int = 0  # those that are done
    best: dict[str, Tensor] | None = None  # the model's ``state_dict`` at the best epoch
    best_optimizer: dict | None = None  # that of the optimiser, while the layers train alone

    def keep_best(self, validation: float, test: float, with_optimizer: bool) -> None:
        """Remember the model of this epoch as the best one so far."""
        history = self.history
        self.best = copy.deepcopy(
            self.model.state_dict()
        )  # first: a signal in between marks no older model as this one
        history.best_epoch, history.validation, history.test = self.epoch, validation, test
        if with_optimizer:
            self.best_optimizer = copy.deepcopy(self.optimizer.state_dict())

    def start_second_phase(self) -> None:
        """Go back to the best weights and their optimiser, and train Polynormer's global attention along."""
        self.model.load_state_dict(self.best)
        self.optimizer.load_state_dict(self.best_optimizer)
        self.best_optimizer = None
        self.schedule.restart()
        polynormer: Any = self.model
        polynormer.uses_global = True

    def values(self) -> dict:
        """The part that JSON can hold; :meth:`tensors` is the other one."""
        return {
            "epoch": self.epoch,
            "history": asdict(self.history),
            "schedule": self.schedule.state(),
            "has_best_optimizer": self.best_optimizer is not None,  # its state may hold no tensor yet
        }

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name: ``model/...``, ``best/...``, ``optimizer/...`` and ``best_optimizer/...``; a collective."""
        found = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"best/{name}": value for name, value in (self.best or {}).items()}
        found |= self._of_optimizer("optimizer", self.optimizer.state_dict())
        if self.best_optimizer is not None:
            found |= self._of_optimizer("best_optimizer", self.best_optimizer)
        return found

    def _of_optimizer(self, kind: str, state: dict) -> dict[str, Tensor]:
        """The tensors of a ``state_dict`` by name; those of a table of nodes have the rows of all nodes."""
        tables, found = self._tables(), {}
        for number, tensors in state["state"].items():
            for key, value in tensors.items():
                is_of_rows = number in tables and key != "step"
                found[f"{kind}/{number}/{key}"] = tables[number].gathered(value) if is_of_rows else value
        return found

    def _tables(self) -> dict[int, NodeEmbedding]:
        """The tables of nodes by the number that the optimiser gives their parameter."""
        of_weight = {id(each.weight): each for each in self.model.modules() if isinstance(each, NodeEmbedding)}
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        return {number: of_weight[id(each)] for number, each in enumerate(parameters) if id(each) in of_weight}

    def restore(self, values: dict, tensors: dict[str, Tensor]) -> None:
        """Become the state that gave these values and tensors."""
        device = next(self.model.parameters()).device
        best = _below("best", tensors)
        for state in (best or None, _below("model", tensors)):  # of the best one, this checks names and shapes
            if state is not None:
                self.model.load_state_dict(state)
        self.best = {name: value.to(device) for name, value in best.items()} or None
        self.optimizer.load_state_dict(self._optimizer_state("optimizer", tensors))
        if values["has_best_optimizer"]:
            self.best_optimizer = self._optimizer_state("best_optimizer", tensors)
        self.schedule.restore(values["schedule"])
        self.history = msgspec.convert(values["history"], TrainHistory)
        self.epoch = msgspec.convert(values["epoch"], int)

    def _optimizer_state(self, kind: str, tensors: dict[str, Tensor]) -> dict:
        """A ``state_dict`` with these tensors and the settings of this run's optimiser, which does not check them."""
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        tables = self._tables()
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(kind, tensors).items():
            number, _, key = name.partition("/")
            if int(number) in tables and key != "step":
                value = tables[int(number)].own(value)
            shape = () if key == "step" else parameters[int(number)].shape
            if value.shape != shape:
                raise ValueError(f"{kind}/{name} has shape {tuple(value.shape)}, and {tuple(shape)} is expected")
            state.setdefault(int(number), {})[key] = value
        if len({frozenset(each) for each in state.values()}) > 1:
            raise ValueError(f"{kind} lacks some of its tensors")
        return {"state": state, "param_groups": copy.deepcopy(self.optimizer.state_dict()["param_groups"])}


def _below(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{kind}/"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def random_states(comm: Comm, device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators on every rank, (P, ...), on rank 0. Models of users draw from them."""
    states = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    gathered = {name: comm.gather_rows(value[None], to=0) for name, value in states.items()}
    return {name: torch.cat(rows) for name, rows in gathered.items() if rows is not None}


def set_random_states(tensors: dict[str, Tensor], comm: Comm, device: torch.device) -> None:
    """Give this rank its state again; on more ranks than before, the states are given out once more from the start."""
    cpu, cuda = tensors["random/cpu"], tensors.get("random/cuda")
    torch.set_rng_state(cpu[comm.rank % len(cpu)].clone())
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda[comm.rank % len(cuda)].clone(), device)


def peak_memory_on(device: torch.device) -> int:
    """The peak resident memory of this process, or on a GPU that of the CUDA allocator (bytes)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()


# ---- what a run and the checkpoint that it goes on from must have in common ----


FREE_SETTINGS = ("activation_checkpoint", "strategy", "depth", "checkpoint_every", "on_nan", "top", "init")
_SHOWN = 5  # differences in a message
_NUMBERS = 1 << 20  # hashed at a time
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def data_digest(sg: ShardedGraph, names, edge_names=()) -> dict[str, str | int]:
    """Digests of the edges and of node and edge data by name, and the numbers of nodes and edges; every rank calls it.

    Each node and each edge gives a number from its own id and contents, and the numbers are summed over all ranks: so
    every cut of a graph has the same digest. It finds data that were changed or mixed up, not forgeries.
    """
    held = sg.pull(sg.node_ids)
    source, destination = sg.edges()
    ends = torch.stack([held[source], held[destination]], 1).cpu()
    sums = [_sum_of_rows(sg.edge_ids.cpu(), ends, "edges")]
    for name in names:
        of_type = sg.rows(name.partition("/")[0]) if sg.schema and "/" in name else slice(None)
        sums.append(_sum_of_rows(sg.node_ids[of_type].cpu(), sg.ndata[name].cpu(), name))
    for name in edge_names:
        of_relation = sg.edge_rows(name.partition("/")[0]) if sg.schema and "/" in name else slice(None)
        sums.append(_sum_of_rows(sg.edge_ids[of_relation].cpu(), sg.edata[name].cpu(), f"edge {name}"))
    totals = sg.comm.all_reduce(torch.tensor(sums)).tolist()
    labels = ("edges", *names, *(f"edge data {name}" for name in edge_names))
    digests = {name: f"{total % 2**64:016x}" for name, total in zip(labels, totals)}
    return {"number of nodes": sg.manifest["nodes"], "number of edges": sg.manifest["edges"], **digests}


def _sum_of_rows(ids: Tensor, rows: Tensor, name: str) -> int:
    """The sum of a hash of each row with its id, in 64 bits with a sign."""
    rows = rows.reshape(len(ids), -1) if len(ids) else rows.reshape(0, 1)
    columns = splitmix64(torch.arange(rows.shape[1]) + zlib.crc32(name.encode())) | 1
    total = torch.zeros((), dtype=torch.int64)
    step = max(1, _NUMBERS // max(1, rows.shape[1]))
    for start in range(0, len(ids), step):
        some = rows[start : start + step].contiguous().view(_WORDS[rows.element_size()]).long()
        total += splitmix64((splitmix64(some) * columns).sum(1) + splitmix64(ids[start : start + step])).sum()
    return int(total)


def identity_of(
    config: TrainConfig, factory_name: str | None, graphs: Sequence[ShardedGraph], model: nn.Module
) -> dict:
    """What makes a run the same, by name, as values that JSON can hold; every rank calls it."""
    data: dict[str, str | int] = {}
    for number, sg in enumerate(graphs):
        of_graph = f"graph {number + 1}: " if number else ""
        data |= {of_graph + name: value for name, value in _data_of_run(config, sg).items()}
    settings = {name: value for name, value in config.flat().items() if name not in _free_settings(config)}
    if is_policy_file(config.exchange.policy):  # what the file says, not only its name
        settings["policy"] = str(config.exchange.rules.described())
    if (stream := graphs[0].stream) is not None and stream.spill_dtype:
        settings["spill_dtype"] = "bf16"
    settings["model_factory"] = factory_name
    shapes = {name: [str(value.dtype), *value.shape] for name, value in model.state_dict().items()}
    return {"settings": settings, "data": data, "tensors": shapes}


def _data_of_run(config: TrainConfig, sg: ShardedGraph) -> dict[str, str | int]:
    """Digests of what a run reads of a graph."""
    inputs = config.task.inputs
    of_nodes = (*(["feat"] if "feat" in sg.ndata else []), *config.task.node_data, *inputs.encodings)
    of_edges = (*config.task.edge_data, *inputs.edge_features)
    if sg.schema is not None:  # of all types
        of_nodes = tuple(name for name in sg.ndata if name.rpartition("/")[2] in ("feat", *of_nodes))
        of_edges = tuple(name for name in sg.edata if name.rpartition("/")[2] in of_edges)
    data = data_digest(sg, of_nodes, of_edges)
    if config.task.reads_links:
        links = sg.read_links()
        data["negatives of each link"] = sg.manifest["links"]["own_negatives"]
        data["links"] = f"{zlib.crc32(b''.join(links[name].numpy().tobytes() for name in LINK_SETS)):08x}"
    return data


def check_identity(path: Path, mine: dict, other: dict) -> None:
    """Raise :class:`InputError` that names what differs in a checkpoint."""
    differing = []
    for kind, label in (("settings", ""), ("data", "data: "), ("tensors", "model: ")):
        now, before = mine[kind], other[kind]
        differing += [
            f"{label}{name} was {before.get(name, 'absent')!r} and is now {now.get(name, 'absent')!r}"
            for name in now | before
            if now.get(name) != before.get(name)
        ]
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise InputError(
            f"{path} belongs to another run: {'; '.join(differing[:_SHOWN])}{more}. Use the settings and the data of that "
            "run, or start a new one in another directory"
        )


def _free_settings(config: TrainConfig) -> list[str]:
    """The settings that may change when a run is resumed, because they do not change how weights are updated."""
    free = [*FREE_SETTINGS]
    free += [] if config.optimizer.schedule == "cosine" else ["epochs"]
    free += [] if config.optimizer.schedule == "plateau" else ["patience", "evaluate_every"]
    return free
