"""A booking with a hold that expires: one state machine per booking, time included.

    python scripts/examples/booking.py [--url http://localhost:6632] [--hold 2]

Two bookings are held. One is confirmed in time; nobody comes back for the other. Each event is handled in one
transaction: the ack of the event, the booking's new state, and the timer that the new state needs or no longer needs.
Either all of it happened or none, so a crash at any point leaves nothing to clean up.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from typing import Any

from queen import Queen

QUEUE = "bookings"
GROUP = "bookings"
RECEIPTS = "receipts"
STATES = "bookings"  # a namespace of the key/value state: booking id -> {"state": …}
KEPT_S = 7 * 86_400
FINAL = {"confirmed", "expired"}


async def handle(client: Any, message: dict[str, Any], hold_ms: int) -> None:
    """One step of one booking's machine."""
    event, booking = message["data"]["type"], message["data"]["bookingId"]
    row = await client.kv.get(STATES, booking)
    state = row["value"]["state"] if row["found"] else "new"
    step = client.transaction().ack(message, "completed", {"consumer_group": GROUP})
    expect = row["version"] if row["found"] else 0
    if (state, event) == ("new", "hold"):
        step = step.kv.put(STATES, booking, {"state": "held"}, ttl_seconds=KEPT_S, expect=expect, required=True)
        step = (
            step.timer(QUEUE).key(booking).partition(booking).txn(f"{booking}-hold-expired").after_ms(hold_ms)
            .payload({"type": "hold-expired", "bookingId": booking}).schedule()
        )
    elif (state, event) == ("held", "confirm"):
        step = step.kv.put(STATES, booking, {"state": "confirmed"}, ttl_seconds=KEPT_S, expect=expect, required=True)
        step = step.queue(RECEIPTS).partition(booking).push(
            {"data": {"bookingId": booking}, "transactionId": f"{booking}-receipt"})
        step = step.timer(QUEUE).key(booking).cancel()
    elif (state, event) == ("held", "hold-expired"):
        step = step.kv.put(STATES, booking, {"state": "expired"}, ttl_seconds=KEPT_S, expect=expect, required=True)
    # Anything else is an event that came too late: a confirmation after the end of the hold, or the end of a hold
    # whose confirmation was faster. The state has decided; the event is acked, and nothing else happens.
    committed = await step.commit()
    if not committed:
        raise RuntimeError(f"booking {booking} was moved by somebody else: the event comes again")
    print(f"{booking}: {state} --{event}--> {await state_of(client, booking)}", flush=True)


async def state_of(client: Any, booking: str) -> str:
    row = await client.kv.get(STATES, booking)
    return str(row["value"]["state"]) if row["found"] else "new"


async def work(client: Any, bookings: list[str], hold_ms: int) -> None:
    """Consume events until each of these bookings has come to its end."""
    while not all([await state_of(client, booking) in FINAL for booking in bookings]):
        consumer = client.queue(QUEUE).group(GROUP).subscription_mode("all").batch(1).wait(True).timeout_millis(2000)
        for message in await consumer.pop():
            await handle(client, message, hold_ms)


async def send(client: Any, event: str, booking: str) -> None:
    """The booking's own partition keeps its events in order, the timer's message among them."""
    await client.queue(QUEUE).partition(booking).push({"data": {"type": event, "bookingId": booking}})


async def main(url: str, hold_s: float) -> None:
    async with Queen(url) as client:
        confirmed, forgotten = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("seat-12a", "seat-12b"))
        for booking in (confirmed, forgotten):
            await send(client, "hold", booking)
        await send(client, "confirm", confirmed)
        await work(client, [confirmed, forgotten], round(hold_s * 1000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A booking with a hold that expires.")
    parser.add_argument("--url", default="http://localhost:6632")
    parser.add_argument("--hold", type=float, default=2.0, help="seconds for which a seat is held")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.hold))
