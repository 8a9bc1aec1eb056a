"""The README's session with curl, run as it is written there.

Every fenced block whose info string is `sh first-timer` belongs to the session, in order. Together they are one shell
script: the port is replaced, nothing else. An indented block that follows one and begins with a bracket shows the
answer of the last command before it: every value in it must have come back, except ids, times and what is cut short
with `…`, which change from run to run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.node_process import REPOSITORY, NodeProcess

README = REPOSITORY / "README.md"
ADDRESS = "localhost:6632"
SESSION_TIMEOUT_S = 60.0
BLOCK = re.compile(
    r"^```sh first-timer\n(?P<script>.*?)^```$\n*(?P<shown>(?:^    [^\n]*\n)*)", re.MULTILINE | re.DOTALL)
PAIR = re.compile(r'"(\w+)":("[^"]*"|true|false|null|-?\d+)')
CHANGING = re.compile(r"…|[0-9a-f]{8}-[0-9a-f]{4}-|\d{4}-\d\d-\d\dT")
MARK = "--- end of a block ---"


class Block(NamedTuple):
    """Commands of the session, and the answer that the README shows for the last of them, or nothing."""

    script: str
    shown: str


@pytest.fixture
def fresh_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node on an empty folder, as a stranger has it."""
    process = NodeProcess(tmp_path / "node")
    process.start()
    yield process
    process.close()
    print(process.log_tail())


def blocks_of(text: str) -> list[Block]:
    """The session in a README."""
    return [
        Block(found["script"], found["shown"] if found["shown"].strip().startswith(("{", "[")) else "")
        for found in BLOCK.finditer(text)
    ]


def lasting_pairs(text: str) -> set[tuple[str, str]]:
    """The fields of a JSON text, cut short or not, whose values are the same in every run."""
    return {(name, value) for name, value in PAIR.findall(re.sub(r'":\s+', '":', text)) if not CHANGING.search(value)}


def test_the_session_of_the_readme(fresh_node: NodeProcess, tmp_path: Path) -> None:
    """Issue 3, "To show": schedule, see it come out when it is due, ack it."""
    assert shutil.which("curl"), "this test runs the README's commands, and they are curl's"
    blocks = blocks_of(README.read_text())
    script = "\n".join(block.script for block in blocks)
    for needed in ("/api/v1/timers", "/api/v1/pop/queue/", "/api/v1/ack", ADDRESS):
        assert needed in script, f"the session never speaks of {needed}"
    assert any(block.shown for block in blocks), "the session shows no answer"
    # One shell for all, so that its variables live on; a mark behind each block tells the answers apart.
    marked = "set -euo pipefail\n" + "".join(f"{block.script}\necho\necho '{MARK}'\n" for block in blocks)
    ran = subprocess.run(
        ["bash", "-c", marked.replace(ADDRESS, f"localhost:{fresh_node.port}")],
        cwd=tmp_path, capture_output=True, text=True, timeout=SESSION_TIMEOUT_S, check=False,
    )
    assert ran.returncode == 0, ran
    answers = ran.stdout.split(MARK)[:-1]
    for block, came in zip(blocks, answers, strict=True):
        # Refusals have an "error" text, and so have acks that failed; a good ack's is null.
        assert '"error":"' not in came, (block.script, came)
        missing = lasting_pairs(block.shown) - lasting_pairs(came)
        assert not missing, f"{block.script}\nshows {missing}, which did not come: {came}"
    assert any('"success":true' in came and '"leaseReleased":true' in came for came in answers), "nothing was acked"
    fresh_node.check_log()


def test_the_reader_of_the_session() -> None:
    """This file's own rules: which blocks count, which answers belong to them, which values must come back."""
    text = "x\n\n```sh first-timer\ncurl a\ncurl b\n```\n\n    {\"a\":1}\n     \"b\":2\n\n```sh\ncurl no\n```\n"
    text += "```sh first-timer\ncurl c\n```\n\nAnd\n\n    {\"not\":1}\n"
    assert blocks_of(text) == [Block("curl a\ncurl b\n", '    {"a":1}\n     "b":2\n'), Block("curl c\n", "")]
    shown = '{"id":"0199a7c2-61f1-7d55-b0e2-8b3f0a2d4e71","at":"2026-10-03T09:14:03Z","l":"01…","ok": true, "n":7,…}'
    assert lasting_pairs(shown) == {("ok", "true"), ("n", "7")}
