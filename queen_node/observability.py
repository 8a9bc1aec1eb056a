"""Log lines, and the measuring of the loop's own lateness.

A log line is an event with the same keys everywhere: `log.info("became leader", group=g, term=7)`. ERROR means that a
person must act.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
import trio

from queen_node.metrics import Metrics

LAG_EVERY_S = 1.0  # an idle node should stay idle
LAG_AVERAGE_SAMPLES = 60  # about a minute

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def set_up_logging(level: str, as_json: bool, stream: TextIO = sys.stderr, *, server_id: str) -> None:
    """Send log lines from `level` upwards to `stream`, one JSON object a line or as text for people.

    server_id: stands in each line, so that the lines of several nodes can lie in one place (config.md 1).

    Lines below the level cost one empty call: structlog replaces the methods of its loggers.
    """

    def name_server(_logger: object, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        line["server"] = server_id
        return line

    shared: list[structlog.typing.Processor] = [
        name_server,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        shared += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        shared += [structlog.processors.format_exc_info, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )


class LoopWatch:
    """Measures how late a sleep ends, that is how long the loop was kept busy; and keeps the rates of /metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._sample_count = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            wanted_s = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(wanted_s)
            now_s = trio.current_time()
            self.take(now_s - wanted_s, now_s)

    def take(self, lag_s: float, now_s: float) -> None:
        """One sample. The average forgets at the pace of LAG_AVERAGE_SAMPLES, and starts as a plain one."""
        metrics = self._metrics
        self._sample_count += 1
        metrics.loop_lag_s.observe(lag_s)
        weight = min(self._sample_count, LAG_AVERAGE_SAMPLES)
        metrics.loop_lag_avg_ms += (lag_s * 1000 - metrics.loop_lag_avg_ms) / weight
        metrics.note_rates(now_s)
