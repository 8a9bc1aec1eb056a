"""What is kept of the ids of claims decides nothing that the messages themselves would decide otherwise."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from queen_node.state.claim_ids import ClaimIds
from queen_node.state.messages import pack
from tests.support.outward import Acked, Outward
from tests.unit.state.history import run

IDS = st.sampled_from("abcdefgh")
ACKS = st.lists(st.tuples(IDS, st.sampled_from(("completed", "completed", "retry", "failed"))), min_size=1, max_size=4)


def stored(*ids: bytes) -> list[bytes]:
    return [pack(1, bytes(16), transaction_id, b"1", 0, None, None) for transaction_id in ids]


@settings(max_examples=60)
@given(st.booleans(), st.lists(IDS, min_size=1, max_size=8), st.lists(st.tuples(ACKS, st.booleans()), max_size=5))
def test_a_node_that_keeps_them_answers_as_one_that_was_just_started(
    ids_repeat: bool, pushed: list[str], calls: list[tuple[list[tuple[str, str]], bool]],
) -> None:
    """PA-47, PA-53, with and without ids that stand twice in a claim; PA-59, the same ack again."""
    kept, started_anew = Outward(), Outward()
    told: list[list[object]] = []
    for node in (kept, started_anew):
        node.configure(dedup_window_seconds=0 if ids_repeat else 3600)
        for transaction_id in pushed:
            node.push(transaction_id)
        answers: list[object] = []
        claim = node.pop()
        for items, again in calls:
            for _ in range(1 + again):
                if node is started_anew:
                    node.machine.reopen(1)
                answers.append(node.ack(*items, lease=claim))
        told.append([*answers, node.store.meta.digest])
    assert told[0] == told[1]


def test_a_node_that_starts_anew_before_every_entry_goes_the_same_way() -> None:
    """M-80: nothing that memory holds comes into what is applied."""
    digests = run(2, 150)[2]
    assert run(2, 150, anew_before_each=True)[2] == digests


def test_groups_that_claim_the_same_messages_share_them() -> None:
    claim_ids = ClaimIds(5)
    claim_ids.keep(1, 7, stored(b"a", b"b", b"c"))
    claim_ids.keep(1, 7, stored(b"a", b"b", b"c"))
    claim_ids.keep(1, 8, stored(b"b", b"c"))
    assert claim_ids.of(1, 7, 9) == {b"a": 7, b"b": 8, b"c": 9} and claim_ids.of(1, 8, 9) == {b"b": 8, b"c": 9}
    claim_ids.keep(2, 0, stored(b"x"))
    assert claim_ids.of(1, 7, 9) is None  # kept longest, and there was no room for all
    assert claim_ids.of(1, 8, 9) is not None and claim_ids.of(2, 0, 0) == {b"x": 0}


def test_an_id_that_stands_twice_is_looked_up() -> None:
    claim_ids = ClaimIds()
    claim_ids.keep(1, 0, stored(b"a", b"b", b"a"))
    assert claim_ids.of(1, 0, 2) is None


def test_an_entry_that_was_taken_back_leaves_no_wrong_knowledge() -> None:
    """CL-133: the offsets that it appended to are given to other messages."""
    node = Outward()
    node.configure()
    node.apply(node.push_command("first"))
    application = node.begin(node.push_command("lost"), node.pop_command(group="g", mode="all"))
    while not application.finished:
        application.apply_next()
    node.machine.discard()
    node.push("kept")
    claim = node.pop(group="g", mode="all")
    assert node.ack("kept", lease=claim, group="g") == [Acked(b"kept", 1, True)]
