"""Starts load processes and hears their outcomes; wrk where it is installed and the calls are single, else our own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import msgspec

from bench.calls import Template
from bench.jobs import Job, Outcome, SendJob
from bench.stats import Spread

ROOT = Path(__file__).parent.parent
WRK = shutil.which("wrk")
WRK_SCRIPT = Path(__file__).with_name("wrk.lua")
CONNECTIONS = 64
BESIDE_THE_JOB_S = 25.0  # for starting, preparing and adding up

GENERATOR = "wrk" if WRK else "our own generator (wrk, with which the goals were set, is not installed)"


class LoadFailed(Exception):
    """A load process ended without an outcome."""


class Load:
    """One load process at work on a job. Leaving its `with` ends it, done or not."""

    def __init__(self, port: int, job: Job, seconds_max: float) -> None:
        self._job = job
        self._seconds_max = seconds_max + BESIDE_THE_JOB_S
        with tempfile.TemporaryFile() as order:
            order.write(msgspec.json.encode(job))
            order.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", str(port)],
                cwd=ROOT,
                stdin=order,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def outcome(self) -> Outcome:
        """Waits for the end. Raises LoadFailed."""
        name = type(self._job).__name__
        try:
            out, errors = self._process.communicate(timeout=self._seconds_max)
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"{name} was not done after {self._seconds_max:.0f} s") from None
        if self._process.returncode != 0:
            last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise LoadFailed(f"{name}: {''.join(last) or f'exit code {self._process.returncode}'}")
        return msgspec.json.decode(out, type=Outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def run(port: int, job: Job, seconds_max: float) -> Outcome:
    """Does one job in a load process. Raises LoadFailed."""
    with Load(port, job, seconds_max) as load:
        return load.outcome()


def send(port: int, template: Template, seconds: float, connections: int = CONNECTIONS) -> Outcome:
    """The template's calls on all connections without a pause, by wrk if there is one. Raises LoadFailed."""
    if WRK is None:
        return run(port, SendJob(template, connections, seconds), seconds)
    with tempfile.NamedTemporaryFile(prefix="queen-bench-call-") as call:
        call.write(template.text.encode())
        call.flush()
        process = subprocess.Popen(
            [
                *(WRK, "--threads=1", f"--connections={connections}", f"--duration={seconds:.0f}s", "--timeout=10s"),
                *(f"--script={WRK_SCRIPT}", f"http://127.0.0.1:{port}", "--", call.name, str(template.items)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return _outcome_of_wrk(process, template.items, seconds + BESIDE_THE_JOB_S)


def _outcome_of_wrk(process: subprocess.Popen[bytes], items: int, seconds_max: float) -> Outcome:
    deadline = time.monotonic() + seconds_max
    try:
        # wait4 and not the usual wait: only it tells the processor time of this one child.
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                raise LoadFailed(f"wrk was not done after {seconds_max:.0f} s")
            time.sleep(0.05)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        said = process.stdout.read().decode("utf-8", "replace") if process.stdout else ""
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()
    found = re.search(r"^OUTCOME (\{.*\})$", said, re.MULTILINE)
    if process.returncode != 0 or found is None:
        raise LoadFailed(f"wrk: {said.strip()[-300:] or f'exit code {process.returncode}'}")
    return outcome_of_wrk(found[1], items, load_cpu_s=ended[2].ru_utime + ended[2].ru_stime)


class _WrkSummary(msgspec.Struct, frozen=True):
    """What bench/wrk.lua prints; latencies in µs."""

    requests: int
    duration_us: int
    refused: dict[str, int]
    p50_us: float
    p99_us: float
    max_us: float


def outcome_of_wrk(text: str, items: int, load_cpu_s: float) -> Outcome:
    """The outcome that wrk's script printed as JSON. Raises msgspec.ValidationError."""
    summary = msgspec.json.decode(text, type=_WrkSummary)
    refused = {kind: count for kind, count in summary.refused.items() if count}
    good = max(summary.requests - refused.get("status 400 or above", 0), 0)
    latency_ms = Spread(good, summary.p50_us / 1000, summary.p99_us / 1000, summary.max_us / 1000) if good else None
    seconds = summary.duration_us / 1e6
    return Outcome(summary.requests, good * items, seconds, load_cpu_s, refused, latency_ms=latency_ms)
