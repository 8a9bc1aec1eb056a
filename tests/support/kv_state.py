"""Key/value state over the memory twin of the store: one call an entry, with a clock that the test moves."""

from __future__ import annotations

from typing import Any

import cbor2

from queen_node import commands, packed
from queen_node.commands import KvOp
from queen_node.state import kv
from queen_node.state.keys import CALENDAR, CALENDAR_KV, KV, KV_NAMESPACE, after
from queen_node.state.kv import Element, Lost, Page, Single
from queen_node.state.machine import Machine
from queen_node.state.rows import CountersRow
from queen_node.state.store import Engine, Store
from tests.support.memory_engine import MemoryEngine

START_US = 1_700_000_000_000_000
NS = b"orders"


def get(key: bytes) -> tuple[Any, ...]:
    return KvOp.GET, NS, key


def get_many(*keys: bytes) -> tuple[Any, ...]:
    return KvOp.GET_MANY, NS, keys


def get_prefix(
    prefix: bytes, *, after_key: bytes = b"", limit: int = 100, keys_only: bool = False,
) -> tuple[Any, ...]:
    return KvOp.GET_PREFIX, NS, prefix, after_key, limit, keys_only


def put(
    key: bytes, value: bytes = b"1", *, ttl_s: int = 0, expect: int | None = None, required: bool = False,
    ns: bytes = NS,
) -> tuple[Any, ...]:
    return KvOp.PUT, ns, key, value, ttl_s, expect, required


def delete(key: bytes, *, expect: int | None = None, required: bool = False) -> tuple[Any, ...]:
    return KvOp.DELETE, NS, key, expect, required


def incr(
    key: bytes, delta: float = 1, *, least: float | None = None, most: float | None = None, ttl_s: int = 0,
    required: bool = False,
) -> tuple[Any, ...]:
    return KvOp.INCR, NS, key, delta, least, most, ttl_s, required


def check(key: bytes, expect: int, *, required: bool = False) -> tuple[Any, ...]:
    return KvOp.CHECK, NS, key, expect, required


class KvState:
    """A group's state. Every call goes through the command's bytes and the machine, as in a node."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine: Engine = engine or MemoryEngine()
        self.machine = Machine(Store(self.engine, life=1))
        self.now_us = START_US

    @property
    def store(self) -> Store:
        return self.machine.store

    @property
    def counters(self) -> CountersRow:
        return self.store.counters()

    def restart(self) -> None:
        """A new process over the same rows."""
        self.machine = Machine(Store(self.engine, life=1))

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)

    def call(self, *operations: Any) -> list[Element]:
        """The elements of a call that is not lost."""
        lost, elements = self.try_call(*operations)
        assert lost is None
        return elements

    def one(self, operation: Any) -> Single:
        """The element of a call of one operation on one key."""
        (element,) = self.call(operation)
        assert isinstance(element, Single)
        return element

    def page(self, operation: Any) -> Page:
        (element,) = self.call(operation)
        assert isinstance(element, Page)
        return element

    def try_call(self, *operations: Any) -> tuple[Lost | None, list[Element]]:
        _one, lost, exceeds, elements = self._apply(commands.kv(b"r" * 16, operations))
        assert not exceeds
        return lost, elements

    def exceeds(self, *operations: Any, rows: int = 0, size: int = 0) -> bool:
        """Whether the call is refused for what its tenant holds; else it is carried out."""
        _one, _lost, exceeds, _elements = self._apply(
            commands.kv(b"r" * 16, operations, caps=commands.KvCaps(rows, size)))
        return bool(exceeds)

    def sweep(self, at_most: int = 512) -> bool:
        """Whether more is to be swept."""
        (more,) = self._apply(commands.sweep_kv(at_most=at_most))
        return bool(more)

    def rows(self) -> int:
        """Rows of all kinds that KV has stored: rows, namespaces, ends of lifetimes."""
        kinds = KV, KV_NAMESPACE, CALENDAR + CALENDAR_KV
        return sum(len(self.store.scan(kind, after(kind), 1000)) for kind in kinds)

    def next_end_us(self) -> int | None:
        return kv.next_end_us(self.store)

    def _apply(self, command: bytes) -> Any:
        data = cbor2.dumps([commands.ENTRY_VERSION, self.now_us, [packed.fields_of(command)]])
        ((_id, _kind, answer),) = self.machine.apply_entry(index=self.machine.applied_index + 1, term=1, data=data)
        return answer
