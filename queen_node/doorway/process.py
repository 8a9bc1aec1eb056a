"""A door process: `python -m queen_node.doorway.process <number> <doors> <channel> <listener>`, started by the node.

It serves HTTP on the listening socket that it inherits, and knows of the node only what comes over the channel. The
node ends it; when the node dies, it ends at once, so that the port is free for the node's next life.
"""

from __future__ import annotations

import os
import random
import socket
import sys

import structlog
import trio

from queen_node import config
from queen_node.doors import build_handlers, settle_garbage
from queen_node.doorway.channel import Channel
from queen_node.doorway.remote_broker import RemoteBroker
from queen_node.doorway.report import Reporter, pack_question, unpack_response
from queen_node.http.handlers.operations import status
from queen_node.http.messages import Request, Response
from queen_node.http.routes import Handler
from queen_node.http.server import Server, limits_from, take_descriptors
from queen_node.metrics import Metrics
from queen_node.observability import LoopWatch, set_up_logging
from queen_node.pass_end import PassEnd

GATHERED_MAX = 16  # of calls: they become one entry of the log, so fewer would cost the node more
REPORT_EVERY_S = 5.0  # an idle door should stay idle; whoever asks for figures gets them up to the moment
EXIT_NODE_GONE = 5
ASKED = (  # of the node itself
    "health", "metrics", "prometheus", "raft_status", "raft_members", "raft_liveness", "membership",
    "membership_learners", "membership_promote", "membership_voters", "membership_remove", "raft_transfer",
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Door:
    """One door, from the inherited sockets to its end. doors: how many share the node's limits."""

    def __init__(self, settings: config.Settings, doors: int, connected: socket.socket) -> None:
        self._channel = Channel(connected, PassEnd(), gathered_max=GATHERED_MAX)
        self._metrics = Metrics(trio.current_time())
        self._broker = RemoteBroker(
            self._channel, self._metrics, admit_max_bytes=-(-(settings.admit_max_mb << 20) // doors),
            admit_hold_s=settings.admit_hold_ms / 1000, jitter=random.random)
        router = build_handlers(
            settings, self._broker,
            {**{name: self._asking(name) for name in ASKED}, "status": status},
            self._metrics, doors=doors)
        self._server = Server(router, limits_from(settings, doors), self._metrics, shares_port=doors > 1)
        self._reporter = Reporter(self._metrics)

    async def run(self, listener: socket.socket) -> None:
        """Serve when the node says so, until it says drain and the last client is answered."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen_to_node)
            nursery.start_soon(self._channel.write_out)
            await self._broker.told_to_serve.wait()
            nursery.start_soon(self._drain_when_told)
            nursery.start_soon(LoopWatch(self._metrics).run)
            nursery.start_soon(self._report)
            await self._server.run([listener])
            nursery.cancel_scope.cancel()
        self._broker.report(self._reporter.take())
        await self._channel.flush()
        self._channel.close()

    async def _listen_to_node(self) -> None:
        await self._broker.listen()
        # At once, without a word to anybody: whoever waits here would only hold the port against the node's next life.
        os._exit(EXIT_NODE_GONE)

    async def _drain_when_told(self) -> None:
        await self._broker.told_to_drain.wait()
        self._server.drain()

    async def _report(self) -> None:
        while True:
            await trio.sleep(REPORT_EVERY_S)
            self._broker.report(self._reporter.take())

    def _asking(self, name: str) -> Handler:
        async def handler(request: Request) -> Response:
            return unpack_response(await self._broker.ask(pack_question(name, request), self._reporter.take()))

        return handler


async def serve(settings: config.Settings, doors: int, connected: socket.socket, listener: socket.socket) -> None:
    """Be a door."""
    door = Door(settings, doors, connected)
    settle_garbage()
    await door.run(listener)


def main() -> None:
    """The process. Signals that would end it are blocked since before it began (`children`)."""
    _number, doors, channel, listener = (int(text) for text in sys.argv[1:])
    settings = config.load(os.environ)
    set_up_logging(settings.log_level, settings.log_json, server_id=settings.server_id)
    take_descriptors(settings.http_connections_max)  # the node has said what there is to say about it
    trio.run(serve, settings, doors, socket.socket(fileno=channel), socket.socket(fileno=listener))


if __name__ == "__main__":
    main()
