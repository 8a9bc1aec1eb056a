"""The faulty network does to bytes what its faults say, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.cluster.relay import Front, Network
from tests.cluster.relay_process import RelayProcess, relay_process

PATIENCE_S = 30.0  # never waited for in full: a test that would hang says where


class Node:
    """Listens behind a front and keeps what comes."""

    def __init__(self) -> None:
        self.port = 0
        self.taken: list[bytes] = []
        self.streams: list[trio.SocketStream] = []
        self.ended_count = 0
        self._changed = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._take, listeners)

    async def _take(self, stream: trio.SocketStream) -> None:
        at = len(self.streams)
        self.streams.append(stream)
        self.taken.append(b"")
        try:
            async for data in stream:
                self.taken[at] += data
                self._tell()
        except trio.BrokenResourceError:
            pass
        self.ended_count += 1
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until_taken(self, at: int, data: bytes) -> None:
        with trio.fail_after(PATIENCE_S):
            while len(self.taken) <= at or not self.taken[at].endswith(data):
                await self._changed.wait()

    async def until_ended(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.ended_count < count:
                await self._changed.wait()


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Network, Node, int]]:
    """Node 2 behind a front; its port. Node 1 is whoever says so."""
    node = Node()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        network = Network({2: Front(0, node.port)})
        ports = await nursery.start(network.run)
        yield network, node, ports[2]
        nursery.cancel_scope.cancel()


def head(node_id: int) -> bytes:
    return b"GET /raft HTTP/1.1\r\nHost: x\r\nX-Queen-Raft-Node: %d\r\n\r\n" % node_id


async def dial(port: int, node_id: int = 1) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(head(node_id))
    return stream


async def receive(stream: trio.SocketStream) -> bytes:
    with trio.fail_after(PATIENCE_S):
        return bytes(await stream.receive_some(100))


async def test_bytes_pass_both_ways_and_whose_they_are_is_known() -> None:
    async with two_nodes() as (network, node, port):
        async with await dial(port) as stream:
            await stream.send_all(b"there")
            await node.until_taken(0, b"there")
            assert node.taken == [head(1) + b"there"]
            await node.streams[0].send_all(b"back")
            assert await receive(stream) == b"back"
            assert (network.link_count(1, 2), network.link_count(2, 3)) == (1, 0)
        await node.until_ended(1)
        await trio.testing.wait_all_tasks_blocked()
        assert network.link_count(1, 2) == 0
        assert network.passed_bytes(1, 2) == len(node.taken[0])
        assert network.passed_bytes(2, 1) == 4


async def test_a_head_may_come_in_pieces() -> None:
    async with two_nodes() as (network, node, port), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for piece in (head(1)[:30], head(1)[30:60], head(1)[60:]):
            await stream.send_all(piece)
        await node.until_taken(0, head(1))
        assert network.link_count(1, 2) == 1


async def test_a_cut_ends_what_stands_and_refuses_what_comes_until_it_heals() -> None:
    async with two_nodes() as (network, node, port):
        stream, other = await dial(port), await dial(port, node_id=3)
        await node.until_taken(0, b"\r\n\r\n")
        await node.until_taken(1, b"\r\n\r\n")
        network.cut(2, 1)
        await node.until_ended(1)
        assert await _ended(stream)
        assert await _ended(await dial(port))
        await other.send_all(b"alive")
        await node.until_taken(1 if node.taken[1].startswith(head(3)) else 0, b"alive")
        network.heal(1, 2)
        await (await dial(port)).send_all(b"again")
        await node.until_taken(2, b"again")


async def _ended(stream: trio.SocketStream) -> bool:
    try:
        return await receive(stream) == b""
    except trio.BrokenResourceError:
        return True


async def test_a_stall_is_one_way_and_loses_nothing() -> None:
    """A half-open connection: who is not heard still hears."""
    async with two_nodes() as (network, node, port), await dial(port) as stream:
        await node.until_taken(0, b"\r\n\r\n")
        network.stall(1, 2)
        await stream.send_all(b"held")
        await node.streams[0].send_all(b"heard")
        assert await receive(stream) == b"heard"
        assert node.taken == [head(1)]
        assert network.passed_bytes(1, 2) == len(head(1))
        network.heal(1, 2)
        await node.until_taken(0, b"held")


async def test_a_way_that_loses_is_one_way_and_its_connections_end_when_it_heals() -> None:
    async with two_nodes() as (network, node, port), await dial(port) as stream:
        await node.until_taken(0, b"\r\n\r\n")
        network.drop(1, 2)
        await stream.send_all(b"lost")
        with trio.fail_after(PATIENCE_S):
            await network.until_lost(1, 2, 4)
        await node.streams[0].send_all(b"heard")
        assert await receive(stream) == b"heard"
        assert node.taken == [head(1)]
        network.heal(1, 2)
        assert await _ended(stream), "bytes after a gap would be no stream"


async def test_a_delay_keeps_the_order() -> None:
    async with two_nodes() as (network, node, port):
        network.delay(1, 2, 1)
        async with await dial(port) as stream:
            for number in range(200):
                await stream.send_all(b"%03d" % number)
            network.delay(1, 2, 0)
            await stream.send_all(b"end")
            await node.until_taken(0, b"end")
            assert node.taken == [head(1) + b"".join(b"%03d" % number for number in range(200)) + b"end"]


async def test_a_delay_is_one_way() -> None:
    async with two_nodes() as (network, node, port), await dial(port) as stream:
        await node.until_taken(0, b"\r\n\r\n")
        network.delay(1, 2, 3_600_000)
        await stream.send_all(b"tomorrow")
        await node.streams[0].send_all(b"heard")
        assert await receive(stream) == b"heard"
        assert node.taken == [head(1)]


async def test_a_node_that_does_not_listen_ends_the_connection() -> None:
    async with trio.open_nursery() as nursery:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            network = Network({2: Front(0, unused.getsockname()[1])})
            ports = await nursery.start(network.run)
            assert await _ended(await dial(ports[2]))
        nursery.cancel_scope.cancel()


def test_as_a_process_it_obeys_and_counts() -> None:
    """Without a loop in the test."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        with relay_process({2: Front(0, listener.getsockname()[1]), 1: Front(0, 1)}) as relay:
            with socket.create_connection(("127.0.0.1", relay.ports[2]), PATIENCE_S) as dialler:
                dialler.sendall(head(1))
                node, _ = listener.accept()
                node.settimeout(PATIENCE_S)
                with node:
                    assert node.recv(1000) == head(1)
                    assert relay.link_count(1, 2) == 1
                    assert relay.passed_bytes(1, 2) == len(head(1))
                    relay.isolate(2)
                    assert node.recv(1000) == b""
            relay.heal_all()
            with socket.create_connection(("127.0.0.1", relay.ports[2]), PATIENCE_S) as dialler:
                dialler.sendall(head(1))
                listener.accept()[0].close()


def test_a_process_that_has_ended_says_so() -> None:
    relay = RelayProcess({})
    relay.close()
    with pytest.raises(RuntimeError, match="ended"):
        relay.heal_all()
