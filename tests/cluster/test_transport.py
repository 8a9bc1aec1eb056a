"""Transports among each other: who connects, what arrives, what ends (M-60, CL-6, CL-7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from raft.peer_frames import Call, CallFrame, FrameKind, RaftFrame, SnapshotFrame
from raft.peer_handshake import Address, Purpose
from raft.peer_outbox import CONTROL_MESSAGE_MAX_BYTES, PORTION_BYTES
from raft.transport import Peer
from tests.cluster.relay import Front, Network
from tests.cluster.transports import QUICK, Side, cluster, hello_of, node_frame

STEP_S = 0.02  # of silence; ten of them end control
AN_HOUR_S = 3600.0


async def test_three_nodes_have_one_pair_of_connections_each() -> None:
    """M-60; the lower id dials, so nothing has to be agreed on."""
    async with cluster(3) as (_, sides):
        await trio.testing.wait_all_tasks_blocked()
        for side in sides:
            others = [other.mine.node_id for other in sides if other is not side]
            assert sorted((told.peer, told.purpose) for told in side.standing()) == [
                (peer, purpose) for peer in others for purpose in (Purpose.BULK, Purpose.CONTROL)]
            assert side.reasons("ended") == []
            for other in sides:
                if other is not side:
                    assert side.transport.hello_of(other.mine.node_id) == other.mine


async def test_every_kind_arrives_and_says_from_whom() -> None:
    async with cluster(3) as (_, (one, two, three)):
        call = Call(3, b"command")
        for sender, receiver in ((one, three), (three, one)):
            to = receiver.mine.node_id
            assert sender.transport.send_node_frame(to, node_frame(boottime_us=5))
            assert sender.transport.send_message(to, 3, b"message")
            assert sender.transport.send_message(to, 3, b"by bulk", by_bulk=True)
            assert sender.transport.send_call(to, call)
            assert sender.transport.send_snapshot(to, 3, b"chunk")
            await receiver.until_taken(5)
            assert {peer for peer, _ in receiver.frames} == {sender.mine.node_id}
            arrived = [frame for _, frame in receiver.frames]
            for frame in (
                node_frame(boottime_us=5), RaftFrame(((3, b"message"),)), RaftFrame(((3, b"by bulk"),)),
                CallFrame((call,)), SnapshotFrame(3, b"chunk"),
            ):
                assert frame in arrived
        assert two.frames == []


async def test_what_gathers_is_one_frame_and_stays_in_order() -> None:
    """M-60: one frame a peer and pass of the loop."""
    async with cluster(2) as (_, (one, two)):
        for number in range(1000):
            assert one.transport.send_message(2, number, b"heartbeat")
        await two.until(lambda: len(two.messages(1)) == 1000)
        assert one.transport.figures()[2].frames_sent[FrameKind.RAFT] == 1
        for number in range(1000, 1300):
            one.transport.send_message(2, number, b"heartbeat")
            if number % 7 == 0:
                await trio.lowlevel.checkpoint()
        await two.until(lambda: len(two.messages(1)) == 1300)
        assert [life for life, _ in two.messages(1)] == list(range(1300))
        assert one.transport.figures()[2].frames_sent == two.transport.figures()[1].frames_taken
        assert one.transport.figures()[2].bytes_sent == two.transport.figures()[1].bytes_taken


async def test_a_node_frame_and_what_waits_beside_it_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write wakes the peer's loop."""
    writes = []
    send_all = trio.SocketStream.send_all

    async def noting(stream: trio.SocketStream, data: bytes | bytearray | memoryview) -> None:
        writes.append(data)
        await send_all(stream, data)

    async with cluster(2) as (_, (one, two)):
        monkeypatch.setattr(trio.SocketStream, "send_all", noting)
        for sender, receiver in ((one, two), (two, one)):
            to = receiver.mine.node_id
            await trio.testing.wait_all_tasks_blocked()
            writes.clear()
            sender.transport.send_node_frame(to, node_frame())
            sender.transport.send_message(to, 1, b"heartbeat")
            await receiver.until_taken(2)
            assert [frame for _, frame in receiver.frames] == [node_frame(), RaftFrame(((1, b"heartbeat"),))]
            assert len(writes) == 1


async def test_what_is_large_goes_by_bulk_cut_and_arrives_whole() -> None:
    """M-50, M-60: in frames of 64 KiB."""
    async with cluster(2) as (_, (one, two)):
        large = bytes(range(256)) * 20_000
        assert one.transport.send_message(2, 1, large)
        assert one.transport.send_call(2, Call(1, large))
        assert one.transport.send_call(2, Call(1, b"small"))
        await two.until(lambda: len(two.frames) == 3)
        arrived = [frame for _, frame in two.frames]
        assert RaftFrame(((1, large),)) in arrived
        assert CallFrame((Call(1, large),)) in arrived
        parts = one.transport.figures()[2].frames_sent[FrameKind.PART]
        assert parts == 2 * (len(large) // PORTION_BYTES)
        assert len(large) > CONTROL_MESSAGE_MAX_BYTES


async def test_without_a_connection_nothing_is_taken_and_all_is_counted() -> None:
    """A call that was refused has surely not left this node (CL-140)."""
    async with cluster(2) as (_, (one, two)):
        transport = one.transport
        assert transport.figures()[2].standing == {Purpose.CONTROL, Purpose.BULK}
        await two.stop()
        await one.until(lambda: not one.standing())
        assert not transport.send_node_frame(2, node_frame())
        assert not transport.send_message(2, 1, b"x")
        assert not transport.send_message(2, 1, b"x", by_bulk=True)
        assert not transport.send_call(2, Call(1, b""))
        assert not transport.send_snapshot(2, 1, b"")
        assert not transport.send_message(9, 1, b"x"), "a node that is no peer"
        assert transport.figures()[2].refused == {
            FrameKind.NODE: 1, FrameKind.RAFT: 2, FrameKind.CALL: 1, FrameKind.SNAPSHOT: 1,
        }
        assert transport.figures()[2].standing == frozenset()
        assert transport.hello_of(2) is None


async def test_a_node_that_stops_says_so_and_ends() -> None:
    """CL-131."""
    async with cluster(2) as (_, (one, two)):
        await two.stop()
        await one.until(lambda: not one.standing())
        await two.until(lambda: not two.standing())
        assert one.reasons("ended") == ["ended by the peer: 1001 this node stops"] * 2
        assert two.reasons("ended") == ["this node stops"] * 2


async def test_a_peer_that_restarts_is_found_again_and_known_as_another_process() -> None:
    """M-31: sleep is bound to the process number."""
    async with cluster(3) as (nursery, (one, two, three)):
        await two.stop()
        await one.until(lambda: not any(told.peer == 2 for told in one.standing()))
        again = Side(hello_of(2, process_number=2))
        again.address = two.address
        await again.start(nursery)
        again.know(one, three)
        await one.until_connected(2, 3)
        await three.until_connected(1, 2)
        for side in (one, three):
            hello = side.transport.hello_of(2)
            assert hello is not None
            assert hello.process_number == 2
        assert one.transport.send_message(2, 1, b"welcome back")
        await again.until(lambda: again.messages(1) == [(1, b"welcome back")])


async def test_a_node_that_starts_is_dialled_at_once() -> None:
    """It knocks: its peer, whose pause between attempts is an hour, dials when it hears it."""
    patient = replace(QUICK, backoff_first_s=AN_HOUR_S, backoff_last_s=AN_HOUR_S)
    async with cluster(1, patient) as (nursery, (one,)):
        two = Side(hello_of(2), settings=patient)
        await two.start(nursery)
        one.know(two)
        await one.until(lambda: len(one.told) == 2)
        assert all("node 1 is no member" in reason for reason in one.reasons("failed"))
        two.know(one)
        await one.until_connected(2)
        await two.until_connected(1)


async def test_a_connection_that_was_cut_comes_back() -> None:
    async with cluster(0) as (nursery, _), trio.open_nursery() as inner:
        one, two = Side(hello_of(1)), Side(hello_of(2))
        for side in (one, two):
            await side.start(nursery)
        network = Network({1: Front(0, one.address.port), 2: Front(0, two.address.port)})
        fronts = await inner.start(network.run)
        one.know(two, through=fronts)
        two.know(one, through=fronts)
        await one.until_connected(2)
        await two.until_connected(1)
        network.cut(1, 2)
        await one.until(lambda: not one.standing() and one.reasons("failed"))
        await two.until(lambda: not two.standing())
        network.heal(1, 2)
        await one.until_connected(2)
        await two.until_connected(1)
        assert one.transport.figures()[2].connects[Purpose.CONTROL] == 2
        inner.cancel_scope.cancel()


async def say_how_we_are(side: Side, peer: int) -> None:
    """Node frames, as the node sends them (M-30)."""
    while True:
        side.transport.step()
        side.transport.send_node_frame(peer, node_frame())
        await trio.sleep(STEP_S)


async def test_a_connection_that_went_silent_one_way_is_ended_with_its_bulk_and_comes_back() -> None:
    """Half open: what node 1 says is lost, what node 2 says arrives, and TCP notices nothing."""
    settings = replace(QUICK, close_s=0.01)
    async with cluster(0) as (nursery, _), trio.open_nursery() as inner:
        one, two = Side(hello_of(1), settings=settings), Side(hello_of(2), settings=settings)
        for side in (one, two):
            await side.start(nursery)
        network = Network({1: Front(0, one.address.port), 2: Front(0, two.address.port)})
        fronts = await inner.start(network.run)
        one.know(two, through=fronts)
        two.know(one, through=fronts)
        inner.start_soon(say_how_we_are, one, 2)
        inner.start_soon(say_how_we_are, two, 1)
        await one.until_connected(2)
        await two.until_connected(1)
        await two.until(lambda: len(two.frames) >= 50)
        assert one.reasons("ended") == two.reasons("ended") == [], "as long as node frames come nothing ends"
        network.stall(1, 2)
        await two.until(lambda: len(two.reasons("ended")) >= 2)
        assert two.reasons("ended")[:2] == ["no node frame in 10 steps"] * 2
        network.heal(1, 2)
        await one.until_connected(2)
        await two.until_connected(1)
        frames_before = len(two.frames)
        await two.until(lambda: len(two.frames) > frames_before)
        inner.cancel_scope.cancel()


async def test_round_trips_are_measured() -> None:
    async with cluster(2, replace(QUICK, ping_every_s=0.001)) as (nursery, (one, two)):
        nursery.start_soon(say_how_we_are, one, 2)
        nursery.start_soon(say_how_we_are, two, 1)
        await one.until(lambda: one.transport.figures()[2].round_trip_s is not None)
        await two.until(lambda: two.transport.figures()[1].round_trip_s is not None)
        assert all(side.transport.figures()[peer].round_trip_s != 0 for side, peer in ((one, 2), (two, 1)))


async def test_a_member_that_was_removed_is_cut_and_stays_out() -> None:
    """CL-103."""
    async with cluster(3) as (_, (one, two, three)):
        one.know(three)
        await two.until(lambda: not any(told.peer == 1 for told in two.standing()))
        assert one.reasons("ended") == ["the membership has changed"] * 2
        await one.until(lambda: one.reasons("failed").count("node 2 is no member") >= 5)
        assert sum(told.peer == 1 for told in two.told if told.what == "connected") == 2, "it is dialled no more"
        assert not one.transport.send_message(2, 1, b"x")
        await three.until_connected(1, 2)
        one.know(two, three)
        await one.until_connected(2, 3)


async def test_a_member_that_moved_is_dialled_at_its_new_address() -> None:
    async with cluster(2) as (nursery, (one, two)):
        await two.stop()
        await one.until(lambda: not one.standing())
        moved = Side(hello_of(2, process_number=2))
        await moved.start(nursery)
        moved.know(one)
        assert moved.address != two.address
        one.know(moved)
        await one.until_connected(2, process_number=2)


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
async def test_a_host_that_no_resolver_takes_is_one_that_is_not_reached(host: str) -> None:
    """Such an address fails in the resolver's codec before anybody is asked; the node and its other peers go on."""
    async with cluster(2) as (_, (one, two)):
        one.transport.set_peers({2: Peer(two.address), 3: Peer(Address(host, 1))})
        await one.until(lambda: any("cannot be looked up" in reason for reason in one.reasons("failed")))
        two.know(one)
        await one.until_connected(2)


async def test_a_token_is_changed_by_one_restart_after_the_other() -> None:
    """CL-135: who has the new one and who has the old one do not hear each other; two of three are always a majority.
    """
    async with cluster(3) as (nursery, sides):
        now = list(sides)
        for number, changed in enumerate((1, 2, 3)):
            old = now[number]
            await old.stop()
            again = Side(hello_of(changed, process_number=2), token=b"another")
            again.address = old.address
            await again.start(nursery)
            again.know(*(side for side in now if side is not old))
            now[number] = again
            new, left = now[: number + 1], now[number + 1 :]
            for same in (new, left):
                for side in same:
                    await side.until_connected(*(other.mine.node_id for other in same if other is not side))
            if left:
                await until_refused(again)  # it dials those of higher ids
            for side in new:
                assert not {told.peer for told in side.standing()} & {other.mine.node_id for other in left}


async def until_refused(side: Side) -> None:
    """Somebody whom it dialled has told it that its token is wrong."""
    await side.until(lambda: any("wrong token" in reason for reason in side.reasons("failed")))
