"""AD-34: every refusal by a limit names the limit and what was sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import queen_node

SOURCES = Path(queen_node.__file__).parent
NOT_COUNTED = {"nested too deeply"}  # nobody goes on to the end of what is too deep


def refusals_by_a_limit() -> Iterator[tuple[str, ast.Call]]:
    """Every call in a door's code that passes a limit on to the text of a refusal."""
    for path in sorted((SOURCES / "http").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(word.arg == "limit" for word in node.keywords):
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node


def test_whoever_names_a_limit_says_what_was_sent() -> None:
    found = dict(refusals_by_a_limit())
    assert len(found) > 20
    silent = [
        place for place, call in found.items()
        if not any(word.arg == "got" for word in call.keywords)
        and not any(isinstance(text, ast.Constant) and text.value in NOT_COUNTED for text in call.args)
    ]
    assert silent == []
