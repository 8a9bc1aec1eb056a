"""GET /api/v1/pop/queue/…: parameters, answers byte for byte, refusals (pop-ack.md 1, 2, 10)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from queen_node import commands, packed
from queen_node.answers import NOTHING
from queen_node.errors import Refused
from queen_node.http.handlers.pop import PopHandlers
from queen_node.http.messages import Request, Response, encode
from queen_node.http.parameters import parse_time_us
from queen_node.ids import IdMint
from tests.support.fake_broker import FakeBroker

NOW_US = 1_700_000_000_000_000


def counting_mint() -> IdMint:
    """Ids that are the same in every run: the last bytes count."""
    numbers: Iterator[int] = iter(range(1, 1 << 20))
    return IdMint(
        wall_ns=lambda: 0, random_bytes=lambda size: b"".join(
            next(numbers).to_bytes(10, "big") for _ in range(size // 10)) + bytes(size % 10))


class RecordingBroker(FakeBroker):
    """Keeps what it was asked for; a pop is answered empty."""

    def __init__(self) -> None:
        super().__init__()
        self.command: list[Any] = []
        self.asked: dict[str, Any] = {}

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]] | None,
    ) -> bytes:
        self._fail(self.unavailable)
        self.command = packed.fields_of(command)
        self.asked = {
            "lease_id": lease_id, "queue": queue, "group": group, "partition": partition, "wait_ms": wait_ms,
            "client_gone": client_gone}
        return NOTHING


def request(query: str = "", *, queue: bytes = b"orders", partition: bytes | None = None) -> Request:
    made = Request("GET", b"/", query.encode())
    made.params = {"queue": queue} if partition is None else {"queue": queue, "partition": partition}
    return made


async def asked(query: str = "", *, partition: bytes | None = None, **settings: Any) -> dict[str, Any]:
    """The command that a query string becomes, by the names of `commands.pop`, and how long the call waits."""
    broker = RecordingBroker()
    handlers = PopHandlers(broker, counting_mint(), **settings)
    pop = handlers.pop_queue if partition is None else handlers.pop_partition
    response = await pop(request(query, partition=partition))
    assert encode(response) == b"HTTP/1.1 204 No Content\r\n\r\n"  # PA-6: no body, no type, no length
    _, _, lease_id, queue, partition_name, group, mode, from_us, batch, partitions, lease_ms, commit, max_bytes = (
        broker.command)
    assert (lease_id, queue, group, partition_name) == tuple(
        broker.asked[name] for name in ("lease_id", "queue", "group", "partition"))
    return {
        "group": group, "mode": mode, "from_us": from_us, "batch": batch, "partitions": partitions,
        "lease_ms": lease_ms, "commit": commit, "max_bytes": max_bytes, "partition": partition_name,
        "wait_ms": broker.asked["wait_ms"]}


DEFAULTS = {
    "group": b"__QUEUE_MODE__", "mode": "new", "from_us": 0, "batch": 200, "partitions": 1, "lease_ms": None,
    "commit": False, "max_bytes": 8 << 20, "partition": None, "wait_ms": None}


@pytest.mark.parametrize(("query", "differs"), [
    ("", {}),
    ("unknown=1&frames=true&conflation=true", {}),
    ("batch=7&partitions=3&leaseSeconds=5", {"batch": 7, "partitions": 3, "lease_ms": 5000}),
    ("batch=0&partitions=-1&leaseSeconds=0&consumerGroup=", {}),
    ("batch=&wait=", {}),
    ("partitions=65", {"partitions": 64}),
    ("leaseSeconds=86401", {"lease_ms": 86_400_000}),
    ("wait=true", {"wait_ms": 30_000}),
    ("wait=1&timeout=0", {"wait_ms": 0}),
    ("wait=true&timeout=60001", {"wait_ms": 60_000}),
    ("wait=true&timeout=-5", {"wait_ms": 0}),
    ("wait=false&timeout=5000", {}),
    ("consumerGroup=billing", {"group": b"billing"}),
    ("consumerGroup=a%2Fb+c%20%23", {"group": b"a/b c #"}),
    ("commitOnDelivery=true", {"commit": True}),
    ("autoAck=true", {"commit": True}),
    ("autoAck=true&commitOnDelivery=false", {}),
    ("subscriptionMode=new-only", {"mode": "new"}),
    ("subscriptionMode=latest", {"mode": "new"}),
    ("subscriptionMode=from_beginning", {"mode": "all"}),
    ("subscriptionMode=all&subscriptionFrom=now", {"mode": "new"}),
    ("subscriptionMode=all&subscriptionFrom=1500", {"mode": "time", "from_us": 1_500_000}),
    ("autopilot=true", {"batch": 0, "partitions": 0}),
    ("autopilot=true&batch=9", {"batch": 9, "partitions": 0}),
    ("autopilot=true&partitions=2", {"batch": 0, "partitions": 2}),
])
async def test_parameters(query: str, differs: dict[str, Any]) -> None:
    """PA-1: defaults, clamps, what reads as absent; PA-41: only what is absent is left to the broker; PA-42 is
    not built: ignored."""
    assert await asked(query) == {**DEFAULTS, **differs}


async def test_the_partition_route_takes_one_partition_and_plain_defaults() -> None:
    """PA-1, PA-41."""
    expected = {**DEFAULTS, "partition": b"a/b"}
    assert await asked("partitions=5&autopilot=true", partition=b"a%2Fb") == expected


async def test_where_a_group_starts_whose_first_pop_says_nothing() -> None:
    """PA-30: DEFAULT_SUBSCRIPTION_MODE."""
    assert (await asked("consumerGroup=g", subscription_mode="all"))["mode"] == "all"
    assert (await asked("consumerGroup=g&subscriptionMode=new", subscription_mode="all"))["mode"] == "new"


async def test_the_default_wait_is_a_setting() -> None:
    """PA-1: POP_DEFAULT_TIMEOUT_MS."""
    assert (await asked("wait=true", wait_default_ms=1234))["wait_ms"] == 1234


@pytest.mark.parametrize("query", [
    "batch=x", "partitions=1.5", "timeout=soon", "leaseSeconds=1e3", "wait=yes", "autoAck=2", "autopilot=on",
    "subscriptionFrom=yesterday", "consumerGroup=%00", "consumerGroup=%zz", "batch=" + "9" * 19,
])
async def test_what_does_not_parse_is_refused_in_the_shape_of_a_pop(query: str) -> None:
    """PA-1: 400 with `messages`."""
    with pytest.raises(Refused) as refused:
        await PopHandlers(FakeBroker(), counting_mint()).pop_queue(request(query))
    assert refused.value.refusal.status == 400
    body = json.loads(refused.value.body())
    assert (body["success"], body["messages"]) == (False, [])
    assert body["error"]


@pytest.mark.parametrize("queue", [b"%zz", b"%ff", b"a%00b"])
async def test_names_that_are_no_names(queue: bytes) -> None:
    with pytest.raises(Refused) as refused:
        await PopHandlers(FakeBroker(), counting_mint()).pop_queue(request(queue=queue))
    assert refused.value.refusal.status == 400


@pytest.mark.parametrize(("queue", "partition", "group", "fits"), [
    (b"q" * 397, None, "", True),  # with the 14 bytes of queue mode
    (b"q" * 398, None, "", False),
    (b"q" * 311, b"p" * 100, "g" * 50, True),
    (b"q" * 311, b"p" * 101, "g" * 50, False),
    (b"q" * 311, b"p" * 50, "g" * 101, False),
])
async def test_the_budget_of_names(queue: bytes, partition: bytes | None, group: str, fits: bool) -> None:
    """PU-21: queue and the longer of partition and group."""
    handlers = PopHandlers(RecordingBroker(), counting_mint())
    pop = handlers.pop_queue if partition is None else handlers.pop_partition
    made = request(f"consumerGroup={group}", queue=queue, partition=partition)
    if fits:
        assert (await pop(made)).status == 204
        return
    with pytest.raises(Refused) as refused:
        await pop(made)
    assert (refused.value.refusal.status, refused.value.refusal.code) == (413, "name_too_long")


@pytest.mark.parametrize("code", ["retry", "no_leader", "timeout"])
async def test_a_pop_that_nobody_judged(code: str) -> None:
    """PA-7, PA-8: 503, and the words by which the published consumer tells errors apart."""
    broker = RecordingBroker()
    broker.unavailable = code
    with pytest.raises(Refused) as refused:
        await PopHandlers(broker, counting_mint()).pop_queue(request())
    assert refused.value.refusal.status == 503
    assert refused.value.refusal.retry_after_s == 1
    text = json.loads(refused.value.body())["error"]
    assert "connection" in text
    assert "timeout" not in text


MESSAGE = (
    b'{"id":"00000000-0000-7000-8000-00000000000b","transactionId":"a\\"\xc3\xa9","traceId":null,"data":{"n": 1.0},'
    b'"producerSub":null,"createdAt":"2023-11-14T22:13:20.000Z","queue":"orders","partitionId":"1",'
    b'"partition":"p/1","leaseId":"%b","consumerGroup":"__QUEUE_MODE__","deliveryAttempt":1,"offset":0}')


def push(broker: FakeBroker, transaction_id: str, payload: bytes, flags: int = 0, **more: bytes) -> None:
    message_id = bytes.fromhex("0000000000007000800000000000000b")
    broker.apply(commands.push(b"r", [(
        b"orders", b"p/1", transaction_id.encode(), message_id, payload, flags, more.get("trace_id"),
        more.get("producer"))]))


async def popped(broker: FakeBroker, query: str = "") -> Response:
    return await PopHandlers(broker, counting_mint()).pop_queue(request(query))


async def test_an_answer_byte_for_byte() -> None:
    """pop-ack.md 2, PU-12: the payload as it was pushed, between names that are JSON."""
    broker = FakeBroker(NOW_US)
    push(broker, 'a"é', b'{"n": 1.0}')
    response = await popped(broker)
    lease = json.loads(response.body)["leaseId"].encode()
    assert response.body == (
        b'{"success":true,"queue":"orders","partition":"p/1","partitionId":"1","leaseId":"%b",'
        b'"consumerGroup":"__QUEUE_MODE__","messages":[' + MESSAGE + b'],"partitionsClaimed":1}') % (lease, lease)


async def test_the_rarer_fields() -> None:
    """traceId, producerSub, a raw payload, createdAt rounded up, the autopilot's choice."""
    broker = FakeBroker(NOW_US + 1)
    push(broker, "a", b"\x00\xff", 1, trace_id=bytes(16), producer=b"me")
    document = json.loads((await popped(broker, "autopilot=true")).body)
    (message,) = document["messages"]
    assert message["traceId"] == "00000000-0000-0000-0000-000000000000"
    assert message["producerSub"] == "me"
    assert message["data"] == {"_raw_b64": "AP8="}
    assert message["createdAt"] == "2023-11-14T22:13:20.001Z"
    assert document["autopilot"] == {"partitions": 1, "batch": 100, "waitMs": 100}


async def test_commit_on_delivery_has_no_lease_and_nothing_to_hand_back() -> None:
    """PA-40."""
    broker = FakeBroker(NOW_US)
    push(broker, "a", b"1")
    response = await popped(broker, "commitOnDelivery=true")
    document = json.loads(response.body)
    assert (document["leaseId"], document["messages"][0]["leaseId"]) == ("", "")
    assert response.on_undelivered is None


async def test_an_answer_that_could_not_be_written_is_handed_back() -> None:
    """PA-23, G-Q8: the next delivery is attempt 1."""
    broker = FakeBroker(NOW_US)
    push(broker, "a", b"1")
    response = await popped(broker)
    assert response.on_undelivered is not None
    assert (await popped(broker)).status == 204
    await response.on_undelivered()
    again = json.loads((await popped(broker)).body)
    assert again["messages"][0]["deliveryAttempt"] == 1


async def test_a_head_request_takes_nothing() -> None:
    """Its answer has no body: whatever it claimed would be lost."""
    broker = FakeBroker(NOW_US)
    push(broker, "a", b"1")
    made = request("commitOnDelivery=true")
    made.method = "HEAD"
    with pytest.raises(Refused) as refused:
        await PopHandlers(broker, counting_mint()).pop_queue(made)
    assert refused.value.refusal.status == 404
    assert (await popped(broker)).status == 200


@pytest.mark.parametrize(("text", "at_us"), [
    ("1700000000123", 1_700_000_000_123_000),
    ("2023-11-14T22:13:20Z", NOW_US),
    ("2023-11-14T22:13:20.000001Z", NOW_US + 1),
    ("2023-11-14 22:13:20", NOW_US),
    ("2023-11-15T00:13:20+02:00", NOW_US),
    ("2023-11-14", 1_699_920_000_000_000),
    ("1969-12-31", 0),
    ("-5", 0),
    ("999999999999999999", 253_402_300_799_999_000),
    ("soon", None),
    ("0001-01-01T00:00:00+23:59", 0),
    ("2023-13-01", None),
])
def test_times(text: str, at_us: int | None) -> None:
    """PA-32's Open: ISO-8601, no offset meaning UTC, or epoch milliseconds."""
    assert parse_time_us(text) == at_us
