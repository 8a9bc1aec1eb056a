"""The node of the fault tests.

    ./scripts/test faults                           about a dozen rounds of kill -9, and every named crash point once
    ./scripts/test faults -k kill --rounds 50       a campaign
    ./scripts/test faults --seed 8841027            the same dice again
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_process import NodeProcess

SEGMENT_BYTES = 4 * 1024 * 1024  # room is made in advance, and the folders of many tests are kept for a while


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node not yet started, with test hooks; its log is shown when the test fails."""
    process = NodeProcess(tmp_path / "node", {"QUEEN_RAFT_SEGMENT_BYTES": str(SEGMENT_BYTES)}, hooks=True)
    yield process
    process.close()
    print(process.log_tail())
