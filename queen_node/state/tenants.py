"""Which tenants there are, and the lives of their groups: rows of group 0 (M-70).

A tenant gets its group at its first write. The life is the number by which log, store and peers know the group; it is
never given twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from queen_node.state.keys import CELL, TENANT, TENANT_OF_LIFE, after, read_u64, u64
from queen_node.state.rows import CellRow, TenantRow
from queen_node.state.step import Step
from queen_node.state.store import CommittedStore
from raft.configurations import decode_configuration, encode_configuration

LIMIT_REACHED = 0  # the answer in place of a life


class Tenant(NamedTuple):
    """A tenant that has a group."""

    tenant: bytes
    life: int
    row: TenantRow


def apply_create(step: Step, command: list[Any]) -> int:
    """The life of the tenant's group, which is made if there is none; LIMIT_REACHED when the cell takes no more."""
    _kind, _request_id, tenant, at_most = command
    store = step.store
    found = store.row(TENANT + tenant, TenantRow)
    if found is not None:
        return found.life
    cell = store.row(CELL, CellRow) or CellRow()
    if cell.tenants >= at_most:
        return LIMIT_REACHED
    life = cell.next_life
    row = TenantRow(life, step.now_us, _founding(store.meta.configuration))
    store.put_row(CELL, CellRow(life + 1, cell.tenants + 1))
    store.put_row(TENANT + tenant, row)
    store.put(TENANT_OF_LIFE + u64(life), tenant)
    step.tenants.append(Tenant(tenant, life, row))
    return life


def tenants(view: CommittedStore) -> Iterator[Tenant]:
    """All tenants, in the order of their creation."""
    for key, tenant in view.iterate(TENANT_OF_LIFE, after(TENANT_OF_LIFE)):
        stored = view.get(TENANT + tenant)
        if stored is not None:
            life = read_u64(key[len(TENANT_OF_LIFE) :])
            yield Tenant(tenant, life, msgspec.msgpack.decode(stored, type=TenantRow))


def tenant_by_life(view: CommittedStore, life: int) -> bytes | None:
    """Whose group has that life."""
    return view.get(TENANT_OF_LIFE + u64(life))


def _founding(configuration: bytes) -> bytes:
    """Who founds a group now: the members of group 0, as they will be when a change under way is through."""
    if not configuration:
        return b""
    return encode_configuration(decode_configuration(configuration).settled)
