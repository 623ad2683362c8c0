"""``dgl_gt.plan.plan`` and ``calibrate``: what the commands give, as values, without their output."""

import numpy as np
import pytest
from selector_cases import SMALL, planned, write_profile

from dgl_gt import InputError
from dgl_gt.partition import load_graph, read_costs
from dgl_gt.plan import NothingFits, Plan, Profile, calibrate, commands, plan, read_profile
from dgl_gt.train import ModelFactory, read_config

GRAPH = "sample:communities?nodes=300&features=12&seed=0"
CONFIG = read_config(hidden=16, heads=4, layers=2)


def test_a_plan_of_shards_is_that_of_the_command(here, both, tmp_path):
    path = write_profile(tmp_path / "two.yaml")
    options = {"rank_memory": 2**28, "max_depth": 1}
    made = plan(*both, config=CONFIG, profile=read_profile(path), classes=10, **options)
    assert isinstance(made, Plan)
    words = ["--profile", path, "--rank-memory", 2**28, "--max-depth", 1]
    done = here("plan", *both, *SMALL, *words, "--json")
    assert done.stdout and made.as_dict() == planned(done)
    shown = here("plan", *both, *SMALL, *words).stdout
    assert str(made) == shown.rstrip("\n")


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_plan_of_a_graph(capsys, world_size):
    """By its name, and as the graph itself."""
    made, again = (plan(each, world_size=world_size, config=CONFIG) for each in (GRAPH, load_graph(GRAPH)))
    assert made.ranks == world_size and made.choice.directory is None
    assert made.choice == again.choice and made.profile["kind"] == "default"
    assert {each.cut for each in made.candidates} == ({"edge"} if world_size == 1 else {"edge", "vertex"})
    assert capsys.readouterr() == ("", "")


def test_stages_are_told_on_request(both):
    stages = []
    plan(both[0], config=CONFIG, progress=stages.append)
    assert stages == ["tracing steps"]


def factory(make):
    return ModelFactory("mine", make)


@pytest.mark.parametrize(
    ("sources", "options", "words"),
    [
        (["shards"], {"world_size": 3}, ["world_size is 3", "2 parts"]),
        ([GRAPH], {}, ["world_size", "missing"]),
        ([GRAPH], {"world_size": 0}, ["world_size is 0", "at least 1"]),
        ([GRAPH], {"world_size": 301}, ["301 parts"]),
        ([], {}, ["no source"]),
        (["shards", GRAPH], {}, [GRAPH, "not a shard directory"]),
        (["shards"], {"config": {"hidden": 8}}, ["config is {'hidden': 8}", "TrainConfig"]),
        (["shards"], {"profile": "two.yaml"}, ["profile is 'two.yaml'", "Profile"]),
        (["shards"], {"classes": 0}, ["classes is 0", "at least 1"]),
        (["shards"], {"config": CONFIG, "factory": factory(lambda *_: None)}, ["hidden", "mine"]),
    ],
    ids=[
        "other ranks",
        "no ranks",
        "none",
        "more than nodes",
        "nothing",
        "mixed",
        "a dict",
        "a path",
        "no classes",
        "two models",
    ],
)
def test_wrong_arguments(both, sources, options, words):
    with pytest.raises(InputError) as raised:
        plan(*(both[0] if each == "shards" else each for each in sources), **options)
    assert all(word in str(raised.value) for word in words)


def test_nothing_fits(both):
    with pytest.raises(NothingFits) as raised:
        plan(both[1], config=CONFIG, rank_memory=2**20)
    assert raised.value.least_bytes > 2**20


def measure_little():
    """In a rank: small graphs and few widths."""
    from dgl_gt.plan import measure

    measure._ROWS, measure._EDGES, measure._FAR_ROWS = 300, 3600, (200, 900)
    measure._SHAPES, measure._WIDTHS = ((8, 4), (2, 16), (1, 8)), (16, 128)


def test_two_ranks_are_measured_and_their_costs_kept(tmp_path, monkeypatch, capsys):
    launch = commands.launch
    monkeypatch.setattr(commands, "launch", lambda work, ranks: launch(lambda: [measure_little(), work()][1], ranks))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "two.yaml"
    profile = calibrate(2, out, quick=True)
    assert isinstance(profile, Profile) and (profile.kind, profile.ranks) == ("measured", 2)
    assert profile.as_dict() == read_profile(out).as_dict()
    assert np.array(profile.link_bytes_per_s).shape == (2, 2)
    (kept,) = tmp_path.glob("cache/dgl-gt/*.json")
    assert read_costs(kept).profile == "measured"
    assert capsys.readouterr() == ("", "")
    with pytest.raises(InputError, match="two.yaml"):
        calibrate(2, out)


@pytest.mark.parametrize("ranks", [0, 5000, "2"])
def test_ranks_that_cannot_be_measured(ranks):
    with pytest.raises(InputError, match="^ranks is "):
        calibrate(ranks)
