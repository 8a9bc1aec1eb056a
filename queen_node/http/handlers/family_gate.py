"""The way of a call to the broker where refusals have the words of a family: timers, key/value, locks (README 28)."""

from __future__ import annotations

from collections.abc import Mapping

from queen_node import errors
from queen_node.broker import Broker, Lane, Unavailable
from queen_node.errors import Refusal, Refused

# What the broker refuses at admission, in the words of these families.
AT_ADMISSION = {
    "overloaded": errors.FAMILY_OVERLOADED,
    "storage_full": errors.FAMILY_STORAGE_FULL,
}


class FamilyGate:
    """unavailable: the family's refusals by the codes of `Unavailable`; timeout_ms: of a call, QUEEN_STMT_TIMEOUT_MS.
    """

    def __init__(self, broker: Broker, unavailable: Mapping[str, Refusal], *, timeout_ms: int) -> None:
        self._broker, self._unavailable, self._timeout_ms = broker, unavailable, timeout_ms
        self.admits = broker.admits  # a call that can grow storage; for nearly every one all that there is to ask

    async def admit(self, body_bytes: int) -> None:
        """Let a call through that can grow storage, and that was not admitted at once. Raises Refused."""
        try:
            await self._broker.admit(body_bytes)
        except Refused as refused:
            raise Refused(AT_ADMISSION.get(refused.refusal.code, refused.refusal)) from None

    async def write(self, tenant: bytes, command: bytes, places: tuple[bytes, ...] = ()) -> bytes:
        """The packed answer of a command. places: see `Broker.write`. Raises Refused when no group decided it."""
        try:
            return await self._broker.write(
                tenant, command, timeout_ms=self._timeout_ms, lane=Lane.DRAINING, places=places)
        except Unavailable as unavailable:
            raise Refused(self._refusal_of(unavailable)) from None

    async def read(self, tenant: bytes, query: bytes) -> bytes:
        """The result of a linearizable read. Raises Refused when nobody could confirm it."""
        try:
            return await self._broker.read(tenant, query, timeout_ms=self._timeout_ms)
        except Unavailable as unavailable:
            raise Refused(self._refusal_of(unavailable)) from None

    def _refusal_of(self, unavailable: Unavailable) -> Refusal:
        # Of an unknown kind: the outcome is unknown.
        return self._unavailable.get(unavailable.code, self._unavailable["retry"])
