"""Faults on three nodes, each put and taken away again (guarantees.md 4). How long one lasts is drawn."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping

import trio

from tests.faults.cluster_campaign import ClusterCampaign
from tests.support.cluster_process import IDS
from tests.support.http_client import HttpClient
from tests.support.node_process import POLL_S

DOWN_S_MAX = 1.5
PAUSED_S_MAX = 4.0  # past an election and what follows it, and less
CUT_S_MAX = 5.0  # past the 3 s after which a leader without a majority gives up
MISSED_CALLS_MAX = 100
DELAY_MS_MAX = 300
JUMPS_MS = (11, 300, 5_000, 300_000)  # guarantees.md 4
STROBES = 20
TRANSFERS = 5
MEMBERSHIP_S = 60.0  # that a change of the membership takes at most: a limit of the test, no promise

Fault = Callable[[ClusterCampaign], Awaitable[None]]


async def kill(run: ClusterCampaign) -> None:
    """kill -9 of one."""
    victim = run.draw()
    run.nodes[victim].kill()
    await run.pause(DOWN_S_MAX)
    await run.start(victim)


async def kill_leaders_in_turn(run: ClusterCampaign) -> None:
    """The one who leads, and who leads then as soon as it does, while the first comes back."""
    first = await run.leader_id()
    run.nodes[first].kill()
    second = await run.leader_id()
    await run.start(first)
    run.nodes[second].kill()
    await run.start(second)


async def kill_all(run: ClusterCampaign) -> None:
    """At once, and back at once."""
    for node in run.nodes.values():
        node.kill()
    await run.start(*run.others(first := run.draw()), first)


async def stop(run: ClusterCampaign) -> None:
    """SIGTERM of each in turn (CL-132)."""
    for victim in run.dice.sample(IDS, 3):
        assert await trio.to_thread.run_sync(run.nodes[victim].stop) == 0, run.nodes[victim].log_tail()
        await run.start(victim)


async def hand_over(run: ClusterCampaign) -> None:
    """SIGTERM of one that leads: it hands its groups over under load (CL-54)."""
    victim = await run.leader_id()
    assert await trio.to_thread.run_sync(run.nodes[victim].stop) == 0, run.nodes[victim].log_tail()
    await run.pause(DOWN_S_MAX)
    await run.start(victim)


async def transfer(run: ClusterCampaign) -> None:
    """Every group's leadership goes to a node that is drawn, again and again (CL-54)."""
    async with HttpClient(run.nodes[run.draw()].port) as http:
        groups = [row["group"] for row in (await http.get("/api/v1/raft/status")).json()["groups"]]
        statuses = []
        for _ in range(TRANSFERS):
            for group in groups:
                answer = await http.post("/api/v1/system/raft/transfer", {"group": group, "to": run.draw()})
                statuses.append(answer.status)
    assert 200 in statuses, f"no leadership was handed over: {set(statuses)}"


async def replace(run: ClusterCampaign) -> None:
    """One loses its disk for good: removed, started empty, added, promoted (CL-107, G-D2)."""
    lost = run.draw()
    run.nodes[lost].kill()
    async with HttpClient(run.nodes[run.others(lost)[0]].port, timeout_s=MEMBERSHIP_S) as http:
        await must_be_done(http, "DELETE", f"/members/{lost}")
        await trio.to_thread.run_sync(shutil.rmtree, run.nodes[lost].data)
        run.nodes[lost].launch({"QUEEN_RAFT_JOIN": "1"})
        await must_be_done(http, "POST", "/learners", {
            "id": lost, "raft": f"127.0.0.1:{run.fronts[lost]}", "http": f"127.0.0.1:{run.nodes[lost].port}"})
        await must_be_done(http, "POST", "/promote", {"id": lost})
    await trio.to_thread.run_sync(run.nodes[lost].wait_until_ready)


async def must_be_done(http: HttpClient, method: str, target: str, body: Mapping[str, object] | None = None) -> None:
    """A change of the membership, asked for until it is done: it may meet an election, or a node that starts yet."""
    with trio.fail_after(MEMBERSHIP_S):
        while True:
            answer = await http.request(method, f"/api/v1/system/raft/membership{target}", body)
            if answer.status == 200:
                return
            assert answer.status in (409, 503, 504), answer
            await trio.sleep(POLL_S)


async def stand_still(run: ClusterCampaign) -> None:
    """SIGSTOP of one; it wakes as what it was (CL-79)."""
    victim = run.nodes[run.draw()]
    victim.signal(signal.SIGSTOP)
    await run.pause(PAUSED_S_MAX)
    victim.signal(signal.SIGCONT)


async def all_stand_still(run: ClusterCampaign) -> None:
    """They wake one after another."""
    for node in run.nodes.values():
        node.signal(signal.SIGSTOP)
    for victim in run.dice.sample(IDS, 3):
        await run.pause(PAUSED_S_MAX / 3)
        run.nodes[victim].signal(signal.SIGCONT)


async def stale_majority(run: ClusterCampaign) -> None:
    """pause-kill: who missed writes and who lost its memory must agree on them, the third has them."""
    stale, crashed = run.others(witness := run.draw())
    run.nodes[stale].signal(signal.SIGSTOP)
    await run.calls(MISSED_CALLS_MAX)
    run.nodes[crashed].cut_power()
    run.nodes[witness].signal(signal.SIGSTOP)
    run.nodes[stale].signal(signal.SIGCONT)
    await run.start(crashed)
    await run.pause(DOWN_S_MAX)
    run.nodes[witness].signal(signal.SIGCONT)


async def cut_off(run: ClusterCampaign) -> None:
    """One from both others."""
    run.network.isolate(run.draw())
    await run.pause(CUT_S_MAX)


async def cut_off_and_kill(run: ClusterCampaign) -> None:
    """part-kill: as the stale majority, with a cut for a pause."""
    stale, crashed = run.others(run.draw())
    run.network.isolate(stale)
    await run.calls(MISSED_CALLS_MAX)
    run.nodes[crashed].kill()
    run.network.heal_all()
    await run.pause(DOWN_S_MAX)
    await run.start(crashed)


async def bridge(run: ClusterCampaign) -> None:
    """Two do not see each other; the third sees both."""
    run.network.cut(*run.others(run.draw()))
    await run.pause(CUT_S_MAX)


async def deaf(run: ClusterCampaign) -> None:
    """One sends and hears nothing (CL-53)."""
    victim = run.draw()
    for other in run.others(victim):
        run.network.drop(other, victim)
    await run.pause(CUT_S_MAX)


async def mute(run: ClusterCampaign) -> None:
    """One hears and nobody hears it."""
    victim = run.draw()
    for other in run.others(victim):
        run.network.drop(victim, other)
    await run.pause(CUT_S_MAX)


async def one_way(run: ClusterCampaign) -> None:
    """One directed pair loses all, or holds it back and loses nothing (half open)."""
    fault = run.dice.choice((run.network.drop, run.network.stall))
    fault(*run.dice.sample(IDS, 2))
    await run.pause(CUT_S_MAX)


async def slow(run: ClusterCampaign) -> None:
    """Every way has a delay of its own."""
    for sender in IDS:
        for receiver in run.others(sender):
            run.network.delay(sender, receiver, run.dice.randint(0, DELAY_MS_MAX))
    await run.pause(CUT_S_MAX)


async def jump(run: ClusterCampaign) -> None:
    """Every wall clock jumps, up to 300 s either way (M-20, README 4)."""
    for path in run.offsets.values():
        path.write_text(str(run.dice.choice((-1, 1)) * run.dice.choice(JUMPS_MS)))


async def jump_and_kill(run: ClusterCampaign) -> None:
    """The next leader's wall clock is another (M-21, M-22), and so is that of the one that comes back."""
    victim = await run.leader_id()
    await jump(run)
    run.nodes[victim].kill()
    await run.leader_id()
    await jump(run)
    await run.start(victim)


async def strobe(run: ClusterCampaign) -> None:
    """One wall clock goes forth and back, the leader's too."""
    path = run.offsets[run.draw()]
    for turn in range(STROBES):
        path.write_text(str((turn % 2) * run.dice.choice(JUMPS_MS)))
        await run.pause(0.05)


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill, kill_leaders_in_turn, kill_all, stop, hand_over, transfer, replace, stand_still, all_stand_still,
        stale_majority, cut_off, cut_off_and_kill, bridge, deaf, mute, one_way, slow, jump, jump_and_kill, strobe,
    )
}
