"""Who may connect, decided without a socket; and how long to wait (CL-6, CL-104, M-60)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.peer_frames import Hello
from raft.peer_handshake import (
    Address,
    Asked,
    Purpose,
    Refused,
    is_token,
    judge_hello,
    judge_peer,
    judge_request,
    request_headers,
)
from raft.waiting import Backoff
from tests.unit.peers.strategies import hellos


@given(hellos, st.sampled_from(Purpose), st.sampled_from([b"", b"secret"]))
def test_a_request_is_read_as_it_was_meant(mine: Hello, purpose: Purpose, token: bytes) -> None:
    headers = request_headers(mine, token, purpose)
    assert judge_request(headers, "/raft", token) == Asked(
        mine.node_id, mine.process_number, purpose)


@given(st.dictionaries(st.binary(max_size=30), st.binary(max_size=30)), st.text(max_size=10))
def test_any_request_without_the_token_is_refused_with_401(headers: dict[bytes, bytes], path: str) -> None:
    """CL-6: whatever else stands in it."""
    verdict = judge_request(headers.items(), path, b"secret")
    assert isinstance(verdict, Refused)
    assert verdict.status == 401


@given(st.integers(1, 5), st.integers(1, 5))
def test_of_two_nodes_exactly_one_may_dial_and_the_other_may_knock(one: int, other: int) -> None:
    """M-60: one pair of connections."""
    def may(asker: int, listener: int, purpose: Purpose) -> bool:
        refusal = judge_peer(Asked(asker, 1, purpose), listener, is_known=True)
        return refusal is None or refusal.status == 409

    for purpose in (Purpose.CONTROL, Purpose.BULK):
        assert may(one, other, purpose) + may(other, one, purpose) == (one != other)
    assert may(one, other, Purpose.KNOCK) == (one > other)


@given(hellos, hellos)
def test_a_hello_is_judged_alike_on_both_sides(one: Hello, other: Hello) -> None:
    """Else one side would go on with a connection that the other has ended."""
    of_one = judge_hello(one, other, other.node_id)
    of_other = judge_hello(other, one, one.node_id)
    assert (of_one is None) == (of_other is None)


@pytest.mark.parametrize(
    ("token", "good"),
    [(b"", True), (b"secret", True), (b"a b", False), (b"a\n", False), ("é".encode(), False), (b"x" * 1025, False)],
)
def test_a_token_that_no_request_can_carry_is_none(token: bytes, good: bool) -> None:
    assert is_token(token) == good


def test_an_address_as_a_request_names_it() -> None:
    assert str(Address("::1", 7400)) == "[::1]:7400"
    assert str(Address("a.b", 7400)) == "a.b:7400"


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_pauses_double_up_to_the_last_and_differ(seed: int, failure_count: int) -> None:
    backoff = Backoff(Random(seed), first_s=0.05, last_s=2.0)
    for failures in range(failure_count):
        whole_s = min(0.05 * 2**failures, 2.0)
        assert whole_s / 2 <= backoff.take_s() <= whole_s
    backoff.reset()
    assert backoff.take_s() <= 0.05
