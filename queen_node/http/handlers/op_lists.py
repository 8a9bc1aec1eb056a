"""A body that is a list of operations, bare or under `operations`: what timers, key/value and transactions read alike.

One typed pass takes what clients send. What does not pass it goes to the reader of its route, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import msgspec

from queen_node.errors import Refused

SLICE_BYTES = 256 << 10  # of JSON between two turns of the loop (M-51): 0.4 ms, base64 included
NOT_AS_IT_SHOULD_BE = (msgspec.DecodeError, RecursionError, Refused)

T = TypeVar("T")
Op = TypeVar("Op", contravariant=True)


class Listed(Protocol[T]):
    """A decoded body with its list under `operations`."""

    operations: list[T]


class Limits(Protocol):
    """operations_max: of one call."""

    @property
    def operations_max(self) -> int: ...


class Taking(Protocol[Op]):
    """A call that takes its operations one after the other. Raises Refused."""

    @property
    def limits(self) -> Limits: ...

    def take(self, op: Op) -> None: ...


def listed(decoded: list[T] | Listed[T]) -> list[T]:
    """The list of a decoded body."""
    return decoded if isinstance(decoded, list) else decoded.operations


def read_quickly(
    decode: Callable[[bytes], list[T] | Listed[T]], body: bytes, call: Taking[T],
) -> bool:
    """Read a body into `call` if all of it is as the rules want it. False: why not is for others to say."""
    try:
        ops = listed(decode(body))
        if len(ops) > call.limits.operations_max:
            return False
        for op in ops:
            call.take(op)
    except NOT_AS_IT_SHOULD_BE:
        return False
    return True


def paced(raws: Iterable[msgspec.Raw]) -> Iterator[tuple[bool, msgspec.Raw]]:
    """Each of them, and whether the loop should have a turn before it."""
    slice_bytes = 0
    for raw in raws:
        slice_bytes += len(bytes(raw))
        pauses = slice_bytes > SLICE_BYTES
        if pauses:
            slice_bytes = 0
        yield pauses, raw
