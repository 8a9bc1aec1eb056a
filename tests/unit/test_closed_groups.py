"""Groups that are not opened before somebody asks for one: which look opens, and what is known of closed ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from queen_node.closed_groups import Glance, GroupsByLife
from queen_node.state.rows import TenantRow
from queen_node.state.tenants import Tenant


class Shelf:
    """Three closed groups beside an open one. order: lives, as they were opened."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.groups: GroupsByLife[SimpleNamespace] = GroupsByLife(self._open)
        self.groups.opened[0] = SimpleNamespace(life=0)
        for life, glance in ((1, Glance(5, 5)), (2, Glance(5, 6)), (3, Glance(0, 0))):
            self.groups.close(Tenant(b"t%d" % life, life, TenantRow(life, 1, b"")), glance)

    def _open(self, tenant: Tenant) -> SimpleNamespace:
        self.order.append(tenant.life)
        actor = self.groups.opened[tenant.life] = SimpleNamespace(life=tenant.life)
        return actor


def test_what_asks_whether_there_is_a_group_opens_none() -> None:
    shelf = Shelf()
    groups = shelf.groups
    assert list(groups) == [0, 1, 2, 3] and len(groups) == 4 and 3 in groups and 4 not in groups
    assert groups.closed_applied() == {1: 5, 2: 5, 3: 0} and groups.unreplayed_closed == 1
    assert groups.get(4) is None and groups.of_tenant(b"unknown") is None
    with pytest.raises(KeyError):
        groups[4]
    assert shelf.order == [] and groups.closed_count == 3


def test_what_asks_for_a_group_opens_that_one_once() -> None:
    shelf = Shelf()
    groups = shelf.groups
    assert groups[2] is groups[2] is groups.get(2)
    assert groups.unreplayed_closed == 0 and groups.closed_applied() == {1: 5, 3: 0}
    found = groups.of_tenant(b"t1")
    assert found is groups.opened[1]
    assert groups.of_tenant(b"t1") is None, "an open one's inbox is known elsewhere"
    assert shelf.order == [2, 1] and list(groups) == [0, 2, 1, 3]


def test_the_rest_is_opened_in_steps_those_first_whose_log_is_ahead() -> None:
    """The node is not ready before these have caught up."""
    shelf = Shelf()
    shelf.groups.open_some(2)
    assert shelf.order == [2] and not shelf.groups.unreplayed_closed
    shelf.groups.open_some(1)
    assert shelf.order == [2, 1]
    shelf.groups.open_some(2)
    shelf.groups.open_some(2)
    assert shelf.order == [2, 1, 3] and not shelf.groups.closed_count


def test_to_look_at_all_opens_all() -> None:
    shelf = Shelf()
    assert [actor.life for actor in shelf.groups.values()] == [0, 1, 2, 3]
    assert shelf.order == [1, 2, 3]
