"""The faulty network as a process of its own, for tests that start nodes as processes: neither the test's load nor its
waiting holds up what passes between them.

Spoken to in lines of JSON: `[name, argument, ...]`, a method of `Network`; each is answered with `[result]` when it is
in force. It ends with its input.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from tests.cluster.relay import Front, Network

REPOSITORY = Path(__file__).resolve().parents[2]
END_TIMEOUT_S = 10.0
COMMANDS = frozenset({
    "cut", "stall", "drop", "delay", "heal", "heal_all", "link_count", "passed_bytes", "lost_bytes",
})


class RelayProcess:
    """Starts it; the methods are those of `Network`. Raises RuntimeError when it has ended."""

    def __init__(self, fronts: Mapping[int, Front]) -> None:
        described = json.dumps([[node, front.port, front.target_port] for node, front in fronts.items()])
        self._nodes = sorted(fronts)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.relay_process", described],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            start_new_session=True,  # the Ctrl-C of a developer reaches the tests, which then end it
        )
        self.ports: dict[int, int] = dict(self._answer())

    def cut(self, one: int, other: int) -> None:
        self._ask("cut", one, other)

    def stall(self, sender: int, receiver: int) -> None:
        self._ask("stall", sender, receiver)

    def drop(self, sender: int, receiver: int) -> None:
        self._ask("drop", sender, receiver)

    def delay(self, sender: int, receiver: int, delay_ms: int) -> None:
        self._ask("delay", sender, receiver, delay_ms)

    def heal(self, one: int, other: int) -> None:
        self._ask("heal", one, other)

    def heal_all(self) -> None:
        self._ask("heal_all")

    def link_count(self, one: int, other: int) -> int:
        return int(self._ask("link_count", one, other))

    def passed_bytes(self, sender: int, receiver: int) -> int:
        return int(self._ask("passed_bytes", sender, receiver))

    def lost_bytes(self, sender: int, receiver: int) -> int:
        return int(self._ask("lost_bytes", sender, receiver))

    def isolate(self, node: int) -> None:
        """Cut it off from all others."""
        for other in self._nodes:
            if other != node:
                self.cut(node, other)

    def close(self) -> None:
        """End it; connections through it end too."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(END_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, *command: str | int) -> Any:
        if self._process.stdin is None or self._process.poll() is not None:
            raise RuntimeError(f"the relay has ended, exit code {self._process.poll()}")
        self._process.stdin.write(json.dumps(command) + "\n")
        return self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"the relay has ended, exit code {self._process.wait(END_TIMEOUT_S)}")
        return json.loads(line)[0]


@contextmanager
def relay_process(fronts: Mapping[int, Front]) -> Iterator[RelayProcess]:
    """One for the length of a test."""
    process = RelayProcess(fronts)
    try:
        yield process
    finally:
        process.close()


async def _serve(fronts: Mapping[int, Front]) -> None:
    network = Network(fronts)
    async with trio.open_nursery() as nursery:
        ports: dict[int, int] = await nursery.start(network.run)
        _say(list(ports.items()))
        pending = b""
        async with trio.lowlevel.FdStream(sys.stdin.fileno()) as commands:
            async for data in commands:
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    name, *arguments = json.loads(line)
                    if name not in COMMANDS:
                        raise ValueError(f"not a command: {name}")
                    _say(getattr(network, name)(*arguments))
        nursery.cancel_scope.cancel()


def _say(result: object) -> None:
    print(json.dumps([result]), flush=True)


if __name__ == "__main__":
    trio.run(_serve, {node: Front(port, target_port) for node, port, target_port in json.loads(sys.argv[1])})
