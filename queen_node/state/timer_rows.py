"""A pending timer as it is stored: two rows, and their packed forms.

By deadline, in the calendar, stands all that a fire needs, so that firing reads in order and looks nothing up: with
millions pending a look-up by name is a random read of a cold block. By identity, under TIMER, stands where that is,
dense enough to stay in memory: a schedule, a cancel and a count read only this. So the txn, with which a cancel is
answered, stands in both. A large payload has a third row, out of the way of all scans.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from queen_node.state.keys import TIMER, TIMER_PAYLOAD, named
from raft.invariants import must

DEFAULT_PARTITION = b"Default"  # costs no byte in a row
INLINE_PAYLOAD_MAX_BYTES = 1024  # above it a payload stands apart: a scan of 256 due rows stays below a megabyte
LAST_ERROR_MAX_BYTES = 1024  # an error is for people, and is written again at each failure

# flags, updated at, message id, lengths of queue, key and txn; then these; then the parts that the flags name; payload
_HEAD = struct.Struct(">BQ16sHHH")
_BACKOFF = struct.Struct(">QHH")  # deliver at, attempts, length of the last error
_PLACE = struct.Struct(">QQQ?")  # calendar time, sequence, created at, whether the payload stands apart; then the txn

_RAW = 0x01  # commands.PayloadFlag
_APART = 0x02
_HAS_PARTITION = 0x04
_HAS_PRODUCER = 0x08
_HAS_BACKOFF = 0x10


class Place(NamedTuple):
    """Where a timer stands in the calendar, since when its key has been pending, whether its payload stands apart; its
    txn.

    Times: µs of the group clock.
    """

    at_us: int
    sequence: int
    created_at_us: int
    apart: bool
    txn: bytes


class Timer(NamedTuple):
    """A pending timer. `payload` is empty while it stands apart (`payload_key`). Times: µs of the group clock.

    updated_at_us: last schedule or failed fire. deliver_at_us: never fired before this (TM-2); also the timer's place
    in the calendar, unless it is in backoff. attempts: permanent failures so far.
    """

    queue: bytes
    key: bytes
    txn: bytes
    message_id: bytes
    payload: bytes
    payload_flags: int
    apart: bool
    partition: bytes
    producer_sub: bytes | None
    updated_at_us: int
    deliver_at_us: int
    attempts: int = 0
    last_error: bytes | None = None


def timer_key(queue: bytes, key: bytes) -> bytes:
    """Where a timer stands by identity: those of a queue lie together, in byte order of their keys (TM-41)."""
    return TIMER + named(queue) + key


def payload_key(own_key: bytes) -> bytes:
    """Where the payload of the timer at `own_key` stands, if it stands apart."""
    return TIMER_PAYLOAD + own_key[len(TIMER) :]


def pack_place(at_us: int, sequence: int, created_at_us: int, apart: bool, txn: bytes) -> bytes:
    """The row by identity."""
    return _PLACE.pack(at_us, sequence, created_at_us, apart) + txn


def read_place(stored: bytes) -> Place:
    """The place in a row by identity."""
    at_us, sequence, created_at_us, apart = _PLACE.unpack_from(stored)
    return Place(at_us, sequence, created_at_us, apart, stored[_PLACE.size :])


def pack(
    queue: bytes, key: bytes, txn: bytes, message_id: bytes, payload: bytes, payload_flags: int, partition: bytes,
    producer_sub: bytes | None, updated_at_us: int,
) -> tuple[bytes, bytes]:
    """A timer as it is scheduled: (row by deadline, the payload that stands apart or nothing)."""
    flags, apart = payload_flags & _RAW, b""
    if len(payload) > INLINE_PAYLOAD_MAX_BYTES:
        flags, payload, apart = flags | _APART, b"", payload
    if partition == DEFAULT_PARTITION and producer_sub is None:
        return b"".join((
            _HEAD.pack(flags, updated_at_us, message_id, len(queue), len(key), len(txn)), queue, key, txn, payload,
        )), apart
    flags, parts = _named_parts(flags, partition, producer_sub)
    head = _HEAD.pack(flags, updated_at_us, message_id, len(queue), len(key), len(txn))
    return b"".join((head, queue, key, txn, parts, payload)), apart


def pack_in_backoff(timer: Timer) -> tuple[bytes, bytes]:
    """A timer, its payload with it, whose fire failed: what `pack` gives, to be filed at the end of the backoff."""
    flags, parts = _named_parts(timer.payload_flags & _RAW, timer.partition, timer.producer_sub)
    payload, apart = timer.payload, b""
    if len(payload) > INLINE_PAYLOAD_MAX_BYTES:
        flags, payload, apart = flags | _APART, b"", payload
    error = (timer.last_error or b"")[:LAST_ERROR_MAX_BYTES]
    head = _HEAD.pack(
        flags | _HAS_BACKOFF, timer.updated_at_us, timer.message_id, len(timer.queue), len(timer.key), len(timer.txn))
    backoff = _BACKOFF.pack(timer.deliver_at_us, timer.attempts, len(error))
    return b"".join((head, timer.queue, timer.key, timer.txn, parts, backoff, error, payload)), apart


def unpack(at_us: int, stored: bytes) -> Timer:
    """The timer of a row by deadline that stands at `at_us`."""
    flags, updated_at_us, message_id, queue_length, key_length, txn_length = _HEAD.unpack_from(stored)
    queue_end = _HEAD.size + queue_length
    key_end = queue_end + key_length
    position = key_end + txn_length
    partition, producer_sub, deliver_at_us, attempts, last_error = DEFAULT_PARTITION, None, at_us, 0, None
    if flags & _HAS_PARTITION:
        partition, position = _name_at(stored, position)
    if flags & _HAS_PRODUCER:
        producer_sub, position = _name_at(stored, position)
    if flags & _HAS_BACKOFF:
        deliver_at_us, attempts, length = _BACKOFF.unpack_from(stored, position)
        position += _BACKOFF.size
        last_error = stored[position : position + length]
        position += length
    must(position <= len(stored), "a timer's row is shorter than it says", length=len(stored), needs=position)
    return Timer(
        stored[_HEAD.size : queue_end], stored[queue_end:key_end], stored[key_end : key_end + txn_length], message_id,
        stored[position:], flags & _RAW, flags & _APART != 0, partition, producer_sub, updated_at_us, deliver_at_us,
        attempts, last_error)


def _named_parts(flags: int, partition: bytes, producer_sub: bytes | None) -> tuple[int, bytes]:
    """(flags with those of the parts, the parts)."""
    parts = b""
    if partition != DEFAULT_PARTITION:
        flags |= _HAS_PARTITION
        parts = named(partition)
    if producer_sub is not None:
        flags |= _HAS_PRODUCER
        parts += named(producer_sub)
    return flags, parts


def _name_at(stored: bytes, position: int) -> tuple[bytes, int]:
    """A name behind its length, and the position after it."""
    start = position + 2
    end = start + int.from_bytes(stored[position:start], "big")
    return stored[start:end], end
