"""The memory allocator with which ranks start."""

import subprocess
import sys
from pathlib import Path

import pytest

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system import allocator
from dgl_gt.partition.system.allocator import (
    check_running,
    environment_of_ranks,
    factor_with_bound,
    memory_factor,
    memory_factor_of_ranks,
    running_allocator,
    smallest_given_back,
)
from dgl_gt.partition.system.child_process import environment

JEMALLOC, TCMALLOC = "usr/lib/libjemalloc.so.2", "usr/lib64/libtcmalloc_minimal.so.4"
FAULTS = """
import ctypes, resource, sys
libc, SIZE = ctypes.CDLL(None), 1 << (24 if "small" in sys.argv else 27)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def use():
    block = libc.malloc(SIZE)
    ctypes.memset(block, 1, SIZE)
    libc.free(block)

if "room" in sys.argv:
    from dgl_gt.partition.system.allocator import keep_if_room
    keep_if_room(3, 2, int(sys.argv[2]))
if "pieces" in sys.argv:
    from dgl_gt.partition.system.allocator import keep_small_blocks
    keep_small_blocks(-1)
if "keep" in sys.argv:
    from dgl_gt.partition.system.allocator import keep_for_reuse
    keep_for_reuse()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def root(tmp_path):
    """A function: a directory that stands for /, with these empty files."""

    def make(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return make


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.4, 1.02])
@pytest.mark.parametrize(("bounded", "spilled"), [(False, False), (True, False), (False, True), (True, True)])
def test_which_blocks_are_given_back(factor, bounded, spilled):
    """glibc's, whose factor is 1 in ranks with a bound; another factor says that memory is kept."""
    found = smallest_given_back(factor, bounded, spilled)
    if factor == 1.02 or not (bounded or spilled):
        assert found == float("inf")
    elif spilled:
        assert found == 2**25
    else:
        assert found == (2**17 if factor == 1.0 else float("inf"))


@pytest.mark.parametrize(
    ("asked", "installed", "expected"),
    [
        ("auto", [JEMALLOC, TCMALLOC], TCMALLOC),
        ("auto", [JEMALLOC], JEMALLOC),
        ("auto", ["opt/conda/lib/libjemalloc.so.2", JEMALLOC], "opt/conda/lib/libjemalloc.so.2"),
        ("auto", [], None),
        ("tcmalloc", [JEMALLOC, TCMALLOC], TCMALLOC),
        ("glibc", [JEMALLOC, TCMALLOC], None),
    ],
)
def test_what_ranks_preload(root, asked, installed, expected):
    environ = {"LD_LIBRARY_PATH": ":lib:/opt/conda/lib"}
    found = environment_of_ranks(asked, False, environ, root(*installed))
    assert found.get("LD_PRELOAD") == (expected and str(root() / expected))
    assert found["MALLOC_MMAP_MAX_"] == "0"  # in case that the system does not preload it
    assert ("MALLOC_CONF" in found) == (expected is not None and "jemalloc" in expected)
    assert ("TCMALLOC_RELEASE_RATE" in found) == (expected is not None and "tcmalloc" in expected)


def test_what_a_user_preloads_stays(root):
    everything = root(JEMALLOC, TCMALLOC)

    def preloaded(asked, library):
        return environment_of_ranks(asked, False, {"LD_PRELOAD": library}, everything).get("LD_PRELOAD")

    assert preloaded("auto", "/my/libmimalloc.so /opt/jemalloc-tools/libtracer.so") is None
    assert preloaded("jemalloc", "/my/tracer.so") == f"{everything / JEMALLOC}:/my/tracer.so"
    assert preloaded("auto", "/my/libtcmalloc.so.4") is preloaded("tcmalloc", "/my/libtcmalloc.so.4") is None
    assert preloaded("tcmalloc", "libjemalloc.so.2") == f"{everything / TCMALLOC}:libjemalloc.so.2"
    found = environment_of_ranks("auto", False, {"LD_PRELOAD": "/my/libtcmalloc.so.4"}, everything)
    assert "MALLOC_CONF" not in found and "TCMALLOC_RELEASE_RATE" in found


@pytest.mark.skipif(running_allocator() != "glibc", reason="this process has another allocator")
def test_memory_of_a_process_for_its_tensors(monkeypatch):
    """mallopt alone keeps memory in more room than settings that the process started with."""
    monkeypatch.setattr(allocator, "_keeps_by_mallopt", True)
    by_mallopt = memory_factor()
    for name, value in environment_of_ranks("glibc").items():
        monkeypatch.setenv(name, value)
    assert 1.0 < memory_factor() < by_mallopt
    monkeypatch.undo()
    monkeypatch.setattr(allocator, "_keeps_by_mallopt", False)
    assert memory_factor() == 1.0
    assert memory_factor_of_ranks() > 1.0


def test_the_factor_where_memory_is_bounded():
    of_glibc, of_tcmalloc = allocator._MEMORY_FACTORS["glibc"], allocator._MEMORY_FACTORS["tcmalloc"]
    assert factor_with_bound(of_glibc) == 1.0 and factor_with_bound(of_tcmalloc) == of_tcmalloc


def test_memory_that_is_bounded(root):
    found = environment_of_ranks("glibc", True, {}, root())
    assert "MALLOC_MMAP_MAX_" not in found and "MALLOC_MMAP_THRESHOLD_" in found
    found = environment_of_ranks("jemalloc", True, {}, root(JEMALLOC))
    assert found["MALLOC_CONF"] != environment_of_ranks("jemalloc", False, {}, root(JEMALLOC))["MALLOC_CONF"]


@pytest.mark.parametrize(("asked", "package"), [("jemalloc", "libjemalloc2"), ("tcmalloc", "libtcmalloc-minimal4")])
def test_an_allocator_that_is_not_installed(root, asked, package):
    with pytest.raises(InputError, match=f"^allocator is {asked}, .*{package}"):
        environment_of_ranks(asked, False, {}, root())


def test_an_allocator_that_there_is_not(root):
    with pytest.raises(InputError, match="^allocator is 'mimalloc'"):
        environment_of_ranks("mimalloc", False, {}, root())


def printed(code, *arguments, **variables):
    line = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(line, capture_output=True, text=True, env=environment() | variables, check=True)
    return ran.stdout.strip()


@pytest.mark.parametrize("asked", ["jemalloc", "tcmalloc", "glibc"])
def test_the_allocator_that_runs(asked):
    try:
        variables = environment_of_ranks(asked)
    except InputError as error:
        pytest.skip(str(error))
    code = "from dgl_gt.partition.system.allocator import *; check_running('auto'); print(running_allocator())"
    assert printed(code, **variables) == asked
    assert int(printed(FAULTS, **variables)) < 1000  # of 32,768 pages


@pytest.mark.skipif(running_allocator() != "glibc", reason="this process has another allocator")
def test_a_bounded_rank_keeps_large_blocks_where_there_is_room():
    bounded = environment_of_ranks("glibc", True)
    assert int(printed(FAULTS, "room", "5", **bounded)) < 1000 < int(printed(FAULTS, "room", "4", **bounded))


@pytest.mark.skipif(running_allocator() != "glibc", reason="this process has another allocator")
@pytest.mark.parametrize("bounded", [True, False])
def test_pieces_reuse_small_blocks_alone(bounded):
    variables = environment_of_ranks("glibc", bounded)
    assert int(printed(FAULTS, "pieces", "small", **variables)) < 1000 < int(printed(FAULTS, "pieces", **variables))


def test_another_allocator_than_was_asked_for_is_refused():
    other = "tcmalloc" if running_allocator() == "jemalloc" else "jemalloc"
    with pytest.raises(InputError, match=f"^allocator is {other}, but this rank runs with"):
        check_running(other)


def plain(name):
    return not name.startswith(("MALLOC_", "LD_PRELOAD", "GLIBC_"))


@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="glibc alone has these settings")
def test_a_process_that_keeps_freed_memory():
    """Pages of 4 KiB that one use of 128 MiB takes: all of them again, or none; settings of the user win."""
    line = [sys.executable, "-c", FAULTS]
    usual = {name: value for name, value in environment().items() if plain(name)}

    def faults(*arguments, **variables):
        ran = subprocess.run([*line, *arguments], capture_output=True, text=True, env=usual | variables, check=True)
        return int(ran.stdout)

    assert faults("keep") < 1000 < faults("keep", MALLOC_MMAP_THRESHOLD_="131072")
