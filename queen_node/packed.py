"""Commands of clients in their short form: MessagePack, which is written in a tenth and read in a third of CBOR's time.

A packed command is a CBOR byte string, so that it stands among the commands of an entry like any other; its content are
the same fields in the same order. It came with format `versions.PACKED`: while the cluster is of an earlier one, the
node spreads a command out before it goes to a group (CL-132). Both forms are read for ever.

The length in front always has four bytes: so the request id stands where nobody has to search for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import cbor2
import msgspec

_HEAD = Struct(">BI")  # of a CBOR byte string with a length of four bytes (RFC 8949, major type 2)
_BYTE_STRING = 0x5A
_REQUEST_ID = slice(_HEAD.size + 4, _HEAD.size + 20)  # behind the heads of the array, of the kind and of 16 bytes
_WIDE = 1  # type of an extension: a whole number of more than 64 bits, big-endian, with its sign

Fields = list[Any]


def pack(fields: Sequence[object]) -> bytes:
    """The short form of a command: at most 15 fields, its kind and the request id of 16 bytes first."""
    try:
        content = _encode(fields)
    except OverflowError:  # MessagePack's numbers end at 64 bits, those of a KV operation do not (KV-41)
        content = _encode(_widened(fields))
    return _HEAD.pack(_BYTE_STRING, len(content)) + content


def is_packed(command: bytes) -> bool:
    """Whether a command is in its short form."""
    return command[0] == _BYTE_STRING


def request_id_of(command: bytes) -> bytes:
    """The request id of a packed command."""
    return command[_REQUEST_ID]


def read(content: bytes) -> Fields:
    """The fields of a packed command, of which CBOR has read the byte string. Raises msgspec.DecodeError."""
    fields: Fields = _decode(content)
    return fields


def fields_of(command: bytes) -> Fields:
    """The fields of a command of either form."""
    fields: Fields = read(command[_HEAD.size :]) if is_packed(command) else cbor2.loads(command)
    return fields


def spread_out(command: bytes) -> bytes:
    """The command as releases before `versions.PACKED` read it."""
    return cbor2.dumps(fields_of(command)) if is_packed(command) else command


def _widened(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_widened(each) for each in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return msgspec.msgpack.Ext(_WIDE, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    return value


def _wide(code: int, data: memoryview) -> int:
    if code != _WIDE:
        raise msgspec.DecodeError(f"a command holds an extension of type {code}")
    return int.from_bytes(data, "big", signed=True)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=_wide).decode
