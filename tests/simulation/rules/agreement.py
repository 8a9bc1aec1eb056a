"""Raft paper, figure 3: state machine safety; G-D7, M-81: equal digests at equal applied index; M-3: only from the own
disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.messages import Entry
from tests.simulation.rules.disks import Disks
from tests.simulation.world import Broken

if TYPE_CHECKING:
    from tests.simulation.driver import GroupDriver


class Agreement:
    """What was applied at each index by whoever came first, and the state's digest after it."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._applied: dict[int, tuple[Entry, bytes]] = {}

    def restored(self, driver: GroupDriver) -> None:
        """M-61, M-81: a snapshot is the state that others had at that entry."""
        meta = driver.machine.store.meta
        known = self._applied.get(meta.applied_index)
        if known is None or (known[0].term, known[1]) != (meta.applied_term, meta.digest):
            raise Broken("G-D7, equal digests", f"node {driver.node_id} installed another state {meta.applied_index}")

    def applied(self, driver: GroupDriver, entry: Entry) -> None:
        node_id, digest = driver.node_id, driver.machine.store.meta.digest
        first_entry, first_digest = self._applied.setdefault(entry.index, (entry, digest))
        if first_entry != entry:
            raise Broken("state machine safety (Raft §5.4.3)", f"node {node_id} applies {entry}, others {first_entry}")
        if first_digest != digest:
            raise Broken("G-D7, equal digests", f"node {node_id} has another state after entry {entry.index}")
        if not self._disks.holds(node_id, entry.index, entry.term):
            raise Broken("M-3, never past the own disk", f"node {node_id} applies {entry.term}:{entry.index}")
