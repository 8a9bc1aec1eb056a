"""What key/value calls and calls of locks have in common on their way to the broker: rates, figures (kv.md 3, 4)."""

from __future__ import annotations

from dataclasses import replace

from queen_node import errors
from queen_node.broker import Broker
from queen_node.commands import KvCaps
from queen_node.errors import Refused
from queen_node.http.handlers.family_gate import FamilyGate
from queen_node.kv_figures import KvFigures
from queen_node.quotas import Quotas

UNAVAILABLE = {
    "timeout": errors.KV_TIMEOUT,
    "retry": errors.KV_RETRY,
    "no_leader": errors.KV_NO_LEADER,
    "tenant_limit": errors.FAMILY_TENANT_LIMIT,
}


class KvGate(FamilyGate):
    """The way of a call that has been read. timeout_ms: its deadline, QUEEN_STMT_TIMEOUT_MS."""

    def __init__(self, broker: Broker, quotas: Quotas, figures: KvFigures, *, timeout_ms: int) -> None:
        super().__init__(broker, UNAVAILABLE, timeout_ms=timeout_ms)
        self._quotas, self.figures = quotas, figures

    def take_token(self, tenant: bytes, *, writes: bool) -> None:
        """Spend one token, whatever the call holds (KV-61). Raises Refused while there is none."""
        wait_s = self._quotas.take_write(tenant) if writes else self._quotas.take_read(tenant)
        if wait_s:
            if not writes:
                self.figures.read_rejected(errors.KV_RATE.reason)
            raise Refused(replace(errors.KV_RATE, retry_after_s=wait_s))

    def caps_of(self, tenant: bytes) -> KvCaps:
        """What its command carries for the entry to compare with what the tenant holds (KV-62, README 12)."""
        return self._quotas.caps_of(tenant)

    async def read(self, tenant: bytes, query: bytes) -> bytes:
        """See `FamilyGate.read`."""
        try:
            return await super().read(tenant, query)
        except Refused as refused:
            self.figures.read_rejected(refused.refusal.reason)
            raise
