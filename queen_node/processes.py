"""What this process and its children, the doors and the log's writer, use of the machine together (Linux; else: what
this process uses). Some system calls for each of them, 0.1 ms in all: for a scrape."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_A_S = os.sysconf("SC_CLK_TCK")
_AFTER_NAME = 2  # fields of /proc/<pid>/stat before those that follow the name, which may hold anything
_USER, _SYSTEM = 13 - _AFTER_NAME, 14 - _AFTER_NAME


class Usage(NamedTuple):
    """resident_bytes: a page that two of them share counts twice. user_s, system_s: CPU since their start."""

    resident_bytes: int
    user_s: float
    system_s: float


def usage() -> Usage:
    """Of the processes that live now. What children used that have ended counts on."""
    times = os.times()
    resident, user_s, system_s = _resident_bytes("self"), times.user, times.system
    user_s, system_s = user_s + times.children_user, system_s + times.children_system
    for child in _children():
        try:
            stat = Path(f"/proc/{child}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # it has just ended
        fields = stat.rpartition(")")[2].split()
        resident += _resident_bytes(child)
        user_s += int(fields[_USER]) / _TICKS_A_S
        system_s += int(fields[_SYSTEM]) / _TICKS_A_S
    return Usage(resident, user_s, system_s)


def _children() -> list[str]:
    """Ids of the processes that the main thread started."""
    own = os.getpid()
    try:
        return Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
    except OSError:
        return []


def _resident_bytes(process: str) -> int:
    """0 on a platform that does not tell in /proc."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * _PAGE_BYTES
