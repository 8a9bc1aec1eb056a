"""The door processes as the node has them: started early, let in late, ended in order, missed at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import trio

import queen_node
from queen_node.disk_gate import Gates
from queen_node.doorway.channel import Channel
from queen_node.doorway.link import DoorLink
from queen_node.pass_end import PassEnd
from raft.invariants import must

NOT_FOR_DOORS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the node alone decides when a door ends
GATHERED_MAX = 8  # of answers: a door that hears of the first at once works while the others are rendered
END_WAIT_S = 10.0  # from the end of its channel to the end of its process

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Child:
    """One door process and our end of its channel."""

    def __init__(
        self, number: int, doors: int, listener: socket.socket, environ: Mapping[str, str], pass_end: PassEnd,
    ) -> None:
        connected, theirs = socket.socketpair()
        with theirs:
            inherited = theirs.fileno(), listener.fileno()
            packages = str(Path(queen_node.__file__).parents[1])
            search = os.pathsep.join(filter(None, (packages, environ.get("PYTHONPATH", ""))))
            # Blocked, not ignored: a signal that comes just now is the node's, and is kept for it. A child inherits
            # the mask, or a Ctrl-C would end a door that is still importing.
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_DOORS)
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "queen_node.doorway.process", *map(str, (number, doors, *inherited))],
                    pass_fds=inherited, stdin=subprocess.DEVNULL, env={**environ, "PYTHONPATH": search})
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        self.number = number
        self.channel = Channel(connected, pass_end, gathered_max=GATHERED_MAX)


class DoorChildren:
    """All door processes of a node. They are started here, and inherit `listener`, which need not be bound yet."""

    def __init__(self, doors: int, listener: socket.socket, environ: Mapping[str, str], pass_end: PassEnd) -> None:
        must(doors > 0, "a node without doors has no door processes")
        self.failed = False  # one ended by itself
        self._children = [Child(number, doors, listener, environ, pass_end) for number in range(1, doors + 1)]
        self._links: list[DoorLink] = []
        self._draining = False

    def link(self, make: Callable[[Channel], DoorLink]) -> None:
        """Say what stands at our end of each channel."""
        self._links = [make(child.channel) for child in self._children]

    def tell_gates(self, gates: Gates) -> None:
        """Tell all doors what is refused from now on."""
        for link in self._links:
            link.tell_gates(gates)

    def drain(self) -> None:
        """Let all doors finish what is in hand; `run` returns when they have."""
        self._draining = True
        for link in self._links:
            link.drain()

    async def run(self, gates: Gates, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let the doors in, until they have ended. One that ends unasked ends the others, and `failed` says so."""
        missed: list[Child] = []
        async with trio.open_nursery() as nursery:

            async def run(child: Child, link: DoorLink) -> None:
                await link.run()
                if not self._draining:
                    missed.append(child)
                    nursery.cancel_scope.cancel()

            for child, link in zip(self._children, self._links, strict=True):
                link.serve(gates)
                nursery.start_soon(run, child, link)
            task_status.started()
        with trio.CancelScope(shield=True):
            for child in self._children:
                child.channel.close()
                code = await trio.to_thread.run_sync(_wait, child.process)
                if child in missed[:1] or (code and not missed):
                    self.failed = True
                    log.error(
                        "a door process ended by itself: the node stops", door=child.number, pid=child.process.pid,
                        exit_code=code)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None when it had to be killed."""
    try:
        return process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
