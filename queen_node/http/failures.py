"""What a client is answered when a handler gives no answer: in a door, and in the node for questions about it."""

from __future__ import annotations

import structlog

from queen_node.errors import BAD_REQUEST, INTERNAL, KV_ERROR, TIMERS_ERROR, Refused
from queen_node.http.messages import BadPath, BadQuery, Request, Response, refusal_response, refused_response
from raft.invariants import InvariantBroken

# The refusals of these have the shape of their family, ours too: beginnings of their patterns.
FAMILIES = (
    ("/api/v1/timers", TIMERS_ERROR), ("/api/v1/kv", KV_ERROR), ("/api/v1/locks", KV_ERROR),
    ("/api/v1/resources/kv", KV_ERROR),
)

log = structlog.get_logger()


def raise_if_broken(error: Exception) -> None:
    """A broken invariant stops the node, also out of a handler's nursery; nothing may answer in its place."""
    if isinstance(error, InvariantBroken) or (isinstance(error, ExceptionGroup) and error.subgroup(InvariantBroken)):
        raise error


def answer_for(error: Exception, request: Request) -> Response:
    """The answer in place of one that a handler did not give. Raises InvariantBroken."""
    raise_if_broken(error)
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # a handler's nursery wraps what its body or its child raised
    if isinstance(error, Refused):
        return refused_response(error)
    if isinstance(error, BadPath | BadQuery):
        return refusal_response(BAD_REQUEST, str(error))
    pattern = request.route.pattern if request.route else ""
    log.error("handler failed", method=request.method, route=pattern, exc_info=error)
    return refusal_response(next((refusal for routes, refusal in FAMILIES if pattern.startswith(routes)), INTERNAL))
