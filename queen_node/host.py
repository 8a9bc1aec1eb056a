"""The actor of all groups of this node: runs each in a task of its own, and those that come later; ticks those that are
awake.

What goes to which group, and when one begins, is decided in `groups`; who sleeps, in `sleeper` and `sleepers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import trio

from queen_node.antechamber import Antechamber
from queen_node.events import DUE, TICK, Event, HeardClock
from queen_node.group_actor import GroupActor
from queen_node.groups import Groups
from queen_node.peer_calls import QuietCall
from queen_node.sleepers import Sleepers, Woken
from queen_node.state.rows import TenantRow
from raft.peer_frames import NodeFrame

LATE_CALLS_EVERY_S = 0.5  # how late a call of a tenant without a group may learn that its time is over


class Host(Groups[GroupActor]):
    """See `Groups`. Implements `peering.Ears`, `sleeper.Bed`, `sleepers.Lives`."""

    def __init__(
        self, node_id: int, open_actor: Callable[[int, TenantRow | None], GroupActor], antechamber: Antechamber,
        make_sleepers: Callable[[Host], Sleepers] | None = None,
    ) -> None:
        """make_sleepers: without it no group sleeps. With it all but group 0, which never does, begin asleep."""
        self._nursery: trio.Nursery | None = None
        self._waits = trio.Event()  # something is there that may be given up
        super().__init__(node_id, open_actor, antechamber, trio.current_time)
        self._awake = dict(self.groups)
        self.sleepers = make_sleepers(self) if make_sleepers is not None else None
        for actor in [] if self.sleepers is None else self.groups.values():
            if actor is not self.cell:
                actor.sleeper.begin(self)

    async def run(self) -> None:
        """Run the groups, those that come later too, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for actor in self.groups.values():
                self._nursery.start_soon(actor.run)
            self._nursery.start_soon(self._give_up_late_calls)

    def begun(self, actor: GroupActor) -> None:
        """See `Groups`."""
        self._awake[actor.group.raft.life] = actor
        if self.sleepers is not None:
            actor.sleeper.bed = self
        if self._nursery is not None:
            self._nursery.start_soon(actor.run)

    def something_waits(self) -> None:
        """See `Groups`."""
        self._waits.set()

    async def _give_up_late_calls(self) -> None:
        while True:
            await self._waits.wait()
            await trio.sleep(LATE_CALLS_EVERY_S)
            if not self.give_up_late():
                self._waits = trio.Event()

    # --- who is awake, and who sleeps

    def awake(self) -> Collection[GroupActor]:
        """See `Groups`."""
        return self._awake.values()

    def asleep(self) -> Iterable[GroupActor]:
        """See `Groups`."""
        return (actor for life, actor in self.groups.items() if life not in self._awake)

    def tick(self) -> None:
        """Raft's unit of time has passed."""
        if self.sleepers is not None:
            self.sleepers.tick()
        for actor in self._awake.values():
            actor.inbox.put(TICK)

    def hear_frame(self, node: int, frame: NodeFrame) -> None:
        """How another node is: its clock, for the awake groups that it leads, and what it leads asleep."""
        if self.sleepers is not None:
            self.sleepers.hear_frame(
                node, frame.process_number, frame.boottime_us, (frame.quiet_count, frame.quiet_hash))
        clock = HeardClock(node, frame.boottime_us)
        for actor in self._awake.values():
            if actor.group.raft.core.leader == node:
                actor.inbox.put(clock)

    def hear_quiet(self, node: int, call: QuietCall) -> None:
        """What a node says of groups that sleep."""
        if self.sleepers is not None:
            self.sleepers.hear(node, call)

    def quiet_summary(self, node: int) -> tuple[int, int]:
        """See `Sleepers.summary_for`."""
        return self.sleepers.summary_for(node) if self.sleepers is not None else (0, 0)

    @property
    def quiet_count(self) -> int:
        """Groups that sleep."""
        return len(self.sleepers) if self.sleepers is not None else 0

    @property
    def live(self) -> Collection[int]:
        """See `Bed`."""
        return self.sleepers.live if self.sleepers is not None else ()

    def fell_asleep(self, life: int, term: int, leader: int, agreed: frozenset[int]) -> None:
        """See `Bed`."""
        if self.sleepers is not None:
            self._awake.pop(life, None)
            self.sleepers.fell_asleep(life, term, leader, agreed)

    def wake(self, life: int) -> Woken:
        """See `Bed`."""
        self._awake[life] = self.groups[life]
        return self.sleepers.wake(life) if self.sleepers is not None else Woken(0, None)

    def deadline_us(self, life: int) -> int | None:
        """See `Lives`."""
        return self.groups[life].group.deadline_us

    def voters(self, life: int) -> Collection[int]:
        """See `Lives`."""
        return self.groups[life].group.raft.core.configuration.voters

    def tell(self, life: int, event: Event) -> None:
        """What concerns one group."""
        self.groups[life].inbox.put(event)

    def due(self, life: int) -> None:
        """The wheel: a deadline of this group may have passed."""
        if self.sleepers is None or self.sleepers.takes_due(life):
            self.groups[life].inbox.put(DUE)

    def refuse_everything(self) -> None:
        """See `Groups`."""
        if self.sleepers is not None:
            self.sleepers.stop()
        super().refuse_everything()
