"""Servers that a bench starts and ends: the node, and the bare echo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.http import BadAnswer, Client
from bench.machine import cpu_s, family, resident_bytes
from bench.ports import free_port

ROOT = Path(__file__).parent.parent
START_S_MAX = 120.0
STOP_S_MAX = 60.0
LOOK_EVERY_S = 0.01

# What would else refuse the load: the default write rate of a tenant answers 429 above 100 calls a second.
OPEN_RATES = {f"QUEEN_KV_{kind}": "1000000" for kind in ("READ_RATE", "READ_BURST", "WRITE_RATE", "WRITE_BURST")}


class ServerFailed(Exception):
    """A server did not start, or ended by itself."""


class Server:
    """A server process with its output in a file. Leaving its `with` kills it."""

    def __init__(self, command: list[str], port: int, log: Path, environment: Mapping[str, str]) -> None:
        self.port = port
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """Of the server and all processes that it has started."""
        return sum(cpu_s(pid) for pid in family(self.pid))

    @property
    def resident_bytes(self) -> int:
        """Likewise. Pages that several of them share count more than once."""
        return sum(resident_bytes(pid) for pid in family(self.pid))

    def must_live(self) -> None:
        """Raises ServerFailed, with the last lines of its output, when it has ended."""
        code = self._process.poll()
        if code is not None:
            said = " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-3:])
            raise ServerFailed(f"a server ended by itself, exit code {code}: {said or 'it said nothing'}")

    def kill(self) -> None:
        """kill -9, and waits for its end."""
        self._process.kill()
        self._process.wait()

    def runs(self) -> bool:
        return self._process.poll() is None

    def ask_to_stop(self) -> None:
        """SIGTERM, and does not wait."""
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM, and waits for an orderly end. Raises ServerFailed when it doesn't come."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"no orderly stop within {STOP_S_MAX:.0f} s") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raises ServerFailed when the server had ended by itself: that is why the load failed, and says more."""
        try:
            if kind is not None and issubclass(kind, Exception) and not issubclass(kind, ServerFailed):
                self.must_live()
        finally:
            self.kill()


class Node(Server):
    """A node on a data folder."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, *, port: int | None = None) -> None:
        """Starts it and does not wait. settings: beside OPEN_RATES, over the defaults."""
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port() if port is None else port
        environment = {
            "PORT": str(port),
            "QUEEN_BIND_ADDR": "127.0.0.1",
            "QUEEN_RAFT_DIR": str(folder / "data"),
            "LOG_LEVEL": "warning",
            **OPEN_RATES,
            **(settings or {}),
        }
        self.data = folder / "data"
        super().__init__([sys.executable, "-P", "-m", "queen_node"], port, folder / "node.log", environment)

    def wait_until_healthy(self, seconds_max: float = START_S_MAX) -> Self:
        """Raises ServerFailed when it ends, or is not healthy within `seconds_max`."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            self.must_live()
            try:
                with Client(self.port, timeout_s=5) as client:
                    if client.call("GET", "/health").status == 200:
                        return self
            except (OSError, BadAnswer):
                pass  # not listening yet, or not serving
            time.sleep(LOOK_EVERY_S)
        raise ServerFailed(f"not healthy within {seconds_max:.0f} s")

    def leads(self) -> bool:
        """Whether it says that it leads the one tenant's group. Raises OSError and BadAnswer."""
        with Client(self.port) as client:
            health = json.loads(client.call("GET", "/health").body)
        return bool(health["groups"]["leading"] > health["raft"]["leader"])

    def metrics(self) -> str:
        """The text of /metrics/prometheus. Raises OSError and BadAnswer."""
        with Client(self.port) as client:
            answer = client.call("GET", "/metrics/prometheus")
        if answer.status != 200:
            raise BadAnswer(f"/metrics/prometheus answered {answer.status}")
        return answer.body.decode()


class Echo(Server):
    """The bare echo (bench/echo.py)."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        super().__init__([sys.executable, "-m", "bench.echo", str(port)], port, folder / "echo.log", {})

    def wait_until_listening(self) -> Self:
        """Raises ServerFailed."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            self.must_live()
            try:
                with Client(self.port):
                    return self
            except OSError:
                time.sleep(LOOK_EVERY_S)
        raise ServerFailed("the echo does not listen")
