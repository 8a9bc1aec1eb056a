"""Memory and CPU are those of the node, not of one of its processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from queen_node.processes import Usage, usage

BUSY_S = 0.3
HELD_BYTES = 40 << 20
PROGRAM = f"""
import sys, time
held = b"x" * {HELD_BYTES}
while time.process_time() < {BUSY_S}:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def child() -> Iterator[None]:
    """A process that has used what PROGRAM says, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        yield
        assert process.stdin is not None
        process.stdin.close()


def cpu_s(used: Usage) -> float:
    return used.user_s + used.system_s


def test_what_children_use_counts() -> None:
    before = usage()
    with child():
        during = usage()
    after = usage()
    assert during.resident_bytes - before.resident_bytes > HELD_BYTES
    assert cpu_s(during) - cpu_s(before) > BUSY_S / 2
    assert after.resident_bytes < during.resident_bytes
    assert cpu_s(after) - cpu_s(before) > BUSY_S / 2, "what was used is not taken back when a child ends"
