"""``dgl-gt doctor`` names what would spoil a run, and the rank and host that it is about."""

import json

import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.plan import doctor

pytestmark = pytest.mark.usefixtures("rank_here")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("doctor") / "shards"
    partition("sample:communities?nodes=200&features=8", 2, directory)
    return directory


def test_nothing_is_wrong(shards, capfd):
    assert main(["doctor", str(shards), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["problems"] == [] and len(found["ranks"]) == 2
    assert found["link_bytes_per_s"][0][1] > 0 and len({each["shards"] for each in found["ranks"]}) == 1


def test_a_damaged_part_and_a_model_that_does_not_fit(shards, tmp_path, capfd):
    damaged = tmp_path / "shards"
    partition("sample:communities?nodes=200&features=8", 2, damaged)
    with open(damaged / "part1" / "structure.safetensors", "ab") as file:
        file.write(b"x")
    assert main(["doctor", str(damaged)]) == 2
    text = capfd.readouterr().err
    assert "1 problem: rank 1 (" in text and "part1/structure.safetensors" in text
    assert main(["doctor", str(shards), "--set", "model.hidden=60000", "--set", "model.heads=1", "--json"]) == 2
    printed = capfd.readouterr()
    assert "GiB available" in printed.err and "GiB available" in json.loads(printed.out)["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--nproc", "3"], "--nproc is 3"), (["--set", "model.hiden=3"], "hiden"), (["--out", "/proc/none"], "/proc")],
)
def test_bad_input(shards, arguments, named, capfd):
    assert main(["doctor", str(shards), *arguments]) == 2
    assert named in capfd.readouterr().err


def ranks(**changes):
    """Facts of four ranks on two hosts, of which some have other values."""
    usual = {
        "dgl_gt": "1",
        "torch": "2",
        "python": "3",
        "shards": "ab",
        "clock_s": 0.0,
        "disk": "/",
        "disk_bytes": 2**40,
        "unwritten": "",
    }
    found = [usual | {"host": f"h{number // 2}"} for number in range(4)]
    for name, (number, value) in changes.items():
        found[number][name] = value
    return found


def test_versions_shards_clocks_and_disks():
    assert doctor._differences(ranks()) == [] == doctor._clocks(ranks()) == doctor._disk(ranks()[0])
    (text,) = doctor._differences(ranks(torch=(2, "9")))
    assert "torch" in text and "9 on rank 2 (h1)" in text and "2 on rank 0 (h0)" in text
    assert doctor._differences(ranks(shards=(3, ""))) == []  # which the rank itself says
    (text,) = doctor._unread(
        [each | {"unread": "no such file" if number else ""} for number, each in enumerate(ranks())]
    )
    assert text == "rank 1 (h0) and 2 more: no such file"
    (text,) = doctor._clocks(ranks(clock_s=(1, -7.25)))
    assert "rank 1 (h0)" in text and "-7.2" in text
    (text,) = doctor._disk(ranks(disk_bytes=(0, 1000))[0])
    assert "rank 0 (h0)" in text and "/" in text


def test_a_slow_link_is_one_among_its_kind():
    """Links between hosts are slower than those within, which is no problem; one of them is slower than the others."""
    links = [[100.0 if a // 2 == b // 2 else 10.0 for a in range(4)] for b in range(4)]
    assert doctor._slow_links(ranks(), links) == []
    links[3][0] = 2.0  # into rank 3 from rank 0
    (text,) = doctor._slow_links(ranks(), links)
    assert "from rank 0 (h0) to rank 3 (h1)" in text and "between hosts" in text
    assert doctor._slow_links(ranks()[:1], []) == []
