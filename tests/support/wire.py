"""What answers look like on the wire, read back: for clients of real nodes and of simulated ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.checkers.history import Message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time_us(text: str) -> int:
    """Wire time as whole microseconds since 1970, without a float on the way."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def read_message(raw: Mapping[str, Any]) -> Message:
    """A message of a pop's answer."""
    return Message(
        raw["queue"], raw["partition"], raw["partitionId"], raw["offset"], raw["id"], raw["transactionId"],
        raw["data"], parse_time_us(raw["createdAt"]), raw["deliveryAttempt"],
    )
