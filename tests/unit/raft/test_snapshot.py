"""A snapshot's way between two members: whatever is lost, doubled or late, the same chunks arrive (M-61)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.configurations import encode_configuration
from raft.quorum import Configuration
from raft.snapshot import (
    CHUNK_BYTES,
    RESEND_S,
    VIEW_LIVES_S,
    WINDOW_BYTES,
    WINDOW_CHUNKS,
    Flawed,
    Pace,
    Receiving,
    Sending,
    judge_offer,
)
from raft.snapshot_messages import (
    Chunk,
    End,
    Head,
    Installed,
    MalformedSnapshot,
    Offer,
    Refusal,
    Refused,
    SnapshotMessage,
    Wanted,
    checksum,
    decode,
    encode,
)

ID = bytes(range(16))
HEAD = Head(9, 3, 1_700_000_000_000_000, 3, -5, encode_configuration(Configuration((1, 2, 3))), b"digest")


def sending(*chunks: bytes) -> Sending:
    return Sending(ID, 4, HEAD, iter(chunks), 0.0)


def words(half: Sending, now_s: float, at_most: int = 100) -> list[SnapshotMessage]:
    """All it says now, if chunks may go."""
    said: list[SnapshotMessage] = []
    while len(said) < at_most and (word := half.next_word(now_s, chunks=True)) is not None:
        said.append(word)
    return said


def accepted(*chunks: bytes) -> Sending:
    """One whose offer was taken."""
    half = sending(*chunks)
    words(half, 0.0)
    half.take(Wanted(ID, 1, True), 0.0)
    return half


def receiving() -> Receiving:
    return Receiving(1, Offer(ID, 4, HEAD, 1), 0.0)


def chunk(number: int, data: bytes) -> Chunk:
    return Chunk(ID, number, checksum(ID, number, data), data)


# The sender


def test_nothing_but_the_offer_goes_before_the_receiver_wants_it() -> None:
    """A view may be refused: nothing is read of it in vain."""
    half = sending(b"a")
    assert words(half, 0.0) == [Offer(ID, 4, HEAD, 1)]
    assert words(half, RESEND_S / 2) == []
    assert words(half, RESEND_S) == [Offer(ID, 4, HEAD, 1)]
    half.take(Wanted(ID, 1, True), RESEND_S)
    first, end = words(half, RESEND_S)
    assert first == chunk(1, b"a")
    assert isinstance(end, End)
    assert end.chunk_count == 1


def test_a_window_of_chunks_is_on_its_way_and_each_acknowledgement_lets_more_follow() -> None:
    """CL-7: what waits to be sent is bounded."""
    half = accepted(*[b"x"] * 40)
    assert [word.number for word in words(half, 0.0) if isinstance(word, Chunk)] == list(range(1, WINDOW_CHUNKS + 1))
    half.take(Wanted(ID, 3, False), 0.1)
    assert [word.number for word in words(half, 0.1) if isinstance(word, Chunk)] == [17, 18]


def test_large_rows_fill_the_window_by_their_bytes() -> None:
    half = accepted(*[bytes(WINDOW_BYTES)] * 3)
    assert len(words(half, 0.0)) == 1
    half.take(Wanted(ID, 2, False), 0.1)
    assert len(words(half, 0.1)) == 1


def test_without_pace_no_chunk_goes_and_none_is_read() -> None:
    half = accepted(b"a")
    assert half.may_read
    assert half.next_word(0.0, chunks=False) is None


def test_a_silent_receiver_is_asked_and_gets_again_what_it_lacks_and_nothing_else() -> None:
    """A lost connection costs what was in flight."""
    half = accepted(b"a", b"b", b"c", b"d")
    words(half, 0.0)
    half.take(Wanted(ID, 3, False), 0.1)
    assert words(half, 0.1 + RESEND_S) == [Offer(ID, 4, HEAD, 3)]
    half.take(Wanted(ID, 3, True), 0.7)
    again = words(half, 0.7)
    assert [word.number for word in again[:-1] if isinstance(word, Chunk)] == [3, 4]
    assert isinstance(again[-1], End)


def test_acknowledgements_that_are_late_doubled_or_mad_change_nothing() -> None:
    half = accepted(*[b"x"] * 40)
    words(half, 0.0)
    half.take(Wanted(ID, 9, False), 0.1)
    words(half, 0.1)
    half.take(Wanted(ID, 4, True), 0.2)  # of before
    half.take(Wanted(ID, 9, False), 0.2)
    half.take(Wanted(ID, 1000, True), 0.2)  # never sent
    assert words(half, 0.2) == []
    half.take(Wanted(ID, 9, True), 0.3)
    half.take(Wanted(ID, 25, False), 0.3)  # all that were on their way had come after all
    assert [word.number for word in words(half, 0.3) if isinstance(word, Chunk)] == list(range(25, 41))


def test_the_view_of_a_receiver_that_takes_nothing_lives_for_a_minute() -> None:
    """M-61: after that the transfer starts anew. Its words alone do not keep it."""
    half = accepted(*[b"x"] * 40)
    words(half, 0.0)
    half.take(Wanted(ID, 2, False), 30.0)
    half.take(Wanted(ID, 2, True), 80.0)
    assert not half.is_late(30.0 + VIEW_LIVES_S - 1)
    assert half.is_late(30.0 + VIEW_LIVES_S)


# The receiver


def test_chunks_are_acknowledged_once_they_are_written() -> None:
    half = receiving()
    assert half.take_offer(0.0) == Wanted(ID, 1, True)
    assert half.take_chunk(chunk(1, b"a"), 0.0) is None
    assert half.take_chunk(chunk(2, b"b"), 0.0) is None
    assert half.next_write() == b"a"
    assert half.written() == Wanted(ID, 2, False)
    assert half.next_write() == b"b"
    assert half.take_offer(0.1) == Wanted(ID, 3, True)


def test_a_gap_is_told_once_and_a_chunk_that_comes_twice_is_not_taken_twice() -> None:
    half = receiving()
    assert half.take_chunk(chunk(2, b"b"), 0.0) == Wanted(ID, 1, True)
    assert half.take_chunk(chunk(3, b"c"), 0.0) is None
    half.take_chunk(chunk(1, b"a"), 0.0)
    assert half.take_chunk(chunk(1, b"a"), 0.0) == Wanted(ID, 1, False)  # not written yet
    half.written()
    assert half.take_chunk(chunk(1, b"a"), 0.0) == Wanted(ID, 2, False)
    assert half.next_write() is None
    assert half.take_chunk(chunk(3, b"c"), 0.0) == Wanted(ID, 2, True)


def test_what_it_keeps_in_memory_is_bounded_whatever_comes() -> None:
    half = receiving()
    for number in range(1, WINDOW_CHUNKS + 5):
        half.take_chunk(chunk(number, b"x"), 0.0)
    assert half.take_offer(0.0).number == WINDOW_CHUNKS + 1


@pytest.mark.parametrize("damaged", [
    Chunk(ID, 1, checksum(ID, 1, b"a"), b"b"), Chunk(ID, 1, checksum(ID, 2, b"a"), b"a"),
    Chunk(ID, 1, checksum(bytes(16), 1, b"a"), b"a"),
])
def test_a_chunk_that_is_not_what_was_sent_ends_the_transfer(damaged: Chunk) -> None:
    """CL-112, CL-123: over the bytes and their place."""
    with pytest.raises(Flawed, match="chunk 1"):
        receiving().take_chunk(damaged, 0.0)


def test_it_is_whole_once_all_is_written_and_is_what_the_sender_read() -> None:
    end = words(accepted(b"a", b"b"), 0.0)[-1]
    assert isinstance(end, End)
    half = receiving()
    half.take_chunk(chunk(1, b"a"), 0.0)
    assert half.take_end(end, 0.0) == Wanted(ID, 2, True)
    half.take_chunk(chunk(2, b"b"), 0.0)
    assert half.take_end(end, 0.0) is None
    half.written()
    assert not half.is_whole
    half.written()
    assert half.is_whole


@pytest.mark.parametrize("end", [End(ID, 0, b""), End(ID, 1, b"another")])
def test_an_end_that_does_not_fit_what_came_ends_the_transfer(end: End) -> None:
    half = receiving()
    half.take_chunk(chunk(1, b"a"), 0.0)
    with pytest.raises(Flawed):
        half.take_end(end, 0.0)


def test_one_whose_sender_is_gone_is_forgotten_in_the_end() -> None:
    half = receiving()
    half.take_chunk(chunk(1, b"a"), 5.0)
    assert not half.is_late(5.0 + VIEW_LIVES_S)
    assert half.is_late(5.0 + 2 * VIEW_LIVES_S)


# Both

@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=30), st.integers(0, 1 << 32))
def test_any_loss_doubling_and_reordering_ends_in_the_same_chunks(chunks: list[bytes], seed: int) -> None:
    """M-61, as a whole: nothing is missing, doubled or out of order, and it comes to an end."""
    random = Random(seed).random
    sender, receiver = sending(*chunks), receiving()
    there: list[SnapshotMessage] = []
    back: list[Wanted] = []
    got: list[bytes] = []
    for step in range(4000):
        now_s = step * 0.05
        for word in words(sender, now_s, 3):
            there += [word] * (0 if (drawn := random()) < 0.2 else 2 if drawn < 0.3 else 1)
        if there:
            word = there.pop(int(random() * min(len(there), 4)))
            match word:
                case Offer():
                    back.append(receiver.take_offer(now_s))
                case Chunk():
                    back += [answer for answer in [receiver.take_chunk(word, now_s)] if answer]
                case End():
                    back += [answer for answer in [receiver.take_end(word, now_s)] if answer]
        if random() < 0.5 and (data := receiver.next_write()) is not None:
            got.append(data)
            back.append(receiver.written())
        if back:
            answer = back.pop(int(random() * min(len(back), 4)))
            if random() > 0.2:
                sender.take(answer, now_s)
        if receiver.is_whole:
            break
    assert receiver.is_whole
    assert got == chunks


# Whom a member believes


def judged(**facts: object) -> Refusal | None:
    usual: dict[str, object] = {"sender": 1, "leader": 1, "term": 4, "leads": False, "commit_index": 8}
    offer = Offer(ID, 4, HEAD, int(str(facts.pop("first", 1))))
    return judge_offer(offer, **{**usual, **facts})  # type: ignore[arg-type]


def test_a_member_takes_what_its_leader_offers_if_it_lacks_it() -> None:
    assert judged() is None
    assert judged(commit_index=9) is Refusal.NOT_NEEDED
    assert judged(leads=True) is Refusal.NOT_NEEDED
    assert judged(first=2) is Refusal.UNKNOWN  # it restarted: what came before is gone
    assert judged(leader=2) is Refusal.BUSY
    assert judged(term=5) is Refusal.BUSY


def test_the_pace_is_kept_over_time_and_a_debt_is_paid() -> None:
    pace = Pace(0.0, bytes_per_s=1000, burst_bytes=100)
    sent, now_s = 0, 0.0
    while now_s < 10.0:
        wait_s = pace.wait_s(now_s)
        if wait_s:
            now_s += wait_s + 1e-9
        else:
            pace.spend(500)
            sent += 500
    assert 10_000 <= sent <= 11_000


# On the wire

ALL_WORDS = [
    Offer(ID, 4, HEAD, 7), Chunk(ID, 3, 2**32 - 1, bytes(CHUNK_BYTES)), End(ID, 0, b"d"), Wanted(ID, 3, True),
    Installed(ID, 9), Refused(ID, Refusal.DAMAGED),
]


@pytest.mark.parametrize("word", ALL_WORDS, ids=lambda word: type(word).__name__)
def test_each_word_comes_back_from_its_bytes(word: SnapshotMessage) -> None:
    assert decode(encode(word)) == word


@pytest.mark.parametrize("word", [
    Wanted(ID[:15], 1, True), Offer(ID, 2, HEAD, 1), Installed(ID, 0), Chunk(ID, 0, 0, b""),
    Offer(ID, 4, Head(9, 3, 0, 0, 0, b"no configuration", b""), 1),
])
def test_words_that_no_release_says_are_refused(word: SnapshotMessage) -> None:
    with pytest.raises(MalformedSnapshot):
        decode(encode(word))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_word_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedSnapshot):
        decode(data)
