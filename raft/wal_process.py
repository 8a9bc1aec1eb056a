"""A process that does the log's writes and fsyncs, so that no thread has to win the interpreter's lock back after each of them (M-14).

Measured on 2 cores, 2 KiB a batch, one batch in flight, beside a loop that is busy in slices (p50 from hand-over to being told):

    slices of       none      0.1 ms    1 ms      3 ms
    thread          0.24 ms   1500 ms   930 ms    9.1 ms     switch interval 1 ms; with 5 ms up to 20 s
    thread          0.24      0.84      2.3       6.2        switch interval 0.01 ms; at slices of 0.03 ms again 116
    this process    0.23      0.36      2.1       3.2

A loop that lets go of the lock for a moment in each pass, as every system call does, takes it back before a waiting thread is awake, and the thread's
patience begins anew: it starves. Each batch costs the node's process 30 µs, with a thread 110.

What is written, and where, is decided in `wal`. This file is run by the node as a child; it uses nothing but the standard library and `disk`.
"""

from __future__ import annotations

import errno
import marshal
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from raft.disk import Create, Cut, FileDisk, Reached, Rename, Step, Sync, SyncDirectory, Unlink, WriteAt

SHARED_BYTES: Final = 4 << 20  # what is written travels through this memory; more goes in several turns
END_WAIT_S: Final = 10.0
_KINDS: Final = (Create, WriteAt, Sync, Cut, Rename, Unlink, SyncDirectory)
_LENGTH: Final = struct.Struct("<I")


def _send(channel: socket.socket, message: tuple[object, ...] | list[object]) -> None:
    packed = marshal.dumps(message)
    channel.sendall(_LENGTH.pack(len(packed)) + packed)


class _Inbound:
    """Messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._bytes = b""

    def take(self, data: bytes) -> list[tuple[object, ...]] | tuple[object, ...] | None:
        """The next message, if it is complete. One is on its way at most."""
        self._bytes += data
        if len(self._bytes) < _LENGTH.size:
            return None
        length = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
        if len(self._bytes) < length:
            return None
        packed, self._bytes = self._bytes[_LENGTH.size : length], self._bytes[length:]
        message: list[tuple[object, ...]] | tuple[object, ...] = marshal.loads(packed)
        return message


class ProcessHand:
    """Carries out the log's steps in a child process, one list at a time. Must be closed."""

    def __init__(
        self, disk: FileDisk, *, fsync_delay_ms: int = 0, reached: Callable[[str], None] | None = None
    ) -> None:
        """disk: holds the directory's lock, which the child shares: nobody can open the log before the child's last write is done.

        fsync_delay_ms: the test hook QUEEN_TEST_FSYNC_DELAY_MS. reached: called at each named point.
        """
        self._reached = reached
        self._channel, channel = socket.socketpair()
        self._inbound = _Inbound()
        with tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else os.fdopen(
            os.memfd_create("log"), "r+b"
        ) as shared:  # fmt: skip
            shared.truncate(SHARED_BYTES)
            self._shared = mmap.mmap(shared.fileno(), SHARED_BYTES)
            inherited = [channel.fileno(), shared.fileno()]
            if disk.lock_descriptor is not None:
                inherited.append(disk.lock_descriptor)
            arguments = [str(channel.fileno()), str(shared.fileno()), str(fsync_delay_ms)]
            program = "from raft.wal_process import main; main()"
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", program, *arguments],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            )
        channel.close()
        self._channel.setblocking(False)

    @property
    def process_id(self) -> int:
        return self._process.pid

    async def carry_out(self, steps: Sequence[Step]) -> None:
        """As Disk.carry_out. Cannot be cancelled: what is on its way to the disk cannot be called back. Raises OSError."""
        for turn in _turns(steps):
            if isinstance(turn, Reached):
                if self._reached is not None:
                    self._reached(turn.name)
            else:
                await self._one_turn(turn)

    async def aclose(self) -> None:
        """Let the child end: it does so when its last turn is done."""
        import trio

        self._channel.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._process.wait, END_WAIT_S)
        self._shared.close()

    async def _one_turn(self, steps: list[Step]) -> None:
        import trio

        used, message = 0, []
        for step in steps:
            if isinstance(step, WriteAt):
                size = len(step.data)
                self._shared[used : used + size] = step.data
                message.append((1, step.path, step.position, used, size))
                used += size
            else:
                message.append((_KINDS.index(type(step)), *step))
        with trio.CancelScope(shield=True):
            try:
                _send(self._channel, message)
                while True:
                    await trio.lowlevel.wait_readable(self._channel)
                    data = self._channel.recv(65536)
                    if not data:
                        raise BrokenPipeError(errno.EPIPE, "the log's writer process has ended")
                    answer = self._inbound.take(data)
                    if answer is not None:
                        break
            except ConnectionError as error:
                raise OSError(errno.EPIPE, "the log's writer process has ended") from error
        number, text, path = answer
        if number:
            raise OSError(number, text, path)


def _turns(steps: Sequence[Step]) -> Iterator[list[Step] | Reached]:
    """Steps that fit into the shared memory together; named points stand alone."""
    turn: list[Step] = []
    used = 0
    for step in steps:
        if isinstance(step, Reached):
            if turn:
                yield turn
                turn, used = [], 0
            yield step
            continue
        for part in _parts(step):
            size = len(part.data) if isinstance(part, WriteAt) else 0
            if used + size > SHARED_BYTES:
                yield turn
                turn, used = [], 0
            turn.append(part)
            used += size
    if turn:
        yield turn


def _parts(step: Step) -> Iterator[Step]:
    if not isinstance(step, WriteAt) or len(step.data) <= SHARED_BYTES:
        yield step
        return
    data = memoryview(step.data)
    for begin in range(0, len(data), SHARED_BYTES):
        yield WriteAt(step.path, step.position + begin, data[begin : begin + SHARED_BYTES])


def main() -> None:
    """The child: carries out what comes over the channel until the node closes its end, or dies."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the node decides when the log ends
    channel = socket.socket(fileno=int(sys.argv[1]))
    shared = memoryview(mmap.mmap(int(sys.argv[2]), SHARED_BYTES))
    delay_s = int(sys.argv[3]) / 1000
    disk = FileDisk(before_sync=(lambda: time.sleep(delay_s)) if delay_s else None)
    inbound = _Inbound()
    while data := channel.recv(65536):
        message = inbound.take(data)
        if message is None:
            continue
        try:
            disk.carry_out([_step(fields, shared) for fields in message])  # type: ignore[arg-type]
            answer: tuple[object, ...] = (0, "", "")
        except OSError as error:
            answer = (error.errno or errno.EIO, error.strerror or str(error), error.filename or "")
        _send(channel, answer)


def _step(fields: tuple[int, str, int, int, int], shared: memoryview) -> Step:
    if fields[0] == 1:
        _, path, position, begin, size = fields
        return WriteAt(path, position, shared[begin : begin + size])
    step: Step = _KINDS[fields[0]](*fields[1:])
    return step
