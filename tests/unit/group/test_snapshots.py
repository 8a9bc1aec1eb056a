"""A member whose entries are gone takes the group's state, while the group serves on (M-61, CL-112)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen_node.events import SnapshotEnded, SnapshotFlipped, SnapshotWhole
from queen_node.group import Group
from queen_node.peer_calls import decode as decode_call
from queen_node.snapshots import (
    RANGE_DELETE_EVERY_S,
    RECEIVING_MAX,
    SENDING_MAX,
    Snapshots,
    Stage,
    carry_out,
)
from queen_node.state.incarnations import LEFTOVERS_MAX, Incarnations
from queen_node.state.store import StoreBusy
from raft.configurations import encode_configuration
from raft.quorum import Configuration
from raft.snapshot import VIEW_LIVES_S
from raft.snapshot_messages import (
    Chunk,
    Head,
    Installed,
    MalformedSnapshot,
    Offer,
    Refusal,
    Refused,
    Wanted,
    checksum,
    decode,
    encode,
)
from tests.support.memory_engine import MemoryEngine
from tests.unit.group.driver import messages, outcome
from tests.unit.group.three import DIRECTORIES, NODES, Member, Three

LIFE = 1
STEPS_MAX = 20_000


class Side:
    """A node's snapshots, and what their actor does: words to peers, events to the group, flushes."""

    def __init__(self, node: int, member: Member, now_s: float) -> None:
        self.node, self.member = node, member
        engine = member.group.machine.store.engine
        assert isinstance(engine, MemoryEngine)
        self.engine = engine
        self.incarnations = Incarnations(engine)
        self.room = Snapshots(
            engine, self.incarnations, groups=self._group, new_id=self._new_id, now_s=now_s)
        self._dice = Random(node)
        self.events: list[object] = []

    def _group(self, life: int) -> Group | None:
        return self.member.group if life == LIFE else None

    def _new_id(self) -> bytes:
        return self._dice.randbytes(16)


class Snapped(Three):
    """Three nodes whose snapshots are carried by hand. wire: (from, to, word), on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = {node: Side(node, member, self.now_s) for node, member in self.members.items()}
        self.wire: list[tuple[int, int, bytes]] = []

    def leave_behind(self, node: int, *, pushes: int = 20) -> None:
        """Cut a node off, go on without it, forget what it needs, and let it back."""
        self.cut.add(node)
        for number in range(pushes):
            self.pushed(1, b"orders", b"%d" % number)
        self.forget()
        self.cut.clear()
        self.pass_time(0.5)
        self.take_word_of_laggards()

    def forget(self) -> None:
        core = self.members[1].group.raft.core
        core.log.forget_through(core.applied_index)

    def take_word_of_laggards(self) -> None:
        for node, member in self.members.items():
            for peer in member.left_behind:
                self.sides[node].room.send_to(LIFE, peer, self.now_s)
            member.left_behind.clear()

    def step(self) -> None:
        """A step of every side; what they say is on the wire then."""
        for node, side in self.sides.items():
            room = side.room
            room.work(self.now_s)
            if room.wants_flush:
                waited = room.begin_flush()
                side.engine.flush()
                room.flushed(waited)
            for life, event in room.events:
                assert life == LIFE
                side.events.append(event)
                carry_out(side.member.group, event, room, self.now_s)
            room.events.clear()
            self.settle()
            for index in side.member.restarts:
                room.log_told(LIFE, index)
            side.member.restarts.clear()
            self.wire += [(node, peer, word) for peer, _, word in room.outgoing]
            room.outgoing.clear()

    def carry(self, place: int = 0) -> None:
        """Deliver a word."""
        sender, receiver, word = self.wire.pop(place)
        self.sides[receiver].room.hear(sender, LIFE, word, self.now_s)

    def run(self, done: object = None, *, seconds: float = 30.0) -> None:
        """Until it is done, or nothing happens any more."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.step()
            while self.wire:
                self.carry()
            self.take_word_of_laggards()
            if callable(done) and done():
                return
            self.pass_time(0.1)
        assert done is None, "it did not come to that"

    def applied(self, node: int) -> int:
        return self.members[node].group.machine.applied_index


@pytest.fixture
def three() -> Snapped:
    made = Snapped()
    made.elect(1)
    made.pushed(1, b"orders", b"first")
    return made


def agreed(three: Snapped) -> bool:
    return len(three.digests()) == 1


def test_a_member_that_was_left_behind_takes_the_state_and_goes_on_from_there(three: Snapped) -> None:
    """CL-112: and its log starts behind it; what is pushed then comes by the log again."""
    three.leave_behind(3)
    assert not agreed(three)
    three.run(lambda: agreed(three))
    side = three.sides[3]
    assert [type(event) for event in side.events] == [SnapshotWhole, SnapshotFlipped]
    assert side.member.group.machine.store.incarnation == side.incarnations.current(LIFE) == 2
    assert side.member.group.raft.core.log.first_index == three.applied(1) + 1
    three.run(lambda: SnapshotEnded(3, three.applied(1)) in three.sides[1].events)
    slot = three.pushed(3, b"orders", b"later")
    assert isinstance(outcome(slot), bytes)
    assert agreed(three)
    assert side.incarnations.flipped(LIFE) is None


def test_it_leads_and_serves_from_the_state_that_came(three: Snapped) -> None:
    """M-61: nothing in memory is of before: a queue that it never saw is popped, in order, and a timer fires."""
    three.schedule(1, b"reminders", b"soon", 2000)
    three.leave_behind(3, pushes=3)
    three.run(lambda: agreed(three), seconds=1.0)
    assert three.members[3].group.deadline_us is not None
    three.run(seconds=0.3)
    three.hand_over(1, 3)
    pop = three.popped(3, b"orders")
    found = messages(pop)
    assert found is not None
    assert [message["data"] for message in found] == ["first", "0", "1", "2"]
    three.pass_time(2.5)
    fired = messages(three.popped(3, b"reminders"))
    assert fired is not None
    assert [message["transactionId"] for message in fired] == ["txn-soon"]
    assert agreed(three)


def test_a_call_that_the_snapshot_stands_for_is_answered(three: Snapped) -> None:
    """CL-140, M-53: applied, with what answer is not known; what was not applied stays, and is sent again."""
    member = three.members[3]
    three.pushed(3, b"orders", b"warm")
    inside = three.push(3, b"orders", b"inside")
    popping = three.pop(3, b"orders")
    three._turn(3)
    for _ in range(2):  # what node 3 says reaches the leader; then it hears nothing any more
        sender, receiver, said = three._mail.popleft()
        assert (sender, receiver) == (3, 1)
        assert isinstance(said, bytes)
        three.members[1].group.hear(sender, decode_call(said), three.members[1].group.raft.clock.now_us())
    three.cut.add(3)
    three.settle()
    outside = three.push(3, b"orders", b"outside")
    three.lose_calls = True
    three.leave_behind(3, pushes=2)
    three.lose_calls = False
    assert outcome(inside) is None
    three.run(lambda: agreed(three))
    assert outcome(inside) == "timeout"
    assert outcome(popping.slot) == "timeout"
    three.run(lambda: outcome(outside) is not None)
    assert isinstance(outcome(outside), bytes)
    assert not member.group.calls.writes
    assert not member.group.calls.pops
    again = messages(three.popped(2, b"orders"))  # the lease went back
    assert again is not None
    assert "first" in [message["data"] for message in again]


def test_directories_of_founders_that_no_entry_names_outlive_a_snapshot(three: Snapped) -> None:
    """CL-105, CL-132: each founder knows them by itself, and an earlier release could not read them in a snapshot."""
    three.leave_behind(3)
    three.run(lambda: agreed(three))
    core = three.members[3].group.raft.core
    assert core.log.first_index > 1, "it came by a snapshot"
    assert dict(core.configuration.directories) == DIRECTORIES


def test_a_hand_back_that_the_snapshot_stands_for_is_done(three: Snapped) -> None:
    """PA-23: nobody waits for it, but it went to the leader twice a second for a minute, and kept the group awake."""
    popped = three.popped(3, b"orders")
    three.cut.add(3)
    three.members[3].group.hand_back(popped.lease_id)
    three._turn(3)
    (forwarded,) = [said for sender, _, said in three._mail if sender == 3 and isinstance(said, bytes)]
    three.members[1].group.hear(3, decode_call(forwarded), three.members[1].group.raft.clock.now_us())
    three.leave_behind(3)
    three.run(lambda: agreed(three))
    assert not three.members[3].group.calls


def test_the_old_state_goes_once_the_group_reads_the_new_one(three: Snapped, monkeypatch: pytest.MonkeyPatch) -> None:
    """M-61: removed later; not while the flip is only flushed and the group still reads what it had."""
    side, store = three.sides[3], three.members[3].group.machine.store
    flush, read = side.engine.flush, []

    def look_and_flush() -> None:
        read.append((side.room.stage_of(LIFE), len(list(store.committed().iterate(b"", b"\xff")))))
        flush()

    monkeypatch.setattr(side.engine, "flush", look_and_flush)
    three.leave_behind(3)
    three.run(lambda: agreed(three) and not side.incarnations.leftovers())
    assert [stage for stage, _ in read] == [Stage.WHOLE, Stage.FLIPPED]
    assert all(rows > 0 for _, rows in read)


def test_a_member_that_falls_behind_again_and_again_is_sent_the_state_each_time(three: Snapped) -> None:
    """CL-112: what it had before does not fill the room for what comes, as 16 states in a minute did."""
    for _ in range(LEFTOVERS_MAX + 4):
        three.leave_behind(3)
        three.run(lambda: agreed(three))


def test_a_lost_connection_costs_what_was_under_way(three: Snapped) -> None:
    """CL-112: it goes on, and does not begin again."""
    three.leave_behind(3)
    three.step()
    three.wire.clear()
    three.run(lambda: agreed(three))
    assert three.sides[3].incarnations.current(LIFE) == 2


def test_another_leaders_offer_takes_the_place_of_a_half_made_install(three: Snapped) -> None:
    """M-61: what was half made is left over, and removed."""
    three.leave_behind(3)
    three.step()
    three.carry()  # the offer
    assert three.sides[3].incarnations.leftovers() == [(LIFE, 2)]
    three.hand_over(1, 2)
    core = three.members[2].group.raft.core
    core.log.forget_through(core.applied_index)
    three.run(lambda: agreed(three))
    assert three.sides[3].incarnations.current(LIFE) in (3, 1)
    three.run(seconds=RANGE_DELETE_EVERY_S + 1)
    assert three.sides[3].incarnations.leftovers() == []


def test_a_slow_receivers_view_is_given_up_and_the_member_named_again(three: Snapped) -> None:
    """M-61: 60 s after its last chunk."""
    three.leave_behind(3)
    three.step()
    assert three.members[1].group.raft.core.takes_snapshot(3)
    for _ in range(round(VIEW_LIVES_S) + 2):
        three.cut = {3}
        three.pass_time(1.0)
        three.step()
        three.wire.clear()
    assert SnapshotEnded(3, 0) in three.sides[1].events
    three.cut.clear()
    three.run(lambda: agreed(three))


def test_a_member_that_caught_up_by_itself_lets_the_transfer_end(three: Snapped) -> None:
    """It was slow, not behind: what it holds shows by what it accepts."""
    three.leave_behind(3)
    three.step()
    three.carry()
    core = three.members[1].group.raft.core
    assert core.takes_snapshot(3)
    core.end_snapshot(3, 0)
    three.sides[1].room.work(three.now_s)
    assert not three.sides[1].room._sendings


def test_only_so_many_transfers_at_once() -> None:
    """M-61: bounded, at both ends."""
    three = Snapped()
    three.elect(1)
    three.pushed(1, b"orders", b"first")
    offer = Offer(
        bytes(16), 1, Head(50, 1, 5, 1, 0, encode_configuration(Configuration(NODES)), b"d"), 1)
    room = three.sides[3].room
    room._groups = lambda life: three.members[3].group
    for life in range(RECEIVING_MAX + 1):
        room.hear(1, life, encode(offer), 0.0)
    said = [decode(word) for _, _, word in room.outgoing]
    assert said == [*[Wanted(bytes(16), 1, True)] * RECEIVING_MAX, Refused(bytes(16), Refusal.BUSY)]
    room = three.sides[1].room
    three.cut.update((2, 3))
    three.forget()
    room._sendings = dict.fromkeys((9, peer) for peer in range(SENDING_MAX))  # type: ignore[assignment]
    room.send_to(LIFE, 3, 0.0)
    assert len(room._sendings) == SENDING_MAX


def test_words_about_what_is_not_known_are_refused_and_not_believed(three: Snapped) -> None:
    room = three.sides[3].room
    stray = Chunk(bytes(16), 1, checksum(bytes(16), 1, b"x"), b"x")
    room.hear(1, LIFE, encode(stray), 0.0)
    room.hear(1, LIFE, encode(Installed(bytes(16), 5)), 0.0)
    room.hear(1, LIFE, encode(Wanted(bytes(16), 5, False)), 0.0)
    assert [decode(word) for _, _, word in room.outgoing] == [Refused(bytes(16), Refusal.UNKNOWN)]
    with pytest.raises(MalformedSnapshot):
        room.hear(1, LIFE, b"what?", 0.0)


def test_a_damaged_chunk_ends_the_transfer_and_the_next_one_is_whole(three: Snapped) -> None:
    """CL-112: checked chunk by chunk."""
    three.leave_behind(3)
    spoilt = False
    for _ in range(200):
        three.step()
        while three.wire:
            sender, receiver, word = three.wire[0]
            said = decode(word)
            if isinstance(said, Chunk) and not spoilt:
                spoilt = True
                three.wire[0] = sender, receiver, encode(Chunk(said.transfer, said.number, said.checksum, b"spoilt"))
            three.carry()
        three.take_word_of_laggards()
        three.pass_time(0.1)
    assert spoilt
    assert SnapshotEnded(3, 0) in three.sides[1].events
    assert agreed(three)
    assert three.sides[3].incarnations.current(LIFE) != 1


class BusyEngine(MemoryEngine):
    """Refuses every other write."""

    writes = 0

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        self.writes += 1
        if self.writes % 2:
            raise StoreBusy("write stall")
        super().write(prefix, batch)


def test_a_busy_store_holds_the_install_back_and_loses_nothing(three: Snapped) -> None:
    """M-4: the same batch again."""
    side = three.sides[3]
    three.leave_behind(3)
    busy = BusyEngine()
    busy.__dict__.update(side.engine.__dict__)
    side.incarnations._engine = busy
    three.run(lambda: agreed(three), seconds=100.0)
    assert side.incarnations.current(LIFE) != 1


@given(st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None)
def test_any_order_of_loss_doubling_and_restart_ends_in_the_same_state(seed: int) -> None:
    """M-61, CL-112: the receiver's install is lost again and again, its words too; in the end all are one, and no row
    is left over."""
    dice = Random(seed)
    three = Snapped()
    three.elect(1)
    three.pushed(1, b"orders", b"first")
    three.leave_behind(3, pushes=dice.randint(1, 60))
    restarts = dice.randint(0, 3)
    for _ in range(STEPS_MAX):
        three.step()
        three.take_word_of_laggards()
        if agreed(three):
            break
        while three.wire and dice.random() < 0.7:
            if dice.random() < 0.15:
                three.wire.pop(dice.randrange(len(three.wire)))
                continue
            if dice.random() < 0.1:
                three.wire.append(three.wire[0])
            three.carry(dice.randrange(min(len(three.wire), 3)))
        side = three.sides[3]
        if restarts and dice.random() < 0.05 and not side.member.group.raft.core._restore:
            restarts -= 1
            three.sides[3] = Side(3, side.member, three.now_s)  # what was half made is known by its row alone
            three.sides[3]._dice = side._dice
        if dice.random() < 0.3:
            three.pass_time(0.1)
    assert agreed(three)
    three.run(seconds=RANGE_DELETE_EVERY_S + 10)
    side = three.sides[3]
    assert side.incarnations.leftovers() == []
    lives = {key[:7] for key, _ in side.engine.iterate(b"\x01", b"\x02")}
    assert lives == {side.member.group.machine.store._prefix}


def test_a_group_that_was_stopped_holds_no_place(three: Snapped) -> None:
    """README 22: it is not flipped any more, and others are not kept from it."""
    three.leave_behind(3)
    side = three.sides[3]
    three.step()
    while three.wire:
        three.carry()
    assert side.room.stage_of(LIFE) is Stage.ARRIVING
    side.member.group.stop("retry")
    three.step()
    assert side.room.stage_of(LIFE) is None
    three.run(seconds=5.0)
    assert side.events == []
    assert side.incarnations.current(LIFE) == 1


def test_a_full_disk_takes_no_second_state(three: Snapped) -> None:
    """CL-127: it frees nothing until the first one is removed."""
    side = three.sides[3]
    side.room._has_room = lambda: False
    three.leave_behind(3)
    three.run(seconds=5.0)
    assert not agreed(three)
    side.room._has_room = lambda: True
    three.run(lambda: agreed(three))
