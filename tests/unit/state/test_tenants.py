"""Tenants and the lives of their groups, as group 0 keeps them (M-70)."""

from __future__ import annotations

from queen_node import commands
from queen_node.state.machine import Machine
from queen_node.state.rows import TenantRow
from queen_node.state.store import Store
from queen_node.state.tenants import LIMIT_REACHED, Tenant, tenants
from raft.configurations import decode_configuration, encode_configuration
from raft.quorum import Configuration
from tests.support.memory_engine import MemoryEngine

A, B, C = (bytes(15) + bytes((number,)) for number in (1, 2, 3))
NOW_US = 1_700_000_000_000_000


class Cell:
    """Group 0's state, an entry a call."""

    def __init__(self) -> None:
        self.machine = Machine(Store(MemoryEngine(), life=0))

    def create(self, tenant: bytes, *, at_most: int = 100) -> int:
        application = self.machine.begin(
            index=self.machine.applied_index + 1, term=1,
            data=commands.entry(NOW_US, [commands.create_tenant(bytes(16), tenant, at_most=at_most)]))
        _id, _kind, life = application.apply_next()
        self.machine.commit(application)
        self.appeared = application.step.tenants
        assert isinstance(life, int)
        return life

    def configure(self, configuration: Configuration) -> None:
        self.machine.commit(self.machine.begin_bare(
            index=self.machine.applied_index + 1, term=1, configuration=encode_configuration(configuration)))

    def tenants(self) -> list[Tenant]:
        return list(tenants(self.machine.store.committed()))


def test_each_tenant_gets_a_life_once() -> None:
    cell = Cell()
    assert [cell.create(A), cell.create(B)] == [1, 2]
    assert cell.appeared == [Tenant(B, 2, TenantRow(2, NOW_US, b""))]
    assert cell.create(A) == 1 and cell.appeared == []
    assert [(tenant, life) for tenant, life, _ in cell.tenants()] == [(A, 1), (B, 2)]


def test_beyond_the_limit_only_those_that_have_a_group_are_known() -> None:
    """QUEEN_MAX_TENANTS (README 24): kept by group 0, so two nodes that ask at once do not pass it together."""
    cell = Cell()
    assert [cell.create(A, at_most=2), cell.create(B, at_most=2)] == [1, 2]
    assert cell.create(C, at_most=2) == LIMIT_REACHED and cell.appeared == []
    assert cell.create(B, at_most=2) == 2
    assert cell.create(C, at_most=3) == 3


def test_a_group_is_founded_by_the_members_of_group_zero() -> None:
    """M-70; by those that a change under way leads to, or the new group would begin in a joint configuration."""
    cell = Cell()
    cell.create(A)
    cell.configure(Configuration((1, 2), learners=(3,)))
    cell.create(B)
    cell.configure(Configuration((1, 2, 3), outgoing=(1, 2)))
    cell.create(C)
    first, second, third = (row.configuration for _, _, row in cell.tenants())
    assert first == b""
    assert decode_configuration(second) == Configuration((1, 2), learners=(3,))
    assert decode_configuration(third) == Configuration((1, 2, 3))
