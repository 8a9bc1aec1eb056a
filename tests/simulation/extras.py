"""What else is done in a run beside timers, pushes and pops, by the workloads of guarantees.md.

Each is drawn for some of the seeds, by dice of their own: a seed without any takes the course that it took before there
were these. Each has a history of its own, judged by the same checkers as the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from tests.simulation.calls import KNOCK_US, Caller, Ground, Script
from tests.simulation.clients import Client
from tests.simulation.cluster import Cluster
from tests.simulation.failing_fires import mend
from tests.simulation.kv_client import KvClient
from tests.simulation.last_look import LOOK_EVERY_US, wait_for_timers, witness
from tests.simulation.workers import PatientRoad, Stepping, talk, until_known, worker
from tests.simulation.world import MS, SECOND, World
from tests.workloads import entities
from tests.workloads.entities import DEADLINES, ENTITY_QUEUES, EntityClient
from tests.workloads.failing import FAILING, FailingClient
from tests.workloads.leases import LEASES_S
from tests.workloads.locks import GUARDED, LockClient
from tests.workloads.pipeline import INPUTS, LATE, OUTPUTS, PIPELINE_QUEUES, PipelineClient
from tests.workloads.road import Road

CLIENTS_BEGIN_AT: Final = 3000  # their numbers


class Extra(ABC):
    """One kind of work on one tenant. queues: what must be configured before its clients begin."""

    queues: Sequence[str] = ()

    def __init__(self, ground: Ground, dice: Random, cluster: Cluster) -> None:
        self.ground, self._dice, self._cluster = ground, dice, cluster

    @abstractmethod
    def clients(self) -> Sequence[Script]:
        """Until the run's clients stop."""

    @abstractmethod
    def finish(self) -> Script:
        """Once all is healed: see to it that the history can be judged."""

    def _workers(self, make: Callable[[Road, int, Random], Stepping], count: int) -> list[Script]:
        """Clients of `tests.workloads`, with dice of their own."""
        return [
            worker(self.ground, make, CLIENTS_BEGIN_AT + number, Random(self._dice.random()))
            for number in range(count)]

    def _road(self) -> PatientRoad:
        """Of somebody who is none of the clients."""
        return PatientRoad(Caller(self.ground, CLIENTS_BEGIN_AT, self._dice), self._dice)


class KvCalls(Extra):
    """W3, W3b, W3c, W4."""

    def clients(self) -> Sequence[Script]:
        """See `Extra`."""
        return [
            KvClient(self.ground, CLIENTS_BEGIN_AT + number, Random(self._dice.random())).run()
            for number in range(self._dice.choice((3, 5)))]

    def finish(self) -> Script:
        """See `Extra`."""
        return KvClient(self.ground, CLIENTS_BEGIN_AT, self._dice).read_everything()


class Pipeline(Extra):
    """W5."""

    queues = PIPELINE_QUEUES

    def clients(self) -> Sequence[Script]:
        """See `Extra`."""
        return self._workers(PipelineClient, self._dice.choice((3, 4)))

    def finish(self) -> Script:
        """See `Extra`. Takes every step that is left; then reads what all steps left behind."""
        client = PipelineClient(self._road(), CLIENTS_BEGIN_AT, self._dice)
        history, world = self.ground.history, self.ground.world
        empty_since_us: int | None = None
        while empty_since_us is None or world.now_us - empty_since_us < (max(LEASES_S) + 1) * SECOND:
            found = yield from talk(client.work(lease_s=max(LEASES_S), wait_ms=LOOK_EVERY_US // 1000, dawdles=0))
            if found is not False:
                empty_since_us = None
            elif empty_since_us is None:
                empty_since_us = world.now_us
        yield from wait_for_timers(Client(self.ground.apart(), CLIENTS_BEGIN_AT, self._dice), LATE)
        for queue, log in ((INPUTS, history.log), (OUTPUTS, history.outputs), (LATE, history.late_outputs)):
            yield from witness(self.ground, queue, log)
        history.step_counts = yield from until_known(client.read_counts)


class Entities(Extra):
    """W13."""

    queues = ENTITY_QUEUES

    def clients(self) -> Sequence[Script]:
        """See `Extra`."""
        return self._workers(EntityClient, self._dice.choice((3, 4)))

    def finish(self) -> Script:
        """See `Extra`. What happened is dealt with, and the deadlines that come of it, until there are no more."""
        client = EntityClient(self._road(), CLIENTS_BEGIN_AT, self._dice)
        history, world = self.ground.history, self.ground.world
        quiet_us = max(max(LEASES_S) * SECOND, entities.DELAYS_MS[1] * MS) + SECOND
        quiet_since_us = world.now_us
        while world.now_us - quiet_since_us < quiet_us:
            found_nothing = True
            for queue in ENTITY_QUEUES:
                found = yield from talk(client.work(queue, lease_s=max(LEASES_S), dawdles=0))
                if found is not False:
                    found_nothing, quiet_since_us = False, world.now_us
            if found_nothing:
                yield LOOK_EVERY_US
        yield from wait_for_timers(Client(self.ground.apart(), CLIENTS_BEGIN_AT, self._dice), DEADLINES)
        for queue in ENTITY_QUEUES:
            yield from witness(self.ground, queue, history.log)
        rows = yield from until_known(client.read_all)
        history.entities = {entity: (row.state, row.move) for entity, row in rows.items()}


class Locks(Extra):
    """W11, W11b."""

    queues = (GUARDED,)

    def clients(self) -> Sequence[Script]:
        """See `Extra`."""
        return self._workers(LockClient, self._dice.choice((3, 4)))

    def finish(self) -> Script:
        """See `Extra`."""
        return witness(self.ground, GUARDED, self.ground.history.guarded)


class FailingTimers(Extra):
    """W14."""

    queues = (FAILING,)

    def clients(self) -> Sequence[Script]:
        """See `Extra`."""
        return [*self._workers(FailingClient, 2), self._mend()]

    def _mend(self) -> Script:
        """When all clients stop. Not later: a fire that fails for the moment is an entry ten times a second, and one
        that lags, where next to no log is kept, never meets the end of that."""
        while not self.ground.hours.stopping:
            yield KNOCK_US
        yield from self._until_all_ended()

    def _until_all_ended(self) -> Script:
        ground, cluster = self.ground, self._cluster
        yield from wait_for_timers(
            Client(ground.apart(), CLIENTS_BEGIN_AT, self._dice), FAILING,
            lambda: mend(cluster, cluster.rules.lives.get(ground.tenant), self._dice))

    def finish(self) -> Script:
        """See `Extra`. A last call can have come after the look that found no timers."""
        yield from self._until_all_ended()
        yield from witness(self.ground, FAILING, self.ground.history.mended)
        client = FailingClient(self._road(), CLIENTS_BEGIN_AT, self._dice)
        self.ground.history.letters = yield from until_known(client.letters)


# The name of the dice, the share of the seeds, and the kinds of which such a seed has one.
ROWS: Final[Sequence[tuple[str, float, Sequence[type[Extra]]]]] = (
    ("extras", 0.3, (KvCalls,)),
    ("more extras", 0.25, (Pipeline, Entities, Locks)),
    ("failing fires", 0.08, (FailingTimers,)),
)


class Drawn(NamedTuple):
    """A kind of work, and the dice for it."""

    kind: type[Extra]
    dice: Random


def draw_kinds(world: World) -> list[Drawn]:
    """What else this seed does."""
    drawn = []
    for name, share, kinds in ROWS:
        dice = world.dice(name)
        if dice.random() < share:
            drawn.append(Drawn(dice.choice(kinds), dice))
    return drawn


def begin_extras(drawn: Sequence[Drawn], grounds: Sequence[Ground], cluster: Cluster) -> list[Extra]:
    """Put each on a tenant. grounds: of the tenants that are called."""
    return [kind(dice.choice(grounds).apart(), dice, cluster) for kind, dice in drawn]
