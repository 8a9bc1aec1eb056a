"""One end of the stream between a door and the node: many frames a system call, in both directions.

Frames to send are gathered while the loop runs the tasks that are ready, and written in its next pass: at 64 clients
that is one write for a dozen calls. Sending never waits; what bounds it is the number of calls under way, one a
connection, and the admission of bodies.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import trio

from queen_node.doorway.frames import Frame, Splitter

RECEIVE_BYTES = 256 * 1024
PORTION_BYTES = 256 * 1024  # written at once: larger ones only copy more before the first byte leaves


class Channel:
    """Sends and receives frames on a connected stream socket, which it takes over. One task each runs `write_out` and
    reads."""

    __slots__ = ("_connected", "_out", "_splitter", "_writer")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._connected = connected
        self._splitter = Splitter()
        self._out: list[bytes] = []
        self._writer: trio.lowlevel.Task | None = None

    def send(self, *pieces: bytes) -> None:
        """Send the bytes of a frame, in one piece or several, after all that was sent before."""
        self._out += pieces
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    async def receive(self) -> list[Frame]:
        """The next frames, at least one; none at the end of the stream."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                data = self._connected.recv(RECEIVE_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._connected)
                continue
            except ConnectionError:
                return []
            if not data:
                return []
            if frames := self._splitter.take(data):
                return frames
            await trio.lowlevel.checkpoint()

    async def write_out(self) -> None:
        """Write what is sent, until cancelled or until nobody reads any more: that side's `receive` tells."""
        try:
            while True:
                if not self._out:
                    await self._wait_for_frames()
                out, self._out = self._out, []
                for portion in _portions(out):
                    await self._write(portion)
        except ConnectionError:
            return

    async def flush(self) -> None:
        """Write what is left to write, when `write_out` runs no more."""
        try:
            for portion in _portions(self._out):
                await self._write(portion)
        except ConnectionError:
            return

    def close(self) -> None:
        """End the stream for both sides."""
        trio.lowlevel.notify_closing(self._connected)
        self._connected.close()

    async def _wait_for_frames(self) -> None:
        self._writer = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _write(self, portion: bytes) -> None:
        left = memoryview(portion)
        while left:
            try:
                left = left[self._connected.send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._connected)


def _portions(pieces: list[bytes]) -> Iterator[bytes]:
    """The pieces, put together to portions that are not much larger than PORTION_BYTES unless one piece is."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= PORTION_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)
