"""What a node hears of its peers: what no release of ours says costs a connection, and one line (issue 4, 1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs

from bench.ports import free_port
from queen_node import peer_calls
from queen_node.config import Settings
from queen_node.events import Heard
from queen_node.layout import LAYOUT_VERSION, Layout
from queen_node.peering import NODE_FRAME_EVERY_S, Peering, Report
from raft import messages
from raft.clock import SystemTime
from raft.messages import Heartbeat
from raft.peer_frames import Call, CallFrame, Frame, Hello, NodeFrame, RaftFrame
from raft.peer_handshake import Address, Purpose, request_headers
from raft.peer_socket import dialled
from tests.cluster.transports import LOCALHOST, PATIENCE_S, TOKEN, RawPeer, node_frame

LIFE = 1
NODE_1 = Hello(b"cell", 1, b"1" * 16, b"b" * 16, 1, 1, 1)
GOOD, GOOD_CALL = Heartbeat(1, 2, 3, 0, 0), peer_calls.AskRead(7)


class Listening:
    """Node 2 of three, which hears node 1: the test. Implements `peering.Ears`."""

    def __init__(self) -> None:
        self.address = Address(LOCALHOST, free_port())
        self._send, self._heard = trio.open_memory_channel[tuple[int, Heard]](100)
        others = f"1={LOCALHOST}:1/{LOCALHOST}:2,3={LOCALHOST}:3/{LOCALHOST}:4"
        settings = Settings(
            raft_peers=f"{others},2={self.address}/{LOCALHOST}:5", raft_token=TOKEN.decode(), node_id=2)
        self.peering = Peering(
            settings, Layout(LAYOUT_VERSION, 2, "22" * 16, (1, 2, 3), "cell"), source=SystemTime(),
            report=lambda: Report(0, None), hear_report=lambda node, said: None)

    def hear(self, life: int, heard: Heard) -> None:
        self._send.send_nowait((life, heard))

    def hear_quiet(self, node: int, call: peer_calls.QuietCall) -> None:
        """What this test never says."""

    def hear_frame(self, node: int, frame: NodeFrame) -> None:
        """Clocks."""

    def quiet_summary(self, node: int) -> tuple[int, int]:
        return (0, 0)

    def tick(self, late_s: float) -> None:
        """Nothing happens by itself."""

    async def next_heard(self) -> tuple[int, Heard]:
        """What a group hears next."""
        with trio.fail_after(PATIENCE_S):
            return await self._heard.receive()

    @asynccontextmanager
    async def dialled_by_node_1(self, purpose: Purpose) -> AsyncIterator[RawPeer]:
        headers = request_headers(NODE_1, TOKEN, purpose)
        async with dialled(self.address, headers, purpose, within_s=PATIENCE_S) as peer_socket:
            peer = RawPeer(peer_socket.websocket)
            await peer.say(NODE_1)
            await peer.hear()
            yield peer


@pytest.mark.parametrize(
    ("purpose", "frame", "reason"),
    [
        (Purpose.CONTROL, RaftFrame(((LIFE, b"\xff"),)), "says what no release of ours does: not CBOR"),
        (Purpose.CONTROL, RaftFrame(((LIFE, messages.encode(GOOD) + b"x"),)), "1 bytes follow the end"),
        (Purpose.CONTROL, RaftFrame(((LIFE, messages.encode(Heartbeat(3, 2, 3, 0, 0))),)), "speaks for node 3"),
        (Purpose.BULK, CallFrame((Call(LIFE, b"\xff"),)), "says what no release of ours does: not CBOR"),
        (Purpose.BULK, CallFrame((Call(LIFE, messages.encode(GOOD)),)), "says what no release of ours does"),
    ],
)
async def test_what_no_release_says_ends_its_connection_with_one_line_and_no_other(
    purpose: Purpose, frame: Frame, reason: str
) -> None:
    sound: dict[Purpose, Frame] = {
        Purpose.CONTROL: RaftFrame(((LIFE, messages.encode(GOOD)),)),
        Purpose.BULK: CallFrame((Call(LIFE, peer_calls.encode(GOOD_CALL)),)),
    }
    other = Purpose.BULK if purpose is Purpose.CONTROL else Purpose.CONTROL
    node = Listening()
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.peering.run, node)
            async with node.dialled_by_node_1(other) as well:
                if other is Purpose.CONTROL:
                    nursery.start_soon(say_how_node_1_is, well)
                async with node.dialled_by_node_1(purpose) as peer:
                    await peer.say(frame)
                    assert reason in await peer.reason_of_end()
                await well.say(sound[other])
                said = GOOD if other is Purpose.CONTROL else GOOD_CALL
                assert await node.next_heard() == (LIFE, Heard(1, said, NODE_1.directory_id))
                await node.peering.close()
            nursery.cancel_scope.cancel()
    ended, stopped = (line for line in lines if line["event"] == "peer connection ended")
    assert (ended["log_level"], ended["peer"], ended["connection"]) == ("warning", 1, purpose.value)
    assert reason in ended["reason"]
    assert stopped["reason"] == "this node stops"


async def say_how_node_1_is(peer: RawPeer) -> None:
    """Without it control would be taken for half open."""
    while True:
        await peer.say(node_frame())
        await trio.sleep(NODE_FRAME_EVERY_S)
