"""A node as a process of its own: started, watched, stopped, killed and started again on the same folder and port.

Its log goes to a file beside the data. A line of level error that the test did not announce is a failure of the test
(STYLE.md): `check_log` says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from bench.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
BOOT_TIMEOUT_S = 60.0  # like the next one for what only a broken node does not do: a full machine takes ten seconds
STOP_TIMEOUT_S = 60.0
POLL_S = 0.01  # between two looks at a condition that nobody reports
LOG_TAIL_LINES = 60

# What a test's node needs so that only the test decides: no other variable of these families leaks in.
OWN_FAMILIES = ("QUEEN_", "JWT_", "LOG_LEVEL", "RUST_LOG", "PORT", "POP_DEFAULT", "DEFAULT_", "RETENTION_", "METRICS_")
BASE_SETTINGS = {
    "QUEEN_BIND_ADDR": "127.0.0.1",
    "QUEEN_LOG_JSON": "1",
    "QUEEN_KV_READ_RATE": "1000000",  # rates have tests of their own
    "QUEEN_KV_READ_BURST": "1000000",
    "QUEEN_KV_WRITE_RATE": "1000000",
    "QUEEN_KV_WRITE_BURST": "1000000",
    "QUEEN_DOORS": os.environ.get("TEST_DOORS", ""),  # so that a whole run can be had with any number of them
}


class NodeFailed(Exception):
    """The node did not do what the test asked of the process. The text holds the end of its log."""


class NodeProcess:
    """One node on one folder and one port, through any number of starts."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, *, hooks: bool = False) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log_path = folder / "node.log"
        self.port = free_port()
        self.settings = {**BASE_SETTINGS, **(settings or {})}
        if hooks:
            self.settings["QUEEN_TEST_HOOKS"] = "1"
        self.announced: list[str] = []  # texts of error lines that the test expects
        self._process: subprocess.Popen[bytes] | None = None
        self._log_checked_to = 0
        folder.mkdir(parents=True, exist_ok=True)

    # ---- life

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start and wait until it is ready. `extra`: settings of this start alone."""
        self.launch(extra)
        self.wait_until_ready()

    def launch(self, extra: Mapping[str, str] | None = None) -> None:
        """Start without waiting."""
        if self.is_running():
            raise NodeFailed("the node runs already")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_FAMILIES)}
        environment = {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "PORT": str(self.port),
            "QUEEN_RAFT_DIR": str(self.data),
            **self.settings,
            **(extra or {}),
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "queen_node"],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # the Ctrl-C of a developer reaches the tests, which then end the node
            )

    def wait_until_ready(self, timeout_s: float = BOOT_TIMEOUT_S) -> None:
        """Until /health is 200. Raises NodeFailed when the process ends before, or the time does."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.is_running():
                raise self._failed(f"the node ended while it started, exit code {self.exit_code()}")
            if self.health_status() == 200:
                return
            time.sleep(POLL_S)
        raise self._failed(f"the node was not ready within {timeout_s} s")

    def health_status(self) -> int | None:
        """Status of GET /health now; None when nobody answers."""
        answer = self._ask_health()
        return None if answer is None else answer[0]

    def health_body(self) -> bytes:
        """What GET /health says now; empty when nobody answers."""
        answer = self._ask_health()
        return b"" if answer is None else answer[1]

    def _ask_health(self) -> tuple[int, bytes] | None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, and wait for the end. Returns the exit code; raises NodeFailed when it does not end."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        process = self._alive()
        process.kill()
        process.wait(STOP_TIMEOUT_S)

    def cut_power(self) -> None:
        """SIGKILL to the node and its writer process in one moment, and wait until the node is gone."""
        process = self._alive()
        os.killpg(process.pid, signal.SIGKILL)  # `launch` gave it a group of its own
        process.wait(STOP_TIMEOUT_S)

    @property
    def process_id(self) -> int:
        """Of the node itself, which runs."""
        return self._alive().pid

    def log_writer_id(self) -> int:
        """The process that writes the node's log: one of those that the node has started (Linux)."""
        process_id = self.process_id
        children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
        (writer,) = [int(child) for child in children if b"wal_process" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return writer

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._alive().send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end by itself; its exit code, negative for a signal."""
        process = self._process
        if process is None:
            raise NodeFailed("the node was never started")
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._failed(f"the node did not end within {timeout_s} s") from None

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Exit code of the last start, None while it runs."""
        return None if self._process is None else self._process.poll()

    def close(self) -> None:
        """End it if it runs, however it stands."""
        if self.is_running():
            process = self._alive()
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    # ---- its words

    def log_lines(self) -> list[str]:
        """Every line of the log so far, of all starts."""
        return self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []

    def unannounced_errors(self) -> list[str]:
        """Lines since the last call that need a person and that no test announced."""
        lines = self.log_lines()
        fresh, self._log_checked_to = lines[self._log_checked_to :], len(lines)
        return [line for line in fresh if is_error_line(line) and not any(text in line for text in self.announced)]

    def check_log(self) -> None:
        """Raise NodeFailed when the log holds an error that nobody announced."""
        errors = self.unannounced_errors()
        if errors:
            raise self._failed("the node logged what no test announced:\n" + "\n".join(errors))

    def log_tail(self) -> str:
        """The end of the log, for a person."""
        return "\n".join(self.log_lines()[-LOG_TAIL_LINES:])

    def _alive(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            raise self._failed(f"the node does not run (exit code {self.exit_code()})")
        return process

    def _failed(self, text: str) -> NodeFailed:
        return NodeFailed(f"{text}\n--- end of {self.log_path}\n{self.log_tail()}")


def is_error_line(line: str) -> bool:
    """Whether a log line is of level error or above, why a boot ended, or a traceback that escaped the log."""
    if line.startswith(("queen: ", "Traceback")) or "Exception Group Traceback" in line:
        return True
    record = log_record(line)
    return str(record.get("level", "")).lower() in ("error", "critical", "fatal")


def log_record(line: str) -> Mapping[str, Any]:
    """A line of the JSON log, empty when it is none."""
    if not line.startswith("{"):
        return {}
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def files_under(folder: Path, names: Sequence[str] = ("*",)) -> list[Path]:
    """Every file below `folder` whose name matches one of the patterns, in order of their paths."""
    return sorted({path for name in names for path in folder.rglob(name) if path.is_file()})
