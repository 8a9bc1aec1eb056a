"""What key/value operations do to the state (kv.md)."""

from __future__ import annotations

import pytest

from queen_node.commands import KvOp
from queen_node.state import kv
from queen_node.state.keys import META, group_prefix
from queen_node.state.kv import Page, Reason, Single
from queen_node.state.snapshot_rows import RowsReader, view
from tests.support.kv_state import (
    NS,
    START_US,
    KvState,
    check,
    delete,
    get,
    get_many,
    get_prefix,
    incr,
    put,
)
from tests.support.memory_engine import MemoryEngine

NEVER, DELETED, EXPIRED = "never written", "deleted", "expired"
N = 1 << 40  # a version that no row has


def absent_row(how: str) -> KvState:
    """A state in which `k` is not alive, and why."""
    state = KvState()
    if how == DELETED:
        state.call(put(b"k"))
        state.call(delete(b"k"))
    elif how == EXPIRED:
        state.call(put(b"k", ttl_s=1))
        state.advance(1)
    return state


@pytest.mark.parametrize("how", [NEVER, DELETED, EXPIRED])
def test_conditions_on_a_key_that_is_not_alive(how: str) -> None:
    """KV-31, the rows for "not alive", each cell; a lost put creates nothing."""
    state = absent_row(how)
    deletes = delete(b"k"), delete(b"k", expect=0), delete(b"k", expect=N)
    for operation in (*deletes, put(b"k", expect=N), check(b"k", N)):
        element = state.one(operation)
        assert (element.done, element.reason, element.value, element.version) == (False, Reason.ABSENT, None, 0)
    assert not state.one(get(b"k")).done
    held = state.one(check(b"k", 0))
    assert held.done and held.version == 0
    assert state.one(put(b"k", b'"new"', expect=0)).done
    assert state.one(get(b"k")).value == b'"new"'


@pytest.mark.parametrize("how", [NEVER, DELETED, EXPIRED])
def test_an_unconditional_put_writes_whatever_was_there(how: str) -> None:
    """KV-31, first row."""
    state = absent_row(how)
    first = state.one(put(b"k", b"1"))
    second = state.one(put(b"k", b"2"))
    assert first.done and second.done and second.version > first.version > 0


def test_conditions_on_a_live_row() -> None:
    """KV-31, the rows for "alive"; KV-32: the loser is told the current value and version."""
    state = KvState()
    version = state.one(put(b"k", b"1")).version
    for operation in (put(b"k", b"2", expect=0), delete(b"k", expect=0), check(b"k", 0)):
        element = state.one(operation)
        assert (element.done, element.reason, element.value, element.version) == (False, Reason.EXISTS, b"1", version)
    for operation in (put(b"k", b"2", expect=N), delete(b"k", expect=N), check(b"k", N)):
        element = state.one(operation)
        assert (element.done, element.reason, element.value, element.version) == (False, Reason.VERSION, b"1", version)
    held = state.one(check(b"k", version))
    assert held.done and (held.version, held.value) == (version, None)
    again = state.one(put(b"k", b"2", expect=version))
    assert again.done and again.version > version
    gone = state.one(delete(b"k", expect=again.version))
    assert gone.done and (gone.value, gone.version) == (b"2", again.version)
    assert not state.one(get(b"k")).done and state.rows() == 0


def test_a_version_is_never_given_twice() -> None:
    """KV-30: across delete, expiry, sweep, a new process; calls that lose or read take none."""
    state = KvState()
    versions = [state.one(put(b"k")).version]
    state.call(delete(b"k"))
    versions.append(state.one(put(b"k", ttl_s=1)).version)
    state.advance(2)
    state.sweep()
    assert state.try_call(put(b"a"), put(b"k", expect=N, required=True))[0] is not None
    state.restart()
    versions += [state.one(put(b"k")).version, state.one(put(b"other")).version, state.one(incr(b"n")).version]
    assert versions == sorted(set(versions)) and state.counters.kv_version == versions[-1]


def test_versions_go_on_behind_a_snapshot() -> None:
    """KV-30, LK-30: the counter travels with the rows; a row that was deleted before leaves its version used."""
    state = KvState()
    state.call(put(b"k"), put(b"stays", ttl_s=9))
    last = state.one(put(b"k")).version
    state.call(delete(b"k"))
    seen = view(state.engine, 1, 1, 64)
    assert seen is not None
    reader, engine = RowsReader(), MemoryEngine()
    for part in seen.parts:
        engine.write(group_prefix(1, 1), reader.read(part))
    assert reader.meta is not None
    engine.write(group_prefix(1, 1), {META: reader.meta})
    other = KvState(engine)
    assert other.counters == state.counters and other.next_end_us() == state.next_end_us()
    assert other.one(put(b"k")).version == last + 1


def test_a_row_is_dead_at_the_very_instant_with_the_sweep_stopped() -> None:
    """KV-22; KV-21: a put never inherits the old lifetime."""
    state = KvState()
    put_at_us = state.now_us
    state.call(put(b"k", b"null", ttl_s=10))
    state.advance(9.999999)
    row = state.one(get(b"k"))
    assert row.done and row.value == b"null"
    assert (row.expires_us, row.updated_us) == (put_at_us + 10_000_000, put_at_us)
    state.advance(0.000001)
    assert not state.one(get(b"k")).done
    assert state.page(get_many(b"k")).missing == [b"k"]
    assert state.page(get_prefix(b"k")).rows == []
    state.call(put(b"k", b"2"))
    assert state.one(get(b"k")).expires_us == 0 and state.next_end_us() is None


def test_a_required_operation_that_loses_takes_everything_back() -> None:
    """KV-33: the first loser is named, with what the key holds now; nothing is written."""
    state = KvState()
    version = state.one(put(b"k", b"1")).version
    lost, elements = state.try_call(
        put(b"a"), incr(b"b"), put(b"k", expect=0), delete(b"k", required=True, expect=N),
        check(b"z", 5, required=True))
    assert elements == [] and lost is not None
    assert (lost.failed_index, lost.reason, lost.version, lost.value) == (3, Reason.VERSION, version, b"1")
    assert [state.one(get(key)).done for key in (b"a", b"b", b"k")] == [False, False, True]
    assert state.counters.kv_version == version


def test_a_lost_check_of_a_row_that_the_call_would_write_shows_what_is_stored() -> None:
    """KV-33: a version that is taken back must not be seen: another row will get it."""
    state = KvState()
    lost, _ = state.try_call(put(b"k", b"1"), check(b"k", 0, required=True))
    assert lost is not None and (lost.reason, lost.version, lost.value) == (Reason.EXISTS, 0, None)


def test_writes_see_those_before_them_and_reads_see_all() -> None:
    """KV-71, KV-15: check and put of one key; a get sees the new value wherever it stands."""
    state = KvState()
    first, held, written, refused, page = state.call(
        get(b"k"), check(b"k", 0), put(b"k", b"7"), check(b"k", 0), get_prefix(b"k"))
    assert isinstance(first, Single) and isinstance(page, Page) and isinstance(refused, Single)
    assert isinstance(held, Single) and held.done and isinstance(written, Single)
    assert (first.done, first.value, first.version) == (True, b"7", written.version)
    assert (refused.done, refused.reason) == (False, Reason.EXISTS)
    assert [(row.key, row.value) for row in page.rows] == [(b"k", b"7")]


def test_incr_counts_in_a_window_that_closes() -> None:
    """KV-40: not alive counts as 0 and begins a lifetime; alive keeps its end."""
    state = KvState()
    assert state.one(incr(b"n", 5, ttl_s=10)).value == b"5"
    state.advance(6)
    second = state.one(incr(b"n", -2, ttl_s=10))
    assert second.value == b"3"
    assert state.one(get(b"n")).expires_us == START_US + 10_000_000
    state.advance(4)
    assert state.one(incr(b"n", 1, ttl_s=10)).value == b"1"
    assert state.one(get(b"n")).expires_us == START_US + 20_000_000


def test_incr_stops_at_its_bounds() -> None:
    """KV-41: it neither saturates nor truncates; the first call of a window too."""
    state = KvState()
    refused = state.one(incr(b"n", 10, most=5))
    assert (refused.done, refused.reason, refused.value, refused.version) == (False, Reason.LIMIT, b"0", 0)
    assert not state.one(get(b"n")).done
    version = state.one(incr(b"n", 5, most=5)).version
    refused = state.one(incr(b"n", 1, most=5))
    assert (refused.done, refused.reason, refused.value, refused.version) == (False, Reason.LIMIT, b"5", version)
    assert state.one(incr(b"n", -5, least=0)).value == b"0"
    assert state.one(incr(b"n", -1, least=0)).reason == Reason.LIMIT


@pytest.mark.parametrize("value", [b'"5"', b"{}", b"null", b"[1]", b"true"])
def test_incr_of_what_is_no_number(value: bytes) -> None:
    """KV-40: alive and not a number is `type`; expired, it counts as 0."""
    state = KvState()
    version = state.one(put(b"n", value, ttl_s=1)).version
    refused = state.one(incr(b"n"))
    assert (refused.done, refused.reason, refused.value, refused.version) == (False, Reason.TYPE, value, version)
    state.advance(1)
    assert state.one(incr(b"n")).value == b"1"


def test_many_keys_are_answered_in_their_order_and_once() -> None:
    """KV-50."""
    state = KvState()
    state.call(put(b"b", b"2"), put(b"a", b"1"), put("ü".encode(), b"3"))
    page = state.page(get_many("ü".encode(), b"zz", b"b", b"a", b"b", b"c"))
    assert [row.key for row in page.rows] == [b"a", b"b", "ü".encode()]
    assert page.missing == [b"c", b"zz"] and not page.truncated


def test_pages_of_a_prefix() -> None:
    """KV-51: bytes order, literal, after is exclusive and need not exist; keysOnly; no neighbour is touched."""
    state = KvState()
    state.call(*(put(key, b"1") for key in (b"a%", b"a_", b"aa", b"ab", b"b")))
    state.call(put(b"aa", b"1", ns=b"orders2"))
    assert [row.key for row in state.page(get_prefix(b"a")).rows] == [b"a%", b"a_", b"aa", b"ab"]
    first = state.page(get_prefix(b"a", limit=2, keys_only=True))
    assert (first.truncated, first.next_after) == (True, b"a_") and first.rows[0].value is None
    rest = state.page(get_prefix(b"a", after_key=b"a_", limit=2))
    assert [row.key for row in rest.rows] == [b"aa", b"ab"] and not rest.truncated and rest.next_after is None
    assert [row.key for row in state.page(get_prefix(b"a", after_key=b"a`")).rows] == [b"aa", b"ab"]
    assert [row.key for row in state.page(get_prefix(b"a", after_key=b"A")).rows] == [b"a%", b"a_", b"aa", b"ab"]
    assert state.page(get_prefix(b"a", after_key=b"zz")).rows == []


def test_a_call_reads_no_more_than_its_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-52: the row that crosses the line is kept; keys cut from a getMany are in neither list; get is never cut."""
    monkeypatch.setattr(kv, "READ_BYTES_MAX", 5)
    state = KvState()
    state.call(*(put(key, b"123") for key in (b"a", b"b", b"c")))
    page = state.page(get_many(b"a", b"b", b"c", b"d"))
    assert ([row.key for row in page.rows], page.missing, page.truncated) == ([b"a", b"b"], [], True)
    page = state.page(get_prefix(b"", limit=9))
    assert ([row.key for row in page.rows], page.truncated, page.next_after) == ([b"a", b"b"], True, b"b")
    many, single = state.call(get_many(b"a", b"b", b"c"), get(b"c"))
    assert isinstance(many, Page) and many.truncated
    assert isinstance(single, Single) and single.value == b"123"


def test_dead_rows_do_not_make_a_page_walk_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """M-50: a page ends after so many rows looked at, and says where the next begins."""
    monkeypatch.setattr(kv, "ROWS_LOOKED_AT_MAX", 3)
    state = KvState()
    state.call(*(put(b"dead-%d" % number, ttl_s=1) for number in range(5)), put(b"live"))
    state.advance(1)
    page = state.page(get_prefix(b"d", limit=9))
    assert (page.rows, page.truncated, page.next_after) == ([], True, b"dead-2")
    page = state.page(get_prefix(b"", after_key=b"dead-2", limit=9))
    assert [row.key for row in page.rows] == [b"live"]


def test_the_sweep_frees_what_is_dead_in_bounded_steps() -> None:
    """KV-23: until swept a dead row counts; afterwards nothing of it is left, and a later life is not touched."""
    state = KvState()
    state.call(*(put(b"k%d" % number, b"123", ttl_s=1) for number in range(5)), put(b"stays", ttl_s=100), put(b"f"))
    state.advance(1)
    state.call(put(b"k0", b"4", ttl_s=100))
    assert (state.counters.kv_rows, state.counters.kv_bytes) == (7, 5 * 2 + 6 + 1 + 4 * 3 + 1 + 1)
    assert state.sweep(at_most=3)
    assert state.counters.kv_rows == 4
    assert not state.sweep(at_most=3)
    assert state.counters.kv_rows == 3 and state.one(get(b"k0")).done
    assert state.next_end_us() == START_US + 100_000_000
    state.restart()
    state.advance(200)
    assert not state.sweep() and state.rows() == 2, "the row that lives for ever, and its namespace"
    assert state.one(delete(b"f")).done
    assert state.rows() == 0 and (state.counters.kv_rows, state.counters.kv_bytes) == (0, 0)


def test_a_tenant_holds_no_more_than_its_caps() -> None:
    """KV-62: refused only if the call as a whole adds rows or bytes, and only as a whole."""
    state = KvState()
    state.call(put(b"a", b"12345"), put(b"b", b"12345"))
    assert state.exceeds(put(b"c"), put(b"a"), rows=2)
    assert state.one(get(b"a")).value == b"12345"
    assert not state.exceeds(put(b"a"), delete(b"b"), put(b"c"), rows=1), "over the cap already, and adds no row"
    assert state.counters.kv_rows == 2 and state.counters.kv_bytes == 4
    assert state.exceeds(put(b"a", b"123"), size=5) and not state.exceeds(put(b"a", b"12"), size=5)
    assert not state.exceeds(put(b"a", b"1"), size=1), "shrinks"


def test_operations_have_the_words_of_their_commands() -> None:
    """KV-10: an element names the operation as it was sent."""
    state = KvState()
    absent = (KvOp.PUT_IF_ABSENT, NS, b"k", b"1", 0, 0, False)
    assert state.one(absent).op == KvOp.PUT_IF_ABSENT
    assert state.one(absent).reason == Reason.EXISTS
