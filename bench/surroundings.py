"""What every subject is given: a scratch folder, the yardsticks, nodes, and how long it may take."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bench import calls, load
from bench.jobs import FillJob, Outcome
from bench.machine import fdatasync_per_s
from bench.node import Echo, Node
from bench.results import Results, Yardstick

FILL_S_MAX = 150.0

T = TypeVar("T")


class Bench:
    """The surroundings of a run. Everything on disk lies below `scratch`."""

    def __init__(self, scratch: Path, echo: Echo, *, quick: bool) -> None:
        self.scratch = scratch
        self.quick = quick
        self._echo = echo
        self._folders = 0

    def choose(self, full: T, quick: T) -> T:
        """A size or duration for this kind of run."""
        return quick if self.quick else full

    @contextmanager
    def node(self, settings: Mapping[str, str] | None = None) -> Iterator[Node]:
        """A healthy node on a fresh folder; killed and its folder removed at the end. Raises ServerFailed."""
        folder = self.new_folder()
        try:
            with Node(folder, settings) as node:
                yield node.wait_until_healthy()
        finally:
            self.remove(folder)

    def new_folder(self) -> Path:
        self._folders += 1
        return self.scratch / f"node-{self._folders}"

    def remove(self, folder: Path) -> None:
        """Gives the space of a node that has ended back."""
        shutil.rmtree(folder, ignore_errors=True)

    def yardstick(self, results: Results) -> Yardstick:
        """Measures disk and echo now, and notes them in `results`. Raises LoadFailed."""
        rate = fdatasync_per_s(self.scratch, self.choose(1.0, 0.3))
        echo = load.send(self._echo.port, calls.fixed_template(), self.choose(3, 1))
        results.trouble += echo.trouble("echo")
        found = Yardstick(rate, echo.items_per_s, echo.load_cores)
        results.yardsticks.append(found)
        return found

    def fill(self, node: Node, count: int, results: Results, queue: str = "pending") -> Outcome:
        """Leaves `count` timers pending on the node, due between 1 and 30 days from now. Raises LoadFailed."""
        job = FillJob(queue, count, calls.DAY_MS, 30 * calls.DAY_MS, seconds_max=FILL_S_MAX)
        outcome = load.run(node.port, job, FILL_S_MAX)
        results.trouble += outcome.trouble(f"filling {count:,}")
        return outcome
