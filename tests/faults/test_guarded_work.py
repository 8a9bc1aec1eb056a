"""Guarded work beside the renewals of its own lock (locks.md 7.4).

    ./scripts/test faults/test_guarded_work.py --rounds 30    rounds of 2 s; without --rounds it is left out
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.cluster_process import cluster
from tests.support.http_client import Answer, HttpClient

ROUND_S = 2.0
RENEW_EVERY_S = 0.1
TTL_S = 30
TRIES_MAX = 3  # as the published client does (TX-52)
LOCK, OWNER, QUEUE = "job", "the one owner", "protected"


class Handle:
    """A permit that one task renews and another works under, each through a node of its own."""

    def __init__(self, granted: dict[str, Any]) -> None:
        self.token, self.slot, self.guard = granted["token"], granted["slot"], granted["guard"]
        self.renewals = 0
        self.tries: Counter[int] = Counter()  # how many bundles needed so many

    async def renew(self, http: HttpClient) -> None:
        """Every 100 ms; it is never lost."""
        while True:
            operation = {
                "op": "renew", "name": LOCK, "token": self.token, "slot": self.slot, "owner": OWNER,
                "ttlSeconds": TTL_S}
            (result,) = (await http.post("/api/v1/locks", {"operations": [operation]})).json()["results"]
            assert result["renewed"], result
            self.token, self.guard = result["token"], result["guard"]
            self.renewals += 1
            await trio.sleep(RENEW_EVERY_S)

    async def work(self, http: HttpClient) -> None:
        """Bundle after bundle. One that met a renewal is sent again, with the guard that there is then."""
        number = 0
        while True:
            item = {"queue": QUEUE, "transactionId": f"work-{number}", "payload": number}
            tries = 1
            while True:
                answer = await http.post("/api/v1/transaction", {
                    "operations": [{"type": "push", "items": [item]}], "kv": [self.guard]})
                if answer.json()["success"]:
                    break
                self._must_have_met_a_renewal(answer)
                assert tries < TRIES_MAX, f"bundle {number} was rolled back {TRIES_MAX} times"
                tries += 1
            self.tries[tries] += 1
            number += 1

    @staticmethod
    def _must_have_met_a_renewal(answer: Answer) -> None:
        """Not a lost lock: the row is there, newer, and its owner is ours."""
        body = answer.json()
        assert (body["reason"], body["kvReason"], body["value"]["owner"]) == ("kv_precondition", "version", OWNER), body


async def test_every_bundle_commits_beside_renewals_on_another_node(
    tmp_path: Path, request: pytest.FixtureRequest,
) -> None:
    """locks.md 7.4, TX-52, LK-31, G-K6: at full speed, and none reports the lock lost."""
    if request.config.getoption("--rounds") is None:
        pytest.skip("a campaign: say --rounds")
    with cluster(tmp_path) as three:
        async with HttpClient(three.nodes[1].port) as one, HttpClient(three.nodes[2].port) as two:
            acquire = {"op": "acquire", "name": LOCK, "owner": OWNER, "ttlSeconds": TTL_S}
            (granted,) = (await one.post("/api/v1/locks", {"operations": [acquire]})).json()["results"]
            assert granted["acquired"], granted
            handle = Handle(granted)
            with trio.move_on_after(ROUND_S * request.config.getoption("--rounds")):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(handle.renew, two)
                    nursery.start_soon(handle.work, one)
    print(f"{handle.renewals} renewals; bundles by the number of tries: {dict(handle.tries)}")
    assert handle.renewals and handle.tries[1], "nothing was done"
