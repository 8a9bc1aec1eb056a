"""What a key/value call and a call of locks have in common on their way: rates, admission, the broker (kv.md 3, 4)."""

from __future__ import annotations

from dataclasses import replace

from queen_node import errors
from queen_node.broker import Broker, Lane, Unavailable
from queen_node.errors import Refusal, Refused
from queen_node.kv_figures import KvFigures
from queen_node.quotas import Quotas

UNAVAILABLE = {
    "timeout": errors.KV_TIMEOUT,
    "retry": errors.KV_RETRY,
    "no_leader": errors.KV_NO_LEADER,
    "tenant_limit": errors.FAMILY_TENANT_LIMIT,
}
# What the broker refuses at admission, in the words of this family.
AT_ADMISSION = {
    "overloaded": errors.FAMILY_OVERLOADED,
    "storage_full": errors.FAMILY_STORAGE_FULL,
}


class KvGate:
    """The way of a call that has been read. timeout_ms: its deadline, QUEEN_STMT_TIMEOUT_MS."""

    def __init__(self, broker: Broker, quotas: Quotas, figures: KvFigures, *, timeout_ms: int) -> None:
        self._broker, self._quotas, self.figures, self._timeout_ms = broker, quotas, figures, timeout_ms

    def take_token(self, tenant: bytes, *, writes: bool) -> None:
        """Spend one token, whatever the call holds (KV-61). Raises Refused while there is none."""
        wait_s = self._quotas.take_write(tenant) if writes else self._quotas.take_read(tenant)
        if wait_s:
            if not writes:
                self.figures.read_rejected(errors.KV_RATE.reason)
            raise Refused(replace(errors.KV_RATE, retry_after_s=wait_s))

    async def admit(self, body_bytes: int) -> None:
        """Let a call through that can grow storage (KV-63). Raises Refused."""
        if self._broker.admits(body_bytes):
            return
        try:
            await self._broker.admit(body_bytes)
        except Refused as refused:
            raise Refused(AT_ADMISSION.get(refused.refusal.code, refused.refusal)) from None

    async def write(self, tenant: bytes, command: bytes) -> bytes:
        """The packed answer of a command. Raises Refused when no group decided it."""
        try:
            return await self._broker.write(tenant, command, timeout_ms=self._timeout_ms, lane=Lane.DRAINING)
        except Unavailable as unavailable:
            raise Refused(_of_unavailable(unavailable)) from None

    async def read(self, tenant: bytes, query: bytes) -> bytes:
        """The result of a linearizable read. Raises Refused when nobody could confirm it."""
        try:
            return await self._broker.read(tenant, query, timeout_ms=self._timeout_ms)
        except Unavailable as unavailable:
            refusal = _of_unavailable(unavailable)
            self.figures.read_rejected(refusal.reason)
            raise Refused(refusal) from None


def _of_unavailable(unavailable: Unavailable) -> Refusal:
    return UNAVAILABLE.get(unavailable.code, errors.KV_RETRY)  # of an unknown kind: the outcome is unknown
