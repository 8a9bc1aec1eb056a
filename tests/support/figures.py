"""A node's numbers, read as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tests.support.http_client import HttpClient

PATIENCE_S = 60.0  # for a number that only a broken node does not reach; never a measure of speed
POLL_S = 0.02


async def metric(http: HttpClient, name: str) -> float:
    """A number of /metrics/prometheus by its name with labels; 0 while it has none."""
    text = (await http.get("/metrics/prometheus")).body.decode()
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


async def wait_for_metric(http: HttpClient, name: str, fits: Callable[[float], bool]) -> None:
    """Until the number fits."""
    with trio.fail_after(PATIENCE_S):
        while True:
            if fits(await metric(http, name)):
                return
            await trio.sleep(POLL_S)


def at_least(count: float) -> Callable[[float], bool]:
    """For wait_for_metric."""
    return lambda found: found >= count
