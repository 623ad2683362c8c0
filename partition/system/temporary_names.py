"""The process that writes a temporary directory, told from the directory's name, so that other runs know if it lives.

A name holds the host and its system's installation, the process id namespace (a container's ids are its own), the process id and the time at which
the process started, as ids are used again. A lock file would be simpler, but some network file systems do not pass
locks on to other hosts, so that a writer that lives there would look dead here.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path

# What names are for: a directory that is being written, one that was moved aside, a file that is being written.
PARTIAL, REPLACED, FILE = "partial", "replaced", "file"


def temporary_name(stem: str, purpose: str) -> str:
    """A new hidden name for this process's ``purpose``, found again by :func:`leftovers`; at most 255 bytes."""
    return f"{_prefix(stem, purpose)}{_home()}-{os.getpid()}-{_started(os.getpid())[1]}-{secrets.token_hex(3)}"


def leftovers(folder: Path, stem: str, purpose: str) -> list[Path]:
    """What dead processes left in a folder under names of :func:`temporary_name`.

    What a process on another host or in another container left is never listed, as nothing here knows if it lives.
    """
    prefix = _prefix(stem, purpose)
    found = [each for each in folder.iterdir() if each.name.startswith(prefix)]
    return sorted(each for each in found if _is_dead(each.name[len(prefix) :]))


def _prefix(stem: str, purpose: str) -> str:
    coded = os.fsencode(stem)
    short = stem if len(coded) <= 100 else hashlib.sha256(coded).hexdigest()[:32]
    return f".{short}.{purpose}-"


def _home() -> str:
    """The host, the installation of its system, as hosts may have one name, and the process id namespace."""
    host = re.sub(r"[^\w.]", "_", socket.gethostname(), flags=re.ASCII)[:64]
    machine, namespace = Path("/etc/machine-id"), Path("/proc/self/ns/pid")
    with suppress(OSError):
        host += "." + hashlib.sha256(machine.read_bytes()).hexdigest()[:8]
    return f"{host}-{namespace.stat().st_ino if namespace.exists() else 0}"


def _is_dead(process: str) -> bool:
    """Whether the process that a temporary name ends with has ended; False where that is not certain."""
    found = re.fullmatch(r"([\w.]*-\d+)-(\d{1,9})-(\d+)-[0-9a-f]{6}", process, re.ASCII)
    if found is None or found[1] != _home():
        return False
    pid = int(found[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    state, started = _started(pid)
    return state in ("Z", "X") or started not in ("0", found[3])


def _started(pid: int) -> tuple[str, str]:
    """The state of a process and when it started, in clock ticks since boot; an unknown time is 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or hidden from this user
        return "?", "0"
    return fields[0], fields[19]
