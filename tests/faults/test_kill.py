"""kill -9 at random moments under load: what was acknowledged is there, once, and not early (G-D1)."""

from __future__ import annotations

import signal
import socket

import pytest
import trio

from tests.faults.campaign import Campaign
from tests.faults.load import now_ns
from tests.support.figures import at_least, wait_for_metric
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess

CALLS_A_ROUND_MAX = 600  # a round ends after a random number of calls up to this
DOWN_S_MAX = 0.2
SEGMENT_BYTES = (str(128 * 1024), str(4 * 1024 * 1024))  # the log rolls within a round, or not at all


async def test_kill_at_random_moments_under_load(node: NodeProcess, seed: int, rounds: int, again: str) -> None:
    """G-D1, G-Q1 … G-Q6, G-M1 … G-M8 over `--rounds` kills, one history, one folder."""
    campaign = Campaign(node, seed, again=again)
    node.settings["QUEEN_RAFT_SEGMENT_BYTES"] = campaign.dice.choice(SEGMENT_BYTES)
    await campaign.begin()
    for _ in range(rounds):
        async with campaign.load():
            await campaign.world.wait_for_calls(campaign.dice.randint(1, CALLS_A_ROUND_MAX))
            await campaign.kill()
            # Clients keep knocking meanwhile, and their first calls meet the node as it opens its port.
            await trio.sleep(campaign.dice.uniform(0, DOWN_S_MAX))
            await campaign.restart()
    await campaign.finish()


def test_a_killed_node_resets_its_connections_and_one_that_stops_ends_them(node: NodeProcess) -> None:
    """cluster.md 14: the published client goes to its next address after a reset; an end without an answer is final to
    its consumers."""
    node.start()
    with waiting_for_a_message(node) as client:
        node.kill()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    node.start()
    with waiting_for_a_message(node) as client:
        assert node.stop() == 0
        assert client.recv(64).startswith(b"HTTP/1.1 204 ")
        while client.recv(64):
            pass


def waiting_for_a_message(node: NodeProcess) -> socket.socket:
    """The connection of a poll that is parked."""
    client = socket.create_connection(("127.0.0.1", node.port), timeout=20.0)
    client.sendall(b"GET /api/v1/pop/queue/empty?wait=true&timeout=60000 HTTP/1.1\r\nhost: x\r\n\r\n")
    trio.run(parked, node.port)
    return client


async def parked(port: int) -> None:
    async with HttpClient(port) as http:
        await wait_for_metric(http, "queen_parked_long_polls", at_least(1))


async def test_kill_with_a_slow_disk(node: NodeProcess, seed: int, again: str) -> None:
    """G-D1: writes that were on their way to the disk when the node died end before the next node reads the log."""
    campaign = Campaign(node, seed, again=again)
    slow = {"QUEEN_TEST_FSYNC_DELAY_MS": "150"}
    await campaign.begin(slow)
    for _ in range(4):
        async with campaign.load():
            await campaign.world.wait_for_calls(campaign.dice.randint(5, 40))
            await campaign.kill()
            await campaign.restart(slow)
    await campaign.finish()


async def test_kill_while_starting(node: NodeProcess, seed: int, again: str) -> None:
    """G-D1: a node killed while it replays starts again all the same, and has everything."""
    campaign = Campaign(node, seed, again=again)
    await campaign.begin()
    async with campaign.load():
        await campaign.world.wait_for_calls(CALLS_A_ROUND_MAX)
        await campaign.kill()
        await campaign.die_while_starting(node.kill, within_s=0.5)
        await campaign.restart()
    await campaign.finish()


async def test_sigterm_under_load_loses_nothing(node: NodeProcess, seed: int, again: str) -> None:
    """CL-131: an orderly stop ends with code 0 while clients are at work, and what they were told holds."""
    campaign = Campaign(node, seed, again=again)
    await campaign.begin()
    for _ in range(3):
        async with campaign.load():
            await campaign.world.wait_for_calls(campaign.dice.randint(100, CALLS_A_ROUND_MAX))
            campaign.history.outages.append((now_ns(), now_ns()))
            assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
            await campaign.restart()
    await campaign.finish()


async def test_a_pause_is_no_early_fire_and_no_short_lease(node: NodeProcess, seed: int, again: str) -> None:
    """G-M2, G-Q4: SIGSTOP for 3 s under load; the judges know no margin."""
    campaign = Campaign(node, seed, again=again)
    await campaign.begin()
    async with campaign.load():
        await campaign.world.wait_for_calls(300)
        node.signal(signal.SIGSTOP)
        campaign.history.outages.append((now_ns(), now_ns()))
        await trio.sleep(3.0)
        node.signal(signal.SIGCONT)
        await trio.to_thread.run_sync(node.wait_until_ready)
        campaign.history.outages[-1] = (campaign.history.outages[-1][0], now_ns())
        await campaign.world.wait_for_calls(300)
    await campaign.finish()
