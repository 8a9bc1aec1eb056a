"""Short words for building histories in the checkers' own tests. Moments are ms since the run began."""

from __future__ import annotations

from tests.checkers.history import Ack, AckItem, Call, Cancel, History, Message, Outcome, Peek, Pop, Push, Schedule

NS = 1_000_000
EPOCH_US = 1_700_000_000_000_000  # the group clock at the run's beginning


def clock_us(at_ms: float) -> int:
    """The group clock at a moment of the run."""
    return EPOCH_US + round(at_ms * 1000)


def schedule(
    txn: str, at: float, *, key: str = "k", delay: int = 100, took: float = 2, status: str = "scheduled",
    outcome: Outcome = Outcome.OK, queue: str = "q", partition: str = "Default",
) -> Schedule:
    """A schedule sent at `at`, stamped half-way."""
    return Schedule(
        client=1, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=outcome, queue=queue, key=key, txn=txn,
        partition=partition, delay_ms=delay, payload={"txn": txn}, status=status, message_id=f"id-{txn}",
        deliver_at_us=clock_us(at + took / 2 + delay),
    )


def cancel(
    at: float, removed: str = "", *, key: str = "k", took: float = 2, outcome: Outcome = Outcome.OK, queue: str = "q"
) -> Cancel:
    """A cancel that removed the version `removed`, or found nothing."""
    return Cancel(
        client=2, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=outcome, queue=queue, key=key,
        status="cancelled" if removed else "absent", removed_txn=removed,
    )


def peek(at: float, txn: str = "", *, key: str = "k", took: float = 2, queue: str = "q") -> Peek:
    """A peek that saw the version `txn`, or nothing."""
    return Peek(
        client=2, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=Outcome.OK, queue=queue, key=key,
        found=bool(txn), txn=txn,
    )


def push(
    txn: str, at: float, offset: int, *, took: float = 2, outcome: Outcome = Outcome.OK, queue: str = "q",
    status: str = "queued", partition: str = "Default",
) -> Push:
    """A push that was told `offset`."""
    return Push(
        client=1, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=outcome, queue=queue,
        partition=partition, txn=txn, payload={"txn": txn}, status=status, message_id=f"id-{txn}", offset=offset,
    )


def message(
    txn: str, offset: int, at: float, *, queue: str = "q", partition: str = "Default", payload: object = None,
    message_id: str = "",
) -> Message:
    """A message stamped at `at`."""
    return Message(
        queue, partition, f"{queue}:{partition}", offset, message_id or f"id-{txn}", txn,
        {"txn": txn} if payload is None else payload, clock_us(at),
    )


def pop(
    at: float, *messages: Message, took: float = 2, lease: str = "", lease_ms: int = 1000, group: str = "g",
    queue: str = "q",
) -> Pop:
    """A pop that got `messages`."""
    return Pop(
        client=3, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=Outcome.OK, queue=queue, group=group,
        lease_ms=lease_ms, lease_id=lease or f"lease-{at}", messages=messages,
    )


def ack(
    at: float, lease: str, *messages: Message, took: float = 2, outcome: Outcome = Outcome.OK, success: bool = True,
    noop: bool = False, redelivers: bool = False, status: str = "completed", group: str = "g",
) -> Ack:
    """A batch ack of `messages` under one lease, all with one verdict."""
    items = tuple(AckItem(one, status, success, noop, redelivers) for one in messages)
    return Ack(
        client=3, start_ns=int(at * NS), end_ns=int((at + took) * NS), outcome=outcome, group=group, lease_id=lease,
        items=items,
    )


def history(*calls: Call, log: tuple[Message, ...] = (), pending: tuple[tuple[str, str], ...] = ()) -> History:
    """A drained run."""
    return History(list(calls), list(log), list(pending), drained=True)
