"""Directories that appear when they are complete, and what they may replace."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from safetensors import SafetensorError

from dgl_gt.partition import partition, read_manifest, verify
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.manifest import SHARDS
from dgl_gt.partition.system import atomic_write, output_checks
from dgl_gt.partition.system.atomic_write import new_directory, new_file
from dgl_gt.partition.system.output_checks import Kind, check_target

KIND = Kind("notes", "notes.json", lambda record: record.get("format") == "notes", r"page\d\.txt|more/page\d\.txt")
ROOT = Path(__file__).parents[3]


def write(out, text, *, force=False):
    with new_directory(out, KIND, force=force) as folder:
        (folder / "notes.json").write_text(json.dumps({"format": "notes"}))
        (folder / "more").mkdir()
        (folder / "more" / "page1.txt").write_text(text)


def text(out):
    return (out / "more" / "page1.txt").read_text()


@pytest.fixture(params=["exchange", "two renames"])
def old(request, tmp_path, monkeypatch):
    """A directory to replace, on a file system that exchanges names in one step and on one that cannot."""
    if request.param == "two renames":
        monkeypatch.setattr(atomic_write, "_exchange", lambda *_: False)
    write(tmp_path / "out", "old")
    return tmp_path / "out"


def names(folder):
    return sorted(os.listdir(folder))


# ---- what appears ----------------------------------------------------------------------------------------------------


def test_an_error_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "a" / "out", KIND) as folder:
        (folder / "half").write_text("written")
        raise KeyboardInterrupt
    assert names(tmp_path / "a") == []


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        manifest = partition("sample:communities?nodes=80", 1, tmp_path / "out")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    files = [name.split("/")[1] for name in manifest["files"]]
    assert modes == {"part0": 0o750, "manifest.json": 0o640, **dict.fromkeys(files, 0o640)}


def test_files_are_flushed_before_the_directory_appears(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def noted(number):
        flushed.append((os.readlink(f"/proc/self/fd/{number}"), (tmp_path / "out").exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    write(tmp_path / "out", "new")
    before = {Path(name).name for name, there in flushed if not there}
    assert {"notes.json", "page1.txt", "more"} <= before and flushed[-1] == (str(tmp_path), True)


def test_long_names(tmp_path):
    write(tmp_path / ("x" * 255), "new")
    assert names(tmp_path) == ["x" * 255]
    with pytest.raises(InputError, match="File name too long"):
        write(tmp_path / ("x" * 256), "new")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "full"), "No space left on device; free space, or choose a place on another disk"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "No space left on device; free space"),
        (OSError(errno.EROFS, "read"), "Read-only file system; choose a writable place"),
        (OSError(errno.EIO, "io"), "Input/output error; choose another place"),
    ],
)
def test_what_is_said_of_a_failed_write(tmp_path, error, advice):
    with (
        pytest.raises(InputError, match=f"cannot write {tmp_path / 'out'}: {advice}"),
        new_directory(tmp_path / "out", KIND),
    ):
        raise error
    assert names(tmp_path) == []


# ---- what is replaced ------------------------------------------------------------------------------------------------


def test_force_replaces_its_own_kind(old):
    with pytest.raises(InputError, match="exists; choose another directory, or replace it with force .--force."):
        write(old, "new")
    write(old, "new", force=True)
    assert text(old) == "new" and names(old.parent) == ["out"]


def test_force_replaces_an_empty_directory(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "new", force=True)
    assert text(tmp_path / "out") == "new" and names(tmp_path) == ["out"]


@pytest.mark.parametrize("foreign", ["page.txt", ".git/HEAD", "more/other/page1.txt", "empty/", "page2.txt ->"])
def test_force_refuses_a_directory_that_holds_anything_else(old, foreign):
    path = old / foreign.rstrip(" ->")
    path.parent.mkdir(exist_ok=True)
    if foreign.endswith("->"):
        path.symlink_to(old / "notes.json")
    elif foreign.endswith("/"):
        path.mkdir()
    else:
        path.write_text("years of work")
    with pytest.raises(InputError) as caught:
        write(old, "new", force=True)
    named = {".git/HEAD": ".git/HEAD", "empty/": "empty"}.get(foreign, foreign.rstrip(" ->"))
    assert f"holds {named!r} besides notes, so --force will not replace it" in str(caught.value)
    assert text(old) == "old" and path.exists()


@pytest.mark.parametrize("record", [None, '{"name": "a web app"}', "[1]", "not JSON", "[" * 100_000])
def test_force_refuses_a_directory_without_our_record(tmp_path, record):
    (tmp_path / "out" / "src").mkdir(parents=True)
    if record is not None:
        (tmp_path / "out" / "notes.json").write_text(record)
    why = "it has no notes.json, but it holds 'src'" if record is None else "its notes.json is another program's"
    with pytest.raises(InputError, match=f"does not hold notes made by dgl-gt: {why}, so --force will not"):
        write(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "src").exists()


def test_foreign_manifests_and_models_are_kept(tmp_path):
    """Web apps have a manifest.json, too."""
    (tmp_path / "src").mkdir()
    (tmp_path / "manifest.json").write_text('{"name": "app"}')
    with pytest.raises(InputError, match="does not hold shards made by dgl-gt"):
        partition("sample:communities?nodes=80", 1, tmp_path, force=True)
    assert names(tmp_path) == ["manifest.json", "src"]


def test_a_link_is_followed(old):
    link = old.parent / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(old)
    write(link, "new", force=True)
    assert link.is_symlink() and text(old) == "new"
    assert names(old.parent) == ["elsewhere", "out"] and names(link.parent) == ["link"]


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_dangling_link_is_refused_before_the_work(tmp_path, target):
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(InputError, match=f"is a link to {target}, which does not exist"):
        check_target(tmp_path / "link", KIND, force=True)


def test_what_appeared_meanwhile_is_kept(tmp_path):
    with pytest.raises(InputError, match="was created by another process during this run and was not replaced"):
        with new_directory(tmp_path / "out", KIND) as folder:
            (folder / "notes.json").write_text("{}")
            write(tmp_path / "out", "first")
    assert text(tmp_path / "out") == "first" and names(tmp_path) == ["out"]


def test_what_became_foreign_meanwhile_is_kept(old):
    with pytest.raises(InputError, match="holds 'thesis.txt' besides notes"):
        with new_directory(old, KIND, force=True) as folder:
            (folder / "notes.json").write_text("{}")
            (old / "thesis.txt").write_text("years of work")
    assert names(old.parent) == ["out"] and "thesis.txt" in names(old)


def test_an_error_in_the_last_step_brings_the_old_back(old, monkeypatch):
    rename = Path.rename

    def fails(path, target):
        if ".partial-" in path.name:
            raise OSError(errno.EIO, "broken")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    if atomic_write._exchange.__name__ == "_exchange":
        monkeypatch.setattr(atomic_write, "_exchange", lambda *_: fails(Path(".partial-"), None))
    with pytest.raises(InputError, match="cannot write .*: Input/output error"):
        write(old, "new", force=True)
    assert text(old) == "old" and names(old.parent) == ["out"]


@pytest.mark.parametrize("force", [False, True])
def test_the_root_directory(force):
    with pytest.raises(InputError, match="/ (exists|does not hold notes)"):
        check_target("/", KIND, force=force)


def test_a_name_with_a_nul():
    with pytest.raises(InputError, match="cannot use .*null (byte|character.*)"):
        check_target("a\0b", KIND, force=False)


def test_a_file_system_without_modes(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    write(tmp_path / "out", "new")
    assert text(tmp_path / "out") == "new"


def test_what_is_in_place_is_not_lost_to_the_last_flush(tmp_path, monkeypatch):
    flush = atomic_write._flush_folder

    def fails(folder):
        if Path(folder) == tmp_path:
            raise OSError(errno.EIO, "broken")
        flush(folder)

    monkeypatch.setattr(atomic_write, "_flush_folder", fails)
    write(tmp_path / "out", "new")
    with atomic_write.new_file(tmp_path / "out.txt") as file:
        file.write(b"text")
    assert names(tmp_path) == ["out", "out.txt"]


def test_an_error_of_another_file_is_not_blamed_on_the_target(tmp_path):
    with pytest.raises(InputError, match="^/nowhere/else.npz: No such file or directory"):
        with new_directory(tmp_path / "out", KIND):
            open("/nowhere/else.npz")
    with pytest.raises(InputError, match="cannot write .*out: No such file"):
        with new_directory(tmp_path / "out", KIND) as folder:
            open(folder / "absent")


# ---- what killed runs left -------------------------------------------------------------------------------------------


def dead_name(stem, purpose):
    """Return the name that a process gave to a temporary directory before it ended."""
    code = f"from dgl_gt.partition.system.output_checks import temporary_name; print(temporary_name({stem!r}, {purpose!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout.strip()


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    kept = [
        output_checks.temporary_name("out", "partial"),
        ".out.partial-other_host-5-77-3-abcdef",
        ".out.partial-12",
    ]
    for name in (dead_name("out", "partial"), *kept):
        (tmp_path / name).mkdir()
    write(tmp_path / "out", "new")
    assert names(tmp_path) == sorted([*kept, "out"])


def test_a_process_id_that_is_used_again_is_told_apart(tmp_path):
    mine = output_checks.temporary_name("out", "partial")
    head, pid, started, token = mine.rsplit("-", 3)
    (tmp_path / f"{head}-{pid}-{int(started) - 1}-{token}").mkdir()
    assert len(output_checks.leftovers(tmp_path, "out", "partial")) == 1


def test_a_zombie_is_dead(tmp_path):
    process = subprocess.Popen(["true"])
    time.sleep(0.05)
    head, _, _, token = output_checks.temporary_name("out", "partial").rsplit("-", 3)
    (tmp_path / f"{head}-{process.pid}-{output_checks._started(process.pid)[1]}-{token}").mkdir()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert len(output_checks.leftovers(tmp_path, "out", "partial")) == 1
    process.wait()


def test_an_old_directory_that_was_moved_aside_comes_back(old):
    aside = old.parent / dead_name("out", "replaced")
    old.rename(aside)
    (old.parent / dead_name("out", "partial")).mkdir()
    with pytest.raises(InputError, match="exists"):
        write(old, "new")
    assert text(old) == "old"
    old.rename(aside)
    write(old, "new", force=True)
    assert text(old) == "new" and names(old.parent) == ["out"]


LOOP = """
import itertools, sys
from dgl_gt.partition.system import atomic_write, output_checks
if sys.argv[2] == "two renames":
    atomic_write._exchange = lambda *_: False
kind = output_checks.Kind("notes", "notes.json", lambda record: record["format"] == "notes", ".*/page1.txt")
for turn in itertools.count():
    with atomic_write.new_directory(sys.argv[1], kind, force=True) as folder:
        (folder / "notes.json").write_text('{"format": "notes"}')
        (folder / "more").mkdir()
        (folder / "more" / "page1.txt").write_text(str(turn))
    if turn == 0:
        print("started", flush=True)
"""


@pytest.mark.parametrize("step", ["exchange", "two renames"])
def test_kills_leave_the_old_or_the_new(tmp_path, step):
    write(tmp_path / "out", "old")
    random = Random(0)
    command = [sys.executable, "-c", LOOP, tmp_path / "out", step]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"started\n"
        time.sleep(random.uniform(0, 0.05))
        process.kill()
        process.wait()
        process.stdout.close()
        check_target(tmp_path / "out", KIND, force=True)  # what the next run does first
        assert text(tmp_path / "out").isdigit()
    write(tmp_path / "out", "new", force=True)
    assert names(tmp_path) == ["out"]


PARTITION = """
import sys
from dgl_gt.cli.main import main
from dgl_gt.partition.system import atomic_write, output_checks
if sys.argv.pop(1) == "two renames":
    atomic_write._exchange = lambda *_: False
sys.exit(main(sys.argv[1:]))
"""


def kills(folder: Path, count: int) -> int:
    """Kill `partition --force` that many times at random moments; return how often no shards were whole."""
    source, out, lost, random = "sample:communities?nodes=300", folder / "out", 0, Random(0)
    partition(source, 2, out)
    for turn in range(count):
        step = "exchange" if turn % 2 else "two renames"
        command = [sys.executable, "-c", PARTITION, step, "partition", source, "--out", str(out), "--force", "--parts"]
        process = subprocess.Popen(
            [*command, str(2 + turn % 3)], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0.2, 1.6))
        process.kill()
        process.wait()
        check_target(out, SHARDS, force=True)  # what the next run does first
        try:
            verify(out, read_manifest(out))
        except InputError as error:
            print(turn, error)
            lost += 1
    partition(source, 2, out, force=True)
    print("beside the shards:", [name for name in names(folder) if name != "out"])
    return lost


if __name__ == "__main__":  # PYTHONPATH=. python tests/partition/system/test_atomic_write.py FOLDER COUNT
    print(f"{kills(Path(sys.argv[1]), int(sys.argv[2]))} of {sys.argv[2]} kills left no whole shards")


def test_a_limit_of_the_system_is_not_blamed_on_the_target(tmp_path):
    """An error of the work that the target did not cause passes unchanged, or names the limit."""

    def fails(error, kind, message):
        for writer in (new_directory(tmp_path / "out", KIND), new_file(tmp_path / "file")):
            with pytest.raises(kind) as caught, writer as place:
                error.filename = str(place / "x") if error.errno == errno.EMFILE and isinstance(place, Path) else None
                raise error
            assert message in str(caught.value) and "cannot write" not in str(caught.value)

    fails(OSError(errno.EMFILE, "Too many open files"), InputError, "Too many open files; close other files")
    fails(OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError, "Cannot allocate memory")
    fails(OSError(errno.ECONNRESET, "Connection reset"), ConnectionResetError, "Connection reset")
    assert names(tmp_path) == []
