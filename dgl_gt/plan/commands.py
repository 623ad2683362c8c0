"""``dgl-gt plan`` and ``dgl-gt calibrate`` as functions; the command line calls what they are made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import msgspec
import yaml

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError, check_type, whole_number
from dgl_gt.partition.figures.costs import machine_costs
from dgl_gt.partition.figures.profile import MAX_RANKS, Profile, read_profile
from dgl_gt.partition.notebook import stages
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.ranks.launch_function import launch
from dgl_gt.ranks.launcher_link import notebook_bar
from dgl_gt.train.config import TrainConfig
from dgl_gt.train.model import ModelFactory, check_settings

from .candidates import Plan
from .forecast import assumed_profile, forecast
from .measure import measure
from .measure_disk import measure_disk
from .planned_step import default_costs_on, tracer_of


def plan(
    *sources,
    world_size: int | None = None,
    config: TrainConfig | None = None,
    profile: Profile | None = None,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    classes: int | None = None,
    factory: ModelFactory | None = None,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> Plan:
    """Predict a training step with every cut, strategy and depth, and choose the fastest that fits; ``print`` shows it.

    Parameters
    ----------
    sources : path, or graph
        Shard directories of one graph with the same number of parts; or one graph, which is cut both ways, as
        :func:`dgl_gt.partition.load_graph` takes it or returns it.
    world_size : int, optional
        Number of ranks P; by default the parts of the shards, or the ranks of the profile.
    config : TrainConfig, optional
        The model and its precision; by default the defaults of ``dgl-gt train``.
    profile : Profile, optional
        Speed of ranks and links, from :func:`calibrate` or :func:`read_profile`; by default those of an ordinary server.
    rank_memory, max_depth
        See :func:`choose`.
    classes : int, optional
        Number of classes, or width of the result for another task; by default a usual one.
    factory : ModelFactory, optional
        What makes the model; by default that of the config is meant.
    seed : int
        Seed of the cuts of a graph.
    progress : callable, optional
        Called as ``progress(stage)``. By default a notebook shows the stage.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        A source or an argument is wrong; as :class:`NothingFits`, no candidate fits into the memory.

    Examples
    --------
    >>> from dgl_gt.plan import plan
    >>> print(plan("sample:communities?nodes=1000", world_size=2))  # doctest: +SKIP
    """
    if not sources:
        raise InputError("no source is given; give shard directories, or a graph")
    config = TrainConfig() if config is None else config
    check_type("config", config, TrainConfig)
    profile = read_profile() if profile is None else profile
    check_type("profile", profile, Profile)
    classes = None if classes is None else whole_number("classes", classes, 1)
    check_settings(config, factory)
    sizes = None if world_size is None else [whole_number("world_size", world_size, 1)]
    with stages(progress) as progress:
        (only,) = forecast(
            list(sources),
            sizes,
            lambda features: tracer_of(config, features, classes, factory),
            assumed_profile(profile, rank_memory is not None),
            rank_memory=rank_memory,
            max_depth=max_depth,
            seed=seed,
            progress=progress,
        ).values()
    assert isinstance(only, Plan), "forecast raises where nothing fits"
    return only


def calibrate(ranks: int, out=None, *, quick: bool = False, force: bool = False, spill=None) -> Profile:
    """Measure how fast ranks of this machine and the links between them are, all at the same time, for about a minute.

    With two ranks or more, the costs of the default model are kept in the user's cache, by which
    :func:`dgl_gt.partition.partition` balances parts from then on.

    Parameters
    ----------
    ranks : int
        Number of ranks P, 1 to 4,096; as many as will train.
    out : path, optional
        File to write the profile to, which :func:`read_profile` reads.
    quick : bool
        Whether to measure for some ten seconds, less exactly.
    force : bool
        Whether to replace ``out`` if it exists.
    spill : path, optional
        Directory for rows between layers, whose speed is measured, too; see docs/spilling.md.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        ``ranks`` is not in its range, ``out`` exists or cannot be written, or ``spill`` cannot be written.
    """
    ranks = whole_number("ranks", ranks, 1, MAX_RANKS)
    if out is not None:
        check_file(out, force=force)
    profile, problem = launch(partial(_calibrate_here, out, quick, force, spill), ranks)
    if problem:
        warnings.warn(f"partition goes on with its usual costs: {problem}", stacklevel=2)
    return profile


def _calibrate_here(out, quick: bool, force: bool, spill) -> tuple[Profile, str]:
    comm = Comm()
    with comm.together(), notebook_bar() as show:
        return measure_and_keep(comm, out, show if comm.rank == 0 else None, quick=quick, force=force, spill=spill)


def measure_and_keep(
    comm: Comm, out, progress: Callable[[str], object] | None, *, quick: bool, force: bool, spill=None
) -> tuple[Profile, str]:
    """Measure on this rank; rank 0 writes the profile, and the costs of the default model for ``partition``.

    Every rank calls it. Returns the profile, and why costs could not be written.
    """
    disk = None if spill is None else measure_disk(comm, str(spill), quick=quick)
    profile, problem = msgspec.structs.replace(measure(comm, progress, quick=quick), disk=disk), ""
    if comm.rank == 0 and out is not None:
        with new_file(out, force=force) as file:
            file.write(yaml.safe_dump(profile.as_dict(), sort_keys=False, default_flow_style=None, width=100).encode())
    if comm.rank == 0 and comm.world_size > 1:
        if progress:
            progress("costs of the default model")
        problem = keep_costs(profile)
    return profile, problem


def keep_costs(profile: Profile) -> str:
    """Write what a step of the default model costs here, for ``partition``; return why not, or nothing."""
    path = machine_costs()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # the new ones do not depend on it
        default_costs_on(profile).save(path, force=True)
    except (OSError, InputError) as error:
        return str(error)
    return ""
