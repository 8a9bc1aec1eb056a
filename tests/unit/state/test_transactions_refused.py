"""What a refused transaction does to the state: nothing, in rows and in memory, now or later (TX-2, TX-20)."""

from __future__ import annotations

import cbor2
import pytest

from queen_node import commands
from queen_node.commands import Kind
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from queen_node.state.transactions import Committed, RolledBack
from tests.support.memory_engine import MemoryEngine
from tests.unit.state import history

ENTRIES = 400


@pytest.mark.parametrize("seed", range(4))
def test_the_state_is_as_if_it_had_never_come(seed: int) -> None:
    """A twin applies the same history without the transactions that were refused: not a byte of the two differs, after
    any entry. The digest holds every batch; what only memory knew would show in a later one."""
    drawn = history.History(seed)
    machine, twin = (Machine(Store(MemoryEngine(), life=1)) for _ in range(2))
    committed = refused = 0
    for index in range(1, ENTRIES + 1):
        _kinds, data = drawn.entry()
        answers = machine.apply_entry(index=index, term=1, data=data)
        _version, now_us, wanted = cbor2.loads(data)
        kept = []
        for command, (_request_id, kind, answer) in zip(wanted, answers, strict=True):
            committed += isinstance(answer, Committed)
            if kind == Kind.TRANSACTION and isinstance(answer, RolledBack):
                refused += 1
            else:
                kept.append(cbor2.dumps(command))
        twin.apply_entry(index=index, term=1, data=commands.entry(now_us, kept))
        assert machine.store.meta == twin.store.meta, f"entry {index}: {wanted}"
    assert min(committed, refused) > ENTRIES // 20, "a history of nothing but the one proves nothing"
