"""The hidden folder beside the shards: which command works there, and one folder in it for each plan.

Tasks that a run gave out may go on after it has ended. The name of a run's folder is a hash of its plan, and nothing but
its own command makes that folder, so such a task writes what another run reads only where both have the same plan.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.output_checks import cannot_write, leftovers, temporary_name

_PLAN = "plan.json"
_STEM, _LOCK = "command", "runs"  # of the name of a command's file
_SOURCE = "the source has"
_CHANGED = {"options": "options have", "sizes": "worker_memory (--worker-memory) has", "version": "dgl-gt has"}


@contextmanager
def held(work: Path) -> Iterator[None]:
    """Keep other commands out of a work folder; :class:`InputError` where one is in it that may be alive."""
    own = work / temporary_name(_STEM, _LOCK)
    try:
        work.mkdir(parents=True, exist_ok=True)
        own.touch()
    except OSError as error:
        raise cannot_write(work, error) from error
    try:
        dead = leftovers(work, _STEM, _LOCK)
        alive = sorted({*work.glob(f".{_STEM}.{_LOCK}-*")} - {own, *dead})
        if alive:
            raise InputError(
                f"another command with the same out (--out) works in {work}; wait for its end, or choose another out. If it was on "
                f"a host that is no more, remove {alive[0]}"
            )
        for each in dead:
            each.unlink(missing_ok=True)
        yield
    finally:
        own.unlink(missing_ok=True)
        with suppress(OSError):  # something is kept there
            work.rmdir()


@contextmanager
def begun(work: Path, plan: dict, *, resume: bool) -> Iterator[Path]:
    """Give the folder of the run that has a plan: a new one, or with ``resume`` the one that is there.

    Folders of earlier runs are moved aside, and are removed when the block, which checks what can be checked before the
    first stage, has passed. If it has not, they are put back and a new folder is removed.
    """
    text = json.dumps(plan)
    folder = work / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    earlier = [each for each in work.iterdir() if not each.name.startswith(".")]
    if resume and (plans := {each: _read_plan(each) for each in earlier if _read_plan(each)}):
        if text not in plans.values():
            before = json.loads(next(iter(plans.values())))
            what = next(
                (_CHANGED.get(name, _SOURCE) for name in plan if before.get(name) != json.loads(text)[name]), _SOURCE
            )
            raise InputError(f"{what} changed since the run in {work} began; start again without resume (--resume)")
        # A command that was killed while it began has left a new folder, and this run's as an earlier one.
        same = [each for each, other in plans.items() if other == text]
        found = max(same, key=lambda each: sum(1 for _ in (each / "done").glob("*")))
        others = [each for each in earlier if each != found]
        for each in others:
            each.rename(each.with_name(f"old-{token_hex(4)}-left"))
        found.rename(folder)
        yield folder
        for each in work.glob("old-*-left"):
            shutil.rmtree(each, ignore_errors=True)
        return
    aside = [(each, each.with_name(f"old-{token_hex(4)}")) for each in earlier]
    try:
        try:
            for before, after in aside:
                before.rename(after)
            folder.mkdir()
            (folder / f".{_PLAN}").write_text(text)
            (folder / f".{_PLAN}").rename(folder / _PLAN)
        except OSError as error:
            raise cannot_write(work, error) from error
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for before, after in aside:
            with suppress(OSError):
                after.rename(before)
        raise
    for _, after in aside:
        shutil.rmtree(after, ignore_errors=True)


def _read_plan(run: Path) -> str | None:
    """The plan of a run; None where it has not got as far as that."""
    try:
        return (run / _PLAN).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
