"""Dead letters: what is filed, and how they are listed (PA-56, TM-55, QU-40)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from queen_node.answers import consume as consume_answers
from queen_node.answers import read_result
from queen_node.queries import Query, query, reader
from queen_node.state import deadletters
from queen_node.state.queues import find_queue
from queen_node.state.step import Step
from tests.support.outward import SECOND, START_US, Outward

EVER_US = (1 << 63) - 1


@pytest.fixture
def node() -> Outward:
    return Outward()


def listed(
    node: Outward, *, queue: str | None = None, group: str | None = None, partition: str | None = None,
    from_us: int = 0, to_us: int = EVER_US, limit: int = 100, offset: int = 0,
) -> dict[str, Any]:
    """The page as a client reads it."""
    names = [None if name is None else name.encode() for name in (queue, group, partition)]
    rows = reader(node.store.committed(), query(Query.DEAD_LETTERS, *names, from_us, to_us, limit, offset))
    while True:
        try:
            next(rows)
        except StopIteration as end:
            status, body = read_result(end.value)
            assert status == 200
            document: dict[str, Any] = json.loads(body)
            return document


def ids(page: dict[str, Any]) -> list[str]:
    return [message["transactionId"] for message in page["messages"]]


def test_a_filed_message_carries_all_it_had(node: Outward) -> None:
    """PA-56, G-Q9: payload as stored, reason, attempts; a deterministic UUID."""
    node.push("ok", "bad", payload=b'{"a": 1.0}')
    node.configure(retry_limit=2)
    for _ in range(2):
        node.ack("ok", ("bad", "failed"), lease=node.pop())
        node.wait(1)
    node.ack(("bad", "failed"), lease=node.pop(), error=b"no \"such\" customer")
    (message,) = listed(node)["messages"]
    assert UUID(message.pop("id")).version == 8
    assert message == {
        "transactionId": "bad", "partitionId": "1", "queue": "orders", "partition": "Default",
        "consumerGroup": "__QUEUE_MODE__", "errorMessage": "no \"such\" customer", "retryCount": 2, "data": {"a": 1.0},
        "producerSub": None, "createdAt": "2023-11-14T22:13:20.000000Z", "failedAt": "2023-11-14T22:13:22.000000Z",
        "offset": 1,
    }


def test_without_a_reason(node: Outward) -> None:
    """PA-56."""
    node.push("a")
    node.ack(("a", "dlq"), lease=node.pop())
    (message,) = listed(node)["messages"]
    assert (message["errorMessage"], message["retryCount"]) == ("Retries exhausted", 0)


def test_two_nodes_file_the_same_row(node: Outward) -> None:
    """M-80: nothing random; two dead letters of one entry differ."""
    other = Outward()
    for each in (node, other):
        each.push("a", "b")
        each.ack(("a", "dlq"), ("b", "dlq"), lease=each.pop())
    assert listed(node) == listed(other)
    assert len({message["id"] for message in listed(node)["messages"]}) == 2
    assert node.store.meta.digest == other.store.meta.digest


def test_a_timers_dead_letter(node: Outward) -> None:
    """TM-55: group __timer__, offset -1, several in one entry; a payload that is no JSON is shown as base64."""
    node.push("a")
    node.pop(lease_s=1)
    step = Step(node.store, now_us=node.now_us, index=node.store.meta.applied_index + 1)
    queue, partition = find_queue(node.store, b"orders"), node.partition()
    assert queue is not None
    for txn in (b"one", b"two"):
        deadletters.file(
            step, queue, partition, group=deadletters.TIMER_GROUP, offset=deadletters.TIMER_OFFSET, transaction_id=txn,
            payload=b"\xff", payload_flags=1, error=b"refused", attempts=5, producer_sub=b"me", created_at_us=START_US)
    node.store.commit(index=step.index, term=1, stamp_us=step.now_us)
    page = listed(node, group="__timer__")
    assert [(m["transactionId"], m["offset"], m["data"], m["retryCount"]) for m in page["messages"]] == [
        ("two", -1, {"_raw_b64": "/w=="}, 5), ("one", -1, {"_raw_b64": "/w=="}, 5)]
    assert len({message["id"] for message in page["messages"]}) == 2
    assert node.partition().dead_letters == node.store.counters().dead_letters == 2
    assert node.committed() == -1, "it moves no group's position"


class TestListing:
    @pytest.fixture
    def filed(self, node: Outward) -> Outward:
        """Six dead letters, one a second: a0 a1 a2 in queue a, b0 b1 b2 in queue b, alternating."""
        for number in range(3):
            for queue in "ab":
                node.push(f"{queue}{number}", queue=queue, partition=f"p{number}")
                popped = node.pop(queue=queue, group=f"g{number % 2}", mode="all", partition=f"p{number}")
                node.ack(
                    (f"{queue}{number}", "dlq"), lease=popped, group=f"g{number % 2}", queue=queue,
                    partition=f"p{number}")
                node.wait(1)
        return node

    def test_newest_first_over_all_queues(self, filed: Outward) -> None:
        page = listed(filed)
        assert ids(page) == ["b2", "a2", "b1", "a1", "b0", "a0"]
        assert page["total"] == 6
        assert page["pagination"] == {"limit": 100, "offset": 0}

    def test_filters(self, filed: Outward) -> None:
        """queue, consumerGroup, partition; from and to on failedAt."""
        assert ids(listed(filed, queue="a")) == ["a2", "a1", "a0"]
        assert ids(listed(filed, queue="nobody")) == []
        assert ids(listed(filed, group="g1")) == ["b1", "a1"]
        assert ids(listed(filed, queue="b", partition="p2")) == ["b2"]
        assert ids(listed(filed, from_us=START_US + SECOND, to_us=START_US + 3 * SECOND)) == ["a1", "b0"]

    def test_pages(self, filed: Outward) -> None:
        """QU-40's Open: the total is of all rows that match, whatever the page."""
        pages = [listed(filed, limit=4, offset=offset) for offset in (0, 4, 8)]
        assert [ids(page) for page in pages] == [["b2", "a2", "b1", "a1"], ["b0", "a0"], []]
        assert {page["total"] for page in pages} == {6}
        singles = [listed(filed, queue="b", limit=1, offset=offset) for offset in range(3)]
        assert [ids(page) for page in singles] == [["b2"], ["b1"], ["b0"]]

    def test_counting_is_capped(self, filed: Outward, monkeypatch: pytest.MonkeyPatch) -> None:
        """QU-40's Open."""
        monkeypatch.setattr(consume_answers, "DEAD_LETTERS_COUNTED_MAX", 2)
        page = listed(filed, queue="a", limit=1)
        assert (ids(page), page["total"], page["totalCapped"]) == (["a2"], 2, True)
        assert ids(listed(filed, limit=2)) == ["b2", "a2"]
        assert "totalCapped" not in listed(filed, queue="a", partition="p0")

    def test_a_page_of_large_payloads_ends_early(self, filed: Outward, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consume_answers, "DEAD_LETTERS_PAGE_MAX_BYTES", 2)
        assert ids(listed(filed)) == ["b2", "a2"]
