"""``dgl-gt plan --prices``: clusters of rented machines by hours and money."""

import math
import shlex

import pytest
from selector_cases import GRAPH, MadeUpTraces, planned, profile_values, refused, write_profile

from dgl_gt.cli import plan as command
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.figures.profile import Hosts, read_profile
from dgl_gt.plan import Candidate, NothingFits, Plan, forecast
from dgl_gt.plan.prices import Cluster, doubts, quotes, read_prices

BOX = {"profile": "default", "price": 2.0, "ranks": 2, "counts": [1, 2]}
MODEL = ["--hidden", 32, "--heads", 2, "--layers", 2, "--classes", 3]


def write_prices(folder, machines, **more):
    """A file of prices; gives its path."""
    return write_profile(folder / "prices.yaml", {"machines": machines, **more})


def made_plan(seconds: float) -> Plan:
    choice = Candidate("edge", "halo_h", 1, "none", seconds=seconds, memory_bytes=1)
    return Plan(choice, None, "", [choice], {}, {}, 1, None, default_costs())


def quoted(seconds: dict) -> list:
    """Quotes for two boxes of each name, at 6 an hour; where nothing fits, the memory that is missing, below zero."""
    profile = read_profile()
    clusters = [Cluster(name, 2, 6.0, 4, profile) for name in seconds]
    plans = [NothingFits("", 1, -each) if each < 0 else made_plan(each) for each in seconds.values()]
    return quotes(clusters, plans, 100, math.inf)


@pytest.fixture
def made_up(monkeypatch):
    """Plans of steps that need no tracing."""
    monkeypatch.setattr(command, "_traces_of", lambda args, config: lambda features: MadeUpTraces())


def test_clusters_of_a_file(tmp_path):
    write_profile(tmp_path / "four.yaml", profile_values(4))
    machines = {
        "server": {**BOX, "profile": "8xH100", "counts": [4, 1, 4]},
        "pair": {**BOX, "profile": "four.yaml", "counts": [2], "memory": "4GiB"},
    }
    (pair, one, four), currency = read_prices(write_prices(tmp_path, machines, currency="EUR"))
    assert currency == "EUR"
    assert [each[:4] for each in (one, four, pair)] == [
        ("server", 1, 2.0, 2),
        ("server", 4, 8.0, 8),
        ("pair", 2, 4.0, 4),
    ]
    links = read_profile(preset="8xH100").link_bytes_per_s
    assert four.profile.link_bytes_per_s == Hosts(links.within, links.between, 2) and four.profile.device == "cuda"
    assert four.profile.memory_bytes == 8e10 and pair.profile.memory_bytes == 2 * 2**30
    assert pair.profile.ranks == 4 and pair.profile.name == str(tmp_path / "four.yaml")


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        ({"prize": 1}, ["machines.box: unknown key 'prize'", "counts, memory, price, profile, ranks"]),
        ({"price": 0}, ["machines.box.price is 0", "above 0"]),
        ({"price": float("nan")}, ["machines.box.price is nan", "above 0"]),
        ({"price": "cheap"}, ["machines.box.price is 'cheap'", "above 0"]),
        ({"ranks": 0}, ["machines.box.ranks is 0", "from 1 to 4096"]),
        ({"counts": []}, ["machines.box.counts is []", "such as [1, 2, 4]"]),
        ({"counts": 2}, ["machines.box.counts is 2", "such as [1, 2, 4]"]),
        ({"counts": [1, 0]}, ["machines.box.counts is [1, 0]"]),
        ({"counts": [1, 4096]}, ["machines.box has 4096 machines of 2 ranks", "4,096"]),
        ({"profile": "8xA100", "memory": "64GiB"}, ["machines.box.memory is '64GiB'", "8xA100"]),
        ({"memory": "lots"}, ["machines.box.memory", "'lots' is not an amount of memory"]),
        ({"profile": "9xB200"}, ["machines.box.profile is '9xB200'", "8xH100", ".yaml"]),
        ({"profile": "none.yaml"}, ["none.yaml", "no such file"]),
        ({"profile": "two.yaml"}, ["machines.box", "two.yaml is for 2 ranks", "2 machines of ranks: 2", "train on 4"]),
        ({"price": None}, ["has no machines.box.price"]),
        (None, ["machines.box is None"]),
    ],
)
def test_bad_prices_are_refused_before_any_work(here, tmp_path, monkeypatch, change, messages):
    monkeypatch.setattr(forecast, "load_graph", lambda *_, **__: pytest.fail("the graph was read"))
    write_profile(tmp_path / "two.yaml", profile_values(2))
    box = change and {key: value for key, value in {**BOX, **change}.items() if value is not None}
    path = write_prices(tmp_path, {"box": box})
    refused(here("plan", GRAPH, "--prices", path), f"prices {path}", *messages)


def test_files_without_machines(tmp_path):
    for machines in ({}, None, [BOX]):
        with pytest.raises(InputError, match="machines is "):
            read_prices(write_prices(tmp_path, machines))
    with pytest.raises(InputError, match="unknown key 'currencies'; allowed are currency, machines"):
        read_prices(write_prices(tmp_path, {"box": BOX}, currencies="USD"))
    with pytest.raises(InputError, match="currency is 7"):
        read_prices(write_prices(tmp_path, {"box": BOX}, currency=7))


def test_hours_and_money():
    """100 epochs of 36 s are an hour, at 6 an hour for two boxes; the cheapest is first."""
    found = quoted({"slow": 72.0, "fast": 36.0, "small": -50})
    assert [each.cluster.machine for each in found] == ["fast", "slow", "small"]
    assert [number for each in found[:2] for number in (each.hours, each.money)] == pytest.approx([1, 6, 2, 12])
    assert found[2].missing_bytes == 50 and found[2].as_dict()["money"] is None


def test_a_deadline():
    """Half the price and too slow: behind those in time, before those that do not fit, the fastest of the late first."""
    clusters = [Cluster(name, 1, price, 1, read_profile()) for name, price in zip("abcde", (1.0, 4.0, 5.0, 1.0, 1.0))]
    plans = [made_plan(72.0), made_plan(36.0), made_plan(18.0), NothingFits("", 1, 9), made_plan(48.0)]
    found = quotes(clusters, plans, 100, 3600.0)
    assert [each.cluster.machine for each in found] == ["c", "b", "e", "a", "d"]
    assert [each.is_late for each in found[:4]] == [False, False, True, True]
    assert [each.cluster.machine for each in quotes(clusters, plans, 100, math.inf)] == ["e", "a", "c", "b", "d"]
    with pytest.raises(InputError, match="deadline is 0.25 h, and the fastest cluster, 1 x c, takes 0.5 h"):
        quotes(clusters, plans, 100, 900.0)


def test_no_cluster_with_the_memory():
    with pytest.raises(InputError, match="nothing fits any cluster: 2 x b comes nearest, and lacks 2.0 KiB a rank"):
        quoted({"a": -4096, "b": -2048})


def test_doubts_name_what_was_not_measured():
    kinds = [read_profile(), read_profile(preset="8xH100"), read_profile(preset="8xA100")]
    found = [quotes([Cluster("m", 1, 1.0, 1, each)], [made_plan(1.0)], 1, math.inf)[0] for each in kinds]
    lines = doubts(found, 5, False)
    assert lines[0].startswith("8xH100, 8xA100: ") and lines[1].startswith("default: ")
    assert any("evaluation" in line and "5 epochs" in line for line in lines)
    assert len(doubts(found, 5, True)) == len(lines) + 1


def test_a_table_and_json(here, tmp_path, made_up):
    write_profile(tmp_path / "tiny.yaml", profile_values(None) | {"device": "cuda", "memory_bytes": 1e6})
    write_profile(tmp_path / "quick.yaml", profile_values(None))
    machines = {
        "server": {**BOX, "profile": "quick.yaml"},
        "tiny": {**BOX, "profile": "tiny.yaml", "counts": [1]},
    }
    path = write_prices(tmp_path, machines, currency="EUR")
    options = ["plan", GRAPH, "--undirected", "--prices", path, "--epochs", 1000]
    found = planned(here(*options, "--json"))
    assert (found["currency"], found["epochs"], found["deadline_s"]) == ("EUR", 1000, None)
    best, second, tiny = found["quotes"]
    assert [(each["machine"], each["machines"]) for each in (best, second)] == [("server", 1), ("server", 2)]
    for each in (best, second):
        assert each["ranks"] == 2 * each["machines"] == each["choice"]["ranks"]
        assert each["hours"] == pytest.approx(1000 * each["choice"]["predicted_seconds"] / 3600)
        assert each["money"] == pytest.approx(2.0 * each["machines"] * each["hours"])
        assert {candidate["cut"] for candidate in each["candidates"]} == {"edge", "vertex"}
    assert tiny["choice"] is None and tiny["missing_memory_bytes"] > 0 and tiny["profile"]["kind"] == "measured"
    partition, train = map(shlex.split, found["commands"])
    assert partition[:3] == ["dgl-gt", "partition", GRAPH] and "--undirected" in partition
    assert partition[partition.index("--profile") + 1] == str(tmp_path / "quick.yaml")
    assert train[train.index("--strategy") + 1] == best["choice"]["strategy"] and train[-2:] == ["--epochs", "1000"]

    done = here(*options)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cheapest: 1 x server, ") and lines[0].endswith(" EUR")
    assert [line.strip() for line in lines[1:3]] == found["commands"]
    (start,) = [number for number, line in enumerate(lines) if line.startswith("cluster ")]
    rows = lines[start + 2 : start + 5]
    assert [row[:10] for row in rows] == ["1 x server", "2 x server", "1 x tiny  "] and "lacks" in rows[2]
    assert [line[2:] for line in lines[lines.index("unsure:") + 1 :]] == found["unsure"]


def test_several_machines_start_with_torchrun(here, tmp_path, made_up):
    path = write_prices(tmp_path, {"server": {**BOX, "profile": "8xH100", "counts": [2]}})
    found = planned(here("plan", GRAPH, "--prices", path, "--figures-of", "3e6,6e7", "--json"))
    partition, train = map(shlex.split, found["commands"])
    assert partition[2] == "GRAPH" and "--preset" not in partition  # its hosts have eight ranks
    assert train[0] == "torchrun" and train[train.index("--nnodes") + 1] == "2"
    assert train[train.index("--nproc-per-node") + 1] == "2"


def test_a_larger_graph_takes_longer_and_a_deadline_is_kept(here, tmp_path, made_up):
    path = write_prices(tmp_path, {"box": {**BOX, "counts": [1]}})
    small, large = (
        planned(here("plan", GRAPH, "--prices", path, *more, "--json"))["quotes"][0]
        for more in ([], ["--figures-of", "3e6,6e7"])
    )
    assert large["hours"] > 100 * small["hours"]
    late = ["--epochs", 10**9, "--deadline", "6h"]
    refused(here("plan", GRAPH, "--prices", path, *late), "--deadline is 6 h", "1 x box, takes", lines=None)


def test_shards(here, both, tmp_path, made_up):
    path = write_prices(tmp_path, {"box": {**BOX, "counts": [1]}})
    found = planned(here("plan", *both, "--prices", path, "--json"))
    (train,) = map(shlex.split, found["commands"])
    assert train[:2] == ["dgl-gt", "train"] and train[2] in map(str, both)
    path = write_prices(tmp_path, {"box": BOX})
    refused(here("plan", *both, "--prices", path), "world_size is 2,4", "has 2 parts", lines=None)


def test_memory_that_takes_two_parts_a_rank(here, tmp_path, monkeypatch):
    """The small machine is a third of the price; the commands that are printed train on it."""
    monkeypatch.chdir(tmp_path)
    write_profile(tmp_path / "any.yaml", profile_values(None))
    box = {"profile": "any.yaml", "ranks": 1, "counts": [1]}
    machines = {"small": {**box, "price": 1, "memory": "9MiB"}, "big": {**box, "price": 3}}
    graph = "sample:communities?nodes=4000&features=4&degree=4&seed=0"
    options = [*MODEL, "--epochs", 1, "--prices", write_prices(tmp_path, machines), "--json"]
    found = planned(here("plan", graph, *options))
    small, big = found["quotes"]
    assert (small["machine"], small["choice"]["parts"], small["choice"]["spilled"]) == ("small", 2, True)
    assert small["choice"]["predicted_memory_bytes"] <= 9 * 2**20 < big["choice"]["predicted_memory_bytes"]
    assert small["hours"] > big["hours"] and any("small" in line and "disk" in line for line in found["unsure"])
    for line in found["commands"]:
        done = here(*shlex.split(line)[1:])
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--profile", "two.yaml"], "--profile"),
        (["--preset", "8xH100"], "--preset"),
        (["--rank-memory", "4GiB"], "--rank-memory"),
        (["--world-size", "2"], "--world-size"),
        (["--policy", "stale"], "--policy"),
        (["--plot", "picture.png"], "--plot"),
        (["--save-costs", "costs.json"], "--save-costs"),
        (["--search-policy", "policy.yaml"], "--search-policy"),
    ],
)
def test_options_beside_prices(here, options, name):
    refused(here("plan", GRAPH, "--prices", "prices.yaml", *options), "--prices", f"leave {name} out")


def test_options_that_need_prices(here, tmp_path):
    refused(here("plan", GRAPH, "--deadline", "6h"), "--deadline needs --prices")
    refused(here("plan", GRAPH, "--epochs", 3, "--world-size", 2), "--epochs needs --prices")
    refused(here("plan", GRAPH, "--prices", "p.yaml", "--deadline", "soon"), "'soon' is not a time", lines=None)
    refused(here("plan", "--check", tmp_path, "--prices", "p.yaml"), "leave --prices out")
