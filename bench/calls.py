"""The calls of the contract as the benches send them, and what they read from the answers.

A `Template` is a whole request whose numbers are left open; wrk's script and our own generator both fill it in, so that
a run with either sends the same bytes. Numbers have a fixed width: the length of a request never changes.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from bench.http import request

PAYLOAD_BYTES = 200
NUMBER_DIGITS = 9
LANES = 16  # partitions that one-a-call pushes are dealt to
DAY_MS = 86_400_000

# <<0>>, <<1>>, ...: the number of that item, in all calls together. <<lane>>: the call's number modulo LANES.
_OPEN = re.compile(r"<<(\d+|lane)>>")
_NUMBER = "9" * NUMBER_DIGITS  # as long as what takes its place
_LANE = "99"


# Text without repetitions, the same in every run: what neighbours share, the store would compress away.
_FILLING = base64.b64encode(random.Random(17).randbytes(768 * 1024)).decode()


def payload(number: int) -> str:
    """A JSON text of PAYLOAD_BYTES bytes, of which neighbours have little in common."""
    head = f'{{"number":{number},"filling":"'
    start = number * PAYLOAD_BYTES % (len(_FILLING) - PAYLOAD_BYTES)
    return head + _FILLING[start : start + PAYLOAD_BYTES - len(head) - 2] + '"}'


class Template(msgspec.Struct, frozen=True):
    """A request with open numbers (see the top of this file), and how many items one call carries."""

    text: str
    items: int

    def requests(self, first: int = 0) -> Iterator[bytes]:
        """Requests without end, their items numbered from `first`."""
        parts = _OPEN.split(self.text)
        call = 0
        while True:
            base = first + call * self.items
            filled = list(parts)
            for at in range(1, len(parts), 2):
                place = parts[at]
                filled[at] = lane_name(call)[1:] if place == "lane" else f"{base + int(place):0{NUMBER_DIGITS}d}"
            yield "".join(filled).encode()
            call += 1


def lane_name(number: int) -> str:
    """The partition for the n-th call or lane."""
    return f"p{number % LANES:02d}"


def _template(method: str, target: str, body: str, items: int) -> Template:
    filled = _OPEN.sub(lambda place: _LANE if place[1] == "lane" else _NUMBER, body)
    text = request(method, target, filled.encode()).decode()
    return Template(text.removesuffix(filled) + body, items)


def _timer(queue: str, number: str, delay_ms: int, payload_number: int, partition: str | None = None) -> str:
    where = f'"partition":"{partition}",' if partition else ""
    encoded = base64.b64encode(payload(payload_number).encode()).decode()
    return (
        f'{{"op":"schedule","queue":"{queue}","timerKey":"key-{number}",{where}"delayMs":{delay_ms},'
        f'"txn":"txn-{number}","payload":"{encoded}"}}'
    )


def schedule_template(queue: str, items: int, delay_ms: int = DAY_MS) -> Template:
    """Schedules of timers that will not fire during a bench."""
    operations = ",".join(_timer(queue, f"<<{item}>>", delay_ms, item) for item in range(items))
    return _template("POST", "/api/v1/timers", f'{{"operations":[{operations}]}}', items)


def cancel_template(queue: str) -> Template:
    """Cancels, one a call, of the timers that `schedule_template` made, in the same order."""
    return Template(request("DELETE", f"/api/v1/timers/{queue}/key-<<0>>").decode(), 1)


def put_template(namespace: str, items: int) -> Template:
    """Puts of new rows that live for ever."""
    operations = ",".join(
        f'{{"op":"put","ns":"{namespace}","key":"key-<<{item}>>","value":{payload(item)},"forever":true}}'
        for item in range(items)
    )
    return _template("POST", "/api/v1/kv", f'{{"operations":[{operations}]}}', items)


def put_call(namespace: str, numbers: Sequence[int], lifetimes_s: Sequence[int]) -> bytes:
    """One call that puts a row for each number, with its own lifetime."""
    operations = ",".join(
        f'{{"op":"put","ns":"{namespace}","key":"key-{number:0{NUMBER_DIGITS}d}","value":{payload(number)},'
        f'"ttlSeconds":{lifetime_s}}}'
        for number, lifetime_s in zip(numbers, lifetimes_s, strict=True)
    )
    return request("POST", "/api/v1/kv", f'{{"operations":[{operations}]}}'.encode())


def get_template(namespace: str) -> Template:
    """Gets, one a call, of the rows that `put_template` made, in the same order; behind the last they find nothing."""
    return _template("POST", "/api/v1/kv", f'[{{"op":"get","ns":"{namespace}","key":"key-<<0>>"}}]', 1)


def push_template(queue: str, items: int) -> Template:
    """Pushes; all items of a call into one partition, calls in turn over LANES partitions."""
    rows = ",".join(
        f'{{"queue":"{queue}","partition":"p<<lane>>","transactionId":"txn-<<{item}>>","payload":{payload(item)}}}'
        for item in range(items)
    )
    return _template("POST", "/api/v1/push", f'{{"items":[{rows}]}}', items)


def fixed_template() -> Template:
    """What the bare echo is asked: a small POST, always the same."""
    return _template("POST", "/", '{"operations":[{"op":"schedule","queue":"reminders","timerKey":"order-9137"}]}', 1)


def schedule_call(queue: str, numbers: Sequence[int], delays_ms: Sequence[int]) -> bytes:
    """One call that schedules a timer for each number with its own delay, over LANES partitions."""
    operations = ",".join(
        _timer(queue, f"{number:0{NUMBER_DIGITS}d}", delay_ms, number, lane_name(number))
        for number, delay_ms in zip(numbers, delays_ms, strict=True)
    )
    return request("POST", "/api/v1/timers", f'{{"operations":[{operations}]}}'.encode())


def push_call(queue: str, partition: str, numbers: Sequence[int]) -> bytes:
    """One call that pushes a message for each number."""
    rows = ",".join(
        f'{{"queue":"{queue}","partition":"{partition}","transactionId":"txn-{number:0{NUMBER_DIGITS}d}",'
        f'"payload":{payload(number)}}}'
        for number in numbers
    )
    return request("POST", "/api/v1/push", f'{{"items":[{rows}]}}'.encode())


def bulk_body(queue: str, number: int, items: int, item_bytes: int) -> bytes:
    """The body of the n-th push of `items` large messages, to one of the LANES partitions."""
    rows = []
    for item in range(items):
        start = (number * items + item) * 4099 % (len(_FILLING) - item_bytes)
        text = _FILLING[start : start + item_bytes - 2]
        rows.append(f'{{"queue":"{queue}","partition":"{lane_name(number)}","payload":"{text}"}}')
    return f'{{"items":[{",".join(rows)}]}}'.encode()


def pop_call(
    queue: str, *, batch: int, partition: str | None = None, partitions: int = 1, wait_ms: int = 0, keep: bool = True,
    group: str = "",
) -> bytes:
    """A pop, in queue mode unless it names a group, which then begins with what is there. wait_ms: 0 = do not wait.

    keep: with a lease to ack; else done with on delivery."""
    target = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
    target += f"?batch={batch}&partitions={partitions}"
    if wait_ms:
        target += f"&wait=true&timeout={wait_ms}"
    if not keep:
        target += "&commitOnDelivery=true"
    if group:
        target += f"&consumerGroup={group}&subscriptionMode=all"
    return request("GET", target)


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a bench reads of a popped message."""

    transaction_id: str = msgspec.field(name="transactionId")
    partition_id: str = msgspec.field(name="partitionId")
    lease_id: str = msgspec.field(name="leaseId")

    @property
    def number(self) -> int:
        """The number that the calls above wrote into the transaction id."""
        return int(self.transaction_id[-NUMBER_DIGITS:])


class Delivery(msgspec.Struct, frozen=True):
    messages: list[Message]


class TimerResult(msgspec.Struct, frozen=True):
    ok: bool
    status: str
    timer_key: str = msgspec.field(name="timerKey")
    deliver_at: str = msgspec.field(name="deliverAt", default="")


class TimerResults(msgspec.Struct, frozen=True):
    results: list[TimerResult]


class AckVerdict(msgspec.Struct, frozen=True):
    success: bool
    error: str | None = None


decode_delivery = msgspec.json.Decoder(Delivery).decode
decode_timer_results = msgspec.json.Decoder(TimerResults).decode
decode_ack = msgspec.json.Decoder(list[AckVerdict]).decode


def ack_call(messages: Sequence[Message]) -> bytes:
    """Acks one message on the single route, several in one batch."""
    rows = [
        f'{{"transactionId":"{message.transaction_id}","partitionId":"{message.partition_id}",'
        f'"leaseId":"{message.lease_id}","status":"completed"}}'
        for message in messages
    ]
    if len(rows) == 1:
        return request("POST", "/api/v1/ack", rows[0].encode())
    return request("POST", "/api/v1/ack/batch", f'{{"acknowledgments":[{",".join(rows)}]}}'.encode())


def step_call(queue: str, group: str, messages: Sequence[Message]) -> bytes:
    """One transaction: for each message its ack, a push, a key's new state and a timer."""
    operations, kv, timers = [], [], []
    for message in messages:
        number = message.number
        name = f"{group}-{number:0{NUMBER_DIGITS}d}"
        operations.append(
            f'{{"type":"ack","transactionId":"{message.transaction_id}","partitionId":"{message.partition_id}",'
            f'"leaseId":"{message.lease_id}","consumerGroup":"{group}","status":"completed"}}')
        operations.append(
            f'{{"type":"push","items":[{{"queue":"{queue}-out","partition":"{lane_name(number)}",'
            f'"transactionId":"out-{name}","payload":{payload(number)}}}]}}')
        kv.append(
            f'{{"op":"put","ns":"bench","key":"{queue}/{name}","value":{payload(number)},"ttlSeconds":86400}}')
        timers.append(_timer(f"{queue}-later", name, DAY_MS, number))
    return request("POST", "/api/v1/transaction", (
        f'{{"operations":[{",".join(operations)}],"requiredLeases":[],"kv":[{",".join(kv)}],'
        f'"timers":[{",".join(timers)}]}}').encode())


class Step(msgspec.Struct, frozen=True):
    """What a bench reads of a transaction's answer."""

    success: bool
    reason: str = ""


decode_step = msgspec.json.Decoder(Step).decode


def microseconds(stamp: str) -> int:
    """A time of the contract (TM-5) as microseconds since 1970, exactly. Raises ValueError."""
    moment = datetime.fromisoformat(stamp)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond


def error_text(body: bytes) -> str:
    """A refusal in one short line, for the report."""
    try:
        fields = json.loads(body)
    except ValueError:
        return body[:120].decode("utf-8", "replace")
    if not isinstance(fields, dict):
        return str(fields)[:120]
    return " ".join(str(fields[name]) for name in ("error", "reason", "code", "detail") if name in fields)[:160]
