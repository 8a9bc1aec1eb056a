"""The nodes of a run: which live, what happens to each, and how a call gets to one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from queen_node.opening import CELL_LIFE
from raft.core import Role
from raft.wal import Damaged
from tests.simulation.driver import GroupDriver
from tests.simulation.hardware import Hardware
from tests.simulation.network import Network
from tests.simulation.parts import Parts
from tests.simulation.process import Process, Said
from tests.simulation.rules import AllRules
from tests.simulation.shape import Shape
from tests.simulation.slots import CallSlot, Result, numbers
from tests.simulation.world import Broken, World

CLIENT_WIRE_US: Final = (50, 500)


class Node:
    """A machine, and the process on it while one runs. why_down: for the report, empty while it runs.

    is_absent: it is no member and not asked to be one; joined: it is not one of those who founded the cluster, or came
    back without its disk: until it is told otherwise it only learns.
    """

    def __init__(self, node_id: int, hardware: Hardware) -> None:
        self.node_id, self.hardware = node_id, hardware
        self.process: Process | None = None
        self.starts = self.lives = 0
        self.why_down = "not started"
        self.refuses_to_start = False
        self.is_absent = self.joined = False

    @property
    def live(self) -> Process | None:
        """The process, if it lives and works."""
        process = self.process
        return process if process is not None and process.alive and not process.stopped else None

    def __str__(self) -> str:
        process = self.process
        if process is None or not process.alive:
            return f"{self.node_id} {self.why_down}"
        return f"{self.node_id} {'stopped by its disk, ' if process.stopped else ''}{process}"


class Cluster:
    """Starts and ends processes, and carries what they say."""

    def __init__(self, world: World, shape: Shape, parts: Parts) -> None:
        self.world, self.shape, self._parts = world, shape, parts
        self.rules = AllRules(world)
        self._dice = world.dice("clients' network")
        self._next_slot = numbers()
        self._encode = msgspec.msgpack.Encoder().encode
        self.nodes: dict[int, Node] = {}
        self.network = Network(world, shape.all_ids, shape.wire_us)
        self._drifts_ppm = {
            **dict(zip(shape.node_ids, shape.drift_ppm, strict=True)), **dict.fromkeys(shape.spare_ids, 0)}
        for node_id, drift_ppm in self._drifts_ppm.items():
            self.nodes[node_id] = Node(node_id, Hardware(world, node_id, drift_ppm, shape.fsync_us))
            self.network.deliver[node_id] = partial(self._deliver, node_id)
            world.trace(str(drift_ppm).encode())
        self._directories = {node_id: self.nodes[node_id].hardware.identity for node_id in shape.node_ids}
        for node_id in shape.node_ids:
            self.start(node_id)
        for node_id in shape.spare_ids:
            self.nodes[node_id].is_absent = True

    # --- lives

    def start(self, node_id: int) -> None:
        """Start a node's process, unless one runs, its disk is damaged or it is not wanted."""
        node = self.nodes[node_id]
        if node.refuses_to_start or node.is_absent or (node.process is not None and node.process.alive):
            return
        node.starts += 1
        self.world.trace(b"start %d" % node_id)
        try:
            node.process = Process(
                self.world, self.shape, node.hardware, node_id, node.starts, self.rules, self._parts,
                send=partial(self.network.send, node_id), joined=node.joined, directories=self._directories)
        except Damaged as error:
            if not node.hardware.is_damaged:
                raise Broken("CL-124, only damage is refused", f"node {node_id}: {error}") from error
            self.world.reached("refused to start on damage")
            node.refuses_to_start, node.why_down = True, f"refuses to start: {error}"
            return
        if node.hardware.is_damaged:
            raise Broken("CL-124, damage is refused, never served", f"node {node_id} started on a flipped bit")

    def wipe(self, node_id: int) -> None:
        """The machine is gone with its disk; the next one under this id is another, and empty."""
        node = self.nodes[node_id]
        self._end(node_id, "gone with its disk")
        node.lives += 1
        node.hardware = Hardware(
            self.world, node_id, self._drifts_ppm[node_id], self.shape.fsync_us, life=node.lives)
        node.starts, node.refuses_to_start, node.is_absent, node.joined = 0, False, True, True
        node.why_down = "not there"
        self.rules.wiped(node_id)

    def join(self, node_id: int) -> None:
        """Start an empty node, to be added."""
        node = self.nodes[node_id]
        node.is_absent, node.joined = False, True
        self.start(node_id)

    def kill(self, node_id: int) -> None:
        """SIGKILL: the machine and what it was given to write live on."""
        if self.nodes[node_id].is_absent:
            return
        self._end(node_id, "killed")
        self.nodes[node_id].hardware.process_died()

    def cut_power(self, node_id: int) -> None:
        """The machine loses what was not synced, and its BOOTTIME."""
        node = self.nodes[node_id]
        if node.is_absent:
            return
        self._end(node_id, "without power")
        node.hardware.power_lost()
        node.hardware.clocks.reboot()

    def _end(self, node_id: int, why: str) -> None:
        node = self.nodes[node_id]
        if node.process is not None:
            node.process.die()
        if not node.refuses_to_start:
            node.why_down = why

    # --- messages and calls

    def _deliver(self, node_id: int, message: Any) -> None:
        process = self.nodes[node_id].process
        if process is None or not process.alive or process.stopped:
            return
        if type(message) is Said:
            self.world.trace(b"%d %b" % (message.life, self._encode(message.said)))
        else:
            self.world.trace(self._encode(message))
        process.run(process.hear, message)

    def call(
        self, node_id: int, send: Callable[[Process, CallSlot], None], deliver: Callable[[Result], None],
    ) -> CallSlot | None:
        """A client's call to a node; the result comes to `deliver`. None: nobody listens there, nothing was sent."""
        node = self.nodes[node_id]
        if node.process is None or not node.process.alive:
            return None
        process = node.process
        slot = CallSlot(self._next_slot(), lambda result: self.world.after(self._client_wire_us(), deliver, result))
        self.world.after(self._client_wire_us(), self._arrive, process, send, slot)
        return slot

    def _arrive(self, process: Process, send: Callable[[Process, CallSlot], None], slot: CallSlot) -> None:
        if not process.alive:
            slot.connection_broke()
        else:
            process.accept(slot)
            process.run(send, process, slot)

    def _client_wire_us(self) -> int:
        return self._dice.randint(*CLIENT_WIRE_US)

    # --- views

    def leader_of(self, life: int) -> GroupDriver | None:
        """Who leads a group in its highest term, and serves."""
        live = [process for node in self.nodes.values() if (process := node.live) is not None]
        members = [process.groups[life] for process in live if life in process.groups]
        leading = [driver for driver in members if driver.core.role is Role.LEADER and driver.raft.may_propose]
        return max(leading, key=lambda driver: driver.core.term, default=None)

    @property
    def lives(self) -> list[int]:
        """Of all groups that there are."""
        return [CELL_LIFE, *self.rules.lives.values()]

    def agree(self) -> bool:
        """Whether all members that work are one: the same groups, each with the same applied index and digest, and so
        nothing on its way."""
        live = [node.live for node in self.nodes.values() if not (node.refuses_to_start or node.is_absent)]
        states = [None if process is None else _states(process) for process in live]
        return None not in states and all(state == states[0] for state in states)


def _states(process: Process) -> dict[int, tuple[int, bytes]]:
    """By life the applied index and the digest of the state."""
    return {
        life: (driver.machine.applied_index, driver.machine.store.meta.digest)
        for life, driver in process.groups.items()
    }
