"""The groups of a node by life, of which those that sleep since its start are opened when somebody asks for one.

10,000 groups took more than half of a start to open, and nobody wants them at that moment: they sleep, and a leader
elsewhere or a deadline tells when that ends. What must be known of a closed one stands in its `Glance`. What else could
ask for it opens it first: a call, a peer's word, its turn to wake. Deadlines are only known of open ones, so whoever
holds this opens the rest soon. Plain code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

from queen_node.group_on_node import GroupOnNode
from queen_node.state.tenants import Tenant

A = TypeVar("A", bound=GroupOnNode)


class Glance(NamedTuple):
    """What a start knows of a group that it does not open: the last entry that its state has, and its log."""

    applied_index: int
    last_index: int

    @property
    def is_replayed(self) -> bool:
        """Whether its state holds all that its log does."""
        return self.applied_index >= self.last_index


class _Closed(NamedTuple):
    tenant: Tenant
    glance: Glance


class GroupsByLife(Mapping[int, A]):
    """See the module. To look one up opens it, and so does going through `values` or `items`; `in`, `len` and going
    through the lives do not.

    opened: those that are, for whoever wants no other.
    """

    def __init__(self, open_closed: Callable[[Tenant], A]) -> None:
        """open_closed: opens a tenant's group and puts it into `opened`."""
        self.opened: dict[int, A] = {}
        self._open_closed = open_closed
        self._closed: dict[int, _Closed] = {}
        self._closed_tenants: dict[bytes, int] = {}
        self._unreplayed: dict[int, None] = {}  # lives of closed ones

    def __getitem__(self, life: int) -> A:
        actor = self.opened.get(life)
        return actor if actor is not None else self._open(self._closed[life])

    def __iter__(self) -> Iterator[int]:
        return iter([*self.opened, *self._closed])

    def __len__(self) -> int:
        return len(self.opened) + len(self._closed)

    def __contains__(self, life: object) -> bool:
        return life in self.opened or life in self._closed

    def close(self, tenant: Tenant, glance: Glance) -> None:
        """There is this group, which sleeps; it is opened later."""
        self._closed[tenant.life] = _Closed(tenant, glance)
        self._closed_tenants[tenant.tenant] = tenant.life
        if not glance.is_replayed:
            self._unreplayed[tenant.life] = None

    @property
    def closed_count(self) -> int:
        """Groups that are not open yet."""
        return len(self._closed)

    @property
    def unreplayed_closed(self) -> int:
        """How many of them have a log that is ahead of their state."""
        return len(self._unreplayed)

    def closed_applied(self) -> dict[int, int]:
        """The applied index of each of them."""
        return {life: closed.glance.applied_index for life, closed in self._closed.items()}

    def of_tenant(self, tenant: bytes) -> A | None:
        """That tenant's group, if it was closed: it is open now."""
        life = self._closed_tenants.get(tenant)
        return None if life is None else self._open(self._closed[life])

    def open_some(self, at_most: int) -> None:
        """Open so many of those that are closed, those first whose log is ahead of their state: the node is not ready
        before they have caught up."""
        first = list(islice(self._unreplayed or self._closed, at_most))
        for life in first:
            self._open(self._closed[life])

    def _open(self, closed: _Closed) -> A:
        tenant = closed.tenant
        del self._closed[tenant.life], self._closed_tenants[tenant.tenant]
        self._unreplayed.pop(tenant.life, None)
        return self._open_closed(tenant)
