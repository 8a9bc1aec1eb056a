"""`./scripts/bench [subject ...] [--quick]`: runs the subjects one after another, prints, writes JSON and a picture."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from bench import (
    catch_up,
    cluster,
    failover,
    fire_latency,
    idle_tenants,
    kv_sweep,
    kv_throughput,
    load,
    queue_throughput,
    report,
    scale,
    schedule_throughput,
    ticks_under_load,
    transactions,
)
from bench.http import BadAnswer
from bench.load import LoadFailed
from bench.machine import this_machine
from bench.node import OPEN_RATES, Echo, ServerFailed
from bench.results import Results, Run
from bench.surroundings import Bench

SUBJECTS: dict[str, Callable[[Bench], Results]] = {
    "schedule_throughput": schedule_throughput.measure,
    "kv_throughput": kv_throughput.measure,
    "kv_sweep": kv_sweep.measure,
    "queue_throughput": queue_throughput.measure,
    "transactions": transactions.measure,
    "fire_latency": fire_latency.measure,
    "ticks_under_load": ticks_under_load.measure,
    "scale": scale.measure,
    "cluster": cluster.measure,
    "failover": failover.measure,
    "catch_up": catch_up.measure,
    "idle_tenants": idle_tenants.measure,
}
RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/bench", description="Measures a node of its own on a scratch folder.")
    names = ", ".join(SUBJECTS)
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"{names}; all of them when none is named")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter: shows that all works, judges less")
    parser.add_argument("--scratch", type=Path, default=RESULTS, help="folder for data; its disk is measured too")
    chosen = parser.parse_args()
    chosen.subjects = [name.replace("-", "_") for name in chosen.subjects]
    for name in chosen.subjects:
        if name not in SUBJECTS:
            parser.error(f"no subject {name!r}; there are {names}")
    return chosen


def stop_in_order(signal_number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the run as Ctrl-C does: what was started is ended."""
    raise KeyboardInterrupt


def run_subject(name: str, bench: Bench) -> Results:
    """One subject; a failure of a node or a load is its result, and the others still run."""
    started = time.monotonic()
    try:
        results = SUBJECTS[name](bench)
    except (ServerFailed, LoadFailed, BadAnswer, OSError) as problem:
        results = Results(name, trouble=[f"ended early: {type(problem).__name__}: {problem}"])
    results.seconds = time.monotonic() - started
    return results


def write(run: Run, folder: Path) -> None:
    """Everything so far: written after each subject, so that a run cut short leaves what it found."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))


def main() -> int:
    chosen = arguments()
    console = Console(width=None if sys.stdout.isatty() else 140)
    signal.signal(signal.SIGTERM, stop_in_order)
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    folder = RESULTS / started.replace(":", "-")
    run = Run(started, chosen.quick, this_machine(), load.GENERATOR, OPEN_RATES)
    report.show_run(console, run)
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    try:
        measure(run, chosen, folder, console)
    except KeyboardInterrupt:
        console.print("Stopped; what was started is ended.")
        return 130
    pictured = report.draw(run, folder / "picture.png")
    console.print(f"Written: {folder}/results.json{' and picture.png' if pictured else ''}", highlight=False)
    return 1 if any(results.trouble for results in run.results) else 0


def measure(run: Run, chosen: argparse.Namespace, folder: Path, console: Console) -> None:
    """Runs the chosen subjects; nothing that they started is left behind."""
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=chosen.scratch) as scratch, Echo(Path(scratch)) as echo:
        bench = Bench(Path(scratch), echo.wait_until_listening(), quick=chosen.quick)
        for name in chosen.subjects or SUBJECTS:
            results = run_subject(name, bench)
            run.results.append(results)
            report.show(console, results)
            write(run, folder)


if __name__ == "__main__":
    sys.exit(main())
