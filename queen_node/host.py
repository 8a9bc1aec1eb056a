"""The actor of all groups of this node: runs each in a task of its own, and those that come later.

What goes to which group, and when one begins, is decided in `groups`; who is awake, in `sleeping_groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from queen_node.antechamber import Antechamber
from queen_node.closed_groups import Glance
from queen_node.group_actor import GroupActor
from queen_node.sleepers import Sleepers
from queen_node.sleeping_groups import SleepingGroups
from queen_node.state.rows import MembersRow, TenantRow
from queen_node.state.tenants import Tenant

OPENED_A_STEP: Final = 16  # groups, some 5 ms of work
OPENING_PAUSE_S: Final = 0.005  # between two such steps, so that others have half of the loop
LATE_CALLS_EVERY_S: Final = 0.5  # how late a call of a tenant without a group may learn that its time is over


class Host(SleepingGroups[GroupActor]):
    """See `SleepingGroups`. Implements `peering.Ears`."""

    def __init__(
        self, node_id: int, open_actor: Callable[[int, TenantRow | None, MembersRow], GroupActor],
        antechamber: Antechamber,
        make_sleepers: Callable[[Host], Sleepers] | None = None, period_s: float = 0.1,
        glance: Callable[[int], Glance | None] | None = None,
    ) -> None:
        """make_sleepers, period_s, glance: as of `SleepingGroups`."""
        self._nursery: trio.Nursery | None = None
        self.serves = trio.Event()  # set by whoever lets clients in: then there is time for groups that nobody wants
        self._waits = trio.Event()  # something is there that may be given up
        self._unreplayed: list[GroupActor] = []
        super().__init__(node_id, open_actor, antechamber, trio.current_time, make_sleepers, period_s, glance)
        self._unreplayed += self.groups.opened.values()

    async def run(self) -> None:
        """Run the groups, those that come later too, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for actor in self.groups.opened.values():
                self._nursery.start_soon(actor.run)
            self._nursery.start_soon(self._give_up_late_calls)
            self._nursery.start_soon(self._open_the_rest)

    def begun(self, actor: GroupActor) -> None:
        """See `Groups`."""
        super().begun(actor)
        self._start(actor)

    def open_closed(self, tenant: Tenant) -> GroupActor:
        """See `Groups`."""
        actor = super().open_closed(tenant)
        if not actor.is_replayed:
            self._unreplayed.append(actor)
        self._start(actor)
        return actor

    def _start(self, actor: GroupActor) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(actor.run)

    def something_waits(self) -> None:
        """See `Groups`."""
        self._waits.set()

    def unreplayed(self) -> list[GroupActor]:
        """Open groups that have not yet applied what their log held when the node started, asleep or awake."""
        self._unreplayed = [actor for actor in self._unreplayed if not actor.is_replayed]
        return self._unreplayed

    async def _open_the_rest(self) -> None:
        """Those that are closed since the start: a deadline that passes in one shows only once it is open (M-32)."""
        await self.serves.wait()
        while self.groups.closed_count:
            self.groups.open_some(OPENED_A_STEP)
            await trio.sleep(OPENING_PAUSE_S)

    async def _give_up_late_calls(self) -> None:
        while True:
            await self._waits.wait()
            await trio.sleep(LATE_CALLS_EVERY_S)
            if not self.give_up_late():
                self._waits = trio.Event()
