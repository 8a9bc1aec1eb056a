"""A reminder that can be moved: one timer a reminder, known by its key.

    python scripts/examples/reminder.py [--url http://localhost:6632] [--after 1]

It is set for far away, looked at, moved closer, and then arrives once; a second one is cancelled and never does.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from datetime import timedelta
from typing import Any

from queen import Queen

QUEUE = "reminders"


async def remind(client: Any, key: str, text: str, delay: timedelta) -> str:
    """Set a reminder, or move the one of that key: the same call, and the same delivery id, so that it comes once."""
    result = await client.timers.schedule(QUEUE, key, {"key": key, "text": text}, delay=delay, txn=key)
    return str(result["status"])


async def main(url: str, after_s: float) -> None:
    async with Queen(url) as client:
        run = uuid.uuid4().hex[:8]
        call, lunch = f"call-{run}", f"lunch-{run}"
        print(f"call: {await remind(client, call, 'call the printer', timedelta(days=30))}", flush=True)
        print(f"lunch: {await remind(client, lunch, 'lunch', timedelta(seconds=after_s))}", flush=True)
        pending = await client.timers.peek(QUEUE, call)
        print(f"call: pending, attempts {pending['attempts']}", flush=True)
        print(f"lunch: {(await client.timers.cancel(QUEUE, lunch))['status']}", flush=True)
        print(f"call: {await remind(client, call, 'call the printer today', timedelta(seconds=after_s))}", flush=True)
        arrived: list[str] = []
        while call not in arrived:
            messages = await client.queue(QUEUE).batch(10).wait(True).timeout_millis(2000).pop()
            for message in messages:
                arrived.append(message["data"]["key"])
                if message["data"]["key"] in (call, lunch):
                    print(f"arrived: {message['data']['text']}", flush=True)
            if messages:
                await client.ack(messages)
        print(f"call: {(await client.timers.cancel(QUEUE, call))['status']}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A reminder that can be moved.")
    parser.add_argument("--url", default="http://localhost:6632")
    parser.add_argument("--after", type=float, default=1.0, help="seconds after which the moved reminder is due")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.after))
