"""One run of one seed: faults and load, then the final phase, then the judgement (guarantees.md 3).

    python -m tests.simulation.run SEED     runs one and prints its digest
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from queen_node import commands
from queen_node.tenants import DEFAULT_TENANT, TENANT_BYTES
from raft.invariants import InvariantBroken
from tests.checkers import verdict
from tests.checkers.history import History, Outcome
from tests.simulation.calls import Ground, Runner, Script
from tests.simulation.clients import TIMER_QUEUE, WORK_QUEUE, Client
from tests.simulation.cluster import Cluster
from tests.simulation.extras import FailingTimers, begin_extras, draw_kinds
from tests.simulation.faults import Faults
from tests.simulation.garbage import collected_afterwards
from tests.simulation.last_look import LOOK_EVERY_US, drain, wait_for_timers, witness
from tests.simulation.naps import naps
from tests.simulation.operator import Operator
from tests.simulation.parts import Parts
from tests.simulation.report import report
from tests.simulation.shape import Shape, draw_shape
from tests.simulation.slots import NODE_TIMEOUT_US
from tests.simulation.world import SECOND, Broken, World

HEALED_WITHIN_US: Final = 10 * SECOND  # G-D6
HEALED_WITHOUT_PRE_VOTES_US: Final = 60 * SECOND  # no node runs so: one that cannot win spoils the terms of who could
AGREED_WITHIN_US: Final = 5 * SECOND
FINAL_PHASE_US: Final = 60 * SECOND
LATE_US: Final = 5 * SECOND  # G-M4
OPTIONS: Final = (
    ("lease_time", 30), ("retry_limit", 100_000), ("dead_letter_queue", True), ("dedup_window_seconds", 86_400),
)


@dataclass(slots=True)
class Outcomes:
    """What a run was: for the totals of a campaign. broken: the report of what went wrong, empty if nothing did."""

    seed: int
    digest: str = ""
    events: int = 0
    virtual_us: int = 0
    calls: int = 0
    broken: str = ""
    promise: str = ""
    faults: dict[str, int] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)


class Simulation:
    """The world of one seed."""

    def __init__(
        self, seed: int, parts: Parts | None = None, *, length_s: float | None = None, shape: Shape | None = None,
    ) -> None:
        """shape: in place of one that the seed draws."""
        self.world = World(seed)
        drawn = draw_kinds(self.world)
        shape = shape or draw_shape(
            self.world.dice("shape"), self.world.dice("snapshots"), self.world.dice("sleep"), length_s=length_s)
        self.shape = replace(shape, fails_fires=any(kind is FailingTimers for kind, _dice in drawn))
        self.cluster = Cluster(self.world, self.shape, parts or Parts())
        self.grounds = [
            Ground(self.world, self.shape, tenant_id(number)) for number in range(len(self.shape.tenants_begin_us))]
        self.extras = begin_extras(drawn, self.grounds[: self.shape.called_tenants], self.cluster)
        self._openers = [
            Client(ground, 1000 + number, self.world.dice(f"first client {number}"))
            for number, ground in enumerate(self.grounds)]
        self._operator = Operator(self.world, self.cluster)
        self._faults = Faults(self.world, self.cluster, self.shape.trouble, lambda: self._operator.is_idle)

    def run(self) -> None:
        """Raises Broken, or InvariantBroken, for the first thing that is wrong."""
        world = self.world
        runners = self.begin()
        self._faults.start()
        if self.shape.spare_ids:
            runners.append(Runner(world, self.cluster, self._operator.run()))
        world.run_until(world.now_us + self.shape.length_us)
        for ground in self.grounds:
            ground.hours.stopping = True
        self._operator.stopping = True
        self._faults.stop()
        within_us = HEALED_WITHIN_US if self.shape.raft.pre_vote else HEALED_WITHOUT_PRE_VOTES_US
        self._await("G-D6, service returns", [self._probe(opener) for opener in self._openers], within_us)
        if self.shape.trouble or self.shape.spare_ids:
            for history in self.histories:
                history.outages.append((0, world.now_us * 1000))
        if not world.run_until(world.now_us + FINAL_PHASE_US, lambda: all(runner.ended for runner in runners)):
            raise Broken("liveness", "a client is still waiting for its last call")
        self._finish()

    def begin(self) -> list[Runner]:
        """The tenants come and their clients call; no faults yet."""
        world = self.world
        scripts = [
            self._open(opener, begin_us)
            for opener, begin_us in zip(self._openers, self.shape.tenants_begin_us, strict=True)]
        if self.shape.founded_in_peace:
            self._await("a cluster without faults serves", [scripts.pop(0)], HEALED_WITHIN_US)
        client_dice = world.dice("clients")
        for number in range(self.shape.clients):
            ground = self.grounds[number % self.shape.called_tenants]
            scripts.append(Client(ground, number, Random(client_dice.random())).run())
        for extra in self.extras:
            scripts += extra.clients()
        for number, opener in enumerate(self._openers if self.shape.naps else ()):
            scripts.append(naps(opener, world.dice(f"naps {number % 2}")))  # some at one time, so many sleep together
        return [Runner(world, self.cluster, script) for script in scripts]

    @property
    def histories(self) -> list[History]:
        """Everything that clients saw: of each tenant, and of each extra."""
        return [*(ground.history for ground in self.grounds), *(extra.ground.history for extra in self.extras)]

    @property
    def calls(self) -> int:
        """How many were made."""
        return sum(len(history.calls) for history in self.histories)

    def _finish(self) -> None:
        """Wait the timers out, drain, read every log, compare the nodes, judge what the clients of each tenant saw."""
        world = self.world
        self._await(
            "G-M4, no timer stays", [wait_for_timers(opener, TIMER_QUEUE) for opener in self._openers],
            LATE_US + self.shape.longest_delay_us)
        left_takes_us = 2 * self.shape.length_us  # one worker does what several left undone
        self._await("the extras end", [extra.finish() for extra in self.extras], FINAL_PHASE_US + left_takes_us)
        everything = [(opener, queue) for opener in self._openers for queue in (TIMER_QUEUE, WORK_QUEUE)]
        self._await("drained", [drain(opener, queue) for opener, queue in everything], FINAL_PHASE_US)
        self._await(
            "read to the end", [
                witness(opener.ground, queue, opener.ground.history.log) for opener, queue in everything],
            FINAL_PHASE_US)
        if not world.run_until(world.now_us + AGREED_WITHIN_US, self.cluster.agree):
            raise Broken("G-D7, all nodes agree in the end", "; ".join(map(str, self.cluster.nodes.values())))
        for history in self.histories:
            history.drained = True
            violations = verdict.judge(history)
            if violations:
                calls = "\n         ".join(str(call) for call in violations[0].calls)
                raise Broken(violations[0].promise, f"{violations[0].what}\n         {calls}")

    def _await(self, what: str, scripts: Sequence[Script], within_us: int) -> None:
        runners = [Runner(self.world, self.cluster, script) for script in scripts]
        if not self.world.run_until(self.world.now_us + within_us, lambda: all(runner.ended for runner in runners)):
            raise Broken(what, f"not within {within_us / SECOND:.0f} s")

    # --- scripts of the final phase

    def _open(self, client: Client, begin_us: int) -> Script:
        """A tenant comes: its two queues, with options under which nothing ends by itself."""
        yield begin_us
        of_extras = [
            queue for extra in self.extras if extra.ground.tenant == client.ground.tenant for queue in extra.queues]
        for queue in (TIMER_QUEUE, WORK_QUEUE, *of_extras):
            yield from self._configure(client, queue)
        client.ground.hours.is_open = True

    def _configure(self, client: Client, queue: str) -> Script:
        answer = None
        while answer is None or answer.outcome is not Outcome.OK:
            answer = yield from client.call(lambda process, slot: process.submit(
                client.ground.tenant, commands.configure(
                    process.ids.request_id(), queue.encode(), process.ids.uuid7(), (None, None), "merge", OPTIONS),
                slot, timeout_us=NODE_TIMEOUT_US))
            yield LOOK_EVERY_US

    def _probe(self, client: Client) -> Script:
        """A write through any node."""
        yield from self._configure(client, WORK_QUEUE)


def tenant_id(number: int) -> bytes:
    """The first is the one whose calls name none."""
    return (int.from_bytes(DEFAULT_TENANT, "big") + number).to_bytes(TENANT_BYTES, "big")


def run_seed(seed: int, parts: Parts | None = None, *, length_s: float | None = None) -> Outcomes:
    """Run one seed to its end, or to the first thing that is wrong."""
    with collected_afterwards():
        return _run(seed, parts, length_s)


def _run(seed: int, parts: Parts | None, length_s: float | None) -> Outcomes:
    simulation = Simulation(seed, parts, length_s=length_s)
    world, outcomes = simulation.world, Outcomes(seed)
    try:
        simulation.run()
    except (Broken, InvariantBroken) as error:
        outcomes.promise = error.promise if isinstance(error, Broken) else "an invariant of the code"
        outcomes.broken = report(simulation.world, simulation.cluster, error, length_s=length_s)
    outcomes.digest, outcomes.events, outcomes.virtual_us = world.digest, world.events, world.now_us
    outcomes.calls = simulation.calls
    outcomes.faults, outcomes.marks = dict(world.faults), world.marks
    return outcomes


if __name__ == "__main__":
    found = run_seed(int(sys.argv[1]))
    print(found.broken or found.digest)
