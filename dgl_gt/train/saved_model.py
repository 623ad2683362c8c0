"""A trained model on disk. ``model.safetensors`` alone is needed to read it.

``config.yaml`` and ``record.json`` are for people and reports: the settings, and the results of the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
import yaml

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import check_room
from dgl_gt.partition.system.signals import received_signals
from dgl_gt.partition.system.yaml_file import read_yaml
from dgl_gt.ranks.launcher_link import find_launcher
from dgl_gt.run_files.run_directory import CONFIG, RECORD, WEIGHTS, RunDirectory
from dgl_gt.run_files.run_record import GraphOfRun, RunRecord, values_of
from dgl_gt.run_files.tensor_file import TensorFile, read_bytes

from .config import TrainConfig
from .model import FactoryError, ModelFactory, build_model
from .module_places import first_not_finite
from .run_state import TrainHistory

MODEL_FILE = TensorFile("model", 2)
_MIN_PAUSE_S = 5.0  # between two writes while a model trains
_MAX_WRITING_SHARE = 0.02  # of the time
_LONGEST_CAUSE = 400  # characters
_OTHER_BYTES = 1 << 20  # room for the record, the config and directories


class BestModelWriter:
    """Writes the best model of a run to the directory ``out``, while it trains and at its end; for one rank.

    While the model trains, a better one is written at most every few seconds. If the block ends by an error or a
    signal, the best model is written unless it is on disk already; if the run finishes, call :meth:`finish` inside the
    block. A signal does not interrupt these last writes. A run that is killed keeps the model of a few seconds before.

    ``describe`` makes the record of an unfinished run from its :class:`dgl_gt.train.run_state.TrainHistory`. With
    ``force``, a model that is in ``out`` already is replaced.
    """

    def __init__(self, out, config: TrainConfig, describe, *, force: bool = False, factory: ModelFactory | None = None):
        self.directory, self._config, self._describe = RunDirectory(out, force=force), config, describe
        self._shape: dict = {"model_factory": factory.name} if factory else {}
        self._pending: tuple[dict, TrainHistory] | None = None
        self._epoch_there = 0  # the epoch of the model in the directory, counted from 1; 0 without a model
        self._next_write_s = 0.0

    @property
    def out(self) -> Path:
        """The directory, as it was given."""
        return self.directory.out

    def start(self, model: torch.nn.Module, sizes: Mapping[str, int], class_names: list[str] | None = None) -> None:
        """Raise :class:`InputError` if the disk has no room for the model and the one that it replaces."""
        self._shape |= {key: each for key, each in {**sizes, "class_names": class_names}.items() if each}
        model_bytes = sum(value.nbytes for value in model.state_dict().values())
        check_room(self.out, 2 * model_bytes + _OTHER_BYTES)

    def update(self, state: dict, history: TrainHistory) -> None:
        """Take a better model, and write it if the last write was long enough ago.

        Raises
        ------
        InputError
            The first model cannot be written. If a later one cannot be written it stays in memory, and training goes
            on.
        """
        self._pending = state, history
        if time.monotonic() < self._next_write_s or self._is_behind(history):
            return
        started = time.monotonic()
        try:
            self._write(state, self._describe(history))
        except InputError as error:
            if not self._epoch_there:
                self._pending = None
                raise
            print(f"dgl-gt: warning: {error}. Training goes on, and the model is written later", file=sys.stderr)
        else:
            self._pending, self._epoch_there = None, history.best_epoch + 1
        ended = time.monotonic()
        self._next_write_s = ended + max(_MIN_PAUSE_S, (ended - started) / _MAX_WRITING_SHARE)

    def make_directory(self, history: TrainHistory) -> None:
        """Make sure that the directory is there, without a model if there is none yet; ``InputError`` if it cannot be."""
        if not self.directory.is_ours:
            write_model(self.directory, None, self._config, self._shape, self._describe(history))

    def resume(self, best: dict | None, history: TrainHistory) -> None:
        """Go on in a directory of this run, from a checkpoint with this best model, unless a later one is there."""
        self.directory.is_ours = True
        if os.path.isfile(self.out / WEIGHTS):
            self._epoch_there = self._best_epoch_there()
            self._reopen(history)
        if best is not None:
            self._pending = best, history

    def _is_behind(self, history: TrainHistory) -> bool:
        """Whether the directory holds the model of a later epoch, which a run that was killed wrote after its checkpoint."""
        return history.best_epoch + 1 <= self._epoch_there

    def _reopen(self, history: TrainHistory) -> None:
        """Write that the run goes on, and with which settings; the model that is there stays."""
        with suppress(InputError, OSError, ValueError, TypeError):  # damaged ones are replaced with the next model
            record, config = json.loads((self.out / RECORD).read_text()), read_yaml(self.out / CONFIG)
            of_now = self._describe(history)
            of_now = values_of(of_now) if isinstance(of_now, RunRecord) else of_now
            record |= {key: of_now[key] for key in ("finished", "started_by") if key in of_now}
            self.directory.write(_for_people({**config, **asdict(self._config)}, record))

    def _best_epoch_there(self) -> int:
        """The epoch of the model in the directory, counted from 1; 0 if the model cannot be read."""
        try:
            return int(MODEL_FILE.unpack(read_bytes(self.out / WEIGHTS))[0]["best_epoch"])
        except (InputError, ValueError, KeyError, TypeError):
            return 0

    def finish(self, state: dict, record: RunRecord | dict) -> None:
        """Write the best model with the record of the finished run; to another place if ``out`` cannot be written.

        Raises
        ------
        InputError
            The model could not be written to ``out``; the message says where it is.
        """
        failure, signals = self._write_somewhere(state, record)
        self._epoch_there = 0  # so that the end of the block reports nothing
        if signals:
            if failure:
                print(f"dgl-gt: {failure}", file=sys.stderr)
            signal.raise_signal(signals[0])
        if failure:
            raise InputError(failure)

    def __enter__(self) -> BestModelWriter:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if error is None:
            return
        kept = None
        if self._pending is not None and not self._is_behind(self._pending[1]):
            state, history = self._pending
            kept, _ = self._write_somewhere(state, self._describe(history))  # a signal changes nothing: the run ends
            self._epoch_there = self._epoch_there if kept else history.best_epoch + 1
        if kept is None and self._epoch_there:
            kept = f"the best model so far, of epoch {self._epoch_there}, is in {self.out}"
        if kept and isinstance(error, InputError):
            raise InputError(f"{error}; {kept}") from error
        if kept:
            print(f"dgl-gt: {kept}", file=sys.stderr)

    def _write(self, state: dict, record: RunRecord | dict) -> None:
        write_model(self.directory, state, self._config, self._shape, record)

    def _write_somewhere(self, state: dict, record: RunRecord | dict) -> tuple[str | None, list[int]]:
        """Write to ``out``, or else to the directory for temporary files; no signal interrupts that.

        Returns None, or a message that says where the model is; and the signals that came meanwhile.
        """
        launcher, failure = find_launcher(), None
        with received_signals() as signals:
            if launcher:
                launcher.report(state="writing")
            try:
                self._write(state, record)
            except InputError as error:
                failure = f"{error}. {self._write_elsewhere(state, record)}"
            self._pending = None
            if launcher:
                launcher.report(state="joined")
        return failure, signals

    def _write_elsewhere(self, state: dict, record: RunRecord | dict) -> str:
        other = Path(tempfile.gettempdir()) / f"dgl-gt-model-{os.getpid()}"
        try:
            save_model(other, state, self._config, self._shape, record)
        except InputError as error:
            earlier = "no model was written"
            if self._epoch_there:
                earlier = f"{self.out} holds the model of epoch {self._epoch_there}"
            return f"The model could not be written to another place either ({error}); {earlier}"
        return f"The model is in {other} instead"


def save_model(
    out, state: dict, config: TrainConfig, shape: dict, record: RunRecord | dict, *, force: bool = False
) -> None:
    """Write a model directory; it appears when it is complete.

    Parameters
    ----------
    out : path
    state : dict of str to Tensor
        The model's ``state_dict``.
    config : TrainConfig
    shape : dict
        ``in_dim`` and ``classes`` of the model, its ``class_names`` and the number of its ``edge_feats`` and
        ``edge_kinds`` if it has any, and the name of its ``model_factory`` if it has one.
    record : RunRecord or dict
        Record of the run, or its values as ``dgl-gt train --json`` prints them.
    force : bool
        Whether to replace ``out`` if it holds a model.

    Raises
    ------
    InputError
        ``out`` exists, or cannot be written.
    """
    write_model(RunDirectory(out, force=force), state, config, shape, record)


def write_model(
    directory: RunDirectory, state: dict | None, config: TrainConfig, shape: dict, record: RunRecord | dict
) -> None:
    """Do as :func:`save_model` does, in the directory of a run. Without a state, write the other files alone."""
    settings = asdict(config)
    record = values_of(record) if isinstance(record, RunRecord) else record
    files = _for_people({**settings, "shape": shape}, record)
    if state is not None:  # first: a kill between two files leaves a model that is newer than its record
        values = {"config": config.flat(), "shape": shape, "best_epoch": record.get("best_epoch")}
        files = {WEIGHTS: MODEL_FILE.pack(values, state)} | files
    directory.write(files)


def _for_people(settings: dict, record: dict) -> dict[str, bytes]:
    """The files of a model that are not needed to read it."""
    texts = {CONFIG: yaml.safe_dump(settings, sort_keys=False), RECORD: json.dumps(record, indent=1) + "\n"}
    return {name: text.encode() for name, text in texts.items()}


def is_run_of(directory, config: TrainConfig, factory: ModelFactory | None, graph: GraphOfRun) -> bool:
    """Whether the run in a directory is of a graph, a configuration, and a factory of this name or none.

    The cut and checksum of the graph may differ, and so may what does not change the result, because ranks that are
    started again may choose another cut.
    """
    directory = Path(directory)
    try:
        found, of_run = read_yaml(directory / CONFIG), json.loads((directory / RECORD).read_text())["graph"]
        is_same_graph = all(of_run[key] == getattr(graph, key) for key in ("source", "nodes", "edges"))
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return False
    wanted = {**asdict(config), "activation_checkpoint": found.get("activation_checkpoint")}
    same_settings = yaml.safe_load(yaml.safe_dump(wanted)).items() <= found.items()
    return (
        is_same_graph
        and same_settings
        and (found.get("shape") or {}).get("model_factory") == (factory.name if factory else None)
    )


def load_model(directory, factory: ModelFactory | None = None) -> torch.nn.Module:
    """Read a model directory; the model is on the CPU, in torch's default dtype and in evaluation mode.

    Its ``class_names`` is the list of the names of its classes, or None where labels were numbers.

    Parameters
    ----------
    directory : path
        The directory, or ``model.safetensors`` in it.
    factory : ModelFactory, optional
        Factory that made the model, if one did. It is code, so it is never imported by a name in a file.

    Raises
    ------
    InputError
        The directory holds no model, its file is damaged or of another version, its weights are not finite, or
        the model is not one of the factory.
    """
    path = Path(directory) if os.path.isfile(directory) else Path(directory) / WEIGHTS
    if not os.path.isfile(path):
        raise InputError(
            f"{directory} holds no model ({WEIGHTS}); give the directory that `dgl-gt train --out` has written"
        )
    content = read_bytes(path)
    try:
        values, state = MODEL_FILE.unpack(content)
    except InputError as error:
        raise InputError(f"{path} {error}; train the model again") from error
    try:
        config, shape = values["config"], dict(values["shape"])
        _check_factory(path, shape.pop("model_factory", None), factory)
        class_names = shape.pop("class_names", None)
        with torch.device("meta" if factory is None else "cpu"):  # sizes from a damaged file take no memory
            model = build_model(
                TrainConfig().changed(**config), shape.pop("in_dim"), shape.pop("classes"), factory, **shape
            )
        model.load_state_dict(state, assign=True)
        name = first_not_finite(model.state_dict())
    except FactoryError:
        raise
    except (KeyError, TypeError, RuntimeError, OverflowError, ValueError) as error:
        cause = " ".join(str(error).split())
        cause = cause if len(cause) < _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]} ..."  # torch lists every tensor
        raise InputError(
            f"{path} is damaged or from another version of dgl-gt: {cause}; train the model again"
        ) from error
    if name is not None:
        raise InputError(f"{path}: {name} holds NaN or infinity; train the model again with a lower lr")
    model.class_names = class_names
    return model.to(torch.get_default_dtype()).eval()


def _check_factory(path: Path, made_by, factory: ModelFactory | None) -> None:
    """Raise :class:`FactoryError` unless a model that a factory made is read with a factory, and no other is."""
    if made_by is not None and factory is None:
        raise FactoryError(
            f"{path} holds a model that the factory {made_by} made; give that factory again (--model-factory)"
        )
    if made_by is None and factory is not None:
        raise FactoryError(
            f"{path} holds a graph transformer of dgl-gt, which --model-factory {factory.name} did not make; leave that "
            "option out"
        )
