"""The comparison of digests proves itself."""

from __future__ import annotations

from tests.checkers.digests import Digests


def row(group: int, digest: str) -> dict[str, object]:
    return {"group": group, "digest": digest}


def test_equal_states_pass_and_meet() -> None:
    digests = Digests()
    digests.hear(1, [row(0, "5:aa"), row(1, "9:bb")])
    digests.hear(2, [row(0, "5:aa"), row(1, "8:ab")])
    assert not digests.meet and digests.check() == []
    digests.hear(2, [row(0, "5:aa"), row(1, "9:bb")])
    assert digests.meet and digests.check() == []
    digests.hear(3, [row(0, "5:aa")])
    assert not digests.meet, "it has fewer groups"


def test_two_states_after_one_entry_are_found_though_the_nodes_have_gone_on() -> None:
    digests = Digests()
    digests.hear(1, [row(1, "8:ab")])
    digests.hear(2, [row(1, "8:ac")])
    for node in (1, 2):
        digests.hear(node, [row(1, "9:bb")])
    assert digests.meet and [violation.promise for violation in digests.check()] == ["G-D7"]
