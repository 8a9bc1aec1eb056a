"""What a scrape reads of the groups: in steps, and the same however long they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from queen_node import figures
from queen_node.disk_gate import OPEN
from queen_node.figures import Figures
from queen_node.metrics import Metrics
from raft.clock import SystemTime
from tests.node.test_host import LEVEL, A, B, Node, running, started_again


def scraped(node: Node) -> tuple[Metrics, int]:
    """The figures, and how often the loop had a turn before they were there."""
    metrics = Metrics(0.0)
    keeper = SimpleNamespace(
        durable_index={0: 1, 1: 2}, gates=OPEN, used_percent=1.0, fullest=lambda: SimpleNamespace(used_percent=2.0))
    read = Figures(metrics).gauges(
        node.host, cast(Any, keeper), cast(Any, SimpleNamespace(waiting_count=4)),
        cast(Any, SimpleNamespace(size_bytes=lambda: 5)), SystemTime())
    return metrics, len(list(read()))


async def test_a_scrape_reads_so_many_groups_between_two_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN: nothing blocks the loop for more than a few ms; 10,000 groups took 100."""
    async with running(Node()) as node:
        for tenant in (A, B):
            await node.push(tenant, b"1")
        whole, turns = scraped(node)
        assert turns == 0, "or three groups are more than a step"
        for groups_a_step, least in ((1, 3), (2, 1)):
            monkeypatch.setattr(figures, "GROUPS_A_STEP", groups_a_step)
            sliced, turns = scraped(node)
            assert turns == least
            assert (sliced.raft_index, sliced.raft_groups) == (whole.raft_index, whole.raft_groups)
        assert whole.raft_groups == {"leading": 3, "following": 0, "quiet": 0, "failed": 0}
        applied = sum(actor.group.machine.applied_index for actor in node.host.groups.values())
        assert whole.raft_index == {"log": applied, "committed": applied, "applied": applied, "durable": 3}
        assert whole.inbox_depth == {"group": 0, "log": 4} and whole.inbox_peak["group"] > 0


async def test_a_scrape_opens_no_group_and_counts_the_closed_ones_as_quiet() -> None:
    async with running(await started_again(LEVEL)) as node:
        metrics, _ = scraped(node)
        assert metrics.raft_groups == {"leading": 0, "following": 1, "quiet": 2, "failed": 0}
        assert node.host.groups.closed_count == 2
