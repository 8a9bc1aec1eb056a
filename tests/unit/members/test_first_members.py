"""Who may vote in a group of which no entry names the members yet (M-70, CL-105, CL-106)."""

from __future__ import annotations

from queen_node.opening import first_members
from queen_node.state.rows import MemberRow, MembersRow, TenantRow
from raft.configurations import encode_configuration
from raft.quorum import Configuration

OLD, NEW = b"o" * 16, b"n" * 16
FOUNDERS = Configuration((1, 2, 3))
AS_FOUNDER, AS_ADDED = Configuration((1, 2, 3)), Configuration((1, 2), (), (3,))  # what the node is in group 0 at first
SINCE_LIFE = 5


def of_group(life: int, of_cell: Configuration, *members: MemberRow, directory_id: bytes = NEW) -> Configuration:
    """As node 3 finds it."""
    row = TenantRow(life, 1, encode_configuration(FOUNDERS))
    return first_members(3, directory_id, of_cell, row, MembersRow(list(members)))


def member(directory_id: bytes) -> MemberRow:
    return MemberRow(3, "r3:1", "h3:1", directory_id, SINCE_LIFE)


def test_a_founder_of_the_cell_founds_every_group_that_names_it() -> None:
    """Before group 0 has said which directory it has, too."""
    assert of_group(1, AS_FOUNDER) == FOUNDERS


def test_who_came_back_without_its_disk_only_learns_in_groups_that_are_older() -> None:
    """What it had acknowledged in them is gone: its empty log may not help a leader in that lacks it."""
    assert of_group(SINCE_LIFE - 1, AS_ADDED, member(NEW)) == AS_ADDED
    assert of_group(SINCE_LIFE, AS_ADDED, member(NEW)) == FOUNDERS


def test_a_directory_that_is_not_the_members_founds_nothing() -> None:
    """It was removed meanwhile, or is not known yet: group 0's state may be behind."""
    assert of_group(SINCE_LIFE, AS_ADDED, member(NEW), directory_id=OLD) == AS_ADDED
    assert of_group(SINCE_LIFE, AS_ADDED) == AS_ADDED


def test_a_group_that_names_no_founders_has_those_of_the_cell() -> None:
    row = TenantRow(1, 1, b"")
    assert first_members(3, NEW, AS_ADDED, row, MembersRow([member(NEW)])) == AS_ADDED
    assert first_members(3, NEW, AS_FOUNDER, None, MembersRow([])) == AS_FOUNDER
