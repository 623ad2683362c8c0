"""Shards of many workers at a URL: uploaded whole or not at all, and again by ``resume`` without a task."""

import os
from pathlib import Path

import pytest
from distributed_cases import Counting, files_of, save_graph

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition, read_manifest, verify
from dgl_gt.partition.distributed.stages import InProcess

pytestmark = pytest.mark.usefixtures("small_tasks")


@pytest.fixture
def path(tmp_path):
    return save_graph(tmp_path / "graph.npz")


def objects(bucket, name):
    """The bytes of every object under a name."""
    address, system, _ = bucket
    folder = f"{address}/{name}".removeprefix("s3://")
    return {each[len(folder) + 1 :]: system.cat_file(each) for each in system.find(folder)}


def kept():
    """What runs have left in the cache."""
    return [each for each in Path(os.environ["DGL_GT_CACHE"]).rglob("*") if each.is_file()]


@pytest.mark.parametrize("fail_every", [0, 10])
def test_the_same_bytes_as_in_a_directory(tmp_path, bucket, path, fail_every):
    address, _, store = bucket
    here = partition(path, 3, tmp_path / "here", engine=InProcess())
    store.fail_every = fail_every
    assert partition(path, 3, f"{address}/deep/er", engine=InProcess()) == here
    assert bool(store.failed) == bool(fail_every)
    store.fail_every = 0
    assert objects(bucket, "deep/er") == files_of(tmp_path / "here")
    assert kept() == []
    verify(f"{address}/deep/er", read_manifest(f"{address}/deep/er"))


def test_an_upload_that_fails_is_repeated_without_the_tasks(tmp_path, bucket, path):
    address, system, store = bucket
    partition(path, 3, tmp_path / "here", engine=InProcess())
    store.is_forbidden = lambda method, path: method == "PUT" and "part1" in path
    first, again = Counting(), Counting()
    with pytest.raises(InputError, match="part1/"):
        partition(path, 3, f"{address}/a", engine=first)
    assert first.tasks and system.find(address) == []
    store.is_forbidden = lambda method, path: False
    partition(path, 3, f"{address}/a", engine=again, resume=True)
    assert again.tasks == []
    assert objects(bucket, "a") == files_of(tmp_path / "here") and kept() == []


def test_what_appears_there_during_the_work_is_not_replaced(bucket, path):
    address, system, _ = bucket

    def appear(stage):
        if stage == "write":
            system.pipe_file(f"{address}/a/letter.txt", b"mine")

    with pytest.raises(InputError, match="exists"):
        partition(path, 3, f"{address}/a", engine=InProcess(), progress=appear)
    assert objects(bucket, "a") == {"letter.txt": b"mine"}


def test_force_replaces_shards_and_is_needed(bucket, path):
    address, _, _ = bucket
    partition(path, 2, f"{address}/a", engine=InProcess())
    whole = Counting()
    with pytest.raises(InputError, match=f"{address}/a"):
        partition(path, 3, f"{address}/a", engine=whole)
    assert whole.tasks == []
    made = partition(path, 3, f"{address}/a", engine=InProcess(), force=True)
    assert {*objects(bucket, "a")} == {*made["files"], "manifest.json"}


def test_a_bucket_that_forbids_writing_is_refused_before_the_first_task(bucket, path):
    address, _, store = bucket
    whole = Counting()
    store.is_forbidden = lambda method, path: method == "PUT"
    with pytest.raises(InputError, match=f"{address}/a"):
        partition(path, 3, f"{address}/a", engine=whole)
    assert whole.tasks == [] and kept() == []


@pytest.mark.slow
def test_the_command_with_workers(tmp_path, bucket, path, capfd):
    pytest.importorskip("distributed")
    options = ["--engine", "local", "--workers", "1", "--worker-memory", "1GiB"]
    for out in (str(tmp_path / "here"), f"{bucket[0]}/a"):
        assert main(["partition", str(path), "--parts", "2", "--out", out, *options]) == 0
    assert objects(bucket, "a") == files_of(tmp_path / "here")
    assert "a-secret-key" not in capfd.readouterr().err
