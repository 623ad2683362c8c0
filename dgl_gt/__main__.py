"""The command ``dgl-gt``."""

import os
import sys

from dgl_gt.partition.system.signals import enter


def main() -> int:
    """Run ``dgl-gt``; returns the exit code."""
    return enter("dgl-gt", _run)


def _run() -> int:
    from dgl_gt.partition.system.child_process import die_with_parent
    from dgl_gt.ranks.launcher_link import find_launcher

    launcher = find_launcher()
    if launcher:
        die_with_parent(launcher.pid)
    # When torch is imported it makes this directory, by default a new one that stays. Nothing here writes into it.
    # `tempfile.gettempdir()` would test the directory by writing a file, which a signal at this moment would leave
    # behind.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TMPDIR") or "/tmp")
    from dgl_gt.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
