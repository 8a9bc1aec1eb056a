"""What is put upon a cluster, drawn from the seed: which fault, on whom, for how long. Each ends by itself.

A row of `MENU` is a kind of fault. Members that come and go, and disks that are lost, are the `operator`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from queen_node.events import TransferLeadership
from queen_node.snapshots import Stage
from tests.simulation.cluster import Cluster
from tests.simulation.driver import GroupDriver
from tests.simulation.process import Process
from tests.simulation.world import MS, SECOND, World

PAUSE_US: Final = 700 * MS  # between two faults, on average, at trouble 1
LASTS_US: Final = (50 * MS, 3 * SECOND)
WALL_JUMP_US: Final = 300 * SECOND
STROBES: Final = 20
WALL_STEPS_US: Final = (11 * MS, SECOND, 60 * SECOND, WALL_JUMP_US)


class Faults:
    """Begins with `start`, ends with `stop`, which heals everything that can be healed."""

    def __init__(self, world: World, cluster: Cluster, trouble: float, may_damage: Callable[[], bool]) -> None:
        """may_damage: whether every member has its disk now."""
        self._world, self._cluster, self._trouble, self._may_damage = world, cluster, trouble, may_damage
        self._dice = world.dice("faults")
        self._stopped = False
        nodes = cluster.shape.node_ids
        self._hasty = world.dice("hasty wall clocks").sample(nodes, (len(nodes) - 1) // 2)

    def start(self) -> None:
        """Let faults come."""
        if self._trouble:
            self._world.after(self._pause_us(), self._strike)

    def stop(self) -> None:
        """No more faults; links, disks and processes are whole again, but for what a disk has lost for good."""
        self._stopped = True
        self._cluster.network.heal()
        for node in self._cluster.nodes.values():
            node.hardware.slow, node.hardware.stuck_until_us, node.hardware.fails_next = 1, 0, False
            node.hardware.while_writing = None
            if node.process is not None and node.process.alive:
                if node.process.stopped:
                    self._cluster.cut_power(node.node_id)
                else:
                    node.process.go_on()
            self._cluster.start(node.node_id)
        self._world.trace(b"healed")

    def _pause_us(self) -> int:
        return int(self._dice.expovariate(self._trouble / PAUSE_US))

    def _strike(self) -> None:
        if self._stopped:
            return
        kinds = list(MENU)
        kind = self._dice.choices(kinds, [MENU[kind] for kind in kinds])[0]
        kind(self)
        self._world.after(self._pause_us(), self._strike)

    def _later(self, call: Callable[..., None], *arguments: object) -> None:
        """When the fault ends; `stop` ends it too, so what comes after is nothing."""
        def end() -> None:
            if not self._stopped:
                call(*arguments)

        self._world.after(self._dice.randint(*LASTS_US), end)

    def _victim(self) -> int:
        """The leader more often than its share: it has the most to lose; most of all when its groups sleep."""
        watched = [process.node_id for process in self._processes() if process.leads_asleep]
        if watched and self._dice.random() < 0.5:
            return self._dice.choice(watched)
        leader = self._leader()
        if leader is not None and self._dice.random() < 0.4:
            return leader.node_id
        return self._dice.choice(self._cluster.shape.node_ids)

    # --- processes and machines

    def _kill(self) -> None:
        node_id = self._victim()
        self._world.fault("kill", f"node {node_id} killed")
        self._cluster.kill(node_id)
        self._later(self._cluster.start, node_id)

    def _power(self) -> None:
        nodes = self._cluster.shape.node_ids
        some = nodes if self._dice.random() < 0.2 else (self._victim(),)
        self._world.fault("power cut" if len(some) == 1 else "power cut of all", f"nodes {some} lost power")
        for node_id in some:
            self._cluster.cut_power(node_id)
            if self._dice.random() < 0.3:
                self._jump(node_id)
            self._later(self._cluster.start, node_id)

    def _power_while_writing(self) -> None:
        """In the middle of a write of several sectors any of them may have reached the disk (M-12)."""
        node_id = self._victim()
        hardware = self._cluster.nodes[node_id].hardware

        def cut() -> None:
            if not self._stopped:
                self._world.fault("power cut in a write", f"node {node_id} lost power while it wrote")
                self._cluster.cut_power(node_id)
                self._later(self._cluster.start, node_id)

        hardware.while_writing = self._dice.choice((1, 2, 2, 3)), cut

    def _crash_in_install(self) -> None:
        """The next install of a snapshot is cut short, wherever it is, at a stage that is drawn."""
        stages = [*Stage, Stage.FLIPPED, Stage.RESTORED, Stage.RESTORED]
        stage, power = self._dice.choice(stages), self._dice.random() < 0.5
        nodes = self._cluster.nodes

        def crash(node_id: int) -> None:
            if self._stopped:
                return
            for node in nodes.values():
                node.hardware.in_install = None
            self._world.fault("crash in an install", f"node {node_id} {'cut' if power else 'killed'} when {stage.name}")
            (self._cluster.cut_power if power else self._cluster.kill)(node_id)
            self._later(self._cluster.start, node_id)

        for node_id, node in nodes.items():
            node.hardware.in_install = stage, partial(crash, node_id)

    def _pause(self) -> None:
        process = self._live(self._victim())
        if process is not None:
            self._world.fault("pause", f"node {process.node_id} paused")
            process.pause()
            self._later(process.go_on)

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            target = self._dice.choice([peer for peer in self._cluster.shape.node_ids if peer != leader.node_id])
            self._world.fault("hand-over", f"node {leader.node_id} told to hand group {leader.life} to {target}")
            leader.process.run(leader.inbox.put, TransferLeadership(target))
            self._world.reached("leadership handed over by wish")

    def _leader(self) -> GroupDriver | None:
        """Of any group."""
        return self._cluster.leader_of(self._dice.choice(self._cluster.lives))

    def _live(self, node_id: int) -> Process | None:
        return self._cluster.nodes[node_id].live

    def _processes(self) -> list[Process]:
        return [process for node in self._cluster.nodes.values() if (process := node.live) is not None]

    # --- network

    def _partition(self) -> None:
        nodes = list(self._cluster.shape.node_ids)
        some = sorted(self._dice.sample(nodes, self._dice.randint(1, len(nodes) // 2)))
        if self._dice.random() < 0.5:
            some = [self._victim()]
        way = self._dice.choice(("both ways", "both ways", "deaf", "mute"))
        self._world.fault("cut" if way == "both ways" else "one-way cut", f"nodes {some} cut off, {way}")
        self._cluster.network.cut_off(some, deaf=way != "mute", mute=way != "deaf")
        if any(process.host.quiet_count for process in self._processes()):
            self._world.reached("cut off while groups slept")
        self._later(self._cluster.network.cut.clear)

    def _bad_links(self) -> None:
        network, dice = self._cluster.network, self._dice
        network.loss, network.doubling = dice.choice((0.0, 0.05, 0.3)), dice.choice((0.0, 0.1))
        network.reordering, network.slow = dice.choice((0.0, 0.2)), dice.choice((1, 1, 10))
        self._world.fault("bad links", f"loss {network.loss}, doubling {network.doubling}, "
                                       f"reordering {network.reordering}, {network.slow} x slower")
        self._later(network.heal)

    # --- disks

    def _slow_disk(self) -> None:
        hardware = self._cluster.nodes[self._victim()].hardware
        hardware.slow = self._dice.choice((5, 50))
        self._world.fault("slow disk", f"a disk {hardware.slow} x slower")
        self._later(setattr, hardware, "slow", 1)

    def _stuck_disk(self) -> None:
        node_id = self._victim()
        lasts_us = self._dice.randint(*LASTS_US)
        self._world.fault("stuck disk", f"the disk of node {node_id} stuck for {lasts_us // MS} ms")
        self._cluster.nodes[node_id].hardware.stuck_until_us = self._world.now_us + lasts_us

    def _failing_disk(self) -> None:
        """The next fsync fails: the process stops its work (CL-126), and somebody restarts the machine."""
        node_id = self._victim()
        self._world.fault("failing fsync", f"the next fsync of node {node_id} fails")
        self._cluster.nodes[node_id].hardware.fails_next = True

        def restart() -> None:
            node = self._cluster.nodes[node_id]
            node.hardware.fails_next = False
            if node.process is not None and node.process.stopped:
                self._cluster.cut_power(node_id)
                self._cluster.start(node_id)

        self._later(restart)

    def _flip(self) -> None:
        """A bit of one node's log, never of a second one (M-82); found when it starts again."""
        damaged = any(node.hardware.is_damaged for node in self._cluster.nodes.values())
        if damaged or not self._may_damage():
            return
        node_id = self._victim()
        self._cluster.cut_power(node_id)
        where = self._cluster.nodes[node_id].hardware.flip_bit()
        if where is not None:
            self._world.fault("bit flip", f"a bit of node {node_id} at {where}")
        self._later(self._cluster.start, node_id)

    # --- clocks

    def _wall_jump(self) -> None:
        node_id = self._victim()
        self._world.fault("wall clock jump", f"the wall clock of node {node_id} jumps")
        self._jump(node_id)

    def _strobe(self) -> None:
        node_id = self._victim()
        self._world.fault("wall clock strobe", f"the wall clock of node {node_id} strobes")
        for turn in range(STROBES):
            self._world.after(turn * self._dice.randint(10, 200) * MS, self._jump, node_id)

    def _jump(self, node_id: int) -> None:
        """Forwards on a minority only: a majority that reboots with its wall clocks gone forward may make timers early,
        and nothing else may (M-23)."""
        clocks = self._cluster.nodes[node_id].hardware.clocks
        step_us = self._dice.choice(WALL_STEPS_US) * self._dice.choice((-1, 1))
        clocks.wall_offset_us = step_us if node_id in self._hasty else min(step_us, clocks.wall_offset_us)


MENU: Final[dict[Callable[[Faults], None], float]] = {
    Faults._kill: 3,
    Faults._power: 2,
    Faults._power_while_writing: 3,
    Faults._crash_in_install: 3,
    Faults._pause: 2,
    Faults._transfer: 1.5,
    Faults._partition: 4,
    Faults._bad_links: 2,
    Faults._slow_disk: 1,
    Faults._stuck_disk: 1,
    Faults._failing_disk: 1,
    Faults._flip: 0.3,
    Faults._wall_jump: 1,
    Faults._strobe: 0.7,
}
