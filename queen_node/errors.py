"""Every refusal a client can meet: status, code, body, and whether anything may have been applied.

One table, read by the door, by the checkers of the fault tests and by the documentation. A refusal that is not here is
not sent. Shapes and codes: contract pages admin.md 8, timers.md 7, push.md 9, pop-ack.md 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec


class Applied(Enum):
    """What a refused call may have done."""

    NO = "no"  # surely nothing, now or later
    UNKNOWN = "unknown"  # perhaps now, perhaps later: repeat only what is safe to repeat


class Shape(Enum):
    """The form of a refusal's body; fixed by the clients that exist (AD-30)."""

    GENERAL = "general"  # {"error": text, "code": code}
    FAMILY = "family"  # {"error": code, "reason": finer code, "detail": text}: timers, key/value, locks
    POP = "pop"  # {"success": false, "error": text, "messages": []}
    # {"transactionId", "success": false, "reason": code, "error": text, "results": []}, "code" too unless it is a 200
    TRANSACTION = "transaction"
    PLAIN = "plain"  # the text alone: bodies that are too large


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row of the table. `reason` is the finer code of a FAMILY refusal."""

    code: str
    status: int
    applied: Applied
    text: str
    reason: str = ""
    shape: Shape = Shape.GENERAL
    retry_after_s: int = 0  # 0: no Retry-After header


NOTHING_MORE: Mapping[str, object] = {}


class Refused(Exception):
    """A call is refused. `operation` is the index of the element meant, `limit` and `got` what was allowed and sent."""

    def __init__(
        self,
        refusal: Refusal,
        text: str = "",
        *,
        operation: int | None = None,
        field: str = "",
        limit: int | str | None = None,
        got: object = None,
        invalid: str = "",
    ) -> None:
        self.refusal = refusal
        self.operation, self.field, self.limit, self.got = operation, field, limit, got
        self.invalid = invalid  # configure's name for the option that is wrong (QU-4)
        self.text = self._sentence(text or refusal.text)
        super().__init__(f"{refusal.code}: {self.text}")

    def _sentence(self, text: str) -> str:
        if self.field:
            text = f"{self.field}: {text}"
        if self.limit is not None:
            text += f" (limit {self.limit}" + (f", got {self.got})" if self.got is not None else ")")
        elif self.got is not None:
            text += f" (got {self.got})"
        return f"op at index {self.operation}: {text}" if self.operation is not None else text

    def body(self) -> bytes:
        """The answer's body in the shape of its family."""
        refusal, text = self.refusal, self.text
        if refusal.shape is Shape.PLAIN:
            return text.encode()
        if refusal.shape is Shape.POP:
            return msgspec.json.encode({"success": False, "error": text, "messages": []})
        if refusal.shape is Shape.TRANSACTION:
            return self.transaction_body("")
        if refusal.shape is Shape.FAMILY:
            family = {"error": refusal.code, "reason": refusal.reason or refusal.code, "detail": text}
            if refusal.code in CODES_THAT_STAND_TWICE:
                family["code"] = refusal.code
            return msgspec.json.encode(family)
        general = {"error": text, "code": refusal.code}
        if self.invalid:
            general["invalid"] = self.invalid
        return msgspec.json.encode(general)

    def transaction_body(
        self, transaction_id: str, failed_index: int | None = None, particulars: Mapping[str, object] = NOTHING_MORE,
    ) -> bytes:
        """The body inside a transaction: of its own refusals, and of those of its parts' families (TX-50, TX-54)."""
        refusal = self.refusal
        finer = refusal.reason and (refusal.status == 400 or refusal.reason in REASONS_IN_TRANSACTIONS)
        reason = refusal.reason if finer else refusal.code
        body: dict[str, object] = {
            "transactionId": transaction_id, "success": False, "reason": reason, "error": self.text + ROLLED_BACK,
            "results": [],
        }
        if refusal.status != 200:
            body["code"] = reason
        if failed_index is not None:
            body["failedIndex"] = failed_index
        return msgspec.json.encode({**body, **particulars})

    def content_type(self) -> bytes:
        """Media type of `body()`."""
        return b"text/plain; charset=utf-8" if self.refusal.shape is Shape.PLAIN else b"application/json"


# transactions.md 6: these stand for themselves there although their status is not 400.
REASONS_IN_TRANSACTIONS = frozenset({"kv_value_too_large", "kv_key_too_large"})
ROLLED_BACK = "; the transaction rolled back"  # clients look for these words (TX-51)

# timers.md 7: these carry the same word in "code" too, because other routes send it there.
CODES_THAT_STAND_TWICE = frozenset({"overloaded", "storage_full", "name_too_long"})


def _timers(reason: str, text: str, code: str = "timers_bad_request", status: int = 400) -> Refusal:
    return Refusal(code, status, Applied.NO, text, reason, Shape.FAMILY)


def _transaction(code: str, text: str, status: int = 200) -> Refusal:
    return Refusal(code, status, Applied.NO, text, shape=Shape.TRANSACTION)


def _locks(reason: str, text: str) -> Refusal:
    return Refusal("locks_bad_request", 400, Applied.NO, text, reason, Shape.FAMILY)


def _kv(reason: str, text: str, code: str = "kv_bad_request", status: int = 400) -> Refusal:
    return Refusal(code, status, Applied.NO, text, reason, Shape.FAMILY)


# --- any route
BAD_BODY = Refusal("bad_body", 400, Applied.NO, "the body is not this route's JSON")
BAD_REQUEST = Refusal("bad_request", 400, Applied.NO, "a field is missing or wrong")
BAD_HTTP = Refusal("bad_request", 400, Applied.NO, "not a well-formed HTTP request")
NO_SUCH_ROUTE = Refusal("no_such_route", 404, Applied.NO, "Not Found")
BODY_TOO_SLOW = Refusal("timeout", 408, Applied.NO, "the request's body came too slowly")
BODY_TOO_LARGE = Refusal("too_large", 413, Applied.NO, "request body too large", shape=Shape.PLAIN)
NAME_TOO_LONG = Refusal("name_too_long", 413, Applied.NO, "tenant + queue + the longer of partition and group")
ENCODED_BODY = Refusal("bad_body", 415, Applied.NO, "Content-Encoding is not supported: send the body as it is")
HEAD_TOO_LARGE = Refusal("bad_request", 431, Applied.NO, "the request's head is too large")
OVERLOADED = Refusal("overloaded", 429, Applied.NO, "too many bytes wait to be written", retry_after_s=1)
INTERNAL = Refusal("internal", 500, Applied.UNKNOWN, "internal error")
RETRY = Refusal("retry", 503, Applied.UNKNOWN, "the leader changed while the call was under way", retry_after_s=1)
NO_LEADER = Refusal("no_leader", 503, Applied.NO, "no leader is known", retry_after_s=1)
TIMEOUT = Refusal("timeout", 503, Applied.UNKNOWN, "the deadline passed before the outcome was known", retry_after_s=1)
STORAGE_FULL = Refusal("storage_full", 507, Applied.NO, "the disk is nearly full: only what frees space is taken")
BAD_TENANT_TEXT = "invalid x-queen-tenant header (must be a UUID)"  # TA-3
RESERVED_TENANT = Refusal("reserved_tenant", 403, Applied.NO, "this tenant is reserved: no route acts on it")
TENANT_LIMIT = Refusal("tenant_limit", 403, Applied.NO, "this cell takes no more tenants")
TOO_MANY_CONNECTIONS = Refusal("overloaded", 503, Applied.NO, "too many connections", retry_after_s=1)

# What no group decided, by the code of `broker.Unavailable`; families with words of their own have their own table.
UNDECIDED = {"timeout": TIMEOUT, "retry": RETRY, "no_leader": NO_LEADER, "tenant_limit": TENANT_LIMIT}

# --- push
BINARY_PUSH = Refusal(
    "bad_body", 400, Applied.NO,
    "binary push bodies are not supported; switch off binary_push and push_compression in the client",
)
ENCRYPTION_KEY_MISSING = Refusal(
    "encryption_key_missing", 400, Applied.NO, "the queue wants encrypted payloads and this node has no key")

# --- pop: every 503 says "connection" and not the other word, by which the published consumer tells them apart (PA-8)
POP_BAD_PARAMETER = Refusal("bad_request", 400, Applied.NO, "bad parameter", shape=Shape.POP)
POP_RETRY = Refusal("retry", 503, Applied.UNKNOWN, "connection to a leader lost", retry_after_s=1)
POP_TIMEOUT = Refusal(
    "timeout", 503, Applied.UNKNOWN, "connection to a leader lost: the outcome is not known", retry_after_s=1)
POP_NO_LEADER = Refusal("no_leader", 503, Applied.NO, "no connection to a leader", retry_after_s=1)

# --- ack
OUTCOME_UNKNOWN = Refusal(
    "outcome_unknown", 503, Applied.UNKNOWN, "the ack's deadline came before its fate was known", retry_after_s=1)

# --- transactions: their own; what one of their parts refuses keeps the code of its family
TX_BAD_BODY = _transaction("bad_request", "the body is not this route's JSON", 400)
TX_BINARY = _transaction("bad_request", BINARY_PUSH.text, 400)
TX_KEY_MISSING = _transaction("encryption_key_missing", ENCRYPTION_KEY_MISSING.text, 400)
TX_BAD_REQUEST = _transaction("bad_request", "a field is missing or wrong")
TX_TOO_LARGE = _transaction("too_large", "the transaction is too large")
TX_REJECTED_ACK = _transaction("rejected_ack", "QTXN an ack was rejected")
TX_KV_PRECONDITION = _transaction("kv_precondition", "QKV a required operation lost")
TX_QUEUE_NOT_FOUND = _transaction("queue_not_found", "the queue of a position does not exist")
TX_DUPLICATE = _transaction("duplicate", "QDUP a pushed message is stored already")

# --- timers
TIMERS_BAD_BODY = _timers("timers_bad_body", "the body must be {\"operations\": [...]} or a bare array")
TIMERS_BAD_OP = _timers("timers_bad_op", "the operation is wrong")
TIMERS_QUEUE_REQUIRED = _timers("timers_queue_required", "queue must be a non-empty text")
TIMERS_DELAY_REQUIRED = _timers("timers_delay_required", "delayMs must be a number of milliseconds")
TIMERS_PAYLOAD_REQUIRED = _timers("timers_payload_required", "payload must be a non-empty base64 text")
TIMERS_PAYLOAD_NOT_BASE64 = _timers("timers_payload_not_base64", "payload is not padded standard base64")
TIMERS_TOO_MANY_OPS = _timers("timers_too_many_ops", "too many operations in one call")
TIMERS_SERVER_OWNED_FIELD = _timers("timers_server_owned_field", "the broker owns this field")
TIMERS_DUPLICATE_KEY = _timers("timers_duplicate_key_in_call", "one operation per queue and timerKey in a call")
TIMERS_ZSTD = _timers("timers_zstd_unsupported", "payloadZstd is not supported")
TIMERS_BAD_QUERY = _timers("timers_bad_query", "a query parameter is wrong")
TIMERS_MODE_UNKNOWN = _timers("timers_read_mode_unknown", "mode is list or count")
TIMERS_PREFIX_REQUIRED = _timers("timers_count_prefix_required", "mode=count needs a prefix")
TIMERS_PREFIX_INVALID = _timers("timers_count_prefix_invalid", "prefix is at most 128 bytes without NUL")
TIMERS_NO_PAGING = _timers("timers_count_no_paging", "mode=count takes neither after nor limit")
TIMERS_HORIZON = _timers("timers_horizon", "delayMs is beyond the horizon", "timer_horizon_exceeded", 403)
TIMERS_PAYLOAD_TOO_LARGE = _timers("timers_payload_too_large", "payload is too large", "payload_too_large", 413)
TIMERS_CALL_TOO_LARGE = _timers("timers_call_too_large", "the call is too large", "payload_too_large", 413)
TIMERS_NAME_TOO_LONG = _timers("name_too_long", NAME_TOO_LONG.text, "name_too_long", 413)
TIMERS_KEY_MISSING = _timers(
    "encryption_key_missing", ENCRYPTION_KEY_MISSING.text, "encryption_key_missing")
TIMERS_RATE = Refusal(
    "rate_limited", 429, Applied.NO, "the tenant's write rate is spent", "rate_limited", Shape.FAMILY, 1)
FAMILY_OVERLOADED = Refusal("overloaded", 429, Applied.NO, OVERLOADED.text, "overloaded", Shape.FAMILY, 1)
FAMILY_STORAGE_FULL = Refusal("storage_full", 507, Applied.NO, STORAGE_FULL.text, "storage_full", Shape.FAMILY)
TIMERS_ERROR = Refusal("timers_error", 500, Applied.UNKNOWN, "internal error", "timers_error", Shape.FAMILY)
TIMERS_TIMEOUT = Refusal(
    "timers_unavailable", 503, Applied.UNKNOWN, TIMEOUT.text, "timers_timeout", Shape.FAMILY, 1)
TIMERS_RETRY = Refusal("timers_unavailable", 503, Applied.UNKNOWN, RETRY.text, "timers_retry", Shape.FAMILY, 1)
TIMERS_NO_LEADER = Refusal("timers_unavailable", 503, Applied.NO, NO_LEADER.text, "no_leader", Shape.FAMILY, 1)
FAMILY_TENANT_LIMIT = Refusal("tenant_limit", 403, Applied.NO, TENANT_LIMIT.text, "tenant_limit", Shape.FAMILY)

# --- key/value
KV_BAD_BODY = _kv("kv_bad_body", "the body is not this route's JSON")
KV_BAD_NAMESPACE = _kv("kv_bad_namespace", "ns must match ^[a-z0-9][a-z0-9._-]{0,63}$")
KV_BAD_KEY = _kv("kv_bad_key", "must be a text of 1 to 512 bytes without NUL")
KV_NO_EXPIRY = _kv("kv_expiry_not_specified", "name exactly one of ttlSeconds and forever: true")
KV_BAD_TTL = _kv("kv_bad_ttl", "ttlSeconds must be a whole number of seconds above 0")
KV_BAD_EXPECT = _kv("kv_bad_expect", "expect must be a version, or 0 for a key that is not there")
KV_BAD_DELTA = _kv("kv_bad_delta", "delta, min and max must be numbers, and min not above max")
KV_UNKNOWN_OP = _kv("kv_unknown_op", "op must be get, getMany, getPrefix, put, putIfAbsent, delete, incr or check")
KV_PREFIX_REQUIRED = _kv("kv_prefix_required", "prefix must be a non-empty text")
KV_NO_PREFIX_HERE = _kv(
    "kv_get_prefix_not_allowed_in_transaction", "getPrefix has no place in a transaction: name the keys in a getMany")
KV_TOO_MANY_OPS = _kv("kv_too_many_ops", "too many operations in one call")
KV_TOO_MANY_KEYS = _kv("kv_too_many_keys", "too many keys in one call")
KV_DUPLICATE_KEY = _kv("kv_duplicate_key_in_call", "a key is written once in a call")
KV_TENANT_FIELD = _kv("kv_tenant_not_an_input", "an operation names no tenant")
KV_NO_QUERY_STRING = _kv("kv_no_query_string", "this route takes no query string")
KV_FIELD_IN_PATH = _kv("kv_field_in_path", "the path says it, the body must not")
KV_QUOTA = _kv("kv_quota_exceeded", "the tenant holds as many rows or bytes as it may", "kv_quota_exceeded", 403)
KV_VALUE_TOO_LARGE = _kv("kv_value_too_large", "value is too large", "payload_too_large", 413)
KV_KEY_TOO_LARGE = _kv("kv_key_too_large", "too many bytes", "payload_too_large", 413)
KV_RATE = Refusal("rate_limited", 429, Applied.NO, "the tenant's rate is spent", "rate_limited", Shape.FAMILY, 1)
KV_ERROR = Refusal("kv_error", 500, Applied.UNKNOWN, "internal error", "kv_error", Shape.FAMILY)
KV_TIMEOUT = Refusal("kv_unavailable", 503, Applied.UNKNOWN, TIMEOUT.text, "kv_timeout", Shape.FAMILY, 1)
KV_RETRY = Refusal("kv_unavailable", 503, Applied.UNKNOWN, RETRY.text, "kv_retry", Shape.FAMILY, 1)
KV_NO_LEADER = Refusal("kv_unavailable", 503, Applied.NO, NO_LEADER.text, "kv_no_leader", Shape.FAMILY, 1)

# --- locks: beside those of key/value
LOCKS_BAD_BODY = _locks("locks_bad_body", "the body must be {\"operations\": [...]}")
LOCKS_BAD_REQUEST = _locks("locks_bad_request", "the operation is wrong")
LOCKS_UNKNOWN_OP = _locks("locks_unknown_op", "must be acquire, renew, release or get")
LOCKS_BAD_NAME = _locks("locks_bad_name", "must be a text of 1 to 256 bytes without control characters and #")
LOCKS_BAD_OWNER = _locks("locks_bad_owner", "must be a text of 1 to 256 bytes without control characters")
LOCKS_BAD_LIMIT = _locks("locks_bad_limit", "must be a whole number from 1 to 1024")
LOCKS_TTL_REQUIRED = _locks("locks_ttl_required", "a lock has a lifetime")
LOCKS_BAD_TTL = _locks("locks_bad_ttl", "must be a whole number of seconds above 0, and never for ever")
LOCKS_TOKEN_REQUIRED = _locks("locks_token_required", "must be the token that was given")
LOCKS_BAD_TOKEN = _locks("locks_bad_token", "must be a whole number above 0")
LOCKS_BAD_SLOT = _locks("locks_bad_slot", "must be a whole number from 0 to 1023")
LOCKS_TOO_MANY_OPS = _locks("locks_too_many_ops", "too many operations in one call")
LOCKS_TOO_MANY_KEYS = _locks("locks_too_many_keys", "too many slots in one call")
LOCKS_DUPLICATE = _locks("locks_duplicate_in_call", "a lock is named once in a call")
LOCKS_TENANT_FIELD = _locks("locks_tenant_not_an_input", "a call names no tenant")
