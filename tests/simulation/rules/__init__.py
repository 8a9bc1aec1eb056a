"""What must hold at every moment of a run, whatever breaks: one file a rule, each told of everything that happens.

Histories of calls are judged at the end by `tests.checkers`, which judge real processes too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from queen_node.state.tenants import Tenant
from raft.core import Role
from raft.group import LogWrite
from raft.messages import Entry, Message
from tests.simulation.rules.agreement import Agreement
from tests.simulation.rules.clock import ClockRule
from tests.simulation.rules.committed import Committed
from tests.simulation.rules.disks import Disks
from tests.simulation.rules.leadership import Leaders
from tests.simulation.rules.log_matching import LogMatching
from tests.simulation.rules.promises import PromisesKept
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.driver import GroupDriver


class AllRules:
    """Those of every group, by life. lives: which life a tenant's group has, as group 0 says."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rules: dict[int, Rules] = {}
        self.lives: dict[bytes, int] = {}

    def of(self, life: int) -> Rules:
        """Those of one group."""
        rules = self._rules.get(life)
        if rules is None:
            rules = self._rules[life] = Rules(self._world)
        return rules

    def appeared(self, appeared: Iterable[Tenant]) -> None:
        """A node applied that these tenants have groups. A tenant has one, and a life is given once (M-70)."""
        for tenant in appeared:
            life = self.lives.setdefault(tenant.tenant, tenant.life)
            if life != tenant.life or list(self.lives.values()).count(life) != 1:
                raise Broken("M-70, one life a tenant", f"tenant {tenant.tenant.hex()}: {tenant.life}, of {self.lives}")

    def wiped(self, node_id: int) -> None:
        """A node's disk is gone, and what it promised with it."""
        for rules in self._rules.values():
            rules.wiped(node_id)

    def committed_index(self, tenant: bytes) -> int:
        """Highest index that any leader of the tenant's group committed."""
        life = self.lives.get(tenant)
        return 0 if life is None else self.of(life).committed.index


class Rules:
    """All of one group. Each method raises Broken if what it is told breaks one."""

    def __init__(self, world: World) -> None:
        self.disks = Disks(world)
        self.committed = Committed(self.disks)
        self._leaders = Leaders(self.committed)
        self._matching = LogMatching()
        self._agreement = Agreement(self.disks)
        self._clock = ClockRule(world)
        self._promises = PromisesKept(self.disks)
        self._seen: dict[int, tuple[object, ...]] = {}

    def booted(self, driver: GroupDriver) -> None:
        """A process has read its disk."""
        self._seen.pop(driver.node_id, None)
        self.disks.booted(driver)
        self._leaders.booted(driver)

    def wiped(self, node_id: int) -> None:
        """A node's disk is gone."""
        self.disks.wiped(node_id)
        self._promises.wiped(node_id)

    def looked(self, driver: GroupDriver) -> None:
        """A group was pumped. What did not change since was judged then; the clock goes on by itself."""
        core = driver.core
        log = core.log
        seen = core.role, core.term, core.commit_index, log.last_index, log.last_term
        if seen != self._seen.get(driver.node_id):
            self._seen[driver.node_id] = seen
            self._leaders.looked(driver)
            self.committed.looked(driver)
        if core.role is Role.LEADER:
            self._clock.looked(driver)

    def submitted(self, driver: GroupDriver, write: LogWrite) -> None:
        """A write was handed to the disk."""
        self._matching.submitted(write.group_write)
        self.disks.submitted(driver.node_id, write.group_write)

    def written(self, driver: GroupDriver, write: LogWrite) -> None:
        """A write is on the disk."""
        self.disks.written(driver.node_id, write.group_write)

    def sends(self, driver: GroupDriver, message: Message) -> None:
        """A message is about to leave."""
        self._promises.sends(message)

    def applied(self, driver: GroupDriver, entry: Entry, stamp_us: int) -> None:
        """An entry was applied."""
        self._agreement.applied(driver, entry)
        self._clock.applied(entry, stamp_us)

    def restored(self, driver: GroupDriver) -> None:
        """A process's state is that of a snapshot, durably; its log may not know yet."""
        self.disks.restored(driver)
        self._agreement.restored(driver)

    def serves_read(self, driver: GroupDriver, committed_before: int) -> None:
        """A read is about to be served from the process's state."""
        self.committed.serves_read(driver, committed_before)
