"""All groups of this node, by life: group 0, which says which tenants there are, and a group a tenant (M-70).

Every node holds every group. Here: which event goes to which group, when a group begins. Not here: what a group decides
(`group`), what its calls wait for before it exists (`antechamber`), what travels between nodes (`peering`). Plain code,
nothing awaits: `host` carries it out, and a simulation drives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from queen_node import packed
from queen_node.antechamber import Antechamber
from queen_node.closed_groups import GroupsByLife
from queen_node.events import DUE, LET_POPS_GO, Campaign, Event, HandOver, Heard
from queen_node.group_on_node import GroupOnNode
from queen_node.inbox import Inbox
from queen_node.opening import CELL_LIFE
from queen_node.state.members import members_of
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.tenants import Tenant, tenants
from queen_node.versions import PACKED
from raft.core import Role

STRANGERS_MAX = 4096  # words for groups that this node does not know yet
STRANGERS_KEPT_S = 1.0
ASLEEP_A_STEP = 20  # handed over; a step is a tenth of a second, and each costs an election


class Actor(GroupOnNode, Protocol):
    """What drives one group. on_tenants: of group 0, told which tenants got a group."""

    on_tenants: Callable[[Sequence[Tenant]], None] | None

    def refuse_everything(self) -> None:
        """The log has stopped."""
        ...


A = TypeVar("A", bound=Actor)


class Sink(Protocol):
    """Where calls of one tenant are put. `full`: a sender of new work must hold back."""

    @property
    def full(self) -> bool: ...

    def put(self, event: Event) -> None: ...


class Sinks(Protocol):
    """Where the calls of all tenants are put; the host, as doors see it."""

    def sink(self, tenant: bytes) -> Sink:
        """Where this tenant's calls go now. Not to be kept: the tenant may have a group a moment later."""
        ...

    def let_pops_go(self) -> None:
        """The node stops: pops that wait are answered empty (CL-131)."""
        ...

    def as_written(self, command: bytes) -> bytes:
        """A command in the form that every member reads (CL-132)."""
        ...


class _Door:
    """The way into the antechamber for one tenant's calls. Implements `Sink`."""

    __slots__ = ("_antechamber", "_put", "_tenant")

    def __init__(self, antechamber: Antechamber, put: Callable[[bytes, Event], None], tenant: bytes) -> None:
        self._antechamber, self._put, self._tenant = antechamber, put, tenant

    @property
    def full(self) -> bool:
        return self._antechamber.full

    def put(self, event: Event) -> None:
        self._put(self._tenant, event)


class _Stranger:
    """A group that this node does not know yet: what it said, since when."""

    __slots__ = ("heard", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.heard: list[Heard] = []


class Groups(Generic[A]):
    """See the module. `groups` is for others to read. Implements `Sinks`."""

    def __init__(
        self, node_id: int, open_actor: Callable[[int, TenantRow | None, MembersRow], A], antechamber: Antechamber,
        now_s: Callable[[], float],
    ) -> None:
        """Opens group 0. open_actor: by the life, the row of its tenant, None for group 0, and the cell's members as
        group 0 says; now_s: the monotonic clock.
        """
        self.groups: GroupsByLife[A] = GroupsByLife(self.open_closed)
        self.antechamber = antechamber
        self._node_id, self._open_actor, self._now_s = node_id, open_actor, now_s
        self._inboxes: dict[bytes, Inbox[Event]] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._strangers_count = 0
        self._refuses = False
        self._writes_packed = True  # members may be given commands in their short form
        self.cell = self._open(CELL_LIFE, None, MembersRow([]))

    def begun(self, actor: A) -> None:
        """A group was opened while the others ran: for whoever carries this out."""

    def open_closed(self, tenant: Tenant) -> A:
        """A group that was closed since the start is opened while the others run: for whoever carries this out too."""
        actor = self._add(tenant, self._members())
        if self._refuses:
            actor.refuse_everything()
        return actor

    def something_waits(self) -> None:
        """`give_up_late` has something to do before long: for whoever carries this out."""

    def awake(self) -> Collection[A]:
        """The groups that do not sleep: for whoever lets them."""
        return self.groups.opened.values()

    def asleep(self) -> Iterable[A]:
        """The others."""
        return ()

    # --- calls

    def sink(self, tenant: bytes) -> Sink:
        """See `Sinks`."""
        inbox = self._inbox(tenant)
        return inbox if inbox is not None else _Door(self.antechamber, self.wait_for_group, tenant)

    def _inbox(self, tenant: bytes) -> Inbox[Event] | None:
        inbox = self._inboxes.get(tenant)
        if inbox is not None:
            return inbox
        actor = self.groups.of_tenant(tenant)
        return None if actor is None else actor.inbox

    def wait_for_group(self, tenant: bytes, event: Event) -> None:
        """A call of a tenant that has no group here, or had none a moment ago."""
        inbox = self._inbox(tenant)
        if inbox is not None:
            inbox.put(event)
            return
        self.antechamber.put(tenant, event, self._now_s())
        if self._refuses:
            self.antechamber.stop()
        self._ask_cell()
        self.something_waits()

    def let_pops_go(self) -> None:
        """See `Sinks`."""
        self.antechamber.let_pops_go()
        self.tell_all(LET_POPS_GO)

    def as_written(self, command: bytes) -> bytes:
        """See `Sinks`."""
        return command if self._writes_packed else packed.spread_out(command)

    def hear_version(self, cluster_version: int) -> None:
        """What members may write for each other (CL-132)."""
        self._writes_packed = cluster_version >= PACKED

    def refuse_everything(self) -> None:
        """Nothing that waits will ever be written."""
        self._refuses = True
        for actor in self.groups.opened.values():
            actor.refuse_everything()
        self.antechamber.stop()

    def _ask_cell(self) -> None:
        for event in self.antechamber.take_outgoing():
            self.cell.inbox.put(event)

    def give_up_late(self) -> bool:
        """Answer calls without a group whose time is over. Returns whether anything waits still."""
        now_s = self._now_s()
        self.antechamber.give_up(now_s)
        self._ask_cell()
        self._forget_strangers(now_s)
        return bool(len(self.antechamber) or self._strangers)

    # --- groups

    def _appeared(self, appeared: Sequence[Tenant]) -> None:
        """Group 0 gave tenants a group."""
        members = self._members()
        for tenant in appeared:
            if tenant.life in self.groups:
                continue
            actor = self._add(tenant, members)
            self.begun(actor)
            if self._begins(actor, tenant.life):
                actor.inbox.put(Campaign())
            for heard in self._take_stranger(tenant.life):
                actor.inbox.put(heard)
            for event in self.antechamber.take(tenant.tenant):
                actor.inbox.put(event)

    def _begins(self, actor: A, life: int) -> bool:
        """Whether this node is the one to lead a group first: leaders are spread over the nodes (M-70)."""
        core = actor.group.raft.core
        voters = core.configuration.voters
        return core.term == 0 and voters[life % len(voters)] == self._node_id

    def _members(self) -> MembersRow:
        return members_of(self.cell.group.machine.store.committed())

    def _tenants(self) -> Iterator[Tenant]:
        """As this node's own copy of group 0 has them."""
        return tenants(self.cell.group.machine.store.committed())

    def _add(self, tenant: Tenant, members: MembersRow) -> A:
        actor = self._open(tenant.life, tenant.row, members)
        self._inboxes[tenant.tenant] = actor.inbox
        return actor

    def _open(self, life: int, row: TenantRow | None, members: MembersRow) -> A:
        actor = self.groups.opened[life] = self._open_actor(life, row, members)
        actor.on_tenants = self._appeared
        return actor

    # --- peers

    def hear(self, life: int, heard: Heard) -> None:
        """What a group said to itself on another node. One that this node does not know yet is waited for a little."""
        actor = self.groups.get(life)
        if actor is not None:
            actor.inbox.put(heard)
        elif self._strangers_count < STRANGERS_MAX:
            stranger = self._strangers.get(life)
            if stranger is None:
                stranger = self._strangers[life] = _Stranger(self._now_s())
            stranger.heard.append(heard)
            self._strangers_count += 1
            self.something_waits()

    def tell_all(self, event: Event) -> None:
        """The end."""
        for actor in self.groups.opened.values():
            actor.inbox.put(event)

    def due(self, life: int) -> None:
        """The wheel: a deadline of this group may have passed."""
        self.groups[life].inbox.put(DUE)

    def hand_over(self, max_silent_ticks: int) -> bool:
        """Let others lead what this node leads (CL-54): all that are awake, and of those that sleep some at a time.
        False: that is nothing. Called again and again while there is time; of thousands that sleep the others notice
        the rest by themselves, as when a node dies."""
        leading = [actor for actor in self.awake() if actor.group.raft.core.role is Role.LEADER]
        asleep = (actor for actor in self.asleep() if actor.group.raft.core.role is Role.LEADER)
        leading += islice(asleep, ASLEEP_A_STEP)
        for actor in leading:
            actor.inbox.put(HandOver(max_silent_ticks))
        return bool(leading)

    def _take_stranger(self, life: int) -> list[Heard]:
        stranger = self._strangers.pop(life, None)
        if stranger is None:
            return []
        self._strangers_count -= len(stranger.heard)
        return stranger.heard

    def _forget_strangers(self, now_s: float) -> None:
        """What nobody asked for until now was for nobody, or will be said again."""
        for life, stranger in list(self._strangers.items()):
            if stranger.since_s <= now_s - STRANGERS_KEPT_S:
                self._take_stranger(life)
