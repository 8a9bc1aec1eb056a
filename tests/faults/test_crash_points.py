"""A node kills itself at each named point between steps of write, fsync, apply and flush; what was promised stays."""

from __future__ import annotations

import pytest
import trio

from queen_node.crash_points import CRASH_POINTS
from tests.faults.campaign import Campaign
from tests.faults.load import Shape, now_ns
from tests.support.node_process import NodeProcess

# Points on the way of every write are passed often: die in the middle of the load, at a moment that the seed draws.
OFTEN = frozenset(name for name in CRASH_POINTS if name.startswith(("wal.before_write", "wal.after_", "apply.")))
OFTEN_COUNT_MAX = 400
LOAD_CALLS_MAX = 1500  # points that only an orderly stop passes are reached by one after so much load
# Small segments: the log rolls and frees files within seconds of load. Short leases and delays: a short final phase.
SETTINGS = {"QUEEN_RAFT_SEGMENT_BYTES": str(128 * 1024)}
SHAPE = Shape(clients=4, delay_ms_max=800, lease_s_max=1)


@pytest.mark.parametrize("name", CRASH_POINTS)
async def test_what_was_acknowledged_survives_a_death_at(
    name: str, node: NodeProcess, seed: int, again: str
) -> None:
    """G-D1 and all that `Campaign.finish` judges, after a death at the point `name` and a start on the same folder."""
    node.settings.update(SETTINGS)
    campaign = Campaign(node, seed, SHAPE, again=again)
    await campaign.begin()
    async with campaign.load():
        await campaign.world.wait_for_calls(100)
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    count = campaign.dice.randint(1, OFTEN_COUNT_MAX) if name in OFTEN else 1
    await trio.to_thread.run_sync(node.launch, {"QUEEN_TEST_CRASH_AT": f"{name}:{count}"})
    async with campaign.load():
        campaign.history.outages.append((now_ns(), now_ns()))
        exit_code = await _die(campaign, node)
        assert exit_code == -9, f"{name} was not reached: exit code {exit_code}\n{node.log_tail()}"
        await campaign.restart()
        await campaign.world.wait_for_calls(100)
    await campaign.finish()


async def _die(campaign: Campaign, node: NodeProcess) -> int:
    """Load until the node dies by itself; an orderly stop when it outlives the load. Its exit code."""
    exit_codes: list[int] = []
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            exit_codes.append(await trio.to_thread.run_sync(node.wait, 60.0, abandon_on_cancel=True))
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        await campaign.world.wait_for_calls(LOAD_CALLS_MAX)
        exit_codes.append(await trio.to_thread.run_sync(node.stop))
        nursery.cancel_scope.cancel()
    return exit_codes[0]
