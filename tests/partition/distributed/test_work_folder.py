"""The hidden folder of a run: late tasks of other runs, other commands, file systems that are slow, full or forgetful."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from distributed_cases import Counting, files_of, save_graph

from dgl_gt.partition import InputError, add_expander_edges, from_edges, partition
from dgl_gt.partition.distributed import files as files_module
from dgl_gt.partition.distributed import parts as parts_module
from dgl_gt.partition.distributed.stages import InProcess
from dgl_gt.partition.distributed.work import held
from dgl_gt.partition.transforms.link_split import split_links

pytestmark = pytest.mark.usefixtures("small_tasks")


@pytest.fixture
def path(tmp_path):
    return save_graph(tmp_path / "graph.npz")


@pytest.fixture
def expected(tmp_path, path):
    partition(path, 3, tmp_path / "expected", engine=InProcess())
    return files_of(tmp_path / "expected")


class Late(InProcess):
    """Keeps tasks, as workers do that go on after their command has ended; and ends that at a stage."""

    def __init__(self, last):
        self.last, self.kept = last, []

    def run(self, stage, task, items):
        if stage == self.last:
            raise KeyboardInterrupt
        for item in items:
            self.kept.append((task, item))
            yield task(item)


def test_late_tasks_of_an_earlier_run_do_no_harm(tmp_path, path, expected):
    earlier = Late("write")
    with pytest.raises(KeyboardInterrupt):
        partition(path, 3, tmp_path / "out", engine=earlier, seed=1)

    class Disturbed(InProcess):
        def run(self, stage, task, items):
            for late, item in earlier.kept:
                with pytest.raises((OSError, InputError), match="No such file"):
                    late(item)
            return map(task, items)

    partition(path, 3, tmp_path / "out", engine=Disturbed())
    assert files_of(tmp_path / "out") == expected
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("resume", [False, True])
def test_a_command_beside_another_with_the_same_out(tmp_path, path, expected, resume):
    class Beside(Counting):
        def run(self, stage, task, items):
            if stage == "edges":
                with pytest.raises(InputError, match=r"\.out\.work"):
                    partition(path, 3, tmp_path / "out", engine=InProcess(), seed=1, resume=resume)
            return super().run(stage, task, items)

    partition(path, 3, tmp_path / "out", engine=Beside())
    assert files_of(tmp_path / "out") == expected


def test_a_command_of_another_host_is_taken_to_be_alive(tmp_path, path):
    work = tmp_path / ".out.work"
    work.mkdir()
    there = work / ".command.runs-elsewhere-1-2-3-abcdef"
    there.touch()
    with pytest.raises(InputError, match=re.escape(str(there))):
        partition(path, 3, tmp_path / "out", engine=InProcess())
    there.unlink()
    partition(path, 3, tmp_path / "out", engine=InProcess())


def test_the_file_of_a_command_that_died_is_no_obstacle(tmp_path):
    work = tmp_path / ".out.work"
    with held(work):
        (own,) = work.iterdir()
        name = re.sub(r"-\d+-\d+-(\w{6})$", r"-999999999-1-\1", own.name)
        own.rename(work / name)
    with held(work):
        assert len([*work.iterdir()]) == 1
    assert not work.exists()


class Refusing(InProcess):
    """An engine that cannot run what is asked."""

    def check(self, folder, memory_bytes):
        raise InputError("no")


def test_a_run_that_is_refused_leaves_an_earlier_one_as_it_was(tmp_path, path, expected):
    first, second = Counting(30), Counting()
    with pytest.raises(KeyboardInterrupt):
        partition(path, 3, tmp_path / "out", engine=first)
    with pytest.raises(InputError):
        partition(path, 3, tmp_path / "out", engine=Refusing())
    partition(path, 3, tmp_path / "out", engine=second, resume=True)
    assert second.tasks[0] not in first.tasks
    assert files_of(tmp_path / "out") == expected


def test_earlier_files_that_cannot_be_moved(tmp_path, path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        partition(path, 3, tmp_path / "out", engine=Counting(30))

    def rename(self, target):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(InputError, match=r"\.out\.work"):
        partition(path, 3, tmp_path / "out", engine=InProcess())


def test_resume_refuses_edges_that_are_now_listed_once(tmp_path):
    arrays = {"src": np.arange(60) % 50, "dst": np.arange(60) * 7 % 50}
    path = tmp_path / "graph.npz"
    for directed in (True, False):
        np.savez(path, edge_index=np.stack([*arrays.values()]), num_nodes=50, directed=directed)
        os.utime(path, ns=(1, 1))
        if directed:
            with pytest.raises(KeyboardInterrupt):
                partition(path, 2, tmp_path / "out", engine=Counting(4))
    with pytest.raises(InputError, match="source"):
        partition(path, 2, tmp_path / "out", engine=InProcess(), resume=True)


def test_no_name_is_asked_for_before_it_is_there(tmp_path, path, monkeypatch):
    missing, stat = set(), os.stat

    def watching(name, *args, **options):
        try:
            return stat(name, *args, **options)
        except FileNotFoundError:
            missing.add(str(name))
            raise

    class Listing(InProcess):
        def run(self, stage, task, items):
            yield from map(task, items)
            if stage == "write":  # the last one: most files are there still
                made.update(str(each) for each in (tmp_path / ".out.work").rglob("*"))

    made = set()
    monkeypatch.setattr(os, "stat", watching)
    partition(path, 3, tmp_path / "out", engine=Listing())
    stages = {
        each for each in made if not re.search("/(parts|source)(/|$)", each)
    }  # one process alone uses those names
    assert len(stages) > 20 and not missing & stages


def test_a_full_disk_in_a_task(tmp_path, path, monkeypatch):
    def full(arrays, target):
        if "cells" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(arrays, target)

    save = files_module.save_file
    monkeypatch.setattr(files_module, "save_file", full)
    with pytest.raises(InputError, match=r"cells-0.*free space.*\.out\.work"):
        partition(path, 3, tmp_path / "out", engine=InProcess())
    assert not (tmp_path / "out").exists()


def test_two_tasks_that_write_one_part(tmp_path, path, expected, monkeypatch):
    def beside(coo, folder, part, structure):
        entries = write(coo, folder, part, structure)
        write(coo, folder.parent, part, structure)
        return entries

    write = parts_module.write_part
    monkeypatch.setattr(parts_module, "write_part", beside)
    partition(path, 3, tmp_path / "out", engine=InProcess())
    assert files_of(tmp_path / "out") == expected


def test_a_file_that_workers_map_is_written_once(tmp_path):
    """Also by a task that runs twice at a time: the other one ends while it still writes."""
    copy, seen = tmp_path / "a.npy", []

    def write(rows):
        files_module.write_rows(copy, np.dtype(np.int32), (3,), rows)

    def slow_rows():
        write([np.arange(3)])
        seen.append(copy.stat())
        yield np.arange(3)

    write(slow_rows())
    write([np.ones(3)])
    assert seen == [copy.stat()] and np.load(copy).tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["a.npy"]


def test_graphs_with_links_or_added_edges(tmp_path):
    draw = np.random.default_rng(0)
    graph = from_edges(*draw.integers(0, 60, (2, 300)), 60)
    with pytest.raises(InputError, match="links"):
        partition(split_links(graph, "0.8,0.1,0.1", 0), 2, tmp_path / "out", engine=InProcess())
    expanded = add_expander_edges(graph, 4)
    with pytest.raises(InputError, match="degree"):
        partition(expanded, 2, tmp_path / "out", engine=InProcess(), encode="degree")
    partition(expanded, 2, tmp_path / "out", engine=InProcess())


def test_resume_after_a_command_that_was_killed_while_it_began(tmp_path, path, expected):
    with pytest.raises(KeyboardInterrupt):
        partition(path, 3, tmp_path / "out", engine=Counting(30))
    (run,) = (each for each in (tmp_path / ".out.work").iterdir() if each.is_dir())
    aside = run.rename(run.with_name("old-00000000"))
    run.mkdir()
    (run / "plan.json").write_text((aside / "plan.json").read_text())
    engine = Counting()
    partition(path, 3, tmp_path / "out", engine=engine, resume=True)
    assert files_of(tmp_path / "out") == expected and not (tmp_path / ".out.work").exists()
    whole = Counting()
    partition(path, 3, tmp_path / "again", engine=whole)
    assert len(engine.tasks) < len(whole.tasks)
