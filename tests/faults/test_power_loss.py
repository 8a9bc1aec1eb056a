"""Power loss under load: what no fsync had reached is gone, what was acknowledged is there (G-D1, G-M1 … G-M8).

QUEEN_TEST_DROP_UNSYNCED keeps beside the log what stood in it before each unsynced write; a start puts that back.
"""

from __future__ import annotations

import pytest
import trio

from raft.forgetful_disk import UNSYNCED_NAME
from tests.faults.campaign import Campaign
from tests.faults.load import Shape, now_ns
from tests.support.node_process import NodeProcess

CALLS_A_ROUND_MAX = 300
DOWN_S_MAX = 0.2
SEGMENT_BYTES = (str(128 * 1024), str(4 * 1024 * 1024))  # the log rolls within a round, or not at all
FSYNC_DELAY_MS = (0, 3, 20, 100)
SHAPE = Shape(clients=4, delay_ms_max=800, lease_s_max=1)
DROPS = {"QUEEN_TEST_DROP_UNSYNCED": "1"}


async def test_power_cut_at_random_moments_under_load(node: NodeProcess, seed: int, rounds: int, again: str) -> None:
    """G-D1, G-Q1 … G-Q6, G-M1 … G-M8 over `--rounds` power cuts, one history, one folder, faster and slower disks."""
    campaign = Campaign(node, seed, again=again)
    node.settings.update(DROPS, QUEEN_RAFT_SEGMENT_BYTES=campaign.dice.choice(SEGMENT_BYTES))
    await campaign.begin()
    cuts_that_cost = 0
    for _ in range(rounds):
        async with campaign.load():
            await campaign.world.wait_for_calls(campaign.dice.randint(1, CALLS_A_ROUND_MAX))
            await _cut_power(campaign)
            cuts_that_cost += _unsynced_bytes(node) > 0
            await trio.sleep(campaign.dice.uniform(0, DOWN_S_MAX))
            await campaign.restart({"QUEEN_TEST_FSYNC_DELAY_MS": str(campaign.dice.choice(FSYNC_DELAY_MS))})
    print(f"{cuts_that_cost} of {rounds} power cuts found bytes that were not synced")
    await campaign.finish()


@pytest.mark.parametrize("point", ["wal.after_write", "wal.after_fsync", "wal.segment_created", "store.after_flush"])
async def test_power_cut_at(point: str, node: NodeProcess, seed: int, again: str) -> None:
    """G-D1: between write and fsync the batch is lost, whole; at the other points nothing is."""
    campaign = Campaign(node, seed, SHAPE, again=again)
    node.settings.update(DROPS, QUEEN_RAFT_SEGMENT_BYTES=SEGMENT_BYTES[0])
    await campaign.begin()
    for _ in range(3):
        async with campaign.load():
            await campaign.world.wait_for_calls(100)
        assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
        assert _unsynced_bytes(node) == 0, "an orderly stop leaves nothing unsynced"
        often = point.startswith("wal.after")
        count = campaign.dice.randint(1, 200) if often else 1
        await trio.to_thread.run_sync(node.launch, {"QUEEN_TEST_CRASH_AT": f"{point}:{count}"})
        campaign.history.outages.append((now_ns(), now_ns()))
        async with campaign.load():
            if point == "store.after_flush":  # flushes come by themselves only after much load; a stop makes one
                await campaign.world.wait_for_calls(100)
                await trio.to_thread.run_sync(node.stop)
            assert await trio.to_thread.run_sync(node.wait, 60.0) == -9, node.log_tail()
            assert (_unsynced_bytes(node) > 0) == (point == "wal.after_write")
            await campaign.restart()
            await campaign.world.wait_for_calls(50)
    await campaign.finish()


async def test_power_cut_while_starting(node: NodeProcess, seed: int, again: str) -> None:
    """G-D1: the start that puts the old bytes back loses power itself, again and again."""
    campaign = Campaign(node, seed, SHAPE, again=again)
    node.settings.update(DROPS)
    await campaign.begin({"QUEEN_TEST_FSYNC_DELAY_MS": "20"})
    async with campaign.load():
        await campaign.world.wait_for_calls(200)
        await _cut_power(campaign)
        await campaign.die_while_starting(node.cut_power, within_s=0.6)
        await campaign.restart()
    await campaign.finish()


async def _cut_power(campaign: Campaign) -> None:
    campaign.history.outages.append((now_ns(), now_ns()))
    await trio.to_thread.run_sync(campaign.node.cut_power)


def _unsynced_bytes(node: NodeProcess) -> int:
    return (node.data / "log" / UNSYNCED_NAME).stat().st_size
