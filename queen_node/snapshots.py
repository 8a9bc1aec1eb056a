"""The snapshots of a node's groups, under way to members that need one and from leaders to this node (M-61, CL-112).

Plain code: what comes from peers and from groups goes in; words to peers (`outgoing`), events for groups (`events`) and
the wish for a flush (`begin_flush`) come out; `work` does a step of a millisecond or so and says when the next is due.
It is to be called, too, after anything else was. An actor carries out (`snapshot_actor.py`); a simulation drives the
same code.

An install: rows arrive under a fresh incarnation (ARRIVING); all are here and are flushed (WHOLE), while the group
serves on; it may be flipped to (DURABLE), and the group is asked (ASKED); one batch flips it (FLIPPING) and is flushed
(FLIPPED); the group goes on from there and its log is told (RESTORED). Only the last steps hold the group's entries
back. A crash before the flip is flushed may leave the old state or the new one; after it, the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import msgspec

from queen_node.broker import Unavailable
from queen_node.crash_points import Reached, passes
from queen_node.events import SnapshotEnded, SnapshotEvent, SnapshotFlipped, SnapshotWhole
from queen_node.group import Group
from queen_node.state.incarnations import Incarnations
from queen_node.state.snapshot_rows import MalformedRows, RowsReader, view
from queen_node.state.store import Engine, Meta, StoreBusy
from raft.configurations import decode_configuration, encode_configuration
from raft.snapshot import CHUNK_BYTES, Flawed, Pace, Receiving, Sending, judge_offer
from raft.snapshot_messages import (
    Chunk,
    End,
    Head,
    Installed,
    Offer,
    Refusal,
    Refused,
    SnapshotMessage,
    Wanted,
    decode,
    encode,
)

SENDING_MAX: Final = 2  # of a node at once: each pins a view of the store
RECEIVING_MAX: Final = 2
TRY_AGAIN_S: Final = 1.0  # after a refusal, or while too many are under way
BUSY_PAUSE_S: Final = 0.005  # before a batch that the store refused is tried again (M-4)
SMALL_REMOVAL_EVERY_S: Final = 0.02
RANGE_DELETE_EVERY_S: Final = 1.0  # M-5


class Stage(Enum):
    """How far an install is; see the module."""

    ARRIVING = auto()
    WHOLE = auto()
    DURABLE = auto()
    ASKED = auto()
    FLIPPING = auto()
    FLIPPED = auto()
    RESTORED = auto()


class Install:
    """A state on its way into this node. rows: of the chunk that is being written; ask_at_s: not before, once durable.
    """

    __slots__ = ("ask_at_s", "incarnation", "life", "reader", "receiving", "rows", "stage")

    def __init__(self, life: int, incarnation: int, receiving: Receiving) -> None:
        self.life, self.incarnation, self.receiving = life, incarnation, receiving
        self.reader = RowsReader()
        self.rows: dict[bytes, bytes | None] | None = None
        self.stage = Stage.ARRIVING
        self.ask_at_s = 0.0


class Snapshots:
    """One a node. groups: by life, None for one that is not here; new_id: 16 bytes that never came before."""

    def __init__(
        self, engine: Engine, incarnations: Incarnations, *, groups: Callable[[int], Group | None],
        new_id: Callable[[], bytes], now_s: float, chunk_bytes: int = CHUNK_BYTES, reached: Reached = passes,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """has_room: whether the disk can take a state beside those that it has (CL-127)."""
        self.outgoing: list[tuple[int, int, bytes]] = []  # (node, life, word); taken by the actor
        self.events: list[tuple[int, SnapshotEvent]] = []  # (life, event); taken by the actor
        self._engine, self._incarnations, self._groups, self._new_id = engine, incarnations, groups, new_id
        self._chunk_bytes, self._reached, self._has_room = chunk_bytes, reached, has_room
        self._sendings: dict[tuple[int, int], Sending] = {}  # by (life, node)
        self._not_before_s: dict[tuple[int, int], float] = {}  # of those who refused
        self._pace = Pace(now_s)
        self._installs: dict[int, Install] = {}
        self._installed: dict[int, tuple[bytes, int]] = {}  # life -> the last transfer that was, and its index
        self._told: dict[int, int] = {}  # life -> index behind which its log says that it starts; to be noted
        self._remove_at_s = now_s

    # --- what groups say

    def send_to(self, life: int, peer: int, now_s: float) -> bool:
        """A member needs what the leader's log on disk no longer holds. Asked again and again while it does; whether a
        transfer began."""
        place = life, peer
        group = self._groups(life)
        if group is None or place in self._sendings or len(self._sendings) >= SENDING_MAX:
            return False
        if self._not_before_s.get(place, 0.0) > now_s:
            return False
        core = group.raft.core
        seen = view(self._engine, life, self._incarnations.current(life), self._chunk_bytes)
        if seen is None or not core.begin_snapshot(peer):
            return False
        meta = seen.meta
        configuration = meta.configuration or encode_configuration(core.configuration_at(meta.applied_index).named({}))
        head = Head(
            meta.applied_index, meta.applied_term, meta.stamp_us, meta.offset_term, meta.offset_us, configuration,
            meta.digest)
        self._not_before_s.pop(place, None)
        self._sendings[place] = Sending(self._new_id(), core.term, head, seen.parts, now_s)
        return True

    def may_flip(self, life: int, *, allowed: bool, commit_index: int, now_s: float) -> None:
        """The group's answer to SnapshotWhole. One that stands for election is asked again."""
        install = self._installs[life]
        if allowed:
            install.stage = Stage.FLIPPING
        elif commit_index >= install.receiving.head.index:
            self._refuse(install, Refusal.NOT_NEEDED)
        else:
            install.stage, install.ask_at_s = Stage.DURABLE, now_s + TRY_AGAIN_S

    def log_told(self, life: int, index: int) -> None:
        """The group's log says on disk that it starts behind `index`: of a state flipped to now, or before a crash."""
        self._told[life] = index

    # --- what peers say

    def hear(self, peer: int, life: int, data: bytes, now_s: float) -> None:
        """A word of another node. Raises MalformedSnapshot for what no release of ours says."""
        word = decode(data)
        if isinstance(word, Offer):
            self._take_offer(peer, life, word, now_s)
        elif isinstance(word, Chunk | End):
            self._take_part(peer, life, word, now_s)
        else:
            self._take_answer(peer, life, word, now_s)

    def _take_answer(self, peer: int, life: int, word: Wanted | Installed | Refused, now_s: float) -> None:
        sending = self._sendings.get((life, peer))
        if sending is None or sending.transfer != word.transfer:
            return
        if isinstance(word, Wanted):
            sending.take(word, now_s)
        elif isinstance(word, Refused):
            self._end(life, peer, 0, now_s)
        elif word.index == sending.head.index:
            self._end(life, peer, word.index, now_s)

    def _end(self, life: int, peer: int, installed_index: int, now_s: float) -> None:
        del self._sendings[life, peer]
        if not installed_index:
            self._not_before_s[life, peer] = now_s + TRY_AGAIN_S
        self.events.append((life, SnapshotEnded(peer, installed_index)))

    def _take_offer(self, peer: int, life: int, offer: Offer, now_s: float) -> None:
        install, group = self._installs.get(life), self._groups(life)
        if install is not None and install.receiving.transfer == offer.transfer:
            self._say(peer, life, install.receiving.take_offer(now_s))
            return
        if self._tell_again(peer, life, offer.transfer):
            return
        if group is None or not _takes(group) or (install is not None and install.stage is not Stage.ARRIVING):
            self._say(peer, life, Refused(offer.transfer, Refusal.BUSY))
            return
        core = group.raft.core
        refusal = judge_offer(
            offer, sender=peer, leader=core.leader, term=core.term, leads=core.leader == core.node_id,
            commit_index=core.commit_index)
        if refusal is None:
            if install is not None:  # another leader's, or one that its sender has given up
                self._drop(install)
            refusal = self._begin(peer, life, offer, now_s)
        if refusal is not None:
            self._say(peer, life, Refused(offer.transfer, refusal))

    def _begin(self, peer: int, life: int, offer: Offer, now_s: float) -> Refusal | None:
        is_full = len(self._installs) >= RECEIVING_MAX or not self._has_room()
        if is_full or not self._incarnations.may_begin(life):
            return Refusal.BUSY
        try:
            incarnation = self._incarnations.begin(life)
        except StoreBusy:
            return Refusal.BUSY
        install = self._installs[life] = Install(life, incarnation, Receiving(peer, offer, now_s))
        self._say(peer, life, install.receiving.take_offer(now_s))
        return None

    def _take_part(self, peer: int, life: int, word: Chunk | End, now_s: float) -> None:
        install = self._installs.get(life)
        if install is None or install.receiving.transfer != word.transfer:
            if not self._tell_again(peer, life, word.transfer):
                self._say(peer, life, Refused(word.transfer, Refusal.UNKNOWN))
            return
        receiving = install.receiving
        try:
            if isinstance(word, Chunk):
                answer = receiving.take_chunk(word, now_s)
            else:
                answer = receiving.take_end(word, now_s)
                self._look_if_whole(install)
        except (Flawed, MalformedRows):
            self._refuse(install, Refusal.DAMAGED)
            return
        if answer is not None:
            self._say(peer, life, answer)

    def _tell_again(self, peer: int, life: int, transfer: bytes) -> bool:
        """Whether that transfer was installed: its sender may not have heard."""
        installed = self._installed.get(life)
        if installed is None or installed[0] != transfer:
            return False
        self._say(peer, life, Installed(*installed))
        return True

    def _look_if_whole(self, install: Install) -> None:
        """Raises MalformedRows if what came is not the state that was offered."""
        if install.stage is not Stage.ARRIVING or not install.receiving.is_whole:
            return
        head, stored = install.receiving.head, install.reader.meta
        meta = msgspec.msgpack.decode(stored, type=Meta) if stored is not None else Meta()
        if (meta.applied_index, meta.applied_term, meta.stamp_us, meta.digest) != (
            head.index, head.term, head.stamp_us, head.digest
        ):
            raise MalformedRows("the state is not the one that was offered")
        install.stage = Stage.WHOLE

    def _refuse(self, install: Install, reason: Refusal) -> None:
        receiving = install.receiving
        self._say(receiving.sender, install.life, Refused(receiving.transfer, reason))
        self._drop(install)

    def _drop(self, install: Install) -> None:
        """What was written of it is left over, and removed when its turn comes."""
        del self._installs[install.life]

    def _say(self, peer: int, life: int, word: SnapshotMessage) -> None:
        self.outgoing.append((peer, life, encode(word)))

    def stage_of(self, life: int) -> Stage | None:
        """How far an install of that group is; None: there is none."""
        install = self._installs.get(life)
        return None if install is None else install.stage

    # --- flushing

    @property
    def wants_flush(self) -> bool:
        """Whether an install waits for the store to be flushed."""
        return any(install.stage in (Stage.WHOLE, Stage.FLIPPED) for install in self._installs.values())

    def begin_flush(self) -> list[tuple[Install, Stage]]:
        """The store is about to be flushed: for whom."""
        return [(install, install.stage) for install in self._installs.values()
                if install.stage in (Stage.WHOLE, Stage.FLIPPED)]

    def flushed(self, waited: list[tuple[Install, Stage]]) -> None:
        """The flush is done."""
        for install, stage in waited:
            if self._installs.get(install.life) is not install or install.stage is not stage:
                continue
            head = install.receiving.head
            if stage is Stage.WHOLE:
                install.stage = Stage.DURABLE
            else:
                self._reached("snapshot.flip_flushed")
                install.stage = Stage.RESTORED
                self.events.append((install.life, SnapshotFlipped(install.incarnation, head.configuration)))

    # --- work, a little at a time

    def work(self, now_s: float) -> float | None:
        """Do a step; in how many seconds the next is due, if nothing is heard (0: at once, None: none is)."""
        waits = [self._install_some(now_s), self._send_some(now_s), self._remove_some(now_s)]
        return min((wait for wait in waits if wait is not None), default=None)

    def _install_some(self, now_s: float) -> float | None:
        """Write a chunk of each install, ask, flip, note which log was told: whatever is due."""
        waits: list[float] = []
        try:
            for life, index in list(self._told.items()):
                self._note_told(life, index)
            for install in list(self._installs.values()):
                if install.stage is Stage.FLIPPING:
                    self._flip(install)
                elif install.stage in (Stage.ARRIVING, Stage.DURABLE) and self._is_in_vain(install, now_s):
                    self._refuse(install, Refusal.NOT_NEEDED)
                elif install.stage is Stage.DURABLE:
                    self._ask(install, now_s)
                    waits.append(install.ask_at_s - now_s)
                elif install.stage is Stage.ARRIVING:
                    self._write_some(install)
                    waits.append(0.0 if install.receiving.next_write() is not None else TRY_AGAIN_S)
        except StoreBusy:
            return BUSY_PAUSE_S
        return min((wait for wait in waits if wait >= 0.0), default=None)

    def _is_in_vain(self, install: Install, now_s: float) -> bool:
        """Its sender has surely given it up, the log has got that far by itself, or the group does nothing more."""
        group, receiving = self._groups(install.life), install.receiving
        if group is None or not _takes(group) or group.raft.core.commit_index >= receiving.head.index:
            return True
        return install.stage is Stage.ARRIVING and receiving.is_late(now_s)

    def _ask(self, install: Install, now_s: float) -> None:
        if now_s >= install.ask_at_s:
            install.stage = Stage.ASKED
            head = install.receiving.head
            self.events.append((install.life, SnapshotWhole(head.index, head.term)))

    def _write_some(self, install: Install) -> None:
        receiving = install.receiving
        part = receiving.next_write()
        if part is None:
            return
        try:
            if install.rows is None:
                install.rows = install.reader.read(part)
            self._incarnations.write(install.life, install.incarnation, install.rows)
            install.rows = None
            self._reached("snapshot.chunk_written")
            self._say(receiving.sender, install.life, receiving.written())
            self._look_if_whole(install)
        except MalformedRows:
            self._refuse(install, Refusal.DAMAGED)

    def _flip(self, install: Install) -> None:
        self._reached("snapshot.before_flip")
        self._incarnations.flip(install.life, install.incarnation, install.reader.meta or b"")
        install.stage = Stage.FLIPPED
        self._reached("snapshot.after_flip")

    def _note_told(self, life: int, index: int) -> None:
        self._incarnations.told(life, index)
        del self._told[life]
        install = self._installs.get(life)
        if install is not None and install.stage is Stage.RESTORED and install.receiving.head.index == index:
            receiving = install.receiving
            self._installed[life] = receiving.transfer, receiving.head.index
            self._say(receiving.sender, life, Installed(*self._installed[life]))
            self._drop(install)
            self._reached("snapshot.installed")

    def _send_some(self, now_s: float) -> float | None:
        """What there is to say of each transfer, and at most one chunk, in turns."""
        wait: float | None = None
        pace_s = self._pace.wait_s(now_s)
        may_read = pace_s <= 0.0
        for (life, peer), sending in list(self._sendings.items()):
            group = self._groups(life)
            if group is None or not group.raft.core.takes_snapshot(peer) or group.raft.core.term != sending.leader_term:
                del self._sendings[life, peer]  # it leads no longer, or the member got there by itself
                continue
            if sending.is_late(now_s):
                self._end(life, peer, 0, now_s)
                continue
            while (word := sending.next_word(now_s, chunks=may_read)) is not None:
                self._say(peer, life, word)
                if isinstance(word, Chunk):
                    may_read = False
                    self._pace.spend(len(word.data))
                    self._sendings[life, peer] = self._sendings.pop((life, peer))  # the next one's turn
            due_s = sending.wait_s(now_s)
            if sending.may_read:
                due_s = min(due_s, self._pace.wait_s(now_s))
            wait = due_s if wait is None else min(wait, due_s)
        return wait

    def _remove_some(self, now_s: float) -> float | None:
        """Remove one of the states that no life names any more and no group reads: one that was flipped reads the old
        one until it goes on from the new one.
        """
        flipped = {life for life, install in self._installs.items() if install.stage in (Stage.FLIPPED, Stage.RESTORED)}
        arriving = {(life, install.incarnation) for life, install in self._installs.items()}
        left = [place for place in self._incarnations.leftovers() if place not in arriving and place[0] not in flipped]
        if not left:
            return None
        if now_s < self._remove_at_s:
            return self._remove_at_s - now_s
        try:
            was_large = self._incarnations.remove(*left[0])
        except StoreBusy:
            return BUSY_PAUSE_S
        pause_s = RANGE_DELETE_EVERY_S if was_large else SMALL_REMOVAL_EVERY_S
        self._remove_at_s = now_s + pause_s
        return pause_s


def _takes(group: Group | None) -> bool:
    """Whether the group can be flipped to another state at all: not one that was stopped."""
    return group is not None and group.unavailable is None


def carry_out(group: Group, event: SnapshotEvent, snapshots: Snapshots, now_s: float) -> None:
    """What a group does when it is told of a snapshot; between two entries, and then a turn of its own follows."""
    core, life = group.raft.core, group.raft.life
    match event:
        case SnapshotEnded(peer, index):
            core.end_snapshot(peer, index)
        case SnapshotWhole(index, term):
            allowed = _takes(group) and core.begin_restore(index, term)
            snapshots.may_flip(life, allowed=allowed, commit_index=core.commit_index, now_s=now_s)
        case SnapshotFlipped(incarnation, configuration):
            _restore(group, incarnation, configuration)


def _restore(group: Group, incarnation: int, configuration: bytes) -> None:
    """The state is another one: what is kept in memory comes from there, and calls of this node's clients are answered
    whose entry it stands for. That they were applied is known, and not with what answer, as when a repeat was.
    """
    machine, calls = group.machine, group.calls
    machine.reopen(incarnation)
    meta = machine.store.meta
    members = decode_configuration(configuration)
    if not meta.configuration:  # no entry named any: which directories the founders had each of them knows by itself
        members = members.named(dict(group.raft.core.configuration.directories))
    group.raft.restore(
        meta.applied_index, meta.applied_term, members, stamp_us=meta.stamp_us,
        offset=(meta.offset_term, meta.offset_us))
    group.look_at_deadlines()
    for call in [call for call in calls.writes.values() if call.sent_term]:
        if group.was_applied(call.request_id, call.command, meta.stamp_us):
            del calls.writes[call.request_id]
            call.slot.answer(Unavailable("timeout"))
    for pop in [pop for pop in calls.pops.values() if pop.sent_term]:
        if machine.outcomes.holds(pop.request_id, meta.stamp_us):
            del calls.pops[pop.request_id]
            if not pop.gone:
                pop.slot.answer(Unavailable("timeout"))
            group.hand_back(pop.lease_id)
