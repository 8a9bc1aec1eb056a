"""POST /api/v1/ack, ack/batch, lease/:leaseId/extend: bodies, answers byte for byte, refusals (pop-ack.md 6, 8, 10)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from queen_node import commands
from queen_node.answers import pack
from queen_node.answers.consume import ERROR_TEXTS, render_ack
from queen_node.commands import AckStatus
from queen_node.errors import Refused
from queen_node.http.handlers.ack import ERROR_BYTES_MAX, AckHandlers
from queen_node.http.messages import Request
from queen_node.ids import IdMint, uuid_text
from queen_node.state.verdicts import DLQ, DONE, NOOP, REDELIVERS
from tests.support.fake_broker import FakeBroker

LEASE = bytes.fromhex("0198000000007000800000000000aaaa")
NOW_US = 1_700_000_000_000_000


@pytest.fixture
def broker() -> FakeBroker:
    """One queue with a, b, c leased."""
    made = FakeBroker(NOW_US)
    made.apply(commands.push(b"r", [
        (b"orders", b"p", txn, number.to_bytes(16, "big"), b"1", 0, None, None)
        for number, txn in enumerate((b"a", b"b", b"c"))]))
    made.apply(commands.pop(
        b"r", lease_id=LEASE, queue=b"orders", partition=None, group=b"__QUEUE_MODE__", mode="all", from_us=0, batch=10,
        partitions=1, lease_ms=None, commit_on_delivery=False, max_bytes=1000))
    return made


def handlers(broker: FakeBroker) -> AckHandlers:
    return AckHandlers(broker, IdMint(), timeout_ms=1234)


async def ack(broker: FakeBroker, **body: Any) -> list[dict[str, Any]]:
    response = await handlers(broker).ack(Request("POST", b"/", body=json.dumps(body).encode()))
    assert response.status == 200
    answer: list[dict[str, Any]] = json.loads(response.body)
    return answer


async def batch(broker: FakeBroker, body: object) -> bytes:
    response = await handlers(broker).ack_batch(Request("POST", b"/", body=msgspec.json.encode(body)))
    assert response.status == 200
    return response.body


def said(broker: FakeBroker) -> list[list[Any]]:
    """The items of the last ack command."""
    items: list[list[Any]] = broker.writes[-1][3]  # type: ignore[assignment]
    return items


async def test_a_single_ack_is_answered_with_an_array_too(broker: FakeBroker) -> None:
    """PA-45."""
    assert await ack(broker, transactionId="c", partitionId="1", leaseId=uuid_text(LEASE)) == [{
        "index": 0, "transactionId": "c", "success": True, "error": None, "leaseReleased": True, "dlq": False,
        "noop": False}]
    assert broker.timeouts_ms == [1234]


async def test_a_batch_byte_for_byte(broker: FakeBroker) -> None:
    """PA-45: one object per item, in order, whatever the verdicts."""
    lease = uuid_text(LEASE)
    body = await batch(broker, {"acknowledgments": [
        {"transactionId": "a", "partitionId": "1", "leaseId": lease},
        {"transactionId": 'no "such" é', "partitionId": "1", "leaseId": lease},
        {"transactionId": "b", "partitionId": "1", "leaseId": lease, "status": "retry"},
        {"transactionId": "c", "partitionId": "1", "leaseId": lease, "status": "success"},
        {"transactionId": "a", "partitionId": "nine"},
    ]})
    assert body == (
        '[{"index":0,"transactionId":"a","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false},'
        '{"index":1,"transactionId":"no \\"such\\" é","success":false,"error":"unresolvable: transaction not in the '
        'ack window (hash purged or never pushed); if leased, the message redelivers","leaseReleased":true,"dlq":false,'
        '"noop":false},'
        '{"index":2,"transactionId":"b","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false},'
        '{"index":3,"transactionId":"c","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false,'
        '"redelivers":true},'
        '{"index":4,"transactionId":"a","success":false,"error":"consumer not found","leaseReleased":false,"dlq":false,'
        '"noop":false}]').encode()


def test_every_refusal_has_its_text_and_no_flag() -> None:
    """PA-53's table: clients search these texts; the numbers of verdicts must not look like flags."""
    for verdict, text in ERROR_TEXTS.items():
        (item,) = json.loads(render_ack(pack([(b"x", verdict, False)]))[1])
        assert item == {
            "index": 0, "transactionId": "x", "success": False, "error": text, "leaseReleased": False, "dlq": False,
            "noop": False}


def test_every_verdict_that_is_carried_out() -> None:
    """PA-45, PA-51, PA-52."""
    (item,) = json.loads(render_ack(pack([(b"x", DONE | DLQ, True)]))[1])
    assert (item["success"], item["dlq"], item["noop"], item["error"]) == (True, True, False, None)
    (item,) = json.loads(render_ack(pack([(b"x", DONE | NOOP, True)]))[1])
    assert (item["success"], item["dlq"], item["noop"]) == (True, False, True)
    (item,) = json.loads(render_ack(pack([(b"x", DONE | REDELIVERS, True)]))[1])
    assert (item["success"], item["redelivers"]) == (True, True)


@pytest.mark.parametrize(("status", "meant"), [
    (None, AckStatus.COMPLETED), ("completed", AckStatus.COMPLETED), ("success", AckStatus.COMPLETED),
    ("acked", AckStatus.COMPLETED), ("ok", AckStatus.COMPLETED), ("retry", AckStatus.RETRY), ("dlq", AckStatus.DLQ),
    ("failed", AckStatus.FAILED), ("nack", AckStatus.FAILED), ("", AckStatus.FAILED), ("Completed", AckStatus.FAILED),
])
async def test_the_words_of_a_status(broker: FakeBroker, status: str | None, meant: AckStatus) -> None:
    """PA-45: exact spelling, anything else is failed."""
    await ack(broker, transactionId="a", partitionId="1", status=status)
    assert said(broker)[0][2] == meant


@pytest.mark.parametrize(("group", "meant"), [(None, b"__QUEUE_MODE__"), ("", b"__QUEUE_MODE__"), ("g", b"g")])
async def test_the_group_stands_at_top_level_only(broker: FakeBroker, group: str | None, meant: bytes) -> None:
    """PA-45."""
    await batch(broker, {"consumerGroup": group, "acknowledgments": [
        {"transactionId": "a", "partitionId": "1", "consumerGroup": "not here"}]})
    assert broker.writes[-1][2] == meant
    await ack(broker, transactionId="a", partitionId="1", consumerGroup=group)
    assert broker.writes[-1][2] == meant


@pytest.mark.parametrize("partition_id", ["", "x", "-1", "+1", "1.0", "١", "9" * 20, "9" * 30, "0", -1, 1 << 64])
async def test_a_partition_id_that_is_no_number_of_ours(broker: FakeBroker, partition_id: str | int) -> None:
    """PA-53's table: answered per item."""
    (item,) = await ack(broker, transactionId="a", partitionId=partition_id)
    assert (item["success"], item["error"]) == (False, "consumer not found")


@pytest.mark.parametrize("lease", ["x", "0198", uuid_text(LEASE)[:-1], "?" * 16, "z" * 36])
async def test_a_lease_id_that_is_none(broker: FakeBroker, lease: str) -> None:
    """PA-47."""
    (item,) = await ack(broker, transactionId="a", partitionId="1", leaseId=lease)
    assert (item["success"], item["error"]) == (False, "invalid or expired lease")


async def test_an_empty_lease_id_is_none(broker: FakeBroker) -> None:
    """PA-47: lease-less."""
    (item,) = await ack(broker, transactionId="c", partitionId="1", leaseId="")
    assert (item["success"], item["leaseReleased"]) == (True, True)


async def test_a_long_reason_is_cut(broker: FakeBroker) -> None:
    await ack(broker, transactionId="a", partitionId="1", status="dlq", error="é" * ERROR_BYTES_MAX)
    assert len(said(broker)[0][4]) == ERROR_BYTES_MAX


async def test_no_items_propose_nothing(broker: FakeBroker) -> None:
    """PA-45."""
    assert await batch(broker, {"acknowledgments": []}) == b"[]"
    assert broker.writes == []


@pytest.mark.parametrize("body", [
    b"", b"[]", b"{", b"null", b'{"partitionId":"1"}', b'{"transactionId":"a"}',
    b'{"transactionId":1,"partitionId":"1"}', b'{"transactionId":"a","partitionId":null}',
    b'{"transactionId":"a","partitionId":"1","status":true}',
    b'{"transactionId":"\xff","partitionId":"1"}', b'{"transactionId":"\\ud800","partitionId":"1"}',
])
async def test_a_body_that_is_not_this_shape(broker: FakeBroker, body: bytes) -> None:
    """PA-45: 400 bad_body, alone and in a batch."""
    for handler, whole in (
        (handlers(broker).ack, body), (handlers(broker).ack_batch, b'{"acknowledgments":[' + body + b"]}"),
    ):
        if whole == b'{"acknowledgments":[]}':
            continue
        with pytest.raises(Refused) as refused:
            await handler(Request("POST", b"/", body=whole))
        assert (refused.value.refusal.status, refused.value.refusal.code) == (400, "bad_body")


async def test_the_group_must_fit_its_budget(broker: FakeBroker) -> None:
    """pop-ack.md 10."""
    with pytest.raises(Refused) as refused:
        await ack(broker, transactionId="a", partitionId="1", consumerGroup="g" * 412)
    assert refused.value.refusal.code == "name_too_long"


@pytest.mark.parametrize(("code", "answered"), [
    ("no_leader", "no_leader"), ("retry", "outcome_unknown"), ("timeout", "outcome_unknown"),
])
async def test_an_ack_in_doubt(broker: FakeBroker, code: str, answered: str) -> None:
    """PA-58: what was never proposed says so."""
    broker.unavailable_after = code
    with pytest.raises(Refused) as refused:
        await ack(broker, transactionId="a", partitionId="1")
    assert (refused.value.refusal.status, refused.value.refusal.code) == (503, answered)


class TestExtend:
    @staticmethod
    async def extend(broker: FakeBroker, body: bytes = b"", lease: bytes | None = None) -> dict[str, Any]:
        made = Request("POST", b"/", body=body)
        made.params = {"leaseId": uuid_text(LEASE).encode() if lease is None else lease}
        response = await handlers(broker).extend(made)
        assert response.status == 200
        answer: dict[str, Any] = json.loads(response.body)
        return answer

    async def test_what_the_sdk_sends(self, broker: FakeBroker) -> None:
        """PA-37: no body at all means 60 s."""
        broker.now_us += 1
        until = "2023-11-14T22:14:20.000001Z"
        assert await self.extend(broker) == {
            "leaseId": uuid_text(LEASE), "success": True, "renewed": 1, "newExpiresAt": until, "expiresAt": until,
            "lease_expires_at": until}

    @pytest.mark.parametrize(("body", "seconds"), [
        (b'{"seconds":90}', 90), (b'{"seconds":90.9}', 90), (b'{"seconds":1e300}', 86_400), (b'{"seconds":-1}', 1),
        (b'{"seconds":"90"}', 60), (b'{"seconds":null}', 60), (b'{"seconds":true}', 60), (b"{}", 60), (b"[]", 60),
        (b"{", 60), (b"\xff", 60),
    ])
    async def test_seconds(self, broker: FakeBroker, body: bytes, seconds: int) -> None:
        """PA-37: clamped; no number means 60."""
        await self.extend(broker, body)
        assert broker.writes[-1][3] == seconds

    @pytest.mark.parametrize("lease", [b"not-a-uuid", b"00000000-0000-0000-0000-000000000000", b"%zz"])
    async def test_unknown_leases(self, broker: FakeBroker, lease: bytes) -> None:
        """PA-37: always 200."""
        assert await self.extend(broker, lease=lease) == {
            "leaseId": lease.decode(), "success": False, "renewed": 0, "newExpiresAt": None, "expiresAt": None,
            "lease_expires_at": None}

    async def test_in_doubt(self, broker: FakeBroker) -> None:
        broker.unavailable = "timeout"
        with pytest.raises(Refused) as refused:
            await self.extend(broker)
        assert (refused.value.refusal.status, refused.value.refusal.code) == (503, "timeout")
