"""Three real nodes: one that was away for longer than the log is kept takes the state, whatever kills it (M-61)."""

from __future__ import annotations

from pathlib import Path

import trio

from queen_node.crash_points import SNAPSHOT_POINTS
from tests.cluster.test_three_nodes import clients, pop_texts, push, schedule
from tests.support.cluster_process import IDS, ClusterProcess, cluster
from tests.support.http_client import HttpClient
from tests.support.node_process import BOOT_TIMEOUT_S, POLL_S, NodeProcess, log_record

SETTINGS = {"QUEEN_RAFT_LOG_BUDGET_MB": "1", "QUEEN_RAFT_SEGMENT_BYTES": str(64 << 10)}
TEXT_BYTES = 20_000
CALLS, TEXTS_A_CALL = 25, 40  # 20 MB: past what is replayed at most, so stores are flushed and logs are cut (M-2)
APPLIED = 'queen_raft_index{kind="applied"}'
INSTALLED, SENDING = "state taken from a snapshot", "sending a snapshot"
CATCH_UP_S = 60.0


async def push_past_the_log(three: ClusterProcess, node_id: int, name: str) -> int:
    """Push until the logs are cut; how many messages."""
    async with clients(three, node_id) as (client,):
        for call in range(CALLS):
            texts = [f"{name}-{call}-{number}-".ljust(TEXT_BYTES, "x") for number in range(TEXTS_A_CALL)]
            assert (await client.post("/api/v1/push", push(*texts))).status == 201
    return CALLS * TEXTS_A_CALL


async def applied(node: NodeProcess) -> float:
    """Entries applied, of all groups; -1 while nobody answers."""
    client = HttpClient(node.port)
    try:
        text = (await client.get("/metrics/prometheus")).body.decode()
    except OSError:
        return -1
    finally:
        await client.aclose()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(APPLIED)))


async def wait_until_level(three: ClusterProcess, node_id: int) -> None:
    """Until the node has applied what the others have."""
    with trio.fail_after(CATCH_UP_S):
        while True:
            assert three.nodes[node_id].is_running(), three.nodes[node_id].log_tail()
            found = {await applied(node) for node in three.nodes.values()}
            if len(found) == 1 and found != {-1}:
                return
            await trio.sleep(POLL_S)


def times_said(node: NodeProcess, event: str) -> int:
    return sum(log_record(line).get("event") == event for line in node.log_lines())


async def who_sends(three: ClusterProcess) -> NodeProcess:
    """The node that sends a snapshot, as soon as one does."""
    with trio.fail_after(CATCH_UP_S):
        while True:
            for node in three.nodes.values():
                if times_said(node, SENDING):
                    return node
            await trio.sleep(POLL_S)


def follower_of(three: ClusterProcess) -> tuple[int, int]:
    """A follower, and another node."""
    leader = three.leader_id()
    return next(node_id for node_id in IDS if node_id != leader), leader


async def test_a_node_that_was_away_too_long_takes_the_state_and_serves_from_it(tmp_path: Path) -> None:
    """CL-112: rows, timers and consumer groups, and the log goes on behind it, also over a restart."""
    with cluster(tmp_path, SETTINGS) as three:
        away, leader = follower_of(three)
        three.nodes[away].kill()
        async with clients(three, leader) as (client,):
            assert (await client.post("/api/v1/timers", schedule("waits", 3_600_000))).status == 200
        count = await push_past_the_log(three, leader, "first")
        three.nodes[away].start()
        await wait_until_level(three, away)
        assert times_said(three.nodes[away], INSTALLED) >= 1
        three.nodes[away].kill()
        three.nodes[away].start()
        async with clients(three, away) as (client,):
            assert (await client.get("/api/v1/timers/orders/waits")).status == 200
            texts = await pop_texts(client, count)
            assert len(set(texts)) == len(texts) == count
        await wait_until_level(three, away)


async def test_a_node_that_dies_at_any_step_of_it_takes_the_state_in_the_end(tmp_path: Path) -> None:
    """CL-112: either the old state or the new one is found, and it starts with both."""
    with cluster(tmp_path, SETTINGS | {"QUEEN_TEST_HOOKS": "1"}) as three:
        away, leader = follower_of(three)
        node = three.nodes[away]
        node.kill()
        count = await push_past_the_log(three, leader, "first")
        for point in SNAPSHOT_POINTS:
            if point == "snapshot.installed":  # the one before it was found whole, and caught up by its log
                node.start()
                await wait_until_level(three, away)
                node.kill()
                count += await push_past_the_log(three, three.leader_id(), "second")
            node.launch({"QUEEN_TEST_CRASH_AT": point})
            assert node.wait(BOOT_TIMEOUT_S + CATCH_UP_S) < 0, point
        node.start()
        await wait_until_level(three, away)
        async with clients(three, away) as (client,):
            texts = await pop_texts(client, count)
            assert len(set(texts)) == len(texts) == count


async def test_a_leader_that_dies_while_it_sends_is_followed_by_one_that_sends(tmp_path: Path) -> None:
    """M-61: the half-made install is dropped for the next leader's."""
    with cluster(tmp_path, SETTINGS) as three:
        away, other = follower_of(three)
        three.nodes[away].kill()
        count = await push_past_the_log(three, other, "first")
        three.nodes[away].launch()
        sender = await who_sends(three)
        sender.kill()  # the transfer takes two seconds
        sender.start()
        await wait_until_level(three, away)
        assert times_said(three.nodes[away], INSTALLED) >= 1
        async with clients(three, away) as (client,):
            assert len(set(await pop_texts(client, count))) == count
