"""The row of group 0 that says which nodes there are, and the change of them under way (M-71, CL-100, CL-132)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queen_node import commands
from queen_node.state.machine import Machine
from queen_node.state.members import CHANGED_MEANWHILE, members_of, was_known
from queen_node.state.rows import MemberRow, MembersJobRow, MembersRow
from queen_node.state.store import Store
from tests.support.memory_engine import MemoryEngine

ONE, TWO = (1, "r1:1", "h1:1", b"1" * 16), (2, "r2:1", "h2:1", b"")


class Cell:
    def __init__(self) -> None:
        self.machine = Machine(Store(MemoryEngine(), life=0))
        self._number = 0

    def apply(self, command: bytes) -> object:
        self._number += 1
        entry = commands.entry(self._number, [command])
        return self.machine.apply_entry(index=self._number, term=1, data=entry)[0][2]

    @property
    def row(self) -> MembersRow:
        return members_of(self.machine.store.committed())


@pytest.fixture
def cell() -> Iterator[Cell]:
    yield Cell()


def ids() -> bytes:
    return b"r" * 16


def change(number: int, voters: list[int], learners: list[int]) -> bytes:
    return commands.change_members(ids(), number, voters, learners, force=False, before=([1, 2], []))


def test_a_directory_that_is_known_is_never_another_one(cell: Cell) -> None:
    """CL-105: what is said of a member later fills in only what was not known."""
    assert cell.row == MembersRow([])
    assert cell.apply(commands.know_members(ids(), [TWO, ONE])) == 2
    cell.apply(commands.know_members(ids(), [(1, "else:1", "else:2", b"x" * 16), (2, "else:1", "h", b"2" * 16)]))
    assert cell.row.members == [MemberRow(*ONE, since_life=1), MemberRow(2, "r2:1", "h2:1", b"2" * 16, since_life=1)]


def test_a_directory_is_of_the_groups_that_were_made_since_it_was_known(cell: Cell) -> None:
    """CL-105: a node that lost its disk and was added again has nothing of what it had acknowledged in older ones."""
    cell.apply(commands.know_members(ids(), [ONE, TWO]))
    cell.apply(commands.create_tenant(ids(), b"t" * 16, at_most=9))
    cell.apply(commands.know_members(ids(), [ONE, (2, "r2:1", "h2:1", b"2" * 16)]))
    first, second = b"1" * 16, b"2" * 16
    assert was_known(cell.row, 1, first, 1) and was_known(cell.row, 1, first, 2)
    assert not was_known(cell.row, 2, second, 1) and was_known(cell.row, 2, second, 2)
    assert not was_known(cell.row, 1, second, 2) and not was_known(cell.row, 3, first, 2)


def test_of_two_changes_checked_against_the_same_members_one_begins(cell: Cell) -> None:
    """CL-100."""
    cell.apply(commands.know_members(ids(), [ONE, TWO]))
    assert cell.apply(change(1, [1, 2], [3])) == 1
    assert cell.apply(change(1, [1], [])) == CHANGED_MEANWHILE
    assert cell.row.job == MembersJobRow(1, [1, 2], [3], False, [1, 2], [])
    assert cell.apply(change(2, [1, 2], [])) == 2


def test_who_is_no_member_is_forgotten_when_the_change_is_through(cell: Cell) -> None:
    """CL-103."""
    cell.apply(commands.know_members(ids(), [ONE, TWO]))
    cell.apply(change(1, [1], []))
    assert len(cell.row.members) == 2
    assert cell.apply(commands.members_changed(ids(), 7)) is False
    assert cell.apply(commands.members_changed(ids(), 1)) is True
    assert cell.row.members == [MemberRow(*ONE, since_life=1)]
    assert cell.row.job is not None and cell.row.job.done
    assert cell.apply(commands.members_changed(ids(), 1)) is False


def test_the_version_only_rises(cell: Cell) -> None:
    """CL-132."""
    assert cell.row.cluster_version == 1
    assert [cell.apply(commands.raise_version(ids(), version)) for version in (3, 2)] == [3, 3]
    assert cell.row.cluster_version == 3
