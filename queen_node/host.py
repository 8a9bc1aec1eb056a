"""All groups of this node, by life: group 0, which says which tenants there are, and a group a tenant (M-70).

Every node holds every group. Here: which event goes to which group, when a group begins. Not here: what a group decides
(`group`), what its calls wait for before it exists (`antechamber`), what travels between nodes (`peering`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from queen_node.antechamber import Antechamber
from queen_node.events import DUE, LET_POPS_GO, Campaign, Event, HandOver, Heard
from queen_node.group_actor import GroupActor
from queen_node.inbox import Inbox
from queen_node.opening import CELL_LIFE
from queen_node.state.rows import TenantRow
from queen_node.state.tenants import Tenant, tenants
from raft.core import Role

LATE_CALLS_EVERY_S = 0.5  # how late a call of a tenant without a group may learn that its time is over
STRANGERS_MAX = 4096  # words for groups that this node does not know yet
STRANGERS_KEPT_S = 1.0

OpenActor = Callable[[int, TenantRow | None], GroupActor]  # life, row of its tenant; None: group 0


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


class _Door:
    """The way into the antechamber for one tenant's calls. Implements `Sink`."""

    __slots__ = ("_host", "_tenant")

    def __init__(self, host: Host, tenant: bytes) -> None:
        self._host, self._tenant = host, tenant

    @property
    def full(self) -> bool:
        return self._host.antechamber.full

    def put(self, event: Event) -> None:
        self._host.wait_for_group(self._tenant, event)


class _Stranger:
    """A group that this node does not know yet: what it said, since when."""

    __slots__ = ("heard", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.heard: list[Heard] = []


class Host:
    """See the module. `groups` is for others to read. Implements `Sinks`."""

    def __init__(self, node_id: int, open_actor: OpenActor, antechamber: Antechamber) -> None:
        """Opens every group that this node's own copy of group 0 names."""
        self.groups: dict[int, GroupActor] = {}
        self.antechamber = antechamber
        self._node_id, self._open_actor = node_id, open_actor
        self._inboxes: dict[bytes, Inbox[Event]] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._strangers_count = 0
        self._nursery: trio.Nursery | None = None
        self._refuses = False
        self._waits = trio.Event()  # something is there that may be given up
        self.cell = self._open(CELL_LIFE, None)
        for tenant in tenants(self.cell.group.machine.store.committed()):
            self._add(tenant)

    async def run(self) -> None:
        """Run the groups, those that come later too, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for actor in self.groups.values():
                self._nursery.start_soon(actor.run)
            self._nursery.start_soon(self._give_up_late_calls)

    # --- calls

    def sink(self, tenant: bytes) -> Sink:
        """See `Sinks`."""
        inbox = self._inboxes.get(tenant)
        return inbox if inbox is not None else _Door(self, tenant)

    def wait_for_group(self, tenant: bytes, event: Event) -> None:
        """A call of a tenant that has no group here, or had none a moment ago."""
        inbox = self._inboxes.get(tenant)
        if inbox is not None:
            inbox.put(event)
            return
        self.antechamber.put(tenant, event, trio.current_time())
        if self._refuses:
            self.antechamber.stop()
        self._ask_cell()
        self._waits.set()

    def let_pops_go(self) -> None:
        """See `Sinks`."""
        self.antechamber.let_pops_go()
        self.tell_all(LET_POPS_GO)

    def refuse_everything(self) -> None:
        """Nothing that waits will ever be written."""
        self._refuses = True
        for actor in self.groups.values():
            actor.refuse_everything()
        self.antechamber.stop()

    def _ask_cell(self) -> None:
        for event in self.antechamber.take_outgoing():
            self.cell.inbox.put(event)

    async def _give_up_late_calls(self) -> None:
        while True:
            await self._waits.wait()
            await trio.sleep(LATE_CALLS_EVERY_S)
            now_s = trio.current_time()
            self.antechamber.give_up(now_s)
            self._ask_cell()
            self._forget_strangers(now_s)
            if not len(self.antechamber) and not self._strangers:
                self._waits = trio.Event()

    # --- groups

    def _appeared(self, appeared: Sequence[Tenant]) -> None:
        """Group 0 gave tenants a group."""
        for tenant in appeared:
            if tenant.life in self.groups:
                continue
            actor = self._add(tenant)
            if self._nursery is not None:
                self._nursery.start_soon(actor.run)
            if self._begins(actor, tenant.life):
                actor.inbox.put(Campaign())
            for heard in self._take_stranger(tenant.life):
                actor.inbox.put(heard)
            for event in self.antechamber.take(tenant.tenant):
                actor.inbox.put(event)

    def _begins(self, actor: GroupActor, life: int) -> bool:
        """Whether this node is the one to lead a group first: leaders are spread over the nodes (M-70)."""
        core = actor.group.raft.core
        voters = core.configuration.voters
        return core.term == 0 and voters[life % len(voters)] == self._node_id

    def _add(self, tenant: Tenant) -> GroupActor:
        actor = self._open(tenant.life, tenant.row)
        self._inboxes[tenant.tenant] = actor.inbox
        return actor

    def _open(self, life: int, row: TenantRow | None) -> GroupActor:
        actor = self.groups[life] = self._open_actor(life, row)
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
                stranger = self._strangers[life] = _Stranger(trio.current_time())
            stranger.heard.append(heard)
            self._strangers_count += 1
            self._waits.set()

    def tell_all(self, event: Event) -> None:
        """Raft's tick, a node's clock, the end."""
        for actor in self.groups.values():
            actor.inbox.put(event)

    def due(self, life: int) -> None:
        """The wheel: a deadline of this group may have passed."""
        self.groups[life].inbox.put(DUE)

    def hand_over(self, max_silent_ticks: int) -> bool:
        """Let others lead what this node leads (CL-54). False: it leads nothing."""
        leading = [actor for actor in self.groups.values() if actor.group.raft.core.role is Role.LEADER]
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
