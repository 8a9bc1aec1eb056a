"""An order that must be paid in time: the timeout is promised in the step that accepts the order.

    python scripts/examples/order_payment.py [--url http://localhost:6632] [--timeout 2]

Three orders: one is paid, one is not, and the payment of the third is reported twice, as payment providers do. A
marker that is written once per payment makes the second report harmless.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from typing import Any

from queen import Queen

ORDERS = "orders"  # events of orders, a partition an order; timeouts arrive here too
SHIPMENTS = "shipments"
MARKERS = "payments-seen"
KEPT_S = 86_400


async def accept(client: Any, order: str, timeout_ms: int) -> None:
    """The order's first event and its timeout, both or neither."""
    step = client.transaction().queue(ORDERS).partition(order).push(
        {"data": {"type": "accepted", "orderId": order}, "transactionId": f"{order}-accepted"})
    step = (
        step.timer(ORDERS).key(order).partition(order).txn(f"{order}-timeout").after_ms(timeout_ms)
        .payload({"type": "payment-timeout", "orderId": order}).schedule()
    )
    await step.commit()


async def paid(client: Any, order: str, payment: str) -> str:
    """A payment was reported: ship the order and cancel its timeout, once per payment."""
    step = client.transaction().once(MARKERS, payment, ttl_seconds=KEPT_S)
    step = step.queue(SHIPMENTS).partition(order).push({"data": {"orderId": order}})
    result = await step.timer(ORDERS).key(order).cancel().commit()
    if not result:
        return "seen before"
    cancel = result["results"][-1]
    # "absent": the timeout has fired already. Its message is in the order's partition and says so to whoever reads it;
    # here the payment wins, and the reader finds the order shipped.
    return "shipped in time" if cancel["status"] == "cancelled" else "shipped, though the timeout had fired"


async def timeouts(client: Any, orders: set[str]) -> set[str]:
    """Read the orders' events until a timeout came; the orders that were not paid in time."""
    late: set[str] = set()
    while not late:
        builder = client.queue(ORDERS).group("reminders").subscription_mode("all").batch(20).partitions(20)
        messages = await builder.wait(True).timeout_millis(2000).pop()
        late |= {
            message["data"]["orderId"] for message in messages
            if message["data"]["type"] == "payment-timeout" and message["data"]["orderId"] in orders
        }
        if messages:
            await client.ack(messages, True, {"group": "reminders"})
    return late


async def main(url: str, timeout_s: float) -> None:
    async with Queen(url) as client:
        run = uuid.uuid4().hex[:8]
        good, late, twice = (f"{name}-{run}" for name in ("order-paid", "order-unpaid", "order-paid-twice"))
        for order in (good, late, twice):
            await accept(client, order, round(timeout_s * 1000))
        for order, payment in ((good, "p1"), (twice, "p2"), (twice, "p2")):
            print(f"{order}: {await paid(client, order, f'{payment}-{run}')}", flush=True)
        for order in sorted(await timeouts(client, {good, late, twice})):
            print(f"{order}: not paid in time", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An order that must be paid in time.")
    parser.add_argument("--url", default="http://localhost:6632")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds in which an order must be paid")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.timeout))
