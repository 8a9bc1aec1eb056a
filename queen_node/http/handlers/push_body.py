"""The JSON body of a push: from its bytes to items, a large one in slices that leave the loop free (M-51).

Here: what is JSON of this route and what is not (PU-10 to PU-14). Not here: names, limits and commands (push.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from queen_node.errors import BAD_BODY, Refused

# Decoding holds the interpreter's lock, so a thread frees nobody: while one decoded 90 MiB the loop stood still for
# 275 ms. 8 MiB of small items take 15 ms, this much 0.4 ms.
SLICE_BYTES = 256 << 10

_Text = TypeVar("_Text", str, str | None)

NO_TRACE = msgspec.Raw(b"null")
_NULL = msgspec.Raw(b"null")
_SPACE = rb"[ \t\r\n]*"
_FIRST_ITEM = re.compile(
    _SPACE + rb"\{" + _SPACE + rb'"items"' + _SPACE + rb":" + _SPACE + rb"\[" + _SPACE
    + rb'(?P<item>\{' + _SPACE + rb'(?P<name>"[^"\\]{0,64}"))')
# What may stand for the `d` or `D` of a surrogate's escape while its text is masked.
_STAND_INS = tuple(b"\\u%c" % digit for digit in b"0123456789abcefABCEF")


class Item(msgspec.Struct, gc=False):
    """One item as it was sent. `payload` and `traceId` are the bytes of their JSON values, well-formed and no more."""

    queue: str
    payload: msgspec.Raw
    partition: str | None = None
    transactionId: str | None = None
    traceId: msgspec.Raw = NO_TRACE


class _MaskedItem(msgspec.Struct, gc=False):
    queue: msgspec.Raw
    payload: msgspec.Raw
    partition: msgspec.Raw = _NULL
    transactionId: msgspec.Raw = _NULL
    traceId: msgspec.Raw = NO_TRACE


class _Body(msgspec.Struct, gc=False):
    items: list[Item]


class _MaskedBody(msgspec.Struct, gc=False):
    items: list[_MaskedItem]


_body = msgspec.json.Decoder(_Body)
_masked_body = msgspec.json.Decoder(_MaskedBody)
_list = msgspec.json.Decoder(list[Item])
_masked_list = msgspec.json.Decoder(list[_MaskedItem])
_text = msgspec.json.Decoder(str)
_text_or_null = msgspec.json.Decoder(str | None)


def decode(body: bytes) -> list[Item]:
    """The items of a body. Raises Refused (BAD_BODY) that names the item and the field."""
    try:
        return _items(body)
    except msgspec.DecodeError as error:
        raise _refused(error, 0) from None


def decode_in_slices(body: bytes, slice_bytes: int = SLICE_BYTES) -> Iterator[list[Item]]:
    """The items of a large body, some at a time and sometimes none: let others run in between. Raises Refused.

    A slice ends where an item seems to end and another to begin with the name that the first one began with. JSON is
    read from left to right: if the bytes from the beginning of an item up to there are a list of whole items, it was
    such a place, and else the slice grows. So a wrong guess costs time and never meaning. (Only a second "items" in one
    body, which JSON leaves open, is read differently than in a small body.)
    """
    first = _FIRST_ITEM.match(body)
    position, count = 0, 0
    if first is not None:
        boundary = re.compile(
            rb"\}" + _SPACE + rb"(?P<comma>,)" + _SPACE + rb"(?=\{" + _SPACE + re.escape(first["name"]) + rb")")
        position, size = first.start("item"), slice_bytes
        while len(body) - position > size:
            cut = boundary.search(body, position + size, position + size + slice_bytes)
            if cut is None:
                size += slice_bytes
                yield []
                continue
            try:
                items = _items(b"[%b]" % body[position : cut.start("comma")], bare=True)
            except msgspec.DecodeError:  # a wrong guess or a wrong body: the rest will tell
                size *= 2  # doubled: misleading payloads must not make this quadratic
                yield []
                continue
            yield items
            count += len(items)
            position, size = cut.end("comma"), slice_bytes
    try:
        yield _items(b'{"items":[' + body[position:] if count else body)
    except msgspec.DecodeError as error:
        raise _refused(error, count) from None


def _items(data: bytes, *, bare: bool = False) -> list[Item]:
    """The items of a body, or of a `bare` list. Raises msgspec.DecodeError."""
    try:
        if not data.isascii():
            data.decode()  # msgspec does not look into raw values
        try:
            return _list.decode(data) if bare else _body.decode(data).items
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"\\ud" not in data and b"\\uD" not in data:
                raise
            return _items_with_lone_surrogates(data, bare)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error.reason} (byte {error.start})") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def masked(data: bytes) -> tuple[bytes, Callable[[msgspec.Raw], bytes]]:
    """JSON with the escapes of surrogates masked, and what gives a value of it back as it was.

    Raises msgspec.DecodeError when all that could mask them occurs in it.
    """
    free = [stand_in for stand_in in _STAND_INS if stand_in not in data]
    if len(free) < 2:
        raise msgspec.DecodeError("lone surrogate escapes")
    low, high = free[:2]

    def unmasked(raw: msgspec.Raw) -> bytes:
        return bytes(raw).replace(low, b"\\ud").replace(high, b"\\uD")

    return data.replace(b"\\ud", low).replace(b"\\uD", high), unmasked


def _items_with_lone_surrogates(data: bytes, bare: bool) -> list[Item]:
    """A lone surrogate escape is fine in a payload and kept (PU-12), but no string that msgspec accepts.

    So the escapes of all surrogates are masked by something that does not occur in the body, the payloads taken as raw
    bytes, and those unmasked; names and ids are unmasked and then read strictly.
    """
    all_masked, unmasked = masked(data)

    def text(raw: msgspec.Raw, place: str, decoder: msgspec.json.Decoder[_Text]) -> _Text:
        try:
            return decoder.decode(unmasked(raw))
        except msgspec.DecodeError as error:
            raise msgspec.ValidationError(f"{error} - at `$.items[{place}`") from None

    found = _masked_list.decode(all_masked) if bare else _masked_body.decode(all_masked).items
    return [
        Item(
            text(masked_item.queue, f"{index}].queue", _text), msgspec.Raw(unmasked(masked_item.payload)),
            text(masked_item.partition, f"{index}].partition", _text_or_null),
            text(masked_item.transactionId, f"{index}].transactionId", _text_or_null),
            msgspec.Raw(unmasked(masked_item.traceId)),
        )
        for index, masked_item in enumerate(found)
    ]


def _refused(error: msgspec.DecodeError, first_index: int) -> Refused:
    """The refusal of a body. msgspec says where it stopped as "… - at `$.items[3].queue`"."""
    text, _, path = str(error).partition(" - at `$.items[")
    number, _, field = path.partition("]")
    if not number.isdigit():
        return Refused(BAD_BODY, str(error))
    return Refused(BAD_BODY, text, operation=first_index + int(number), field=field.strip(".`"))
