"""All groups of this node, of which those that are idle sleep: who is awake, what goes to whom of them (M-30 to M-32).

Who falls asleep and wakes is decided in `sleeper`, for one group, and in `sleepers`, for all. Plain code, nothing
awaits: `host` carries it out, and a simulation drives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, Self, TypeVar

from queen_node.antechamber import Antechamber
from queen_node.closed_groups import Glance
from queen_node.events import DUE, Event, HeardClock, Tick
from queen_node.groups import Actor, Groups
from queen_node.peer_calls import QuietCall
from queen_node.sleeper import Sleeper
from queen_node.sleepers import Sleepers, Woken
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.tenants import Tenant
from queen_node.tick_pace import TickPace
from queen_node.versions import QUIET
from raft.peer_frames import NodeFrame

CLOCK_KEPT_PERIODS: Final = 3
"""So long a node's clock is handed on after it came: less than any machine takes to boot, and begin its clock anew."""


class SleepyActor(Actor, Protocol):
    """What drives one group, and lets it sleep."""

    @property
    def sleeper(self) -> Sleeper: ...


S = TypeVar("S", bound=SleepyActor)


class SleepingGroups(Groups[S]):
    """See `Groups`. Implements `sleeper.Bed`, `sleepers.Lives`."""

    def __init__(
        self, node_id: int, open_actor: Callable[[int, TenantRow | None, MembersRow], S], antechamber: Antechamber,
        now_s: Callable[[], float], make_sleepers: Callable[[Self], Sleepers] | None, period_s: float,
        glance: Callable[[int], Glance | None] | None = None,
    ) -> None:
        """make_sleepers: without it no group sleeps. With it all but group 0, which never does, begin asleep. period_s:
        between two ticks. glance: what is known of one that need not be opened yet; None for one that must be.
        """
        super().__init__(node_id, open_actor, antechamber, now_s)
        self._pace = TickPace[S](period_s)
        self._pace.awake.update(self.groups.opened)
        self._clocks: dict[int, tuple[HeardClock, int]] = {}  # of each node, and in which period it came
        self._period = 0
        self._says_quiet = True
        self.sleepers = make_sleepers(self) if make_sleepers is not None else None
        members = self._members()
        for tenant in self._tenants():
            self._begin(tenant, members, glance)

    def _begin(
        self, tenant: Tenant, members: MembersRow, look: Callable[[int], Glance | None] | None,
    ) -> None:
        """At the start."""
        if self.sleepers is None or not self._says_quiet:
            self._is_awake(self._add(tenant, members))
            return
        glance = look(tenant.life) if look is not None else None
        if glance is not None:
            self.groups.close(tenant, glance)
        else:
            self._add(tenant, members).sleeper.begin(self)
        self.sleepers.fell_asleep(tenant.life, 0, 0, frozenset())

    def open_closed(self, tenant: Tenant) -> S:
        """See `Groups`."""
        actor = super().open_closed(tenant)
        actor.sleeper.begin(self)
        return actor

    def begun(self, actor: S) -> None:
        """See `Groups`."""
        self._is_awake(actor)

    def _is_awake(self, actor: S) -> None:
        self._pace.awake[actor.group.raft.life] = actor
        if self.sleepers is not None:
            actor.sleeper.bed = self

    # --- who is awake, and who sleeps

    def awake(self) -> Collection[S]:
        """See `Groups`."""
        return self._pace.awake.values()

    def asleep(self) -> Iterable[S]:
        """See `Groups`."""
        return (actor for life, actor in self.groups.opened.items() if life not in self._pace.awake)

    @property
    def quiet_count(self) -> int:
        """Groups that sleep."""
        return len(self.sleepers) if self.sleepers is not None else 0

    @property
    def asleep_leading(self) -> int:
        """Groups that sleep and that this node leads."""
        return self.sleepers.led_count if self.sleepers is not None else 0

    @property
    def live(self) -> Collection[int]:
        """See `Bed`; nobody while members may not know the words of sleeping."""
        return self.sleepers.live if self.sleepers is not None and self._says_quiet else ()

    def hear_version(self, cluster_version: int) -> None:
        """What members may write for each other, and say (CL-132)."""
        super().hear_version(cluster_version)
        self._says_quiet = cluster_version >= QUIET

    def fell_asleep(self, life: int, term: int, leader: int, agreed: frozenset[int]) -> None:
        """See `Bed`."""
        if self.sleepers is not None:
            self._pace.awake.pop(life, None)
            self.sleepers.fell_asleep(life, term, leader, agreed)

    def wake(self, life: int) -> Woken:
        """See `Bed`."""
        self._pace.awake[life] = self.groups[life]
        return self.sleepers.wake(life) if self.sleepers is not None else Woken(0, None)

    def deadline_us(self, life: int) -> int | None:
        """See `Lives`; unknown of one that is not open yet."""
        actor = self.groups.opened.get(life)
        return None if actor is None else actor.group.deadline_us

    @property
    def are_open(self) -> bool:
        """See `Lives`."""
        return not self.groups.closed_count

    def voters(self, life: int) -> Collection[int]:
        """See `Lives`."""
        return self.groups[life].group.raft.core.configuration.voters

    # --- what comes

    def tick(self, late_s: float) -> None:
        """Raft's unit of time has passed; the loop has come to it so late. The cell's group is ticked whatever is."""
        self._period += 1
        if self.sleepers is not None:
            self.sleepers.tick()
        periods, actors = self._pace.next(late_s)
        tick = Tick(periods)
        for actor in actors if self.cell in actors else (self.cell, *actors):
            clock = self._clock_of(actor.group.raft.core.leader)
            if clock is not None:
                actor.inbox.put(clock)
            actor.inbox.put(tick)

    def _clock_of(self, leader: int) -> HeardClock | None:
        clock, period = self._clocks.get(leader, (None, 0))
        return clock if self._period - period < CLOCK_KEPT_PERIODS else None

    def hear_frame(self, node: int, frame: NodeFrame) -> None:
        """How another node is: its clock, for the awake groups that it leads, and what it leads asleep."""
        if self.sleepers is not None:
            self.sleepers.hear_frame(
                node, frame.process_number, frame.boottime_us, (frame.quiet_count, frame.quiet_hash))
        self._clocks[node] = HeardClock(node, frame.boottime_us), self._period

    def hear_quiet(self, node: int, call: QuietCall) -> None:
        """What a node says of groups that sleep."""
        if self.sleepers is not None:
            self.sleepers.hear(node, call)

    def quiet_summary(self, node: int) -> tuple[int, int]:
        """See `Sleepers.summary_for`."""
        return self.sleepers.summary_for(node) if self.sleepers is not None else (0, 0)

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
