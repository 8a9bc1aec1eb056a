"""One group on this node: its core, what stands between it and the disk, and its clock.

Plain code around `Core`: a driver calls it, carries out what `pump` hands back, and reports writes that are on disk.
What the entries mean is the driver's business. Source: DESIGN, "Raft" and "The clock"; MECHANISMS M-3, M-13, M-20.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import cbor2
import msgspec

from raft.clock import NOTHING_KNOWN, Estimate, GroupClock, start_of_term_us
from raft.core import Core, Role
from raft.invariants import must
from raft.messages import Entry, HardState, Message
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
    """What the driver has to do now, in this order."""

    writes: Sequence[LogWrite]
    send: Sequence[Message]
    reads: Sequence[tuple[int, int]]
    to_apply: Sequence[Entry]


class RaftGroup:
    """Drives one core. `life`: which life of a tenant the group is (M-70)."""

    def __init__(self, *, life: int, core: Core, clock: GroupClock) -> None:
        self.life, self.core, self.clock = life, core, clock
        self._writes: deque[LogWrite] = deque()
        self._send: list[Message] = []
        self._led_term = 0

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
        return self.core.propose((data,)), self.core.term

    def read_index(self, request: int) -> None:
        """Ask for a read index; the answer comes in `Pumped.reads`. Raises NotLeader."""
        self.core.read_index(request)

    def step(self, message: Message) -> None:
        """Take in a peer's message."""
        self.core.step(message)

    def written(self, write: LogWrite) -> None:
        """A write is on the disk, fsynced. Reports come in the order of the writes."""
        must(bool(self._writes) and self._writes[0] is write, "a write was reported out of order", index=write.index)
        self._writes.popleft()
        self.core.written(write.term, write.index, write.hard_state)
        self._send.extend(write.send_after)

    def pump(self) -> Pumped | None:
        """What follows from all that happened since the last call; None: nothing."""
        self._notice_leadership()
        core = self.core
        if not core.has_ready() and not self._send:
            return None
        ready = core.ready()
        writes: tuple[LogWrite, ...] = ()
        send = [*self._send, *ready.send_now]
        self._send = []
        if ready.must_write and ready.hard_state is not None:
            clock_us, clock_offset_us = self.clock.to_record()
            write = LogWrite(
                GroupWrite(
                    life=self.life, hard_state=ready.hard_state, previous_term=ready.previous_term,
                    entries=ready.entries, clock_us=clock_us, clock_offset_us=clock_offset_us,
                ),
                term=core.log.last_term, index=core.log.last_index, hard_state=ready.hard_state,
                send_after=ready.send_after_write,
            )
            self._writes.append(write)
            writes = (write,)
        else:
            send.extend(ready.send_after_write)
        return Pumped(writes, send, ready.reads, ready.to_apply)

    def applied(self, index: int) -> None:
        """The state holds everything up to `index`; a lone voter needs the entries no longer."""
        self.core.applied(index)
        if self.core.configuration.is_alone(self.core.node_id):
            self.core.log.forget_through(index)

    def _notice_leadership(self) -> None:
        """On election fix the clock's offset for the term, before the blank entry that names it is appended."""
        core, clock = self.core, self.clock
        if core.role is not Role.LEADER:
            clock.follow()
            return
        if self._led_term == core.term:
            return
        self._led_term = core.term
        granted = [
            Estimate(clock_us, is_weak=False) if clock_us else NOTHING_KNOWN
            for voter, clock_us in core.vote_clocks.items() if voter != core.node_id
        ]
        start_us = start_of_term_us(clock.last_stamp_us, [clock.estimate(), *granted])
        core.blank_data = cbor2.dumps((BLANK_VERSION, clock.lead(core.term, start_us)))
