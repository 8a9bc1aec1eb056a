"""Every tenant's calls in one inbox, for tests of what stands in front of the groups."""

from __future__ import annotations

from queen_node import packed
from queen_node.events import LET_POPS_GO, Event
from queen_node.inbox import Inbox

TENANT = bytes(range(16))


class OneInbox:
    """Implements `host.Sinks`."""

    def __init__(self, inbox: Inbox[Event]) -> None:
        self.inbox = inbox
        self.tenants: list[bytes] = []
        self.packs = True

    def sink(self, tenant: bytes) -> Inbox[Event]:
        """The inbox."""
        self.tenants.append(tenant)
        return self.inbox

    def let_pops_go(self) -> None:
        """Tell it."""
        self.inbox.put(LET_POPS_GO)

    def as_written(self, command: bytes) -> bytes:
        """As the cluster's version wants it."""
        return command if self.packs else packed.spread_out(command)
