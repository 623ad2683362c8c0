"""Names of temporary outputs that tell which process writes them, so that other runs know whether it is alive.

A name holds the host and its system's installation, the process id namespace (every container has its own ids), the
process id, and the time at which the process started, because ids are used again. A lock file would be simpler. But
some network file systems do not pass locks on to other hosts, so a writer that is alive there would look dead here.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path

# Purposes: a directory that is being written, one that was moved aside, a file that is being written.
PARTIAL, REPLACED, FILE = "partial", "replaced", "file"


def temporary_name(stem: str, purpose: str) -> str:
    """Return a new hidden name of at most 255 bytes for a purpose of this process; :func:`leftovers` finds it again."""
    return f"{_prefix(stem, purpose)}{process_name(os.getpid())}-{secrets.token_hex(3)}"


def process_name(pid: int) -> str:
    """Return a name for a process of this host that no other process on any host has."""
    return f"{_home()}-{pid}-{_started(pid)[1]}"


def leftovers(folder: Path, stem: str, purpose: str) -> list[Path]:
    """Return the paths in a folder that dead processes left under names of :func:`temporary_name`.

    Paths of processes on other hosts or in other containers are never listed, because they may be alive.
    """
    prefix = _prefix(stem, purpose)
    found = [each for each in folder.iterdir() if each.name.startswith(prefix)]
    return sorted(each for each in found if _is_dead(each.name[len(prefix) :]))


def _prefix(stem: str, purpose: str) -> str:
    coded = os.fsencode(stem)
    short = stem if len(coded) <= 100 else hashlib.sha256(coded).hexdigest()[:32]
    return f".{short}.{purpose}-"


def _home() -> str:
    """Return the host, the installation of its system (hosts may share a name) and the process id namespace."""
    host = re.sub(r"[^\w.]", "_", socket.gethostname(), flags=re.ASCII)[:64]
    machine, namespace = Path("/etc/machine-id"), Path("/proc/self/ns/pid")
    with suppress(OSError):
        host += "." + hashlib.sha256(machine.read_bytes()).hexdigest()[:8]
    return f"{host}-{namespace.stat().st_ino if namespace.exists() else 0}"


def _is_dead(process: str) -> bool:
    """Return whether the process at the end of a temporary name has ended; False where that is not certain."""
    found = re.fullmatch(r"([\w.]*-\d+)-(\d{1,9})-(\d+)-[0-9a-f]{6}", process, re.ASCII)
    if found is None or found[1] != _home():
        return False
    pid = int(found[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # the process is another user's
        pass
    state, started = _started(pid)
    return state in ("Z", "X") or started not in ("0", found[3])


def _started(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start in clock ticks since boot; a start of 0 is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not on Linux, or hidden from this user
        return "?", "0"
    return fields[0], fields[19]
