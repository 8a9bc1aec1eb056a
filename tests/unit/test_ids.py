"""Minted ids: their form, and that none comes twice."""

from __future__ import annotations

import uuid

from queen_node.ids import IdMint, uuid_text


def test_a_uuid7_has_its_version_its_variant_and_its_time() -> None:
    """RFC 9562, section 5.7."""
    mint = IdMint(wall_ns=lambda: 1_700_000_000_123_456_789)
    for _ in range(1000):
        raw = mint.uuid7()
        parsed = uuid.UUID(bytes=raw)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert int.from_bytes(raw[:6], "big") == 1_700_000_000_123
        assert uuid_text(raw) == str(parsed)


def test_every_random_bit_is_used_and_none_is_fixed() -> None:
    ones = IdMint(wall_ns=lambda: 0, random_bytes=lambda count: b"\xff" * count).uuid7()
    zeros = IdMint(wall_ns=lambda: 0, random_bytes=bytes).uuid7()
    assert (int.from_bytes(ones, "big") ^ int.from_bytes(zeros, "big")).bit_count() == 74
    assert set(IdMint(wall_ns=lambda: 0, random_bytes=lambda count: b"\xff" * count).uuid7s(1000)) == {ones}
    assert set(IdMint(wall_ns=lambda: 0, random_bytes=bytes).uuid7s(1000)) == {zeros}


def test_no_id_comes_twice() -> None:
    """PU-15, CL-27; two processes start their request ids at different places."""
    mint, other = IdMint(), IdMint()
    assert len({mint.uuid7() for _ in range(5000)}) == 5000
    together = [each for count in (1, 0, 100, 5000, 7) for each in [mint.uuid7(), *mint.uuid7s(count)]]
    assert len(set(together)) == len(together) == 5113 and {len(each) for each in together} == {16}
    requests = [one.request_id() for one in (mint, other) for _ in range(5000)]
    assert len(set(requests)) == 10_000 and {len(request) for request in requests} == {16}
