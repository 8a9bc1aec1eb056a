"""The cell's members by HTTP: look, add, promote, set, remove, hand leadership over (cluster.md 10; AD-16).

Here: forms of questions and answers. What may be asked, and how it is done, is the desk's (`queen_node.membership`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from queen_node.errors import BAD_REQUEST, Refused
from queen_node.http.handlers.operations import RETRY_IN_1_S
from queen_node.http.messages import BadPath, BadQuery, Request, Response, json_response
from queen_node.http.parameters import whole_number
from queen_node.http.routes import Handler
from queen_node.operator_calls import (
    NODE_ID_MAX,
    STATUS_OF,
    AddLearner,
    Begun,
    Ids,
    NodeId,
    OperatorRefused,
    Promote,
    Question,
    Remove,
    SetVoters,
    Transfer,
)
from queen_node.tenants import DEFAULT_TENANT

TIMEOUT_DEFAULT_MS: Final = 30_000
TIMEOUT_MAX_MS: Final = 120_000
GROUPS_SHOWN, GROUPS_SHOWN_MAX = 100, 1000
FORBIDDEN: Final = 403

# As it is shown: no node is removed by a slip of the pen.
_ID = re.compile(f"[1-9][0-9]{{,{len(str(NODE_ID_MAX)) - 1}}}")


class Desk(Protocol):
    """Who begins what is asked."""

    async def ask(self, question: Question, timeout_s: float) -> Begun: ...


class View(Protocol):
    """What is shown."""

    def membership(self) -> dict[str, object]: ...

    def members(self) -> dict[str, object]: ...

    def liveness(self) -> dict[str, object]: ...

    def status(self, only: int | None, limit: int) -> dict[str, object]: ...


class _Learner(msgspec.Struct, frozen=True):
    id: NodeId
    raft: str
    http: str


class _Ids(msgspec.Struct, frozen=True):
    ids: Ids | None = None
    id: NodeId | None = None
    force: bool = False


class _Voters(msgspec.Struct, frozen=True):
    voters: Ids | None = None
    voter: NodeId | None = None
    force: bool = False


class _Transfer(msgspec.Struct, frozen=True):
    group: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    to: NodeId | None = None


Body = TypeVar("Body")


class MembershipHandlers:
    """Handlers of the rows `raft_…` and `membership…`."""

    def __init__(self, desk: Desk, view: View) -> None:
        self._desk, self._view = desk, view

    def handlers(self) -> Mapping[str, Handler]:
        """By the names of the routes' table."""
        return {
            "raft_status": self._guarded(self._status),
            "raft_members": self._guarded(self._shown(self._view.members)),
            "raft_liveness": self._guarded(self._shown(self._view.liveness)),
            "membership": self._guarded(self._shown(
                lambda: {"engine": "raft", "membership": self._view.membership()})),
            "membership_learners": self._guarded(self._add),
            "membership_promote": self._guarded(self._promote),
            "membership_voters": self._guarded(self._set_voters),
            "membership_remove": self._guarded(self._remove),
            "raft_transfer": self._guarded(self._transfer),
        }

    def _guarded(self, handler: Handler) -> Handler:
        """Refused for any tenant but the default one (TA-6), and in the words of section 10."""
        async def handle(request: Request) -> Response:
            if request.tenant != DEFAULT_TENANT:
                return _refusal(FORBIDDEN, "forbidden", "this route is about the whole cell, not about one tenant")
            try:
                return await handler(request)
            except OperatorRefused as refused:
                return _refusal(STATUS_OF[refused.code], refused.code, refused.text)
            except (Refused, BadPath, BadQuery) as error:
                return _refusal(400, "bad_request", error.text if isinstance(error, Refused) else str(error))

        return handle

    def _shown(self, look: Callable[[], dict[str, object]]) -> Handler:
        async def handle(request: Request) -> Response:
            return json_response(200, look())

        return handle

    async def _status(self, request: Request) -> Response:
        only = whole_number(request.query, "group", BAD_REQUEST, None)
        limit = whole_number(request.query, "limit", BAD_REQUEST, GROUPS_SHOWN)
        return json_response(200, self._view.status(only, min(max(limit, 1), GROUPS_SHOWN_MAX)))

    async def _add(self, request: Request) -> Response:
        body = _body(request, _Learner)
        return await self._change(request, AddLearner(body.id, body.raft, body.http))

    async def _promote(self, request: Request) -> Response:
        body = _body(request, _Ids)
        return await self._change(request, Promote(_some(body.ids, body.id, "ids"), _is_forced(request, body.force)))

    async def _set_voters(self, request: Request) -> Response:
        body = _body(request, _Voters)
        voters = _some(body.voters, body.voter, "voters")
        return await self._change(request, SetVoters(voters, _is_forced(request, body.force)))

    async def _remove(self, request: Request) -> Response:
        text = request.text("id")
        if _ID.fullmatch(text) is None or int(text) > NODE_ID_MAX:
            raise OperatorRefused(
                "bad_request", f"a node's id is a whole number from 1 to {NODE_ID_MAX}, not {text[:32]!r}")
        return await self._change(request, Remove(int(text)))

    async def _change(self, request: Request, question: Question) -> Response:
        await self._desk.ask(question, _timeout_s(request))
        return json_response(200, {"ok": True, "membership": self._view.membership()})

    async def _transfer(self, request: Request) -> Response:
        body = _body(request, _Transfer) if request.body else _Transfer()
        begun = await self._desk.ask(Transfer(body.group, body.to or 0), _timeout_s(request))
        return json_response(200, {"ok": True, "group": body.group, "leader": begun.leader})


def _refusal(status: int, code: str, text: str) -> Response:
    return json_response(
        status, {"ok": False, "code": code, "error": text}, RETRY_IN_1_S if status == 503 else ())


def _body(request: Request, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OperatorRefused("bad_request", str(error)) from error


def _some(ids: tuple[int, ...] | None, one: int | None, name: str) -> tuple[int, ...]:
    if ids is None and one is None:
        raise OperatorRefused("bad_request", f"{name}: missing")
    return (*(ids or ()), *(() if one is None else (one,)))


def _is_forced(request: Request, in_body: bool) -> bool:
    word = request.query.get("force", "").lower()
    if word not in ("", "true", "1", "false", "0"):
        raise OperatorRefused("bad_request", f"force: must be true or false, not {word[:16]!r}")
    return in_body or word in ("true", "1")


def _timeout_s(request: Request) -> float:
    timeout_ms = whole_number(request.query, "timeoutMs", BAD_REQUEST, TIMEOUT_DEFAULT_MS)
    return min(max(timeout_ms, 1), TIMEOUT_MAX_MS) / 1000
