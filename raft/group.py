"""One group on this node: its core, what stands between it and the disk, and its clock.

Plain code around `Core`: a driver calls it, carries out what `pump` hands back, and reports writes that are on disk.
What the entries mean is the driver's business. Source: DESIGN, "Raft" and "The clock"; MECHANISMS M-3, M-13, M-20.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

import cbor2
import msgspec

from raft import quiet
from raft.clock import Estimate, GroupClock, start_of_term_us
from raft.core import Core, Role
from raft.invariants import must
from raft.messages import NUMBER_MAX, Append, Entry, EntryKind, HardState, Message, Vote
from raft.quorum import Configuration
from raft.wal import GroupWrite

BLANK_VERSION = 1


class LogWrite(msgspec.Struct, eq=False):
    """A write on its way to the disk, and the messages that are promises about it."""

    group_write: GroupWrite
    term: int
    index: int
    hard_state: HardState | None
    send_after: tuple[Message, ...]


class Pumped(msgspec.Struct, frozen=True):
    """What the driver has to do now, in this order.

    left_behind: as in Ready; `laggards.supply` serves them from the log on disk.
    """

    writes: Sequence[LogWrite]
    send: Sequence[Message]
    reads: Sequence[tuple[int, int]]
    to_apply: Sequence[Entry]
    left_behind: Sequence[tuple[int, int]]


def offset_of(data: bytes) -> int | None:
    """The clock offset in a blank entry, µs (M-20); None when it holds none that this release can read."""
    try:
        value = cbor2.loads(data) if data else None
    except (cbor2.CBORError, RecursionError):
        return None
    if not isinstance(value, list) or len(value) != 2 or value[0] != BLANK_VERSION or type(value[1]) is not int:
        return None
    return value[1] if abs(value[1]) <= NUMBER_MAX else None


class RaftGroup:
    """Drives one core.

    life: which life of a tenant the group is (M-70). stamp_of: the stamp of an entry of commands, µs of the group
    clock, 0 for one that cannot be read; whether such an entry is refused is decided where it is applied. offset:
    (term, clock offset) of the last blank entry applied, from the state: without it a member that restarts within a
    term would go by its own oscillator until the next one (M-21); (0, 0) when the state knows none.
    """

    def __init__(
        self, *, life: int, core: Core, clock: GroupClock, stamp_of: Callable[[bytes], int],
        offset: tuple[int, int] = (0, 0),
    ) -> None:
        self.life, self.core, self.clock = life, core, clock
        self._stamp_of = stamp_of
        self._offset_term, self._offset_us = offset
        self._learn_offset(core.log.after(core.applied_index))
        self._writes: deque[LogWrite] = deque()
        self._send: list[Message] = []
        self._led_term = 0
        self._asks_in_periods = quiet.ELECTED_PERIODS
        self._times_asked = 0

    @property
    def may_propose(self) -> bool:
        """Whether this node leads and has applied the blank entry of its term (CL-24)."""
        core = self.core
        return core.role is Role.LEADER and 0 < core.term_start_index <= core.applied_index and not core.transfer_target

    @property
    def unwritten_count(self) -> int:
        """Entries, or batches of them, that are not on this disk yet."""
        return len(self._writes) + (self.core.log.last_index > self.core.log.submitted_index)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append one entry of commands: (index, term). Raises NotLeader."""
        self._asks_in_periods = quiet.USED_PERIODS + self._turn
        return self.core.propose((data,)), self.core.term

    def read_index(self, request: int) -> None:
        """Ask for a read index; the answer comes in `Pumped.reads`. Raises NotLeader."""
        self._asks_in_periods = quiet.USED_PERIODS + self._turn
        self.core.read_index(request)

    def supply(self, peer: int, previous: tuple[int, int], entries: Sequence[Entry]) -> bool:
        """Send a member that was left behind what it needs; returns whether it still did."""
        return self.core.supply(peer, previous, entries)

    def step(self, message: Message, directory_id: bytes = b"") -> None:
        """Take in a peer's message. directory_id: of the node that sent it; empty: not known.

        An answer counts as that of the member whom the configuration names. From a disk that has taken that one's place
        under its id, which this member may not have heard of yet, it is a stranger's: that disk knows nothing of what
        the lost one voted for and acknowledged (CL-105).
        """
        core = self.core
        if not (message.is_request or core.configuration.is_member_by(message.sender, directory_id)):
            return
        if type(message) is Vote:
            core.own_clock = self.clock.estimate_for(message.last_term)
        core.step(message)
        if type(message) is Append and message.term == core.term and message.entries:
            if core.term != self._offset_term:
                self._learn_offset(message.entries)
            self._hear_stamp(message.entries[-1])

    # When it sleeps (`quiet`)

    @property
    def _turn(self) -> int:
        return self.life % quiet.ASK_SPREAD_PERIODS

    def tick(self, live: Collection[int], periods: int = 1) -> None:
        """Raft's unit of time has passed. live: nodes that answer, with whom the group may sleep; none: it never does.
        periods: heartbeat periods since the last tick.
        """
        core = self.core
        core.tick()
        if not live or core.role is not Role.LEADER:
            return
        self._asks_in_periods -= periods
        if self._asks_in_periods <= 0 and quiet.is_level(core, live):
            again_periods = quiet.ASK_AGAIN_PERIODS << min(self._times_asked, quiet.ASK_DOUBLED_MAX)
            self._asks_in_periods = again_periods + self._turn
            self._times_asked += 1
            quiet.ask(core, live)

    def rests(self, live: Collection[int]) -> bool:
        """Whether it agreed to sleep; of a leader, whether all have."""
        quiet.rest_if_agreed(self.core, live)
        return self.core.rests

    @property
    def is_settled(self) -> bool:
        """Whether nothing is still to be written, sent or applied."""
        return not (self._writes or self._send or self.core.has_ready())

    def wake(self, silent_ticks: int) -> None:
        """See `Core.wake`."""
        self._asks_in_periods, self._times_asked = quiet.ELECTED_PERIODS, 0
        self.core.wake(silent_ticks)

    def hear_boottime(self, node_id: int, boottime_us: int) -> None:
        """A node frame, just read, said what its sender's BOOTTIME was when it was sent (M-21).

        It tells the group clock when that node leads the current term and this one holds the term's blank entry.
        """
        core, clock_us = self.core, self._offset_us + boottime_us
        if core.leader == node_id != core.node_id and core.term == self._offset_term and 0 < clock_us <= NUMBER_MAX:
            self.clock.hear(core.term, clock_us)

    def written(self, write: LogWrite) -> None:
        """A write is on the disk, fsynced. Reports come in the order of the writes."""
        must(bool(self._writes) and self._writes[0] is write, "a write was reported out of order", index=write.index)
        self._writes.popleft()
        self.core.written(write.term, write.index, write.hard_state)
        self._send.extend(write.send_after)

    def pump(self) -> Pumped | None:
        """What follows from all that happened since the last call; None: nothing."""
        core = self.core
        if core.role is not Role.LEADER:
            self.clock.follow()
        elif self._led_term != core.term:
            self._begin_to_lead()
        if not core.has_ready() and not self._send:
            return None
        ready = core.ready()
        writes: tuple[LogWrite, ...] = ()
        send = [*self._send, *ready.send_now]
        self._send = []
        if ready.must_write and ready.hard_state is not None:
            clock_us, clock_offset_us = self.clock.to_record(core.log.last_term)
            write = LogWrite(
                GroupWrite(
                    life=self.life, hard_state=ready.hard_state, previous_term=ready.previous_term,
                    entries=ready.entries, clock_us=clock_us, clock_offset_us=clock_offset_us,
                    restart_after=ready.restart_after,
                ),
                term=core.log.last_term, index=core.log.last_index, hard_state=ready.hard_state,
                send_after=ready.send_after_write,
            )
            self._writes.append(write)
            writes = (write,)
        else:
            send.extend(ready.send_after_write)
        if ready.to_apply and self.clock.offset_us is None:  # a leader has seen its own, and its log's when elected
            self._see_stamps(ready.to_apply)
        return Pumped(writes, send, ready.reads, ready.to_apply, ready.left_behind)

    def applied(self, index: int) -> None:
        """The state holds everything up to `index`."""
        self.core.applied(index)
        self.core.forget_applied()

    def restore(
        self, index: int, term: int, configuration: Configuration, *, stamp_us: int, offset: tuple[int, int]
    ) -> None:
        """The state was flipped to a snapshot, which is flushed (M-61); `Core.begin_restore` allowed it.

        stamp_us: of the last entry that the snapshot stands for. offset: as at a start. The next write carries that the
        log starts behind `index`; what that state holds is durable without it.
        """
        self.core.restore(index, term, configuration)
        self.clock.see_stamp(stamp_us)
        if offset[0] > self._offset_term:
            self._offset_term, self._offset_us = offset

    def _begin_to_lead(self) -> None:
        """On election fix the clock's offset for the term, before the blank entry that names it is appended.

        What the log holds beyond the state has stamps too, and all of it will be applied: none may be ahead of the
        new term.
        """
        core, clock = self.core, self.clock
        self._led_term = core.term
        self._see_stamps(core.log.after(core.applied_index))
        granted = [Estimate(*clock) for voter, clock in core.vote_clocks.items() if voter != core.node_id]
        voters = len(core.configuration.electors)
        own = clock.estimate_for(core.log.last_term)
        start_us = start_of_term_us(clock.last_stamp_us, [own, *granted], voters)
        core.blank_data = cbor2.dumps((BLANK_VERSION, clock.lead(core.term, start_us)))

    def _hear_stamp(self, entry: Entry) -> None:
        """A leader's stamp is a sample of its clock, the first that a new member gets: without it a majority of them
        would take their wall clocks for the time, though the term before has handed out deadlines already.
        """
        if entry.kind is EntryKind.COMMANDS and entry.term == self.core.term:
            stamp_us = self._stamp_of(entry.data)
            if 0 < stamp_us <= NUMBER_MAX:
                self.clock.hear(self.core.term, stamp_us)

    def _see_stamps(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.COMMANDS:
                self.clock.see_stamp(self._stamp_of(entry.data))

    def _learn_offset(self, entries: Sequence[Entry]) -> None:
        """The offset of the latest term whose blank entry is among these. A constant of the term, so also one that is
        cut again told the truth.
        """
        for entry in entries:
            if entry.kind is EntryKind.BLANK and entry.term > self._offset_term:
                offset_us = offset_of(entry.data)
                if offset_us is not None:
                    self._offset_term, self._offset_us = entry.term, offset_us
