"""A release that reads less among three real nodes, and what all of them write meanwhile (CL-132)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import trio

from queen_node.versions import FORMAT
from tests.cluster.test_three_nodes import PATIENCE_S, clients, pop_texts, push
from tests.support.cluster_process import ClusterProcess
from tests.support.figures import at_least, metric, wait_for_metric
from tests.support.node_process import POLL_S, NodeProcess, log_record

OLD = {"QUEEN_TEST_FORMAT": "1"}
SETTINGS = {"QUEEN_TEST_HOOKS": "1", "QUEEN_RAFT_CLUSTER_VERSION_MS": "100"}
WAITS = "a later format waits for members that do not read it"
QUIET = 'queen_raft_groups{state="quiet"}'


def versions(three: ClusterProcess) -> list[int]:
    """The cluster's, as each node that runs has it."""
    bodies = [node.health_body() for node in three.nodes.values() if node.is_running()]
    return [msgspec.json.decode(body)["raft"]["clusterVersion"] for body in bodies if body]


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            if holds():
                return
            await trio.sleep(POLL_S)


def has_said(node: NodeProcess, event: str, fields: Mapping[str, object]) -> bool:
    records = map(log_record, node.log_lines())
    return any(record.get("event") == event and fields.items() <= record.items() for record in records)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcess]:
    """A cluster whose third node is of an earlier release."""
    made = ClusterProcess(tmp_path, SETTINGS)
    made.nodes[3].settings |= OLD
    try:
        made.start()
        yield made
    finally:
        made.close()


async def test_the_version_rises_when_the_last_member_reads_it_and_never_falls(three: ClusterProcess) -> None:
    """Until then no group sleeps: the words for it are of the later format. All calls are served all the while."""
    late = three.nodes[3]
    async with clients(three, 1, 2) as (one, two):
        moved = await one.post("/api/v1/system/raft/transfer", {"group": 0, "to": 1})
        assert moved.status == 200, moved
        assert (await two.post("/api/v1/push", push("before"))).status == 201
        await until(lambda: has_said(three.nodes[1], WAITS, {"version": 1, "members": [3]}))
        assert versions(three) == [1, 1, 1]
        assert [await metric(node, QUIET) for node in (one, two)] == [0, 0]

        await trio.to_thread.run_sync(late.stop)
        assert (await two.post("/api/v1/push", push("without it"))).status == 201
        assert versions(three) == [1, 1], "who is not there may be of an earlier release"
        del late.settings["QUEEN_TEST_FORMAT"]
        await trio.to_thread.run_sync(late.start)
        await until(lambda: versions(three) == [FORMAT] * 3)
        async with clients(three, 3) as (again,):
            assert await pop_texts(again, 2) == ["before", "without it"]
            for node in (one, two, again):
                await wait_for_metric(node, QUIET, at_least(1))

    assert await trio.to_thread.run_sync(late.stop) == 0
    late.launch(OLD)
    assert await trio.to_thread.run_sync(late.wait, PATIENCE_S) > 0
    assert f"the data is of version {FORMAT}, and this release reads up to 1" in late.log_tail()
    late.announced.append("cannot start")
    for each in three.nodes.values():
        each.check_log()
