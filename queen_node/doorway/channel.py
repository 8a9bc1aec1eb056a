"""One end of the stream between a door and the node: many frames a system call, in both directions.

Frames to send are gathered while the loop runs the tasks that are ready, and written in its next pass, or when there
are `gathered_max` of them: with the calls of 64 clients gathered to one write, node and door took turns and each was
idle half of the time (10,500 schedules/s; 12,000 in parts of 16 and 8). Sending never waits; what bounds it is the
number of calls under way, one a connection, and the admission of bodies.
"""

from __future__ import annotations

import socket

import trio

from queen_node.doorway.frames import Frame, Splitter

RECEIVE_BYTES = 256 * 1024
PORTION_BYTES = 256 * 1024  # written at once: larger ones only copy more before the first byte leaves


class Channel:
    """Sends and receives frames on a connected stream socket, which it takes over; a task each does so.

    gathered_max: frames that wait for the loop's next pass; more are written at once.
    """

    __slots__ = ("_blocked", "_connected", "_gathered_max", "_out", "_splitter", "_writer")

    def __init__(self, connected: socket.socket, *, gathered_max: int) -> None:
        connected.setblocking(False)
        self._connected = connected
        self._splitter = Splitter()
        self._out: list[bytes] = []
        self._gathered_max = gathered_max
        self._blocked = False  # the kernel took no more; the writer waits until it does
        self._writer: trio.lowlevel.Task | None = None

    def send(self, frame: bytes) -> None:
        """Send a frame after all that was sent before."""
        out = self._out
        out.append(frame)
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None
        if len(out) >= self._gathered_max and not self._blocked:
            self._write_now()

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
        """Write what is sent, until cancelled."""
        while True:
            if not self._out:
                await self._wait_for_frames()
            await self.flush()

    async def flush(self) -> None:
        """Write all that is left to write."""
        while self._out:
            if not self._write_now():
                self._blocked = True
                try:
                    await trio.lowlevel.wait_writable(self._connected)
                finally:
                    self._blocked = False

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
            out[:count] = [portion[sent:]]
        else:
            del out[:count]
        return True
