"""Who carries out the log's steps (M-14): a process of its own, so that no thread has to win the interpreter's lock
back after each of them.

Measured on 2 cores, 2 KiB a batch, one batch in flight, beside a loop that is busy in slices (p50 from hand-over to
being told):

    slices of       none      0.1 ms    1 ms      3 ms
    thread          0.24 ms   1500 ms   930 ms    9.1 ms     switch interval 1 ms; with 5 ms up to 20 s
    thread          0.24      0.84      2.3       6.2        switch interval 0.01 ms; at slices of 0.03 ms again 116
    this process    0.23      0.36      2.1       3.2

A loop that lets go of the lock for a moment in each pass, as every system call does, takes it back before a waiting
thread is awake, and the thread's patience begins anew: it starves. Each batch costs the node's process 30 µs, with a
thread 110.

What is written, and where, is decided in `wal`; what the child does with it stands in `wal_process`.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import trio

from raft.disk import Disk, FileDisk, Reached, Step, WriteAt
from raft.invariants import must
from raft.wal_process import DROPS_UNSYNCED, RECEIVE_BYTES, SHARED_BYTES, STEP_NUMBERS, Inbound, send

END_WAIT_S: Final = 10.0
_ENDED: Final = (errno.EPIPE, "the log's writer process has ended", "")


class Hand(Protocol):
    """Does the disk's work, one list of steps at a time."""

    def begin(self, steps: Sequence[Step]) -> None:
        """Let `Disk.carry_out` begin with these, of which there is at least one. Does not block, and does not fail:
        `done` tells."""

    async def done(self) -> None:
        """Until what was begun is done; if nothing was, until something is begun and done. Raises OSError.

        Cancelled, it has not heard of the end, and can be called again.
        """

    async def aclose(self) -> None: ...


class InlineHand:
    """Does the work at once, in this thread: for simulations and for tests on trio's mock clock."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._steps: Sequence[Step] = ()
        self._begun = trio.Event()

    def begin(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._begun.set()

    async def done(self) -> None:
        await self._begun.wait()
        self._begun = trio.Event()
        self._disk.carry_out(self._steps)

    async def aclose(self) -> None:
        pass


class ProcessHand:
    """Carries out the log's steps in a child process, one list at a time. Must be closed."""

    def __init__(
        self, disk: FileDisk, *, fsync_delay_ms: int = 0, drop_unsynced: bool = False,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        """disk: holds the directory's lock, which the child shares: nobody can open the log before the child's last
        write is done.

        fsync_delay_ms, drop_unsynced: the test hooks QUEEN_TEST_FSYNC_DELAY_MS and QUEEN_TEST_DROP_UNSYNCED
        (`forgetful_disk`). reached: called at each named point.
        """
        self._reached = reached
        self._channel, channel = socket.socketpair()
        self._inbound = Inbound()
        self._turns: Iterator[list[Step] | Reached] = iter(())
        with tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else os.fdopen(
            os.memfd_create("log"), "r+b"
        ) as shared:  # fmt: skip
            shared.truncate(SHARED_BYTES)
            self._shared = mmap.mmap(shared.fileno(), SHARED_BYTES)
            inherited = [channel.fileno(), shared.fileno()]
            if disk.lock_descriptor is not None:
                inherited.append(disk.lock_descriptor)
            arguments = [str(channel.fileno()), str(shared.fileno()), str(fsync_delay_ms),
                         DROPS_UNSYNCED if drop_unsynced else ""]
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

    def begin(self, steps: Sequence[Step]) -> None:
        self._turns = _turns(steps, with_points=self._reached is not None)
        began = self._send_next()
        must(began, "began with nothing")

    async def done(self) -> None:
        while True:
            number, text, path = await self._answer()
            if number:
                raise OSError(number, text, path or None)
            if not self._send_next():
                return

    async def aclose(self) -> None:
        """Let the child end: it does so when its last turn is done."""
        self._channel.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._process.wait, END_WAIT_S)
        self._shared.close()

    def _send_next(self) -> bool:
        """Let the child begin with the next turn, passing the named points before it. False: there is none."""
        for turn in self._turns:
            if isinstance(turn, list):
                self._send(turn)
                return True
            if self._reached is not None:
                self._reached(turn.name)
        return False

    def _send(self, steps: list[Step]) -> None:
        used = 0
        message: list[tuple[object, ...]] = []
        for step in steps:
            if isinstance(step, WriteAt):
                size = len(step.data)
                self._shared[used : used + size] = step.data
                message.append((STEP_NUMBERS[WriteAt], step.path, step.position, used, size))
                used += size
            else:
                message.append((STEP_NUMBERS[type(step)], *step))
        try:
            send(self._channel, message)
        except ConnectionError:
            pass  # the end of the stream tells whoever waits for the answer

    async def _answer(self) -> tuple[int, str, str]:
        """The child's answer: number, text and file of the error; 0 for none."""
        while True:
            await trio.lowlevel.wait_readable(self._channel)
            try:
                data = self._channel.recv(RECEIVE_BYTES)
            except ConnectionError:
                return _ENDED
            answer: tuple[int, str, str] | None = self._inbound.take(data)
            if answer is not None:
                return answer
            if not data:
                return _ENDED


def _turns(steps: Sequence[Step], *, with_points: bool) -> Iterator[list[Step] | Reached]:
    """Steps that fit into the shared memory together: a batch is one turn. Named points, if wanted, stand alone."""
    turn: list[Step] = []
    used = 0
    for step in steps:
        if isinstance(step, Reached):
            if with_points:
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
