"""The outer form of what nodes say to each other: `[version, body]`, CBOR, with nothing behind it.

What a body may hold is said by the types of whoever speaks: `messages`, `peer_frames`, and users of this package.
"""

from __future__ import annotations

import io
from typing import Any

import cbor2
import msgspec


def encode(version: int, body: msgspec.Struct) -> bytes:
    """The bytes of a body."""
    return cbor2.dumps((version, msgspec.to_builtins(body, builtin_types=(bytes,))))


def decode(data: bytes, version: int, shape: Any, malformed: type[Exception]) -> Any:
    """The body that `encode` made `data` from, of the type `shape`.

    Raises `malformed`, which says what and where, for anything else: another version, missing, extra or ill-typed
    fields, bytes after the end.
    """
    stream = io.BytesIO(data)
    try:
        value = cbor2.CBORDecoder(stream).decode()
    except (cbor2.CBORError, RecursionError) as error:
        raise malformed(f"not CBOR: {error}") from error
    if stream.tell() != len(data):
        raise malformed(f"{len(data) - stream.tell()} bytes follow the end")
    if not isinstance(value, list) or len(value) != 2:
        raise malformed("not a pair of version and body")
    said, body = value
    if type(said) is not int or said != version:
        raise malformed(f"version {str(said)[:20]}, not {version}")
    try:
        return msgspec.convert(body, shape, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise malformed(str(error)) from error
