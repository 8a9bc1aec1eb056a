"""What must hold at every moment of a run, whatever breaks: one file a rule, each told of everything that happens.

Histories of calls are judged at the end by `tests.checkers`, which judge real processes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.group import LogWrite
from raft.messages import Entry, Message
from tests.simulation.rules.agreement import Agreement
from tests.simulation.rules.clock import ClockRule
from tests.simulation.rules.committed import Committed
from tests.simulation.rules.disks import Disks
from tests.simulation.rules.leadership import Leaders
from tests.simulation.rules.log_matching import LogMatching
from tests.simulation.rules.promises import PromisesKept
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.process import Process


class Rules:
    """All of them. Each method raises Broken if what it is told breaks one."""

    def __init__(self, world: World) -> None:
        self.disks = Disks(world)
        self.committed = Committed(self.disks)
        self._leaders = Leaders(self.committed)
        self._matching = LogMatching()
        self._agreement = Agreement(self.disks)
        self._clock = ClockRule(world)
        self._promises = PromisesKept(self.disks)
        self._seen: dict[int, tuple[object, ...]] = {}

    @property
    def committed_index(self) -> int:
        """Highest index that any leader committed."""
        return self.committed.index

    def booted(self, process: Process) -> None:
        """A process has read its disk."""
        self._seen.pop(process.node_id, None)
        self.disks.booted(process)
        self._leaders.booted(process)

    def looked(self, process: Process) -> None:
        """A group was pumped. What did not change since was judged then; the clock goes on by itself."""
        core = process.core
        log = core.log
        seen = core.role, core.term, core.commit_index, log.last_index, log.last_term
        if seen != self._seen.get(process.node_id):
            self._seen[process.node_id] = seen
            self._leaders.looked(process)
            self.committed.looked(process)
        self._clock.looked(process)

    def submitted(self, process: Process, write: LogWrite) -> None:
        """A write was handed to the disk."""
        self._matching.submitted(write.group_write)
        self.disks.submitted(process.node_id, write.group_write)

    def written(self, process: Process, write: LogWrite) -> None:
        """A write is on the disk."""
        self.disks.written(process.node_id, write.group_write)

    def sends(self, process: Process, message: Message) -> None:
        """A message is about to leave."""
        self._promises.sends(message)

    def applied(self, process: Process, entry: Entry, stamp_us: int) -> None:
        """An entry was applied."""
        self._agreement.applied(process, entry)
        self._clock.applied(entry.index, stamp_us)

    def restored(self, process: Process) -> None:
        """A process's state is that of a snapshot, durably; its log may not know yet."""
        self.disks.restored(process)
        self._agreement.restored(process)

    def serves_read(self, process: Process, committed_before: int) -> None:
        """A read is about to be served from the process's state."""
        self.committed.serves_read(process, committed_before)
