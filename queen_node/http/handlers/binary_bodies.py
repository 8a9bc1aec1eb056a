"""Binary bodies of pushes and transactions: recognised and declined (PU-60 to PU-62, TX-58)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from queen_node.http.messages import Request

BINARY_TYPE = b"application/x-queen-push"
BINARY_MAGIC = b"QPB1"
BINARY_TRANSACTION_MAGIC = b"QTB1"
DECLINES_LOGGED_EVERY_S = 60.0  # a buffered client repeats a declined batch every 250 ms for ever (PU-62)

log = structlog.get_logger(__name__)


def has_binary_type(request: Request) -> bool:
    """Whether the head alone says that the body is a binary one."""
    content_type = request.header(b"content-type")
    return content_type is not None and content_type.strip().lower().startswith(BINARY_TYPE)


class Declined:
    """How many binary bodies one route declined. Silent but for one line a minute (PU-62)."""

    def __init__(self, route: str, monotonic_s: Callable[[], float]) -> None:
        self._route, self._monotonic_s = route, monotonic_s
        self._logged_s = float("-inf")
        self.count = 0  # for the metrics (PU-60)

    def count_one(self) -> None:
        """Another one."""
        self.count += 1
        now_s = self._monotonic_s()
        if now_s - self._logged_s >= DECLINES_LOGGED_EVERY_S:
            self._logged_s = now_s
            log.warning("binary body declined", route=self._route, declined=self.count)
