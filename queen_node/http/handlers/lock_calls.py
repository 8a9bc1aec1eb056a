"""From the body of `POST /api/v1/locks` to the operations of one command (locks.md 2, 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw

from queen_node import errors
from queen_node.commands import LockOp, LockOperation
from queen_node.errors import Refusal, Refused
from queen_node.http.handlers.kv_calls import TENANT_FIELDS, TTL_MAX_S, check_text, whole, word_of
from queen_node.state.locks import SLOTS

OPERATIONS_MAX = 64
BODY_MAX_BYTES = 1 << 20  # 64 operations with the longest names and owners, all escaped, are a fifth of it
SLOTS_OF_CALL_MAX = 4096
SLOTS_OF_GET = 1000  # what a get counts
NAME_MAX_BYTES = 256

Fields = Mapping[str, Raw]

_WORDS = {"acquire": LockOp.ACQUIRE, "renew": LockOp.RENEW, "release": LockOp.RELEASE, "get": LockOp.GET}
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f#]+")
_OWNER = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raws = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class LockCall:
    """The operations of a body. words: as they were sent."""

    def __init__(self, body: bytes) -> None:
        """Raises Refused for what is not the JSON of this route: that costs the client no token (README 28)."""
        if len(body) > BODY_MAX_BYTES:  # as 33 million little operations 64 MiB took 2 GB and 8 s (M-51)
            raise Refused(errors.LOCKS_BAD_BODY, "too long", limit=BODY_MAX_BYTES, got=len(body))
        check_text(body, errors.LOCKS_BAD_BODY)
        try:
            fields = _decode_fields(body)
            self._raws = _decode_raws(fields.get("operations", Raw(b"null")))
        except (msgspec.DecodeError, RecursionError):
            raise Refused(errors.LOCKS_BAD_BODY) from None
        self._tenant_field = next((name for name in TENANT_FIELDS if name in fields), None)
        self.words = [word_of(raw) for raw in self._raws[:OPERATIONS_MAX]]  # more are refused

    def operations(self) -> list[LockOperation]:
        """All of them, checked. Raises Refused for the first that is wrong (LK-12)."""
        if self._tenant_field is not None:
            raise Refused(errors.LOCKS_TENANT_FIELD, field=self._tenant_field)
        if not self._raws:
            raise Refused(errors.LOCKS_BAD_REQUEST, "at least one operation")
        if len(self._raws) > OPERATIONS_MAX:
            raise Refused(errors.LOCKS_TOO_MANY_OPS, limit=OPERATIONS_MAX, got=len(self._raws))
        taken: dict[bytes, LockOperation] = {}
        slots = 0
        for index, raw in enumerate(self._raws):
            operation, counted = _Reader(raw, index).read()
            if operation[1] in taken:
                raise Refused(errors.LOCKS_DUPLICATE, operation=index)
            taken[operation[1]] = operation
            slots += counted
            if slots > SLOTS_OF_CALL_MAX:
                raise Refused(errors.LOCKS_TOO_MANY_KEYS, operation=index, limit=SLOTS_OF_CALL_MAX, got=slots)
        return list(taken.values())


class _Reader:
    """Reads one operation. Fields of other operations are not looked at."""

    def __init__(self, raw: Raw, index: int) -> None:
        self._index = index
        try:
            self._fields: Fields = _decode_fields(raw)
        except (msgspec.DecodeError, RecursionError):
            raise Refused(errors.LOCKS_BAD_REQUEST, "must be an object", operation=index) from None

    def read(self) -> tuple[LockOperation, int]:
        """(the operation, how many slots it counts)."""
        for name in TENANT_FIELDS:
            if name in self._fields:
                raise self._wrong(errors.LOCKS_TENANT_FIELD, name)
        word = _WORDS.get(self._text("op") or "")
        if word is None:
            raise self._wrong(errors.LOCKS_UNKNOWN_OP, "op")
        lock = self._name("name", _NAME, errors.LOCKS_BAD_NAME)
        if word is LockOp.GET:
            return (word, lock), SLOTS_OF_GET
        if word is LockOp.ACQUIRE:
            limit = self._whole("limit", 1, errors.LOCKS_BAD_LIMIT, 1, SLOTS)
            return (word, lock, self._ttl_s(), self._owner(), limit), limit
        token = self._required("token", errors.LOCKS_TOKEN_REQUIRED, errors.LOCKS_BAD_TOKEN)
        slot = self._whole("slot", 0, errors.LOCKS_BAD_SLOT, 0, SLOTS - 1)
        if word is LockOp.RELEASE:
            return (word, lock, token, slot), 1
        return (word, lock, token, self._ttl_s(), slot, self._owner()), 1

    def _ttl_s(self) -> int:
        if "forever" in self._fields:
            raise self._wrong(errors.LOCKS_BAD_TTL, "forever")
        seconds = self._required("ttlSeconds", errors.LOCKS_TTL_REQUIRED, errors.LOCKS_BAD_TTL)
        if seconds > TTL_MAX_S:
            raise Refused(
                errors.LOCKS_BAD_TTL, operation=self._index, field="ttlSeconds", limit=TTL_MAX_S, got=seconds)
        return seconds

    def _owner(self) -> str | None:
        if not self._given("owner"):
            return None
        return self._name("owner", _OWNER, errors.LOCKS_BAD_OWNER).decode()

    def _name(self, field: str, pattern: re.Pattern[str], refusal: Refusal) -> bytes:
        text = self._text(field)
        if text is None or pattern.fullmatch(text) is None or len(text.encode()) > NAME_MAX_BYTES:
            raise self._wrong(refusal, field)
        return text.encode()

    def _required(self, field: str, missing: Refusal, wrong: Refusal) -> int:
        """A whole number above 0."""
        if not self._given(field):
            raise self._wrong(missing, field)
        return self._whole(field, 0, wrong, 1)

    def _whole(self, field: str, default: int, refusal: Refusal, least: int, most: int | None = None) -> int:
        if field not in self._fields:
            return default
        number = whole(self._fields[field])
        if number is None or number < least or (most is not None and number > most):
            raise self._wrong(refusal, field)
        return number

    def _text(self, field: str) -> str | None:
        try:
            return _decode_text(self._fields[field]) if field in self._fields else None
        except msgspec.DecodeError:
            return None

    def _given(self, field: str) -> bool:
        return field in self._fields and bytes(self._fields[field]) != b"null"

    def _wrong(self, refusal: Refusal, field: str) -> Refused:
        return Refused(refusal, operation=self._index, field=field)


def only_reads(words: Sequence[str]) -> bool:
    """Whether a call takes its token from the bucket of reads (locks.md 5)."""
    return all(word == "get" for word in words)
