"""A stored message: its packed form and its key.

`flags, created (us), message id, length of the transaction id`, then the transaction id, the trace id and the producer
where the flags say so, then the payload as it was pushed. Packed by hand: messages are written and read by the
hundred thousand a second, and a packed row costs a third of an encoded one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from queen_node.state.keys import MESSAGE, two_u64, u64

_HEAD = struct.Struct(">BQ16sH")

_RAW = 0x01
_HAS_TRACE = 0x02
_HAS_PRODUCER = 0x04


class Message(NamedTuple):
    """A message as it is stored. `payload_flags`: see `commands.PayloadFlag`."""

    created_at_us: int
    message_id: bytes
    transaction_id: bytes
    payload: bytes
    payload_flags: int
    trace_id: bytes | None
    producer_sub: bytes | None


def message_stem(partition_id: int) -> bytes:
    """Behind it stands the offset of each message of a partition."""
    return MESSAGE + u64(partition_id)


def message_key(partition_id: int, offset: int) -> bytes:
    """Where a message stands."""
    return MESSAGE + two_u64(partition_id, offset)


def pack(
    created_at_us: int,
    message_id: bytes,
    transaction_id: bytes,
    payload: bytes,
    payload_flags: int,
    trace_id: bytes | None,
    producer_sub: bytes | None,
) -> bytes:
    """The stored form of a message."""
    flags = payload_flags & _RAW
    if trace_id is None and producer_sub is None:
        return _HEAD.pack(flags, created_at_us, message_id, len(transaction_id)) + transaction_id + payload
    tail = b""
    if trace_id is not None:
        flags |= _HAS_TRACE
        tail = trace_id
    if producer_sub is not None:
        flags |= _HAS_PRODUCER
        tail += len(producer_sub).to_bytes(2, "big") + producer_sub
    return _HEAD.pack(flags, created_at_us, message_id, len(transaction_id)) + transaction_id + tail + payload


def pack_plain(
    created_at_us: int, message_ids: Sequence[bytes], transaction_ids: Sequence[bytes], payloads: Sequence[bytes],
) -> list[bytes]:
    """What `pack` makes of each of many messages with neither payload flags nor trace id nor producer."""
    head = _HEAD.pack
    return [
        head(0, created_at_us, message_id, len(transaction_id)) + transaction_id + payload
        for message_id, transaction_id, payload in zip(message_ids, transaction_ids, payloads, strict=True)]


def unpack(stored: bytes) -> Message:
    """The message of a stored form."""
    flags, created_at_us, message_id, txn_length = _HEAD.unpack_from(stored)
    position = _HEAD.size + txn_length
    transaction_id = stored[_HEAD.size : position]
    trace_id = producer_sub = None
    if flags & _HAS_TRACE:
        trace_id = stored[position : position + 16]
        position += 16
    if flags & _HAS_PRODUCER:
        length = int.from_bytes(stored[position : position + 2], "big")
        producer_sub = stored[position + 2 : position + 2 + length]
        position += 2 + length
    return Message(
        created_at_us, message_id, transaction_id, stored[position:], flags & _RAW, trace_id, producer_sub)


def unpack_plain(stored: bytes) -> tuple[int, bytes, bytes, bytes] | None:
    """(created at, message id, transaction id, payload) of a message with nothing else; None for any other."""
    if stored[0]:
        return None
    _flags, created_at_us, message_id, txn_length = _HEAD.unpack_from(stored)
    end = _HEAD.size + txn_length
    return created_at_us, message_id, stored[_HEAD.size : end], stored[end:]


def transaction_id_of(stored: bytes) -> bytes:
    """The transaction id alone."""
    return stored[27 : 27 + (stored[25] << 8 | stored[26])]


def payload_bytes_of(stored: bytes) -> int:
    """How long the payload is, without unpacking what has neither trace id nor producer."""
    if stored[0] > _RAW:
        return len(unpack(stored).payload)
    return len(stored) - _HEAD.size - (stored[25] << 8 | stored[26])


def created_at_us_of(stored: bytes) -> int:
    """The stamp of the append alone."""
    return int.from_bytes(stored[1:9], "big")
