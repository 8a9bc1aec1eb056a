"""The child process that does the log's writes and fsyncs, and how it is spoken to; `wal_hand` says why there is one.

It runs without site packages: nothing but the standard library, `disk` and `forgetful_disk` may be imported here. What
is written, and where, is decided in `wal`.
"""

from __future__ import annotations

import errno
import marshal
import mmap
import signal
import socket
import struct
import sys
import time
from typing import Any, Final

from raft.disk import Create, Cut, FileDisk, Rename, Step, Sync, SyncDirectory, Unlink, WriteAt
from raft.forgetful_disk import ForgetfulDisk

SHARED_BYTES: Final = 4 << 20  # what is written travels through this memory; more goes in several turns
RECEIVE_BYTES: Final = 65536
STEP_KINDS: Final = (Create, WriteAt, Sync, Cut, Rename, Unlink, SyncDirectory)
STEP_NUMBERS: Final = {kind: number for number, kind in enumerate(STEP_KINDS)}
DROPS_UNSYNCED: Final = "drops-unsynced"  # of the arguments: the test hook is on
LENGTH: Final = struct.Struct("<I")


def send(channel: socket.socket, message: Any) -> None:
    packed = marshal.dumps(message)
    channel.sendall(LENGTH.pack(len(packed)) + packed)


class Inbound:
    """Messages out of a stream of bytes; at most one is on its way."""

    def __init__(self) -> None:
        self._bytes = b""

    def take(self, data: bytes) -> Any:
        """The message, or None while it is not complete."""
        self._bytes += data
        if len(self._bytes) < LENGTH.size:
            return None
        length = LENGTH.size + LENGTH.unpack_from(self._bytes)[0]
        if len(self._bytes) < length:
            return None
        packed, self._bytes = self._bytes[LENGTH.size : length], self._bytes[length:]
        return marshal.loads(packed)


def main() -> None:
    """The child: carries out what comes over the channel until the node closes its end, or dies."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the node decides when the log ends
    channel = socket.socket(fileno=int(sys.argv[1]))
    shared = memoryview(mmap.mmap(int(sys.argv[2]), SHARED_BYTES))
    delay_s = int(sys.argv[3]) / 1000
    kind = ForgetfulDisk if sys.argv[4] == DROPS_UNSYNCED else FileDisk
    disk = kind(before_sync=(lambda: time.sleep(delay_s)) if delay_s else None)
    try:
        _serve(channel, shared, disk)
    except ConnectionError:
        pass  # the node died meanwhile; what it asked for is done


def _serve(channel: socket.socket, shared: memoryview, disk: FileDisk) -> None:
    inbound = Inbound()
    while data := channel.recv(RECEIVE_BYTES):
        message = inbound.take(data)
        if message is None:
            continue
        try:
            disk.carry_out([step_from(kind, fields, shared) for kind, *fields in message])
            answer = (0, "", "")
        except OSError as error:
            answer = (error.errno or errno.EIO, error.strerror or str(error), error.filename or "")
        send(channel, answer)


def step_from(kind: int, fields: list[Any], shared: memoryview) -> Step:
    if STEP_KINDS[kind] is WriteAt:
        path, position, begin, size = fields
        return WriteAt(path, position, shared[begin : begin + size])
    step: Step = STEP_KINDS[kind](*fields)
    return step
