"""The routes of the cell's members: forms, refusals and whose they are (cluster.md 10, TA-6, AD-16)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queen_node.http.handlers.membership import TIMEOUT_MAX_MS, MembershipHandlers
from queen_node.http.messages import Request, Response
from queen_node.operator_calls import (
    STATUS_OF,
    AddLearner,
    Begun,
    OperatorRefused,
    Promote,
    Question,
    Remove,
    SetVoters,
    Transfer,
)

VIEW = {"voters": [1, 2, 3]}
NEW = {"id": 4, "raft": "h:7400", "http": "h:6632"}


class FakeDesk:
    """Notes what is asked."""

    def __init__(self, refusal: OperatorRefused | None = None) -> None:
        self.asked: list[tuple[Question, float]] = []
        self._refusal = refusal

    async def ask(self, question: Question, timeout_s: float) -> Begun:
        self.asked.append((question, timeout_s))
        if self._refusal is not None:
            raise self._refusal
        return Begun(1, 2)


class FakeView:
    def membership(self) -> dict[str, object]:
        return dict(VIEW)

    def members(self) -> dict[str, object]:
        return {"engine": "raft", "membership": VIEW}

    def liveness(self) -> dict[str, object]:
        return {"live": {"1": 0}}

    def status(self, only: int | None, limit: int) -> dict[str, object]:
        return {"only": only, "limit": limit}


async def call(
    name: str, body: object = None, *, desk: FakeDesk | None = None, query: bytes = b"", tenant: bytes | None = None,
    **params: bytes,
) -> Response:
    request = Request("POST", b"/", query, body=b"" if body is None else json.dumps(body).encode())
    request.params = params
    if tenant is not None:
        request.tenant = tenant
    return await MembershipHandlers(desk or FakeDesk(), FakeView()).handlers()[name](request)


@pytest.mark.parametrize(("name", "body", "query", "params", "question"), [
    ("membership_learners", NEW, b"", {}, AddLearner(4, "h:7400", "h:6632")),
    ("membership_promote", {"ids": [4, 5]}, b"", {}, Promote((4, 5), False)),
    ("membership_promote", {"id": 4, "force": True}, b"", {}, Promote((4,), True)),
    ("membership_promote", {"ids": [4]}, b"force=true", {}, Promote((4,), True)),
    ("membership_voters", {"voters": [1, 2]}, b"force=0", {}, SetVoters((1, 2), False)),
    ("membership_voters", {"voter": 1}, b"", {}, SetVoters((1,), False)),
    ("membership_remove", None, b"", {"id": b"3"}, Remove(3)),
    ("raft_transfer", None, b"", {}, Transfer(0, 0)),
    ("raft_transfer", {"group": 7, "to": 2}, b"", {}, Transfer(7, 2)),
])
async def test_what_is_asked(
    name: str, body: object, query: bytes, params: dict[str, bytes], question: Question,
) -> None:
    desk = FakeDesk()
    answer = await call(name, body, desk=desk, query=query, **params)
    assert (answer.status, json.loads(answer.body)["ok"]) == (200, True)
    assert desk.asked == [(question, 30.0)]


@pytest.mark.parametrize(("text", "seconds"), [
    (b"timeoutMs=1", 0.001), (b"timeoutMs=0", 0.001), (b"timeoutMs=500", 0.5),
    (b"timeoutMs=999999999", TIMEOUT_MAX_MS / 1000),
])
async def test_how_long_it_may_take(text: bytes, seconds: float) -> None:
    desk = FakeDesk()
    await call("membership_remove", desk=desk, query=text, id=b"3")
    assert desk.asked == [(Remove(3), seconds)]


@pytest.mark.parametrize(("name", "body", "query", "params"), [
    ("membership_learners", {"id": 4}, b"", {}),
    ("membership_learners", [4], b"", {}),
    ("membership_learners", NEW | {"id": 0}, b"", {}),
    ("membership_learners", NEW | {"id": 70_000}, b"", {}),
    ("membership_promote", {}, b"", {}),
    ("membership_promote", {"ids": []}, b"", {}),
    ("membership_promote", {"ids": ["4"]}, b"", {}),
    ("membership_promote", {"ids": [4]}, b"force=perhaps", {}),
    ("membership_voters", {"force": True}, b"", {}),
    ("membership_remove", None, b"", {"id": b"me"}),
    ("membership_remove", None, b"", {"id": b"%ff"}),
    ("membership_remove", None, b"", {"id": b"0"}),
    ("membership_remove", None, b"", {"id": b"65536"}),
    ("membership_remove", None, b"", {"id": b"03"}),
    ("membership_remove", None, b"", {"id": b"0000000041"}),  # was taken for node 4
    ("membership_remove", None, b"timeoutMs=soon", {"id": b"3"}),
    ("raft_transfer", {"to": 0}, b"", {}),
    ("raft_status", None, b"group=x", {}),
])
async def test_what_cannot_be_read_is_refused_before_anybody_is_asked(
    name: str, body: object, query: bytes, params: dict[str, bytes],
) -> None:
    desk = FakeDesk()
    answer = await call(name, body, desk=desk, query=query, **params)
    document: dict[str, Any] = json.loads(answer.body)
    assert (answer.status, document["ok"], document["code"]) == (400, False, "bad_request")
    assert document["error"] and desk.asked == []


@pytest.mark.parametrize(("code", "status"), STATUS_OF.items())
async def test_each_refusal_has_its_status(code: str, status: int) -> None:
    answer = await call("membership_remove", desk=FakeDesk(OperatorRefused(code, "why")), id=b"3")
    assert answer.status == status
    assert json.loads(answer.body) == {"ok": False, "code": code, "error": "why"}
    assert answer.headers == (((b"Retry-After", b"1"),) if status == 503 else ())


@pytest.mark.parametrize("name", list(MembershipHandlers(FakeDesk(), FakeView()).handlers()))
async def test_another_tenant_is_refused_on_every_route(name: str) -> None:
    """TA-6: these are about the whole cell."""
    answer = await call(name, NEW, tenant=bytes(15) + b"\x07", id=b"3")
    assert (answer.status, json.loads(answer.body)["code"]) == (403, "forbidden")


async def test_what_is_shown() -> None:
    """AD-16."""
    assert json.loads((await call("membership")).body) == {"engine": "raft", "membership": VIEW}
    assert json.loads((await call("raft_liveness")).body) == {"live": {"1": 0}}
    assert json.loads((await call("raft_status", query=b"group=3&limit=5000")).body) == {"only": 3, "limit": 1000}
    assert json.loads((await call("raft_status")).body) == {"only": None, "limit": 100}
