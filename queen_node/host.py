"""The actor of all groups of this node: runs each in a task of its own, and those that come later.

What goes to which group, and when one begins, is decided in `groups`; who is awake, in `sleeping_groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from queen_node.antechamber import Antechamber
from queen_node.group_actor import GroupActor
from queen_node.sleepers import Sleepers
from queen_node.sleeping_groups import SleepingGroups
from queen_node.state.rows import MembersRow, TenantRow

LATE_CALLS_EVERY_S: Final = 0.5  # how late a call of a tenant without a group may learn that its time is over


class Host(SleepingGroups[GroupActor]):
    """See `SleepingGroups`. Implements `peering.Ears`."""

    def __init__(
        self, node_id: int, open_actor: Callable[[int, TenantRow | None, MembersRow], GroupActor],
        antechamber: Antechamber,
        make_sleepers: Callable[[Host], Sleepers] | None = None, period_s: float = 0.1,
    ) -> None:
        """make_sleepers, period_s: as of `SleepingGroups`."""
        self._nursery: trio.Nursery | None = None
        self._waits = trio.Event()  # something is there that may be given up
        super().__init__(node_id, open_actor, antechamber, trio.current_time, make_sleepers, period_s)
        self._unreplayed = list(self.groups.values())

    async def run(self) -> None:
        """Run the groups, those that come later too, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for actor in self.groups.values():
                self._nursery.start_soon(actor.run)
            self._nursery.start_soon(self._give_up_late_calls)

    def begun(self, actor: GroupActor) -> None:
        """See `Groups`."""
        super().begun(actor)
        if self._nursery is not None:
            self._nursery.start_soon(actor.run)

    def something_waits(self) -> None:
        """See `Groups`."""
        self._waits.set()

    def unreplayed(self) -> list[GroupActor]:
        """Groups that have not yet applied what their log held when the node started, asleep or awake."""
        self._unreplayed = [actor for actor in self._unreplayed if not actor.is_replayed]
        return self._unreplayed

    async def _give_up_late_calls(self) -> None:
        while True:
            await self._waits.wait()
            await trio.sleep(LATE_CALLS_EVERY_S)
            if not self.give_up_late():
                self._waits = trio.Event()
