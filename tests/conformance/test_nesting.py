"""Bodies that nest as deep as the decoders follow, and a little deeper: no route answers 500, and no node ends."""

from __future__ import annotations

import base64
from collections import Counter

import pytest

from tests.support.http_client import HttpClient

# The decoders give up where the interpreter's stack ends, 1,000 deep with all that is above them.
DEPTHS = range(965, 991)

SCHEDULE = '[{"op":"schedule","queue":"nested","timerKey":"k","txn":"t","delayMs":90000000,%s}]'
BODIES = [
    ("POST", "/api/v1/kv", '[{"op":"put","ns":"nested","key":"k","forever":true,"value":%s}]'),
    ("POST", "/api/v1/kv", '[{"op":"put","ns":"nested","key":"k","forever":true,"value":%s,"x":1}]'),
    ("POST", "/api/v1/kv", '[{"op":"get","ns":"nested","key":"k","x":%s}]'),
    ("PUT", "/api/v1/kv/nested/k", '{"forever":true,"value":%s}'),
    ("POST", "/api/v1/resources/kv/list", '{"namespace":"nested","x":%s}'),
    ("POST", "/api/v1/locks", '{"operations":[{"op":"get","name":"nested","x":%s}]}'),
    ("POST", "/api/v1/timers", '[{"op":"cancel","queue":"nested","timerKey":"k","x":%s}]'),
    ("POST", "/api/v1/timers", SCHEDULE % '"payload":"MQ==","x":%s'),
    ("POST", "/api/v1/transaction", '{"kv":[{"op":"put","ns":"nested","key":"k","forever":true,"value":%s}]}'),
    ("POST", "/api/v1/transaction", '{"timers":[{"op":"cancel","queue":"nested","timerKey":"k","x":%s}]}'),
    ("POST", "/api/v1/transaction", '{"operations":[{"type":"push","queue":"nested","payload":%s}]}'),
    ("POST", "/api/v1/push", '{"items":[{"queue":"nested","payload":%s}]}'),
    ("POST", "/api/v1/push", '{"items":[{"queue":"nested","payload":["\\ud800",%s]}]}'),
    ("POST", "/api/v1/ack", '{"transactionId":"t","partitionId":"1","x":%s}'),
    ("POST", "/api/v1/ack/batch", '{"acknowledgments":[{"transactionId":"t","partitionId":"1","x":%s}]}'),
    ("POST", f"/api/v1/lease/{'0' * 8}-0000-0000-0000-{'0' * 12}/extend", '{"x":%s}'),
    ("POST", "/api/v1/configure", '{"queue":"nested","options":{},"x":%s}'),
    ("POST", "/api/v1/system/raft/transfer", '{"to":9,"x":%s}'),
    ("PUT", "/api/v1/system/raft/membership/voters", '{"voters":[1],"x":%s}'),
]


@pytest.mark.parametrize(("method", "path", "body"), BODIES)
async def test_what_nests_too_deeply_is_refused(http: HttpClient, method: str, path: str, body: str) -> None:
    """KV-5, TM-10, PU-12, TX-53; cluster.md 10: a client's mistake is a 400, at whichever depth it shows."""
    statuses = Counter[int]()
    for depth in DEPTHS:
        nested = "[ " * depth + "]" * depth  # a blank, so that what keeps values compact looks at it too
        statuses[(await http.request(method, path, body % nested)).status] += 1
    assert statuses.keys() <= {200, 201, 400}, statuses
    assert (await http.get("/health")).status == 200


async def test_a_timers_payload_may_nest_as_it_likes(http: HttpClient) -> None:
    """TM-22: its bytes are not looked into before the fire, and then only for being JSON."""
    for depth in DEPTHS:
        payload = base64.b64encode(b"[" * depth + b"]" * depth).decode()
        answer = await http.post("/api/v1/timers", SCHEDULE % f'"payload":"{payload}"')
        assert answer.status == 200, answer
