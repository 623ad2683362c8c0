"""The command ``dgl-gt``."""

import os
import sys

from partition.system.command_entry import enter


def main() -> int:
    """Run ``dgl-gt``; returns the exit code."""
    return enter("dgl-gt", _run)


def _run() -> int:
    import tempfile

    from dgl_gt.train.launcher import launcher
    from partition.system.child_process import die_with_parent

    started_by = launcher()
    if started_by:
        die_with_parent(started_by.pid)
    # torch makes this directory when it is imported, by default a new one that stays. Nothing here writes into it.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    from dgl_gt.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
