"""A cluster writes a later format only when every member reads it (CL-132)."""

from __future__ import annotations

import pytest

from queen_node.versions import FORMAT, raised_version, unreadable


@pytest.mark.parametrize(("highest", "raised"), [
    ({1: 2, 2: 2, 3: 2}, 2),
    ({1: 3, 2: 2, 3: 3}, 2),
    ({1: 2, 2: 1, 3: 2}, None),
    ({1: 2, 2: 2}, None),  # who does not answer may be of an older release
    ({1: 1, 2: 1, 3: 1}, None),
    ({1: 2, 2: 2, 3: 2, 9: 1}, 2),  # no member
])
def test_the_version_is_what_all_members_read(highest: dict[int, int], raised: int | None) -> None:
    assert raised_version(1, (1, 2, 3), highest) == raised


def test_a_version_never_falls() -> None:
    assert raised_version(3, (1, 2), {1: 2, 2: 2}) is None


def test_a_release_that_reads_less_does_not_serve_the_data() -> None:
    assert unreadable(FORMAT) is None
    assert "start a later release" in (unreadable(FORMAT + 1) or "")
