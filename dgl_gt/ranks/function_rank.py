"""A rank of :func:`dgl_gt.launch`: it reads the function from its launcher, joins the others, and calls it."""

from __future__ import annotations

import linecache
import os
import pickle
import sys

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.child_process import die_with_parent
from dgl_gt.partition.system.signals import enter

from .launcher_link import find_launcher


def main() -> int:
    launcher = find_launcher()
    assert launcher, "a launcher starts this module"
    die_with_parent(launcher.pid)
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]
    from . import rank_process  # imports torch

    return rank_process.run(lambda: _call(*map(int, sys.argv[1:])), launcher)


def _call(sent: int, returned: int) -> int:
    """Call the function that is in the file ``sent``; rank 0 writes its result into the other one."""
    import cloudpickle

    with open(f"/proc/self/fd/{sent}", "rb") as file:  # each rank has a place of its own in it
        sys.path, lines = pickle.load(file)
        linecache.cache |= {name: (size, None, text, full) for name, (size, _, text, full) in lines.items()}
        function = pickle.load(file)
    result = function()
    if os.environ["RANK"] == "0":
        try:
            with open(returned, "wb") as file:
                cloudpickle.dump(result, file)
        except Exception as error:  # whatever its objects raise
            raise InputError(
                f"the function returned a {type(result).__name__} that cannot be copied ({type(error).__name__}: {error}); "
                "return numbers, arrays, tensors or records"
            ) from error
    return 0


if __name__ == "__main__":
    sys.exit(enter("dgl-gt", main))
