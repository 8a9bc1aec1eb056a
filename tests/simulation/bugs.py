"""Known bugs, each put back on its own, so that the rules and the checkers prove themselves by finding it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from queen_node.chores import ChoreList, Chores
from queen_node.commands import Kind, KvOp
from queen_node.group import Group, GroupSettings
from queen_node.opening import first_members
from queen_node.snapshots import Install, Snapshots, Stage
from queen_node.state.keys import META, TIMER
from queen_node.state.machine import Answer, Application, Machine
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.store import Meta, Store
from raft.clock import Estimate, GroupClock, TimeSource
from raft.configurations import decode_configuration
from raft.core import Core
from raft.group import Pumped, RaftGroup
from raft.leadership import Leadership
from raft.messages import HardState, Message
from raft.quorum import Configuration
from tests.simulation.parts import Parts
from tests.simulation.transaction_bugs import (
    AcksUnfenced,
    CancelsNothing,
    GivesUpSooner,
    GuardsNothing,
    LendsForLess,
    LosesTheDead,
    RollsBackNoCounts,
    RollsBackNoTimers,
    WaitsNoLonger,
)
from tests.unit.raft import mutants


def _without_vote(hard_state: HardState) -> HardState:
    """CL-121: the vote of a term is not read back after a crash."""
    return HardState(hard_state.term, 0, hard_state.commit_index)


class PromisesEarly(RaftGroup):
    """Figure 2: what promises a write leaves with it, not after it."""

    def pump(self) -> Pumped | None:
        pumped = super().pump()
        if pumped is None:
            return None
        early = [message for write in pumped.writes for message in write.send_after]
        for write in pumped.writes:
            write.send_after = ()
        return Pumped(pumped.writes, [*pumped.send, *early], pumped.reads, pumped.to_apply, pumped.left_behind)


class _FireThatKeeps(Application):
    def apply_next(self) -> tuple[bytes, int, Answer]:
        store = self.step.store
        if self.commands[self._next][0] != Kind.FIRE:
            return super().apply_next()
        forget = store.delete

        def keep_timers(key: bytes) -> None:
            if not key.startswith(TIMER):
                forget(key)

        store.delete = keep_timers  # type: ignore[method-assign]
        try:
            return super().apply_next()
        finally:
            del store.delete


class FiresWithoutForgetting(Machine):
    """G-M5: the message is appended, and the timer's row stays."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        return _FireThatKeeps(
            application.step, application.commands, index=index, term=term, outcomes=application._outcomes,
            repeats=application.repeats)


class _FiresByFlag(ChoreList):
    _in_flight = False

    def take_due(self, now_us: int) -> Chores:
        chores = super().take_due(now_us)
        if self._in_flight and chores.fires:
            self.want_fire()
            return chores._replace(fires=False)
        self._in_flight = self._in_flight or chores.fires
        return chores

    def applied(self, index: int) -> None:
        if any(flight.chores.fires and flight.log_index <= index for flight in self._flights):
            self._in_flight = False
        super().applied(index)


class RemembersFiresByFlag(Group):
    """DESIGN, one truth: a flag says that a fire is in flight, and nobody takes it back when leadership is lost."""

    def __init__(self, raft: RaftGroup, machine: Machine, settings: GroupSettings) -> None:
        super().__init__(raft, machine, settings)
        self._chores = _FiresByFlag(
            firing=settings.firing, sweep_every_us=settings.sweep_every_us, sweep_pause_us=settings.sweep_pause_us)
        self.look_at_deadlines()


class AppliesRepeats(Machine):
    """CL-27: a call that went again after its leader was lost is carried out again, though its first copy was."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        application.repeats = ()
        return application


class FollowsTheWallClock(GroupClock):
    """M-20: the leader steers towards its wall clock."""

    __slots__ = ("_wall_us",)

    def __init__(self, source: TimeSource, *known: Any) -> None:
        self._wall_us = source.wall_us
        super().__init__(source, *known)

    def now_us(self) -> int:
        return super().now_us() if self.offset_us is None else max(self.last_stamp_us, self._wall_us())


class EstimatesByTheWallClock(GroupClock):
    """M-21: a follower adds what its wall clock says has passed."""

    __slots__ = ("_base_wall_us", "_wall_us")

    def __init__(self, source: TimeSource, *known: Any) -> None:
        self._wall_us = source.wall_us
        self._base_wall_us = source.wall_us()
        super().__init__(source, *known)

    def _rest_on(self, clock_us: int) -> None:
        self._base_wall_us = self._wall_us()
        super()._rest_on(clock_us)

    def estimate(self) -> Estimate:
        if self.offset_us is not None:
            return super().estimate()
        gone_us = max(0, self._wall_us() - self._base_wall_us)
        return Estimate(max(self.last_stamp_us, self._base_us + gone_us), self._is_weak)


class BelievesTheWallAfterReboot(GroupClock):
    """M-22: an estimate that rests on a wall clock, across a reboot, counts as a strong one."""

    __slots__ = ()

    def __init__(self, source: TimeSource, estimate: Estimate, *known: Any) -> None:
        super().__init__(source, Estimate(estimate.clock_us, is_weak=False), *known)


class DigestsInOrderOfWriting(Store):
    """M-81: the digest takes the rows of a batch in the order in which they came to be written."""

    def commit(
        self, *, index: int, term: int, stamp_us: int, offset: tuple[int, int] | None = None,
        configuration: bytes | None = None,
    ) -> None:
        self._encode_changed_rows()
        packed = msgspec.msgpack.encode(list(self._batch.items()))
        digest = hashlib.blake2b(self.meta.digest + packed, digest_size=16).digest()
        offset_term, offset_us = offset or (self.meta.offset_term, self.meta.offset_us)
        self.meta = Meta(index, term, stamp_us, digest, offset_term, offset_us)
        self._batch[META] = msgspec.msgpack.encode(self.meta)
        self.engine.write(self._prefix, self._batch)
        self._batch, self._batch_order, self._batch_ordered = {}, [], 0


class FlipsUnflushed(Snapshots):
    """M-61: the log is told that it starts behind a state that is not flushed."""

    def _flip(self, install: Install) -> None:
        super()._flip(install)
        self.flushed([(install, install.stage)])


class FlipsToHalf(Snapshots):
    """CL-112: a state is flipped to when its first rows are there."""

    def _look_if_whole(self, install: Install) -> None:
        if install.stage is Stage.ARRIVING and install.reader.meta is not None:
            install.stage = Stage.WHOLE


class RemembersAcrossTheFlip(Machine):
    """M-61: rows that were read before the flip are still believed after it."""

    def reopen(self, incarnation: int) -> None:
        store = self.store
        kept = dict(store._rows), dict(store._young), dict(store.positions), self.outcomes._kept
        super().reopen(incarnation)
        store._rows, store._young, store.positions, self.outcomes._kept = kept


class CountsLearners(Core):
    """CL-104: what a learner holds counts as if it voted."""

    def _advance_commit(self, leadership: Leadership) -> None:
        held = {peer: progress.match_index for peer, progress in leadership.progress.items()}
        index = Configuration(self.configuration.members).agreed(held | {self.node_id: self.log.flushed_index})
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self._commit_to(index)


class CountsTheNextDisk(RaftGroup):
    """CL-105: what a disk says counts as the word of the lost one that it has replaced."""

    def step(self, message: Message, directory_id: bytes = b"") -> None:
        super().step(message)


def _as_founded(
    node_id: int, directory_id: bytes, of_cell: Configuration, founding: TenantRow | None, members: MembersRow,
) -> Configuration:
    """CL-105: a node that lost its disk and was added again votes, empty, in the groups that it once founded."""
    if founding is None or not founding.configuration:
        return first_members(node_id, directory_id, of_cell, founding, members)
    return decode_configuration(founding.configuration).named({})


class IgnoresVersions(Machine):
    """KV-31: a put that names a version writes over any other, and one that wants none over a row."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.KV:
                command[2] = [
                    [KvOp.PUT, *operation[1:5], None, operation[6]]
                    if operation[0] in (KvOp.PUT, KvOp.PUT_IF_ABSENT) else operation for operation in command[2]]
        return application


class CountsRepeats(Machine):
    """G-K4, CL-27: a call of key/value operations that went again is carried out again."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        application.repeats = tuple(
            place for place in application.repeats if application.commands[place][0] != Kind.KV)
        return application


class CarriesOutHalf(Machine):
    """KV-14: of some calls only the first write is made."""

    def begin(self, *, index: int, term: int, data: bytes) -> Application:
        application = super().begin(index=index, term=term, data=data)
        for command in application.commands:
            if command[0] == Kind.KV and index % 4 == 0:
                command[2] = [
                    operation if place == 0 or operation[0] != KvOp.PUT else [KvOp.GET, *operation[1:3]]
                    for place, operation in enumerate(command[2])]
        return application


def _other_life(life: int) -> int:
    """M-70: what the second tenant's group says is heard by the first one's."""
    return 1 if life == 2 else life


BUGS: dict[str, Parts] = {
    "a vote is forgotten across a crash": Parts(read_hard_state=_without_vote),
    "an acceptance leaves before the fsync": Parts(new_raft_group=PromisesEarly),
    "more is committed than an append proves": Parts(new_core=mutants.CommitsUnproven),
    "apply runs past the own disk": Parts(new_core=mutants.AppliesPastItsDisk),
    "votes go to any log": Parts(new_core=mutants.VotesForAnyLog),
    "a read is served without a round": Parts(new_core=mutants.ServesReadsUnasked),
    "a fire does not forget its timer": Parts(new_machine=FiresWithoutForgetting),
    "a flag says that a fire is in flight": Parts(new_group=RemembersFiresByFlag),
    "a repeat is carried out again": Parts(new_machine=AppliesRepeats),
    "the wall clock steers the group clock": Parts(new_clock=FollowsTheWallClock),
    "a follower's estimate rests on its wall clock": Parts(new_clock=EstimatesByTheWallClock),
    "a rebooted machine's guess counts as knowledge": Parts(new_clock=BelievesTheWallAfterReboot),
    "the digest depends on the order of writing": Parts(new_store=DigestsInOrderOfWriting),
    "a log is told of a flip before it is flushed": Parts(new_snapshots=FlipsUnflushed),
    "half of a snapshot is flipped to": Parts(new_snapshots=FlipsToHalf),
    "a learner counts as a voter": Parts(new_core=CountsLearners),
    "the next disk's word counts as the lost one's": Parts(new_raft_group=CountsTheNextDisk),
    "who founded a group votes in it without its disk": Parts(first_members=_as_founded),
    "a version is not looked at": Parts(new_machine=IgnoresVersions),
    "a repeated call counts again": Parts(new_machine=CountsRepeats),
    "half of a key/value call is carried out": Parts(new_machine=CarriesOutHalf),
    "an ack in a transaction is not fenced": Parts(new_machine=AcksUnfenced),
    "a rolled back transaction counts all the same": Parts(new_machine=RollsBackNoCounts),
    "a rolled back transaction leaves its timers": Parts(new_machine=RollsBackNoTimers),
    "a cancel in a transaction takes nothing": Parts(new_machine=CancelsNothing),
    "a guard stops nothing": Parts(new_machine=GuardsNothing),
    "a permit is short": Parts(new_machine=LendsForLess),
    "a failing fire is tried once less": Parts(new_machine=GivesUpSooner),
    "the wait of a failing fire does not grow": Parts(new_machine=WaitsNoLonger),
    "a timer that failed for good leaves nothing": Parts(new_machine=LosesTheDead),
    "a message reaches another life": Parts(life_heard=_other_life),
    "memory outlives the state that it is of": Parts(new_machine=RemembersAcrossTheFlip),
}
