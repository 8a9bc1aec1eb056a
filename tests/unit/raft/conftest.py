"""`--rewrite` records what the scenes say now. Keep the change only when every line of the diff can be explained."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="record the raft scenes as they run now")
