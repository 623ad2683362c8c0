"""Start pairs of ranks, each of which ends as an interpreter does, and print how often each exit code was seen.

    python ends.py PAIRS

A rank wakes up while gloo's thread, which completed its exchange, is about to release the tensors. Here all threads of
a rank share one processor, gloo's have the lowest priority, and the rank keeps Python's lock, which they need for that.
"""

import collections
import json
import os
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist

from dgl_gt.comm.group import Comm


def run_rank(rank: int, store: str) -> None:
    """Exchange rows; the rest is left to the end of the interpreter."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    comm = Comm()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, os.sched_getaffinity(0))
        os.setpriority(os.PRIO_PROCESS, thread, 0 if thread == os.getpid() else 19)
    sys.setswitchinterval(10)
    for _ in range(5):
        comm.exchange(torch.zeros(4, 1000), [2, 2], [2, 2])


def start_ranks(pairs: int, folder: str) -> list[int]:
    """Process ids, or in a rank none."""
    started = []
    for number in range(2 * pairs):
        pid = os.fork()
        if not pid:
            run_rank(number % 2, f"{folder}/{number // 2}")
            return []
        started.append(pid)
    return started


torch.set_num_threads(1)
folder = tempfile.mkdtemp()
if started := start_ranks(int(sys.argv[1]), folder):
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
    shutil.rmtree(folder)
    print(json.dumps(collections.Counter(codes)))
