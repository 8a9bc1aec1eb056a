"""Sums of JSON numbers (KV-41, KV-42)."""

from __future__ import annotations

import pytest

from queen_node.state.kv_numbers import WHOLE_MAX, Number, add, plain, read, written


@pytest.mark.parametrize(("value", "number"), [
    (b"0", 0), (b"-7", -7), (b"1.0", 1), (b"2.5", 2.5), (b"1e3", 1000), (b"1E400", float("inf")),
    (b"9" * 500, float("inf")), (b"-" + b"9" * 500, float("-inf")), (b'"1"', None), (b"[1]", None), (b"true", None),
    (b"null", None), (b"", None),
])
def test_a_value_is_a_number_or_not(value: bytes, number: Number | None) -> None:
    assert read(value) == number
    assert type(read(value)) is type(number)


@pytest.mark.parametrize(("current", "delta", "least", "most", "total"), [
    (1, 2, None, None, b"3"),
    (WHOLE_MAX - 1, 1, None, None, b"%d" % WHOLE_MAX),
    (WHOLE_MAX, 1, None, None, None),
    (-WHOLE_MAX, -1, None, None, None),
    (10**300, 1 - 10**300, None, None, b"1"),
    (0.5, 0.5, None, None, b"1.0"),
    (1, 0.5, None, 1.5, b"1.5"),
    (1, 0.5, None, 1, None),
    (1, -2, 0, None, None),
    (1e308, 1e308, None, None, None),
    (10**350, 0.5, None, None, None),
    (float("inf"), 1, None, None, None),
    (plain(1e16), 0, None, None, None),  # as for the same number in digits
    (0, plain(-1e300), None, None, None),
    (plain(1e16), 0.5, None, None, b"1e+16"),
])
def test_sums(current: Number, delta: Number, least: Number | None, most: Number | None, total: bytes | None) -> None:
    result = add(current, delta, least, most)
    assert (None if result is None else written(result)) == total


def test_a_number_without_a_fraction_is_whole() -> None:
    assert type(plain(3.0)) is int and plain(1e16) == 10**16 and type(plain(1e300)) is int
    assert type(plain(2.5)) is float and plain(5) == 5
