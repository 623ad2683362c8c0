"""Files that appear when they are complete, and the checks before."""

import errno
import os
import resource

import pytest

from dgl_gt.partition import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(InputError, match=r"cannot write .*out.txt: File too large"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        try:
            with new_file(path) as file:
                file.write(b"x" * 2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["out.txt"]


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), new_file(tmp_path / "out.txt") as file:
        file.write(b"half")
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_what_a_link_leads_to_is_written(tmp_path):
    (tmp_path / "link.txt").symlink_to("new/real.txt")
    with new_file(tmp_path / "link.txt") as file:
        file.write(b"text")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "new" / "real.txt").read_text() == "text"


def test_permissions_follow_the_umask(tmp_path):
    with new_file(tmp_path / "out.txt") as file:
        file.write(b"text")
    (tmp_path / "plain.txt").write_text("text")
    assert (tmp_path / "out.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


def test_long_names(tmp_path):
    """Names as long as the file system allows work; longer ones are refused before the work."""
    path = check_file(tmp_path / ("n" * 251 + ".txt"))
    with new_file(path) as file:
        file.write(b"text")
    assert path.read_text() == "text"
    with pytest.raises(InputError, match="File name too long"):
        check_file(tmp_path / ("n" * 252 + ".txt"))


def test_what_must_not_be_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="mine.txt exists"):
        check_file(tmp_path / "mine.txt")
    assert check_file(tmp_path / "mine.txt", force=True) == tmp_path / "mine.txt"
    with pytest.raises(InputError, match="is a directory"):
        check_file(tmp_path, force=True)


def test_only_regular_files_are_replaced(tmp_path):
    """Without this check, --force as root would replace /dev/null by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "link", "/dev/null"):
        with pytest.raises(InputError, match="is a device, a pipe or a socket, which is never replaced"):
            check_file(path, force=True)


def test_links_that_lead_to_each_other(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="cannot use .*a: Too many levels of symbolic links"):
        check_file(tmp_path / "a", force=True)


def test_a_file_that_appeared_meanwhile_is_kept(tmp_path):
    path = tmp_path / "out.txt"
    with pytest.raises(
        InputError,
        match="out.txt was created by another process during this run and was not replaced",
    ):
        with new_file(path) as file:
            file.write(b"new")
            path.write_text("mine")
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["out.txt"]
    with new_file(path, force=True) as file:
        file.write(b"new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["out.txt"]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with new_file(tmp_path / "out.txt") as file:
        file.write(b"text")
    assert (tmp_path / "out.txt").read_text() == "text" and os.listdir(tmp_path) == ["out.txt"]


def test_a_link_into_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link.txt").symlink_to(tmp_path / "file" / "out.txt")
    with pytest.raises(InputError, match="file is not a writable directory"):
        check_file(tmp_path / "link.txt")


def test_a_name_with_a_nul(tmp_path):
    with pytest.raises(InputError, match="null .*; choose another place"):
        check_file(f"{tmp_path}/a\0b")
