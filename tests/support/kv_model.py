"""Key/value state in plain Python, written from the contract page and from nothing else (kv.md).

An operation is a dictionary as a client writes it; an element is one as a client reads it, `index` and times left out.
Values are numbers and texts. Versions are the model's own count: the broker's must run alike, as both start at nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Op = dict[str, Any]
Element = dict[str, Any]
WHOLE_MAX = 2**53 - 1


@dataclass(frozen=True)
class Row:
    value: Any
    version: int
    expires_us: int | None
    updated_us: int


class RolledBack(Exception):
    """KV-33: a required operation did not apply."""

    def __init__(self, body: Element) -> None:
        super().__init__(body["kvReason"])
        self.body = body


class KvModel:
    """The rows of one tenant."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.version = 0

    def call(self, operations: list[Op], now_us: int) -> list[Element]:
        """The elements of a call. Raises RolledBack, and nothing has changed then."""
        before, version_before = dict(self.rows), self.version
        elements: list[Element] = [{}] * len(operations)
        for index, op in enumerate(operations):
            if op["op"] in ("get", "getMany", "getPrefix"):
                continue
            element = elements[index] = self._write(op, now_us)
            if not element["applied"] and op.get("required"):
                self.rows, self.version = before, version_before
                current = self._alive(op["ns"], op["key"], now_us)
                raise RolledBack({
                    "failedIndex": index, "kvReason": element["reason"],
                    "version": current.version if current else 0, "value": current.value if current else None})
        for index, op in enumerate(operations):  # KV-71: after all writes, wherever they stand
            if not elements[index]:
                elements[index] = self._read(op, now_us)
        return elements

    def _alive(self, ns: str, key: str, now_us: int) -> Row | None:
        row = self.rows.get((ns, key))
        if row is None or (row.expires_us is not None and row.expires_us <= now_us):  # KV-22
            return None
        return row

    # --- reads

    def _read(self, op: Op, now_us: int) -> Element:
        if op["op"] == "get":
            row = self._alive(op["ns"], op["key"], now_us)
            if row is None:
                return {"op": "get", "found": False, "key": op["key"]}
            return {"op": "get", "found": True, **_shown(op["key"], row)}
        alive = {
            key: row for ns, key in self.rows
            if ns == op["ns"] and (row := self._alive(ns, key, now_us)) is not None}
        if op["op"] == "getMany":
            keys = sorted(set(op["keys"]), key=str.encode)
            return {
                "op": "getMany", "rows": [_shown(key, alive[key]) for key in keys if key in alive],
                "missing": [key for key in keys if key not in alive], "truncated": False}
        found = sorted((key for key in alive if key.startswith(op["prefix"])), key=str.encode)
        if op["after"]:
            found = [key for key in found if key.encode() > op["after"].encode()]
        page = found[: op["limit"]]
        truncated = len(found) > op["limit"]
        return {
            "op": "getPrefix", "rows": [_shown(key, alive[key]) for key in page], "truncated": truncated,
            "nextAfter": page[-1] if truncated else None}

    # --- writes

    def _write(self, op: Op, now_us: int) -> Element:
        name, row = op["op"], self._alive(op["ns"], op["key"], now_us)
        if name == "incr":
            return self._incr(op, row, now_us)
        expect = 0 if name == "putIfAbsent" else op.get("expect")
        reason = None
        if name == "delete" and row is None:
            reason = "absent"
        elif expect is not None:
            reason = _mismatch(expect, row)
        if reason is not None:
            return _refused(op, reason, row)
        if name == "check":
            return {"op": name, "applied": True, "key": op["key"], "version": row.version if row else 0}
        if name == "delete":
            assert row is not None
            del self.rows[op["ns"], op["key"]]
            return {"op": name, "applied": True, "key": op["key"], "value": row.value, "version": row.version}
        return self._store(op, op["value"], _end(op, now_us), now_us)

    def _incr(self, op: Op, row: Row | None, now_us: int) -> Element:
        current: Any = row.value if row else 0
        if isinstance(current, str):
            return _refused(op, "type", row)
        if isinstance(current, float) and current.is_integer():
            current = int(current)  # a sum that came out whole has no fraction from then on (KV-42)
        total = current + op["delta"]
        outside = (op["min"] is not None and total < op["min"]) or (op["max"] is not None and total > op["max"])
        too_large = abs(total) > WHOLE_MAX if isinstance(total, int) else not math.isfinite(total)
        if outside or too_large:
            return {**_refused(op, "limit", row), "value": current}
        return self._store(op, total, row.expires_us if row else _end(op, now_us), now_us)

    def _store(self, op: Op, value: Any, expires_us: int | None, now_us: int) -> Element:
        self.version += 1
        self.rows[op["ns"], op["key"]] = Row(value, self.version, expires_us, now_us)
        return {"op": op["op"], "applied": True, "key": op["key"], "value": value, "version": self.version}


def _end(op: Op, now_us: int) -> int | None:
    return None if op["ttlSeconds"] is None else now_us + op["ttlSeconds"] * 1_000_000


def _mismatch(expect: int, row: Row | None) -> str | None:
    """The table of KV-31."""
    if row is None:
        return None if expect == 0 else "absent"
    if expect == 0:
        return "exists"
    return None if row.version == expect else "version"


def _refused(op: Op, reason: str, row: Row | None) -> Element:
    return {
        "op": op["op"], "applied": False, "reason": reason, "key": op["key"],
        "value": row.value if row else None, "version": row.version if row else 0}


def _shown(key: str, row: Row) -> Element:
    return {
        "key": key, "value": row.value, "version": row.version, "expiresAt": row.expires_us,
        "updatedAt": row.updated_us}
