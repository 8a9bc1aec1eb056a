"""One end of the stream between a door and the node: many frames a system call, in both directions.

Frames to send are gathered while the loop runs the tasks that are ready, and written behind the last of them, or when
there are `gathered_max` of them: with the calls of 64 clients gathered to one write, node and door took turns and each
was idle half of the time (10,500 schedules/s; 12,000 in parts of 16 and 8). Sending never waits; what bounds it is the
number of calls under way, one a connection, and the admission of bodies.
"""

from __future__ import annotations

import socket

import trio

from queen_node.doorway.frames import Frame, Splitter
from queen_node.pass_end import PassEnd

RECEIVE_BYTES = 256 * 1024
PORTION_BYTES = 256 * 1024  # written at once: larger ones only copy more before the first byte leaves


class Channel:
    """Sends and receives frames on a connected stream socket, which it takes over; a task each does so.

    gathered_max: frames that wait for the end of the loop's pass; more are written at once.
    """

    __slots__ = (
        "_blocked", "_connected", "_gathered_max", "_has_more", "_is_blocked", "_is_left", "_out", "_pass_end",
        "_splitter",
    )

    def __init__(self, connected: socket.socket, pass_end: PassEnd, *, gathered_max: int) -> None:
        connected.setblocking(False)
        self._connected, self._pass_end = connected, pass_end
        self._splitter = Splitter()
        self._out: list[bytes | memoryview] = []
        self._gathered_max = gathered_max
        self._is_left = False  # what is gathered is written at the end of this pass
        self._is_blocked = False  # the kernel took no more, or the stream has ended
        self._blocked = trio.Event()  # tells `write_out`, which waits until it does
        self._has_more = False  # the last look found several frames: more may have come already

    def send(self, frame: bytes) -> None:
        """Send a frame after all that was sent before."""
        out = self._out
        out.append(frame)
        if len(out) >= self._gathered_max:
            self._write_gathered()
        elif not self._is_left:
            self._is_left = True
            self._pass_end.leave(self._write_left)

    async def receive(self) -> list[Frame]:
        """The next frames, at least one; none at the end of the stream."""
        if self._has_more:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._connected)
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
                self._has_more = len(frames) > 1
                return frames
            await trio.lowlevel.checkpoint()

    async def write_out(self) -> None:
        """Write what the kernel did not take at once, until cancelled."""
        while True:
            await self._blocked.wait()
            await trio.lowlevel.wait_writable(self._connected)
            self._blocked, self._is_blocked = trio.Event(), False
            self._write_gathered()

    async def flush(self) -> None:
        """Write all that is left to write; nobody else does any more."""
        while self._out:
            if not self._write_now():
                await trio.lowlevel.wait_writable(self._connected)

    def close(self) -> None:
        """End the stream for both sides. What is sent after that goes to nobody."""
        self._is_blocked = True
        trio.lowlevel.notify_closing(self._connected)
        self._connected.close()

    def _write_left(self) -> None:
        self._is_left = False
        self._write_gathered()

    def _write_gathered(self) -> None:
        while self._out and not self._is_blocked:
            if not self._write_now():
                self._is_blocked = True
                self._pass_end.wake(self._blocked.set)

    def _write_now(self) -> bool:
        """Hand the kernel one portion; False when it takes no more now."""
        out, count, size = self._out, 0, 0
        for frame in out:
            count += 1
            size += len(frame)
            if size >= PORTION_BYTES:
                break
        portion = out[0] if count == 1 else b"".join(out[:count])
        try:
            sent = self._connected.send(portion)
        except BlockingIOError:
            return False
        except ConnectionError:
            sent = size  # nobody reads any more: the end of the stream tells the task that receives
        if sent < size:
            out[:count] = [memoryview(portion)[sent:]]  # 64 MiB go in some 300 sends: as copies 10 GB in all
        else:
            del out[:count]
        return True
