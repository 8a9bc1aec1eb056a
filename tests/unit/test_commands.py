"""The bytes of commands and entries, for ever: what one release wrote to a log every later one must read (M-80)."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_node import commands, packed
from queen_node.commands import AckStatus, Kind, KvOp, LockOp, PayloadFlag, TimerOp
from queen_node.state.machine import Machine, UnknownEntry
from queen_node.state.store import Store
from raft.invariants import InvariantBroken
from tests.support.memory_engine import MemoryEngine

RID, MID = bytes(range(16)), bytes(range(16, 32))
# The same as CBOR text: a byte string of 16.
R = "50 000102030405060708090a0b0c0d0e0f"
M = "50 101112131415161718191a1b1c1d1e1f"
# And as MessagePack.
R_PACKED, M_PACKED = f"c4 10 {R[3:]}", f"c4 10 {M[3:]}"

# name -> (bytes as this release writes them, golden bytes as CBOR, what they mean)
GOLDEN: dict[str, tuple[bytes, str, list[Any]]] = {
    "push": (
        commands.push(RID, [
            (b"q", b"p", b"t", MID, b'{"a":1}', PayloadFlag.JSON, None, None),
            (b"q", b"p", b"u", MID, b"1", PayloadFlag.RAW, RID, b"me"),
        ]),
        f"83 01 {R} 82 88 4171 4170 4174 {M} 47 7b2261223a317d 00 f6 f6 88 4171 4170 4175 {M} 4131 01 {R} 42 6d65",
        [1, RID, [[b"q", b"p", b"t", MID, b'{"a":1}', 0, None, None], [b"q", b"p", b"u", MID, b"1", 1, RID, b"me"]]],
    ),
    "timers": (
        commands.timers(RID, [
            (TimerOp.SCHEDULE, b"q", b"k", 1500, b"t", MID, b"1", PayloadFlag.JSON, b"p", None),
            (TimerOp.CANCEL, b"q", b"k", b"t"),
        ], firing=True),
        f"85 02 {R} 82 8a 00 4171 416b 19 05dc 4174 {M} 4131 00 4170 f6 84 01 4171 416b 4174 f5 f4",
        [2, RID, [[0, b"q", b"k", 1500, b"t", MID, b"1", 0, b"p", None], [1, b"q", b"k", b"t"]], True, False],
    ),
    "fire": (
        commands.fire(at_most=256, max_bytes=1 << 20, rules=commands.RulesOfFire()),
        "8a 03 40 19 0100 1a 00100000 19 03e8 19 ea60 19 03e8 05 40 f4",
        [3, b"", 256, 1 << 20, 1000, 60_000, 1000, 5, b"", False],
    ),
    "pop": (
        commands.pop(
            RID, lease_id=MID, queue=b"q", partition=None, group=b"g", mode="new", from_us=0, batch=10, partitions=1,
            lease_ms=None, commit_on_delivery=False, max_bytes=1 << 20),
        f"8d 04 {R} {M} 4171 f6 4167 63 6e6577 00 0a 01 f6 f4 1a 00100000",
        [4, RID, MID, b"q", None, b"g", "new", 0, 10, 1, None, False, 1 << 20],
    ),
    "ack": (
        commands.ack(RID, b"g", [(b"t", 7, AckStatus.COMPLETED, MID, None), (b"u", 7, AckStatus.FAILED, b"", b"why")]),
        f"84 05 {R} 4167 82 85 4174 07 00 {M} f6 85 4175 07 02 40 43 776879",
        [5, RID, b"g", [[b"t", 7, 0, MID, None], [b"u", 7, 2, b"", b"why"]]],
    ),
    "transaction": (
        commands.transaction(
            RID, acks=[(b"g", (b"t", 7, AckStatus.COMPLETED, MID, None))],
            pushes=[(b"q", b"p", b"t", MID, b"1", PayloadFlag.JSON, None, None)],
            positions=[(b"q", b"p", b"g", 9, "all")], kv=[(KvOp.CHECK, b"n", b"k", 3, True)],
            timers=[(TimerOp.CANCEL, b"q", b"k", None)], firing=True),
        f"89 0e {R} 81 82 4167 85 4174 07 00 {M} f6 81 88 4171 4170 4174 {M} 4131 00 f6 f6"
        "81 85 4171 4170 4167 09 63 616c6c 81 85 07 416e 416b 03 f5 81 84 01 4171 416b f6 f5 82 00 00",
        [14, RID, [[b"g", [b"t", 7, 0, MID, None]]], [[b"q", b"p", b"t", MID, b"1", 0, None, None]],
         [[b"q", b"p", b"g", 9, "all"]], [[7, b"n", b"k", 3, True]], [[1, b"q", b"k", None]], True, [0, 0]],
    ),
    "extend": (commands.extend(RID, MID, 60), f"84 06 {R} {M} 18 3c", [6, RID, MID, 60]),
    "hand back": (commands.hand_back(MID), f"83 07 {M} {M}", [7, MID, MID]),
    "configure": (
        commands.configure(RID, b"q", MID, (b"ns", None), "merge", [("lease_time", 60), ("ttl", None)]),
        f"87 08 {R} 4171 {M} 82 42 6e73 f6 65 6d65726765 82 82 6a 6c656173655f74696d65 183c 82 63 74746c f6",
        [8, RID, b"q", MID, [b"ns", None], "merge", [["lease_time", 60], ["ttl", None]]],
    ),
    "forget ids": (
        commands.forget_ids(at_most=500, keep_at_least_s=900), "84 09 40 19 01f4 19 0384", [9, b"", 500, 900]),
    "kv": (
        commands.kv(RID, [
            (KvOp.PUT, b"n", b"k", b"1", 60, None, False), (KvOp.INCR, b"n", b"i", 1, None, 5.5, 0, True),
            (KvOp.GET_MANY, b"n", [b"k"]),
        ], caps=commands.KvCaps(9, 10)),
        f"85 0b {R} 83 87 03 416e 416b 4131 183c f6 f4 88 06 416e 4169 01 f6 fb 4016000000000000 00 f5"
        " 83 01 416e 81 416b f4 82 09 0a",
        [11, RID, [[3, b"n", b"k", b"1", 60, None, False], [6, b"n", b"i", 1, None, 5.5, 0, True],
                   [1, b"n", [b"k"]]], False, [9, 10]],
    ),
    "sweep kv": (commands.sweep_kv(at_most=512), "83 0c 40 19 0200", [12, b"", 512]),
    "locks": (
        commands.locks(RID, [
            (LockOp.ACQUIRE, b"n", 60, "o", 3), (LockOp.RENEW, b"m", 7, 60, 0, None), (LockOp.RELEASE, b"l", 7, 2),
            (LockOp.GET, b"k"),
        ]),
        f"84 0d {R} 84 85 00 416e 183c 616f 03 86 01 416d 07 183c 00 f6 84 02 416c 07 02 82 03 416b 82 00 00",
        [13, RID, [[0, b"n", 60, "o", 3], [1, b"m", 7, 60, 0, None], [2, b"l", 7, 2], [3, b"k"]], [0, 0]],
    ),
    "create tenant": (commands.create_tenant(RID, MID, at_most=9), f"84 0a {R} {M} 09", [10, RID, MID, 9]),
    "know members": (
        commands.know_members(RID, [(1, "r1:1", "h1:1", MID)]),
        f"83 14 {R} 81 84 01 64 72313a31 64 68313a31 {M}", [20, RID, [[1, "r1:1", "h1:1", MID]]]),
    "change members": (
        commands.change_members(RID, 3, [1, 2], [4], force=False, before=([1], [])),
        f"88 15 {R} 03 82 01 02 81 04 f4 81 01 80", [21, RID, 3, [1, 2], [4], False, [1], []]),
    "members changed": (commands.members_changed(RID, 3), f"83 16 {R} 03", [22, RID, 3]),
    "raise version": (commands.raise_version(RID, 2), f"83 17 {R} 02", [23, RID, 2]),
}

# The short form of those that have one.
PACKED = {
    "push":
        f"5a00000073 9301 {R_PACKED} 9298c40171c40170c40174 {M_PACKED}"
        f"c4077b2261223a317d00c0c098c40171c40170c40175 {M_PACKED} c4013101 {R_PACKED} c4026d65",
    "timers":
        f"5a0000004a 9502 {R_PACKED} 929a00c40171c4016bcd05dcc40174 {M_PACKED}"
        f"c4013100c40170c09401c40171c4016bc40174c3c2",
    "pop": f"5a0000003b 9d04 {R_PACKED} {M_PACKED} c40171c0c40167a36e6577000a01c0c2ce00100000",
    "ack": f"5a0000003e 9405 {R_PACKED} c401679295c401740700 {M_PACKED} c095c401750702c400c403776879",
    "transaction":
        f"5a0000007e 990e {R_PACKED} 9192c4016795c401740700 {M_PACKED} c09198c40171c40170c40174 {M_PACKED}"
        f"c4013100c0c09195c40171c40170c4016709a3616c6c919507c4016ec4016b03c3919401c40171c4016bc0c3920000",
    "kv":
        f"5a00000045 950b {R_PACKED}"
        f"939703c4016ec4016bc401313cc0c29806c4016ec4016901c0cb401600000000000000c39301c4016e91c4016bc292090a",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_command_has_its_golden_bytes(name: str) -> None:
    """M-80. What is written packed has its golden bytes below; spread out it is what earlier releases wrote."""
    written, golden, _meaning = GOLDEN[name]
    assert packed.spread_out(written) == bytes.fromhex(golden)
    assert packed.is_packed(written) == (name in PACKED)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_are_still_read(name: str) -> None:
    """M-80."""
    _written, golden, meaning = GOLDEN[name]
    assert cbor2.loads(bytes.fromhex(golden)) == packed.fields_of(bytes.fromhex(golden)) == meaning


@pytest.mark.parametrize("name", PACKED)
def test_golden_bytes_of_packed_commands(name: str) -> None:
    """M-80: MessagePack inside of a CBOR byte string."""
    written, _golden, meaning = GOLDEN[name]
    assert written.hex(" ") == bytes.fromhex(PACKED[name]).hex(" ")
    assert packed.fields_of(bytes.fromhex(PACKED[name])) == meaning


@pytest.mark.parametrize("name", GOLDEN)
def test_the_request_id_of_a_command_is_found_without_reading_it(name: str) -> None:
    written, golden, (_kind, request_id, *_) = GOLDEN[name]
    if request_id:
        assert commands.request_id_of(written) == commands.request_id_of(bytes.fromhex(golden)) == request_id


@pytest.mark.parametrize("number", [
    0, -1, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, -(2**64), 10**300, -(10**300), 0.5, -0.0, 1e300,
])
def test_a_number_of_any_size_comes_through_exactly(number: int | float) -> None:
    """KV-41, KV-42: a bound may be 1e300, and is then a whole number."""
    command = commands.kv(RID, [(KvOp.INCR, b"n", b"k", 1, number, None, 0, False)])
    ((*_, read, _most, _lifetime, _required),) = packed.fields_of(command)[2]
    assert repr(read) == repr(number)
    assert packed.fields_of(packed.spread_out(command)) == packed.fields_of(command)


def test_an_entry_holds_commands_of_both_forms() -> None:
    """CL-132: what waited when the cluster's version rose goes into the log as it was."""
    names = ["push", "hand back", "timers"]
    mixed = [written for name in names for written in (GOLDEN[name][0], packed.spread_out(GOLDEN[name][0]))]
    machine = Machine(Store(MemoryEngine(), life=1))
    application = machine.begin(index=1, term=1, data=commands.entry(5, mixed))
    assert application.commands == [GOLDEN[name][2] for name in names for _ in range(2)]


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\x01", b"\xc7\x01\x07\x00"])
def test_a_packed_command_that_cannot_be_read_stops_the_node(content: bytes) -> None:
    """CL-29."""
    machine = Machine(Store(MemoryEngine(), life=1))
    with pytest.raises(UnknownEntry):
        machine.begin(index=1, term=1, data=commands.entry(5, [cbor2.dumps(content)]))


def test_every_kind_of_command_has_golden_bytes() -> None:
    assert {packed.fields_of(written)[0] for written, _, _ in GOLDEN.values()} == set(Kind)


def test_an_entry_is_its_version_stamp_and_commands_as_they_are() -> None:
    """The commands' own bytes stand in the entry: nobody encodes them twice."""
    raw = commands.entry(1_700_000_000_000_000, [commands.hand_back(MID)])
    assert raw == bytes.fromhex(f"83 01 1b 00060a24181e4000 81 83 07 {M} {M}")
    assert cbor2.loads(raw) == [1, 1_700_000_000_000_000, [[7, MID, MID]]]


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 1000])
def test_an_entry_of_any_length_is_read_back(count: int) -> None:
    """CBOR's array head changes its form at 24 and at 256."""
    raw = commands.entry(5, [commands.extend(RID, MID, number) for number in range(count)])
    assert cbor2.loads(raw) == [1, 5, [[6, RID, MID, number] for number in range(count)]]


@pytest.mark.parametrize("stamp_us", [-1, 1 << 64])
def test_a_stamp_that_does_not_fit_is_a_broken_invariant(stamp_us: int) -> None:
    with pytest.raises(InvariantBroken):
        commands.entry(stamp_us, [])


@pytest.mark.parametrize("stamp_us", [0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 17 * 10**14, 2**64 - 1])
def test_the_stamp_of_an_entry_is_read_without_the_rest(stamp_us: int) -> None:
    """M-20. CBOR's integers change their form at 24, 256, 2**16 and 2**32."""
    assert commands.stamp_of(commands.entry(stamp_us, [commands.hand_back(MID)])) == stamp_us


@given(st.integers(0, 2**64 - 1), st.integers(0, 11))
def test_a_torn_entry_has_its_stamp_or_none(stamp_us: int, kept_bytes: int) -> None:
    """What cannot be read is refused where it is applied, not here."""
    whole = commands.entry(stamp_us, [])
    stamp_ends_at = len(whole) - 1
    assert commands.stamp_of(whole[:kept_bytes]) == (stamp_us if kept_bytes >= stamp_ends_at else 0)


@pytest.mark.parametrize("data", [b"", b"\x83", b"\x83\x01", b"\x83\x02\x05\x80", b"\x82\x01\x05", b"\x83\x01\x20\x80"])
def test_bytes_that_are_no_entry_have_no_stamp(data: bytes) -> None:
    assert commands.stamp_of(data) == 0
