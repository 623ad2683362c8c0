"""What streaming leaves behind when it succeeds, fails or is stopped: the shards, or nothing."""

import errno
import os
from pathlib import Path

import pytest
from streamed_cases import listing, saved

from dgl_gt.partition import partition, pipeline, read_manifest
from dgl_gt.partition.cuts import streamed_cut as streamed_cut_module
from dgl_gt.partition.cuts.streamed_cut import open_stream, streamed_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards import write
from dgl_gt.partition.sources.load import open_source

pytestmark = pytest.mark.usefixtures("streaming")


class Folders:
    """A progress callback that keeps the names of edge files."""

    def __init__(self, parent):
        self.parent, self.seen = parent, set()

    def __call__(self, *_):
        self.seen |= {path.name for path in self.parent.rglob("*.edges")}


def test_no_buckets_are_left(tmp_path):
    arrays, folders = listing(1), Folders(tmp_path)
    partition(saved(tmp_path, arrays), 3, tmp_path / "out", memory=1, progress=folders)
    assert folders.seen == {"0.edges", "1.edges", "2.edges"}, "they were there"
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "out"]
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"manifest.json", *read_manifest(tmp_path / "out")["files"]}


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "name", "how", "error"),
    [
        (write, "write_part", no_space, InputError),
        (write, "save_file", no_space, InputError),
        (write, "write_manifest", no_space, InputError),
        (write, "write_part", stopped, KeyboardInterrupt),
        (streamed_cut_module, "_place", no_space, InputError),
        (streamed_cut_module.native, "place_by_hdrf", stopped, KeyboardInterrupt),
        (streamed_cut_module.StreamedCut, "part_edges", stopped, KeyboardInterrupt),
        (pipeline, "check_memory", stopped, KeyboardInterrupt),
    ],
)
def test_nothing_is_left_after_a_failure(tmp_path, monkeypatch, module, name, how, error):
    source, folders = saved(tmp_path, listing(1)), Folders(tmp_path)
    monkeypatch.setattr(module, name, how)
    with pytest.raises(error) as caught:
        partition(source, 3, tmp_path / "out", memory=1, progress=folders)
    assert os.listdir(tmp_path) == ["g.npz"]
    assert error is KeyboardInterrupt or os.strerror(errno.ENOSPC) in str(caught.value)


def test_a_failure_in_a_later_part_leaves_what_force_was_to_replace(tmp_path, monkeypatch):
    source, whole = saved(tmp_path, listing(1)), write.write_part
    first = partition(source, 2, tmp_path / "out", memory=1)
    full = lambda *arguments: whole(*arguments) if arguments[2] == 0 else no_space()
    monkeypatch.setattr(write, "write_part", full)
    with pytest.raises(InputError, match="No space left on device.*free space"):
        partition(source, 3, tmp_path / "out", memory=1, force=True)
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "out"]
    assert read_manifest(tmp_path / "out")["files"] == first["files"]


def test_buckets_go_when_their_context_ends(tmp_path):
    opened = open_stream(open_source(saved(tmp_path, listing(1))))
    with pytest.raises(ZeroDivisionError), streamed_cut(opened, 3, tmp_path / "edges") as cut:
        assert sorted(os.listdir(cut.folder)) == ["0.edges", "1.edges", "2.edges"]
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["g.npz"]


def test_a_disk_that_fills_while_edges_are_placed(tmp_path, monkeypatch):
    """/dev/full takes no byte, like a full disk."""
    monkeypatch.setattr(streamed_cut_module, "_bucket", lambda folder, part: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(InputError, match="No space left on device"):
        partition(saved(tmp_path, listing(0)), 2, tmp_path / "out", memory=1)
    assert os.listdir(tmp_path) == ["g.npz"]
