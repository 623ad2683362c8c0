"""Memory and processors that the system allows, read from copies of /proc and /sys; memory of children."""

import os

import pytest

from dgl_gt.partition import partition
from dgl_gt.partition.system import memory
from dgl_gt.partition.system.memory import available_cpus, available_memory_bytes

GIB = 1 << 30
CPUS = len(os.sched_getaffinity(0))


def system(folder, group, files):
    """Make a root directory with 8 GiB available on the machine, and a control group with its files."""
    files = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 << 20} kB\n", "proc/self/cgroup": group, **files}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V1 = "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n"
V1_HOME, V2_HOME = "sys/fs/cgroup/memory/docker", "sys/fs/cgroup/docker/abc"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("", {}, 8 * GIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"}, 8 * GIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{20 * GIB}", "sys/fs/cgroup/memory.current": "5"}, 8 * GIB),
        ("0::/docker/abc\n", {f"{V2_HOME}/memory.max": f"{GIB}", f"{V2_HOME}/memory.current": "1000"}, GIB - 1000),
        (
            "0::/docker/abc/inner\n",  # the path is the host's, and only the container's own group can be seen
            {
                "sys/fs/cgroup/memory.max": f"{GIB}",
                "sys/fs/cgroup/memory.current": "1000",
                "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 300\nactive_file 9\n",
            },
            GIB - 700,
        ),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "1000", "sys/fs/cgroup/memory.current": "1200"}, 0),
        (
            "0::/\n",
            {
                "sys/fs/cgroup/memory.max": "max",
                "sys/fs/cgroup/memory.high": f"{GIB}",
                "sys/fs/cgroup/memory.current": "9",
            },
            GIB - 9,
        ),
        (
            V1,
            {
                f"{V1_HOME}/abc/memory.limit_in_bytes": "9223372036854771712",
                f"{V1_HOME}/abc/memory.usage_in_bytes": "70",
                f"{V1_HOME}/memory.limit_in_bytes": f"{2 * GIB}",
                f"{V1_HOME}/memory.usage_in_bytes": "1000",
                f"{V1_HOME}/memory.stat": "inactive_file 5\ntotal_inactive_file 400\n",
            },
            2 * GIB - 600,
        ),
    ],
)
def test_memory_that_is_available(tmp_path, group, files, expected):
    assert available_memory_bytes(system(tmp_path, group, files)) == expected


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("", {}, CPUS),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, CPUS),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
        ("0::/docker/abc\n", {f"{V2_HOME}/cpu.max": "max 100000", "sys/fs/cgroup/docker/cpu.max": "150000 100000"}, 1),
        (
            V1,
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            V1,
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            CPUS,
        ),
    ],
)
def test_processors_that_are_available(tmp_path, group, files, expected):
    assert available_cpus(system(tmp_path, group, files)) == expected


def test_this_machine():
    assert 0 < available_memory_bytes() < 1 << 50 and 1 <= available_cpus() <= CPUS


def test_memory_of_metis_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_most_with_children", 0)
    monkeypatch.setattr(memory, "peak_memory_bytes", lambda: 0)
    partition("sample:communities?nodes=200", 2, tmp_path / "shards")
    assert memory.resident_memory_bytes() / 2 + (10 << 20) < memory.peak_with_children_bytes() < 4 << 30


def test_a_peak_before_a_child_starts_is_not_added_to_the_child(monkeypatch):
    monkeypatch.setattr(memory, "_most_with_children", 0)
    monkeypatch.setattr(memory, "resident_memory_bytes", lambda: 30)
    monkeypatch.setattr(memory, "peak_memory_bytes", lambda: 90)
    for child_bytes, together in ((50, 90), (70, 100), (60, 100)):
        memory.record_children(child_bytes)
        assert memory.peak_with_children_bytes() == together


def test_the_peak_where_the_system_does_not_tell_it(monkeypatch):
    """Some systems have /proc/self/status without VmHWM."""
    monkeypatch.setattr(memory.Path, "read_text", lambda path: "Name: python\nVmRSS: 5 kB\n")
    assert memory.peak_memory_bytes() > 1 << 20
