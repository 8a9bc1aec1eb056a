"""The programs under scripts/examples, run as a reader of their page would, against a node."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.node_process import REPOSITORY, NodeProcess

EXAMPLES = REPOSITORY / "scripts" / "examples"
PATIENCE_S = 60.0
RUN_ID = re.compile(r"-[0-9a-f]{8}\b")

EXPECTED: dict[tuple[str, ...], set[str]] = {
    ("booking.py", "--hold", "1.5"): {
        "seat-12a: new --hold--> held",
        "seat-12a: held --confirm--> confirmed",
        "seat-12b: new --hold--> held",
        "seat-12b: held --hold-expired--> expired",
    },
    ("order_payment.py", "--timeout", "1"): {
        "order-paid: shipped in time",
        "order-paid-twice: shipped in time",
        "order-paid-twice: seen before",
        "order-unpaid: not paid in time",
    },
    ("reminder.py", "--after", "0.5"): {
        "call: scheduled",
        "lunch: scheduled",
        "call: pending, attempts 0",
        "lunch: cancelled",
        "call: rescheduled",
        "arrived: call the printer today",
        "call: absent",
    },
}


@pytest.mark.parametrize("command", EXPECTED, ids=lambda command: str(command[0]))
def test_an_example_does_what_its_page_says(node: NodeProcess, command: tuple[str, ...]) -> None:
    """Issue 5: the seed's state machine, an order's payment timeout, a reminder that is moved."""
    program, *options = command
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), "--url", f"http://127.0.0.1:{node.port}", *options],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = [RUN_ID.sub("", line) for line in done.stdout.splitlines() if ": " in line]  # the client says a few more
    assert set(lines) == EXPECTED[command] and len(lines) == len(set(lines))


def test_every_example_is_run_and_has_its_line_on_the_page() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == {command[0] for command in EXPECTED}
    page = (EXAMPLES / "README.md").read_text()
    assert all(f"`{program}`" in page for program in programs)
