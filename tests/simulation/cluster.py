"""The nodes of a run: which live, what happens to each, and how a call gets to one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from raft.core import Role
from raft.wal import Damaged
from tests.simulation.hardware import Hardware
from tests.simulation.network import Network
from tests.simulation.process import Called, NodeFrame, Parts, Process
from tests.simulation.rules import Rules
from tests.simulation.shape import Shape
from tests.simulation.slots import CallSlot, Result, numbers
from tests.simulation.transfers import SnapshotWord
from tests.simulation.world import Broken, World

CLIENT_WIRE_US: Final = (50, 500)
NOT_RAFTS: Final = frozenset((NodeFrame, Called, SnapshotWord))  # what nodes say beside Raft's messages


class Node:
    """A machine, and the process on it while one runs. why_down: for the report, empty while it runs."""

    def __init__(self, node_id: int, hardware: Hardware) -> None:
        self.node_id, self.hardware = node_id, hardware
        self.process: Process | None = None
        self.starts = 0
        self.why_down = "not started"
        self.refuses_to_start = False

    @property
    def live(self) -> Process | None:
        """The process, if it lives and works."""
        process = self.process
        return process if process is not None and process.alive and not process.stopped else None

    def __str__(self) -> str:
        process = self.process
        if process is None or not process.alive:
            return f"{self.node_id} {self.why_down}"
        core = process.core
        state = "stopped by its disk, " if process.stopped else ""
        return (f"{self.node_id} {state}{core.role.value} term {core.term} last {core.log.last_index} "
                f"commit {core.commit_index} applied {core.applied_index}")


class Cluster:
    """Starts and ends processes, and carries what they say."""

    def __init__(self, world: World, shape: Shape, parts: Parts) -> None:
        self.world, self.shape, self._parts = world, shape, parts
        self.rules = Rules(world)
        self.network = Network(world, shape.node_ids, shape.wire_us)
        self._dice = world.dice("clients' network")
        self._next_slot = numbers()
        self._encode = msgspec.msgpack.Encoder().encode
        self.nodes: dict[int, Node] = {}
        for node_id, drift_ppm in zip(shape.node_ids, shape.drift_ppm, strict=True):
            self.nodes[node_id] = Node(node_id, Hardware(world, node_id, drift_ppm, shape.fsync_us))
            self.network.deliver[node_id] = partial(self._deliver, node_id)
            world.trace(str(drift_ppm).encode())
        for node_id in shape.node_ids:
            self.start(node_id)

    # --- lives

    def start(self, node_id: int) -> None:
        """Start a node's process, unless one runs or its disk is damaged."""
        node = self.nodes[node_id]
        if node.refuses_to_start or (node.process is not None and node.process.alive):
            return
        node.starts += 1
        self.world.trace(b"start %d" % node_id)
        try:
            node.process = Process(
                self.world, self.shape, node.hardware, node_id, node.starts, self.rules, self._parts,
                send=lambda peer, message: self.network.send(node_id, peer, message))
        except Damaged as error:
            if not node.hardware.is_damaged:
                raise Broken("CL-124, only damage is refused", f"node {node_id}: {error}") from error
            self.world.reached("refused to start on damage")
            node.refuses_to_start, node.why_down = True, f"refuses to start: {error}"

    def kill(self, node_id: int) -> None:
        """SIGKILL: the machine and what it was given to write live on."""
        self._end(node_id, "killed")
        self.nodes[node_id].hardware.process_died()

    def cut_power(self, node_id: int) -> None:
        """The machine loses what was not synced, and its BOOTTIME."""
        node = self.nodes[node_id]
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
        process = self.nodes[node_id].live
        if process is None:
            return
        self.world.trace(repr(message).encode() if type(message) in NOT_RAFTS else self._encode(message))
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

    @property
    def leader(self) -> Process | None:
        """The leader of the highest term that serves."""
        live = [process for node in self.nodes.values() if (process := node.live) is not None]
        leading = [process for process in live if process.core.role is Role.LEADER and process.raft.may_propose]
        return max(leading, key=lambda process: process.core.term, default=None)

    def agree(self) -> bool:
        """Whether all nodes that work are one: same applied index and digest, nothing on its way."""
        live = [node.live for node in self.nodes.values() if not node.refuses_to_start]
        states = {
            None if process is None else (process.machine.applied_index, process.machine.store.meta.digest)
            for process in live
        }
        return len(states) == 1 and None not in states
