"""Progress in the cells of a notebook, as bars of tqdm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it
    shell = ipython and ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class Bar:
    """A line that shows how far work is; call it with a text, and with what is done of a total where that is known."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, text: str, done: int = 0, total: int | None = None) -> None:
        if self._bar is None or self._bar.total != total:
            self.close()
            from tqdm.auto import tqdm

            form = "{desc} [{elapsed}]" if total is None else "{n_fmt}/{total_fmt} {bar} {desc} [{elapsed}<{remaining}]"
            self._bar = tqdm(total=total, bar_format=form, leave=total is not None, file=sys.stderr)
        self._bar.set_description_str(text, refresh=total is None)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the line; one without a total disappears."""
        if self._bar is not None:
            self._bar.close()


@contextmanager
def stages(progress: Callable[[str], object] | None) -> Iterator[Callable[[str], object]]:
    """Give what to call with the name of each stage of work: ``progress``, or by default a line in a notebook."""
    bar = Bar() if progress is None and in_notebook() else None
    try:
        yield progress or bar or (lambda stage: None)
    finally:
        if bar:
            bar.close()
