"""Reads that a group answers from its state: which there are, and who answers them.

A query is a CBOR array, `[kind, fields…]`. Its reader is a generator, so that a long one (a count over a million rows)
can be run in slices over the committed rows: each `yield` lets the loop breathe; what it returns is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import IntEnum
from typing import Any

import cbor2

from queen_node.answers import consume as consume_answers
from queen_node.answers import kv as kv_answers
from queen_node.answers import locks as lock_answers
from queen_node.answers import timers as timer_answers
from queen_node.state.store import CommittedStore

Reader = Generator[None, None, bytes]


class Query(IntEnum):
    """Kinds of queries."""

    NOTHING = 0  # to learn that the state is as new as the question
    TIMER_PEEK = 1  # queue, key
    TIMER_LIST = 2  # queue, after, limit
    TIMER_COUNT = 3  # queue, prefix
    DEAD_LETTERS = 4  # queue or None, group or None, partition or None, from_us, to_us, limit, offset
    KV = 5  # as of the last entry?, whether it is one of a path route, operations; answered packed
    KV_NAMESPACES = 6
    KV_LIST = 7  # as of the last entry?, namespace, prefix, after, limit, keys only?, dead rows too?
    LOCKS = 8  # operations; answered packed


def _read_nothing(_view: CommittedStore, _fields: list[Any]) -> Reader:
    return b""
    yield


READERS: dict[int, Callable[[CommittedStore, list[Any]], Reader]] = {
    Query.NOTHING: _read_nothing,
    Query.TIMER_PEEK: timer_answers.read_peek,
    Query.TIMER_LIST: timer_answers.read_list,
    Query.TIMER_COUNT: timer_answers.read_count,
    Query.DEAD_LETTERS: consume_answers.read_dead_letters,
    Query.KV: kv_answers.read_kv,
    Query.KV_NAMESPACES: kv_answers.read_namespaces,
    Query.KV_LIST: kv_answers.read_list,
    Query.LOCKS: lock_answers.read_locks,
}


def query(kind: Query, *fields: object) -> bytes:
    """A query as it crosses from a door to a group."""
    return cbor2.dumps((kind, *fields))


def reader(view: CommittedStore, raw: bytes) -> Reader:
    """The reader of an encoded query over `view`."""
    kind, *fields = cbor2.loads(raw)
    return READERS[kind](view, fields)
