"""An entry that cannot be applied: named, and stepped over only when an operator named it back (CL-28, CL-133)."""

from __future__ import annotations

import pytest

from queen_node import commands
from queen_node.applier import Applier, Poisoned, parse_skips
from queen_node.commands import KvOp, LockOp, PayloadFlag
from queen_node.crash_points import passes
from queen_node.state.keys import QUEUE
from queen_node.state.machine import Machine
from queen_node.state.store import Store
from raft.messages import Entry, EntryKind
from tests.support.memory_engine import MemoryEngine


def entry(index: int, *queues: bytes, unknown: bool = False) -> Entry:
    """Pushes into these queues, and behind them, if `unknown`, a command of a kind that does not exist."""
    batch = [
        commands.push(bytes(16), [(queue, b"Default", b"t", bytes(16), b"1", PayloadFlag.JSON, None, None)])
        for queue in queues
    ]
    if unknown:
        batch.append(b"\x82\x18\x63\x40")  # [99, b""]
    return Entry(1, index, EntryKind.COMMANDS, commands.entry(1000 + index, batch))


def applier(machine: Machine, skips: dict[int, str] | None = None) -> Applier:
    return Applier(machine, life=1, reached=passes, count_slow=lambda: None, slow_command_ms=1000, skips=skips or {})


async def test_an_unknown_command_stops_the_group_and_leaves_nothing_of_its_entry() -> None:
    """CL-29: never skipped by itself; TX-2, G-L6: no half of an entry is ever seen."""
    machine = Machine(Store(MemoryEngine(), life=1))
    await applier(machine).apply(entry(1, b"a"))
    digest = machine.store.meta.digest
    with pytest.raises(Poisoned, match="entry 2 of term 1") as poisoned:
        await applier(machine).apply(entry(2, b"b", unknown=True))
    assert poisoned.value.poison.log_index == 2 and "kind 99" in poisoned.value.poison.error
    assert (machine.applied_index, machine.store.meta.digest) == (1, digest)
    assert machine.store.get(QUEUE + b"b") is None and machine.store.batch_count == 0


async def test_a_named_entry_is_stepped_over_on_every_node_alike() -> None:
    digests = []
    for _ in range(2):
        machine = Machine(Store(MemoryEngine(), life=1))
        await applier(machine).apply(entry(1, b"a"))
        with pytest.raises(Poisoned) as poisoned:
            await applier(machine).apply(entry(2, b"b", unknown=True))
        digest = poisoned.value.poison.digest
        with pytest.raises(Poisoned):
            await applier(machine, {2: "0" * 16}).apply(entry(2, b"b", unknown=True))
        stepping = applier(machine, {2: digest})
        _, results = await stepping.apply(entry(2, b"b", unknown=True))
        assert results == [] and stepping.skipped == [f"g1/2:{digest}"]
        await stepping.apply(entry(3, b"c"))
        assert machine.applied_index == 3 and machine.store.get(QUEUE + b"b") is None
        digests.append(machine.store.meta.digest)
    assert digests[0] == digests[1]


def test_how_skips_are_written() -> None:
    """config.md 5: [g<group>/]<index>:<digest>."""
    first, second = "0123456789abcdef", "fedcba9876543210"
    assert parse_skips(f" 7:{first}, g1/8:{second},g2/9:{first}", 1) == {7: first, 8: second}
    assert parse_skips("", 1) == {}
    for wrong in ("7", "x:0123456789abcdef", "7:xyz", f"g/7:{first}"):
        with pytest.raises(ValueError, match="must be"):
            parse_skips(wrong, 1)


@pytest.mark.parametrize("how", ["call", "transaction", "delete", "lock"])
async def test_a_write_of_the_key_that_the_hook_names_poisons_its_entry(how: str) -> None:
    """config.md 10: a poison that a client can make, to rehearse what CL-133 says. Other keys are written as ever."""
    put, other = (KvOp.PUT, b"n", b"bad", b"1", 0, None, False), (KvOp.PUT, b"n", b"good", b"1", 0, None, False)
    command = {
        "call": commands.kv(bytes(16), [other, put]),
        "transaction": commands.transaction(bytes(16), kv=[other, put], firing=True),
        "delete": commands.kv(bytes(16), [(KvOp.DELETE, b"n", b"bad", None, False)]),
        "lock": commands.locks(bytes(16), [(LockOp.ACQUIRE, b"bad", 30, None, 1)]),
    }[how]
    engine, harmless = MemoryEngine(), commands.kv(bytes(16), [other if how != "delete" else put])
    machine = Machine(Store(engine, life=1))
    await applier(machine).apply(Entry(1, 1, EntryKind.COMMANDS, commands.entry(1000, [harmless])))
    before = machine.store.meta.digest
    hooked = Machine(Store(engine, life=1, refused_key=b"bad#0" if how == "lock" else b"bad"))
    poisonous = Entry(1, 2, EntryKind.COMMANDS, commands.entry(1001, [command]))
    with pytest.raises(Poisoned) as poisoned:
        await applier(hooked).apply(poisonous)
    assert (hooked.applied_index, hooked.store.meta.digest, hooked.store.batch_count) == (1, before, 0)
    stepping = applier(hooked, {2: poisoned.value.poison.digest})
    await stepping.apply(poisonous)
    assert stepping.skipped == [f"g1/2:{poisoned.value.poison.digest}"]
    await stepping.apply(Entry(1, 3, EntryKind.COMMANDS, commands.entry(1002, [commands.kv(bytes(16), [other])])))
    assert hooked.applied_index == 3, "what does not write the key applies"
