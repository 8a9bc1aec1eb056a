"""From the body of a key/value call to the operations of one command or query (kv.md 2, 3).

An operation is decoded in one typed pass if it is as it should be. One that is not (a wrong field, but also a harmless
unknown one) is read field by field, which says what is wrong and where.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from queen_node import errors
from queen_node.commands import KvOp, KvOperation
from queen_node.errors import Refusal, Refused
from queen_node.http.handlers import op_lists
from queen_node.http.handlers.op_lists import listed, paced
from queen_node.http.handlers.push_body import masked
from queen_node.state import kv_numbers
from queen_node.state.nesting import DEPTH_MAX, nests_deeper

KEY_MAX_BYTES = 512
TTL_MAX_S = 3_155_760_000  # a hundred years: no date overflows
PREFIX_LIMIT, PREFIX_LIMIT_MAX = 100, 1000
SHOWN_MAX = 40  # characters of a client's name in a refusal

Word = Literal["get", "getMany", "getPrefix", "put", "putIfAbsent", "delete", "incr", "check"]
Number = int | float
Fields = Mapping[str, Raw]

OPS: dict[str, KvOp] = {
    "get": KvOp.GET, "getMany": KvOp.GET_MANY, "getPrefix": KvOp.GET_PREFIX, "put": KvOp.PUT,
    "putIfAbsent": KvOp.PUT_IF_ABSENT, "delete": KvOp.DELETE, "incr": KvOp.INCR, "check": KvOp.CHECK,
}
_WORDS: dict[str, Word] = {
    "get": "get", "getMany": "getMany", "getPrefix": "getPrefix", "put": "put", "putIfAbsent": "putIfAbsent",
    "delete": "delete", "incr": "incr", "check": "check",
}
_NUMBERS = {word: int(op) for word, op in OPS.items()}
READS = frozenset(("get", "getMany", "getPrefix"))
GROWING = frozenset(("put", "putIfAbsent", "incr"))
TENANT_FIELDS = ("tenant", "tenantId", "tenant_id", "_tenant")
PATH_FIELDS = ("op", "ns", "namespace", "key")

_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BLANKS = b" \n\t\r"


@dataclass(frozen=True, slots=True)
class KvLimits:
    """Limits in force for a call (kv.md 3)."""

    operations_max: int = 256
    keys_max: int = 1024
    value_max_bytes: int = 65_536


class Op(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An operation whose fields have the right types. value: empty when it is not there."""

    op: Word
    ns: str
    key: str | None = None
    value: Raw = Raw(b"")
    ttlSeconds: int | None = None
    forever: bool | None = None
    expect: int | UnsetType = UNSET
    required: bool = False
    delta: Number | None = None
    min: Number | None = None
    max: Number | None = None
    keys: list[str] | None = None
    prefix: str | None = None
    after: str | None = None
    limit: int = PREFIX_LIMIT
    keysOnly: bool = False


class _Ops(msgspec.Struct):
    operations: list[Op]


class _RawOps(msgspec.Struct):
    operations: list[Raw]


class _Named(msgspec.Struct):
    op: str = ""


_decode_ops = msgspec.json.Decoder(list[Op] | _Ops).decode
_decode_op = msgspec.json.Decoder(Op).decode
_decode_raw_ops = msgspec.json.Decoder(list[Raw] | _RawOps).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_number = msgspec.json.Decoder(int | float).decode
_decode_bool = msgspec.json.Decoder(bool).decode
_T = TypeVar("_T")


class KvCall:
    """The operations of one call as they pass the rules that concern values, one after the other.

    writes: whether one of them writes or checks, so that the call is a command; grows: whether one may grow storage.
    """

    __slots__ = (
        "_index", "_keys", "_namespace", "_namespace_text", "_written", "grows", "limits", "operations", "words",
        "writes",
    )

    def __init__(self, limits: KvLimits) -> None:
        self.limits = limits
        self.operations: list[KvOperation] = []
        self.words: list[str] = []
        self.writes = self.grows = False
        self._keys = self._index = 0
        self._written: set[tuple[str, str | None]] = set()
        self._namespace_text, self._namespace = "", b""  # of the last operation: neighbours mostly share theirs

    def take(self, op: Op) -> None:
        """Check the next operation's values and add it. Raises Refused, which names it by its index."""
        self._index = len(self.operations)
        if op.ns != self._namespace_text:
            if _NAMESPACE.fullmatch(op.ns) is None:
                self._refuse(errors.KV_BAD_NAMESPACE, got=_shown(op.ns))
            self._namespace_text, self._namespace = op.ns, op.ns.encode()
        namespace, word = self._namespace, op.op
        if word not in READS:
            self.writes = True
            self.grows = self.grows or word in GROWING
        if word == "getPrefix":
            operation: KvOperation = self._get_prefix(namespace, op)
        elif word == "getMany":
            if not op.keys:
                self._refuse(errors.KV_BAD_KEY, "must be an array of keys", field="keys")
            operation = KvOp.GET_MANY, namespace, [self._key(key, "keys") for key in op.keys or ()]
            self._count_keys(len(operation[2]))
        else:
            operation = self._on_one_key(namespace, self._key(op.key), op)
            self._count_keys(1)
        self.operations.append(operation)
        self.words.append(word)

    def _on_one_key(self, namespace: bytes, key: bytes, op: Op) -> KvOperation:
        word = op.op
        if word == "get":
            return KvOp.GET, namespace, key
        expect = self._expect(op)
        if word == "check":
            if expect is None:
                self._refuse(errors.KV_BAD_EXPECT)
            return KvOp.CHECK, namespace, key, expect or 0, op.required
        name = op.ns, op.key
        if name in self._written:
            self._refuse(errors.KV_DUPLICATE_KEY, got=_shown(op.key or ""))
        self._written.add(name)
        if word == "delete":
            return KvOp.DELETE, namespace, key, expect, op.required
        if word == "incr":
            return self._incr(namespace, key, op)
        return (
            _NUMBERS[word], namespace, key, self._value(op.value), self._lifetime_s(op),
            0 if word == "putIfAbsent" else expect, op.required)

    def _incr(self, namespace: bytes, key: bytes, op: Op) -> KvOperation:
        if op.delta is None:
            self._refuse(errors.KV_BAD_DELTA, field="delta")
        if op.min is not None and op.max is not None and op.min > op.max:
            self._refuse(errors.KV_BAD_DELTA, field="min")
        delta, least, most = (_plain(number) for number in (op.delta, op.min, op.max))
        return KvOp.INCR, namespace, key, delta or 0, least, most, self._lifetime_s(op), op.required

    def _get_prefix(self, namespace: bytes, op: Op) -> KvOperation:
        if not op.prefix:
            self._refuse(errors.KV_PREFIX_REQUIRED)
        limit = min(max(1, op.limit), PREFIX_LIMIT_MAX)
        self._count_keys(limit)
        after = self._key(op.after, "after") if op.after else b""
        return KvOp.GET_PREFIX, namespace, self._key(op.prefix, "prefix"), after, limit, op.keysOnly

    def _key(self, text: str | None, field: str = "key") -> bytes:
        return checked_key(text, field, self._index)

    def _value(self, raw: Raw) -> bytes:
        if nests_deeper(bytes(raw)):
            self._refuse(errors.KV_BAD_BODY, "nested too deeply", field="value", limit=DEPTH_MAX)
        value = compact(raw)
        if not value:
            self._refuse(errors.KV_BAD_BODY, "must be there", field="value")
        if len(value) > self.limits.value_max_bytes:
            self._refuse(
                errors.KV_VALUE_TOO_LARGE, field="value", limit=self.limits.value_max_bytes, got=len(value))
        return value

    def _lifetime_s(self, op: Op) -> int:
        """Seconds; 0: for ever (KV-20)."""
        if (op.ttlSeconds is not None) == (op.forever is True):
            self._refuse(errors.KV_NO_EXPIRY)
        if op.ttlSeconds is None:
            return 0
        if not 0 < op.ttlSeconds <= TTL_MAX_S:
            self._refuse(errors.KV_BAD_TTL, limit=TTL_MAX_S, got=op.ttlSeconds)
        return op.ttlSeconds

    def _expect(self, op: Op) -> int | None:
        if op.expect is UNSET:
            return None
        if op.expect < 0 or op.op == "incr" or (op.op == "putIfAbsent" and op.expect):
            self._refuse(errors.KV_BAD_EXPECT)
        return op.expect

    def _count_keys(self, more: int) -> None:
        self._keys += more
        if self._keys > self.limits.keys_max:
            self._refuse(errors.KV_TOO_MANY_KEYS, limit=self.limits.keys_max, got=self._keys)

    def _refuse(
        self, refusal: Refusal, text: str = "", *, field: str = "", limit: int | None = None, got: object = None,
    ) -> NoReturn:
        raise Refused(refusal, text, operation=self._index, field=field, limit=limit, got=got)


def check_text(body: bytes, refusal: Refusal = errors.KV_BAD_BODY) -> None:
    """A body that is no UTF-8 is no JSON; the decoders do not look into values. Raises Refused."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Refused(refusal, f"not UTF-8: {error.reason}") from None


def read_quickly(body: bytes, call: KvCall) -> bool:
    """Read a body into `call` if all of it is as the rules want it. False: let `take_raws` say why not."""
    return op_lists.read_quickly(_decode_ops, body, call)


def raw_operations(body: bytes) -> list[Raw]:
    """The operations of a body, not read yet. Raises Refused for what is not the JSON of this route."""
    try:
        try:
            return listed(_decode_raw_ops(body))
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            all_masked, unmasked = _masked(body, error)
            return [Raw(unmasked(raw)) for raw in listed(_decode_raw_ops(all_masked))]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(errors.KV_BAD_BODY, f"must be {{\"operations\": [...]}} or a bare array: {error}") from None


def word_of(raw: Raw) -> str:
    """What an operation calls itself; empty when that is no text."""
    try:
        return _decode_named(raw).op
    except (msgspec.DecodeError, RecursionError):
        return ""


def take_raws(raws: Sequence[Raw], call: KvCall) -> Iterator[None]:
    """Read operations into `call`; yields where the loop may take a turn. Raises Refused."""
    if len(raws) > call.limits.operations_max:
        raise Refused(errors.KV_TOO_MANY_OPS, limit=call.limits.operations_max, got=len(raws))
    for index, (pauses, raw) in enumerate(paced(raws)):
        if pauses:
            yield
        try:
            op = _decode_op(raw)
        except (msgspec.DecodeError, RecursionError):
            op = _op_of(_fields_of(raw, index), index)
        call.take(op)


def op_in_path(word: Word, namespace: str, key: str, body: bytes) -> Op:
    """The operation of a path route, whose body holds the rest of it (KV-5). Raises Refused."""
    check_text(body)
    fields = _fields_of(Raw(body), None)
    for name in PATH_FIELDS:
        if name in fields:
            raise Refused(errors.KV_FIELD_IN_PATH, field=name)
    return _op(fields, word, namespace, key, None)


def read_list(body: bytes) -> tuple[bytes, bytes, bytes, int, bool, bool]:
    """What the console asks for (KV-81): namespace, prefix, after, limit, keys only?, dead rows too? Raises Refused."""
    check_text(body)
    fields = _fields_of(Raw(body), None)
    for name in TENANT_FIELDS:
        if name in fields:
            raise Refused(errors.KV_TENANT_FIELD, field=name)
    namespace = _typed(fields, "namespace", _decode_text)
    if namespace is None or _NAMESPACE.fullmatch(namespace) is None:
        raise Refused(errors.KV_BAD_NAMESPACE, field="namespace")
    limit = whole(fields["limit"]) if "limit" in fields else PREFIX_LIMIT
    if limit is None:
        raise Refused(errors.KV_BAD_BODY, "must be a whole number", field="limit")
    return (
        namespace.encode(), _key_or_empty(fields, "prefix"), _key_or_empty(fields, "after"),
        min(max(1, limit), PREFIX_LIMIT_MAX), _switch(fields, "keysOnly", None),
        _switch(fields, "includeExpired", None))


def _key_or_empty(fields: Fields, name: str) -> bytes:
    """A key, or the beginning of one, that need not be there."""
    if not _given(fields, name):
        return b""
    text = _typed(fields, name, _decode_text)
    return b"" if text == "" else checked_key(text, name, None)


def checked_key(text: str | None, field: str, index: int | None) -> bytes:
    """A key, or the beginning of one, as it is stored (KV-11). Raises Refused."""
    if not text or "\0" in text:
        raise Refused(errors.KV_BAD_KEY, operation=index, field=field)
    key = text.encode()
    if len(key) > KEY_MAX_BYTES:
        raise Refused(
            errors.KV_KEY_TOO_LARGE, operation=index, field=field, limit=KEY_MAX_BYTES, got=len(key))
    return key


def compact(raw: Raw) -> bytes:
    """A JSON text without blanks; its numbers and strings as they are (KV-12)."""
    value = bytes(raw)
    if len(value.translate(None, _BLANKS)) == len(value):
        return value
    try:
        return msgspec.json.format(value, indent=-1)
    except msgspec.DecodeError:
        all_masked, unmasked = masked(value)  # the body was JSON but for its surrogates
        return unmasked(Raw(msgspec.json.format(all_masked, indent=-1)))


def _fields_of(raw: Raw, index: int | None) -> Fields:
    try:
        try:
            return _decode_fields(raw)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            all_masked, unmasked = _masked(bytes(raw), error)
            return {name: Raw(unmasked(field)) for name, field in _decode_fields(all_masked).items()}
    except (msgspec.DecodeError, RecursionError):
        raise Refused(errors.KV_BAD_BODY, "must be an object", operation=index) from None


def _masked(data: bytes, error: msgspec.DecodeError) -> tuple[bytes, Callable[[Raw], bytes]]:
    """A lone surrogate's escape is fine in a value and kept (KV-12, as PU-12), but no string that msgspec accepts.
    Raises `error`, the decoder's own, where there is none to mask."""
    if b"\\ud" not in data and b"\\uD" not in data:
        raise error
    return masked(data)


def _op_of(fields: Fields, index: int) -> Op:
    """An operation of the batch, read field by field."""
    word = _WORDS.get(_typed(fields, "op", _decode_text) or "")
    if word is None:
        raise Refused(errors.KV_UNKNOWN_OP, operation=index)
    namespace = _typed(fields, "ns", _decode_text)
    if namespace is None:
        raise Refused(errors.KV_BAD_NAMESPACE, operation=index)
    return _op(fields, word, namespace, _typed(fields, "key", _decode_text), index)


def _op(fields: Fields, word: Word, namespace: str, key: str | None, index: int | None) -> Op:
    """The operation with the fields that its kind has; others are not looked at. Raises Refused for a wrong type."""
    for name in TENANT_FIELDS:
        if name in fields:
            raise Refused(errors.KV_TENANT_FIELD, operation=index, field=name)

    def wrong(refusal: Refusal, name: str) -> Refused:
        return Refused(refusal, operation=index, field=name)

    made = Op(word, namespace, key)
    if word == "getMany":
        made.keys = _typed(fields, "keys", _decode_texts)
    if word == "getPrefix":
        made.prefix = _typed(fields, "prefix", _decode_text)
        made.after = _typed(fields, "after", _decode_text)
        if made.after is None and _given(fields, "after"):
            raise wrong(errors.KV_BAD_KEY, "after")
        limit = whole(fields["limit"]) if "limit" in fields else PREFIX_LIMIT
        if limit is None:
            raise wrong(errors.KV_BAD_BODY, "limit")
        made.limit, made.keysOnly = limit, _switch(fields, "keysOnly", index)
    if word in READS:
        return made
    made.required = _switch(fields, "required", index)
    if "expect" in fields:
        expect = whole(fields["expect"])
        if expect is None:
            raise wrong(errors.KV_BAD_EXPECT, "expect")
        made.expect = expect
    if word in ("put", "putIfAbsent"):
        made.value = fields.get("value", made.value)
    if word in GROWING:
        made.forever = _typed(fields, "forever", _decode_bool)
        if _given(fields, "ttlSeconds"):
            made.ttlSeconds = whole(fields["ttlSeconds"])
            if made.ttlSeconds is None:
                raise wrong(errors.KV_BAD_TTL, "ttlSeconds")
    if word == "incr":
        for name in ("delta", "min", "max"):
            if _given(fields, name):
                number = _number(fields[name])
                if number is None:
                    raise wrong(errors.KV_BAD_DELTA, name)
                setattr(made, name, number)
    return made


def _given(fields: Fields, name: str) -> bool:
    return name in fields and bytes(fields[name]) != b"null"


def _typed(fields: Fields, name: str, decode: Callable[[Raw], _T]) -> _T | None:
    """The value of a field; None when it is missing or of another type."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode(raw)
    except msgspec.DecodeError:
        return None


def _switch(fields: Fields, name: str, index: int | None) -> bool:
    if name not in fields:
        return False
    value = _typed(fields, name, _decode_bool)
    if value is None:
        raise Refused(errors.KV_BAD_BODY, "must be true or false", operation=index, field=name)
    return value


def _number(raw: Raw) -> Number | None:
    """A JSON number, an infinity for one that no double reaches; None for what is no number."""
    try:
        return _decode_number(raw)
    except msgspec.DecodeError:
        text = bytes(raw)
        if text[:1].isdigit():
            return math.inf
        return -math.inf if text[:1] == b"-" else None


def whole(raw: Raw) -> int | None:
    """A whole number, however it is written; None for anything else."""
    number = _number(raw)
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    return number


def _plain(number: Number | None) -> Number | None:
    return kv_numbers.plain(number) if number is not None else None


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
