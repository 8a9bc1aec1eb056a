"""What may enter the log, and its bytes.

A command is one array, `[kind, request id, fields…]`, encoded once at the door and decoded once, when it applies: those
that clients send all the time in the short form of `packed.py`, the others as CBOR. Names and ids are byte strings
(M-80). An entry is `[version, now_us, [command, …]]`: the commands' own bytes one after the other behind an array head,
so that nobody encodes them twice. Where there is more than one voter a fourth field names the places of commands that
may be repeats, and the ids of all are remembered (CL-27).

The functions below are the one place that knows the layout of each kind; the state machine's handlers unpack it in the
same order. A change of layout is a new kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import cbor2

from queen_node import packed
from raft.invariants import must

ENTRY_VERSION = 1
ENTRY_VERSION_KEPT = 2  # its requests are remembered, so that a repeat of one changes nothing
U64_MAX = (1 << 64) - 1
_REQUEST_ID = slice(3, 19)  # as CBOR: behind the heads of the array, of the kind (below 24) and of 16 bytes
_ENTRY_HEADS = bytes((0x83, ENTRY_VERSION)), bytes((0x84, ENTRY_VERSION_KEPT))
_STAMP_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}  # by the head of a CBOR integer that follows it


class Kind(IntEnum):
    """Kinds of commands. A number is never given to another kind."""

    PUSH = 1
    TIMERS = 2
    FIRE = 3
    POP = 4
    ACK = 5
    EXTEND = 6
    HAND_BACK = 7
    CONFIGURE = 8
    FORGET_IDS = 9
    CREATE_TENANT = 10  # of group 0
    KV = 11
    SWEEP_KV = 12
    LOCKS = 13
    TRANSACTION = 14
    KNOW_MEMBERS = 20  # of group 0, as the three below: where nodes are, and which directory they have
    CHANGE_MEMBERS = 21
    MEMBERS_CHANGED = 22
    RAISE_VERSION = 23


class TimerOp(IntEnum):
    """First field of an operation in a TIMERS command."""

    SCHEDULE = 0
    CANCEL = 1


class KvOp(IntEnum):
    """First field of an operation in a KV command or query."""

    GET = 0
    GET_MANY = 1
    GET_PREFIX = 2
    PUT = 3
    PUT_IF_ABSENT = 4
    DELETE = 5
    INCR = 6
    CHECK = 7


class LockOp(IntEnum):
    """First field of an operation in a LOCKS command or query."""

    ACQUIRE = 0
    RENEW = 1
    RELEASE = 2
    GET = 3


class PayloadFlag(IntEnum):
    """What a stored payload is, decided at the door."""

    JSON = 0
    RAW = 1  # not a JSON text: delivered as {"_raw_b64": …} (timers.md 10)


# [queue, partition, transaction id, message id, payload, flags, trace id or None, producer sub or None]
PushItem = tuple[bytes, bytes, bytes, bytes, bytes, int, bytes | None, bytes | None]
# [SCHEDULE, queue, key, delay_ms, txn, message id, payload, flags, partition, producer sub or None]
ScheduleOp = tuple[int, bytes, bytes, int, bytes, bytes, bytes, int, bytes, bytes | None]
# [CANCEL, queue, key, txn to echo or None]
CancelOp = tuple[int, bytes, bytes, bytes | None]
# [GET, namespace, key]
KvGet = tuple[int, bytes, bytes]
# [GET_MANY, namespace, keys]
KvGetMany = tuple[int, bytes, Sequence[bytes]]
# [GET_PREFIX, namespace, prefix, after (exclusive; empty: from the first), limit, keys only?]
KvGetPrefix = tuple[int, bytes, bytes, bytes, int, bool]
# [PUT or PUT_IF_ABSENT, namespace, key, value as compact JSON, lifetime in s (0: for ever), expect or None, required?]
KvPut = tuple[int, bytes, bytes, bytes, int, int | None, bool]
# [DELETE, namespace, key, expect or None, required?]
KvDelete = tuple[int, bytes, bytes, int | None, bool]
# [INCR, namespace, key, delta, min or None, max or None, lifetime in s (0: for ever), required?]
KvIncr = tuple[int, bytes, bytes, int | float, int | float | None, int | float | None, int, bool]
# [CHECK, namespace, key, expect, required?]
KvCheck = tuple[int, bytes, bytes, int, bool]
KvOperation = KvGet | KvGetMany | KvGetPrefix | KvPut | KvDelete | KvIncr | KvCheck
# [queue, partition, consumer group, next offset or None to forget it, mode of the group if it is new]
PositionItem = tuple[bytes, bytes, bytes, int | None, str]
# [ACQUIRE, name, lifetime in s, owner or None, limit]
LockAcquire = tuple[int, bytes, int, str | None, int]
# [RENEW, name, token, lifetime in s, slot, owner or None]
LockRenew = tuple[int, bytes, int, int, int, str | None]
# [RELEASE, name, token, slot]
LockRelease = tuple[int, bytes, int, int]
# [GET, name]
LockGet = tuple[int, bytes]
LockOperation = LockAcquire | LockRenew | LockRelease | LockGet
# [transaction id, partition id, status word (AckStatus), lease id (b"" none), error text or None]
AckItem = tuple[bytes, int, int, bytes, bytes | None]


class AckStatus(IntEnum):
    """What an ack says of a message (PA-45). The order is that of PA-51: the strongest wins."""

    COMPLETED = 0
    RETRY = 1
    FAILED = 2
    DLQ = 3


def push(request_id: bytes, items: Sequence[PushItem]) -> bytes:
    """Append `items` (push.md)."""
    return packed.pack((Kind.PUSH, request_id, items))


class RulesOfFire(NamedTuple):
    """How a refused fire is tried again (TM-54), as the proposer's settings have it.

    fail_queue, fail_transient: the test hook QUEEN_TEST_FIRE_FAIL_QUEUE, which refuses fires into that queue.
    """

    backoff_min_ms: int = 1000
    backoff_max_ms: int = 60_000
    transient_backoff_ms: int = 1000
    max_attempts: int = 5
    fail_queue: bytes = b""
    fail_transient: bool = False


def timers(
    request_id: bytes, operations: Sequence[ScheduleOp | CancelOp], *, firing: bool, one: bool = False,
    rules: RulesOfFire | None = None,
) -> bytes:
    """Schedule and cancel (timers.md 2, 3). `firing`: whether due timers fire in this entry (TM-21, TA-74).

    `one`: answered as the bare result of the DELETE route. `rules`: of a due timer's fire that is refused, where they
    are not the contract's.
    """
    if rules is None:
        return packed.pack((Kind.TIMERS, request_id, operations, firing, one))
    return packed.pack((Kind.TIMERS, request_id, operations, firing, one, rules))


def fire(
    *,
    at_most: int,
    max_bytes: int,
    rules: RulesOfFire,
) -> bytes:
    """Fire what is due up to the entry's stamp (timers.md 5)."""
    return cbor2.dumps((Kind.FIRE, b"", at_most, max_bytes, *rules))


def pop(
    request_id: bytes,
    *,
    lease_id: bytes,
    queue: bytes,
    partition: bytes | None,
    group: bytes,
    mode: str,
    from_us: int,
    batch: int,
    partitions: int,
    lease_ms: int | None,
    commit_on_delivery: bool,
    max_bytes: int,
) -> bytes:
    """Claim messages (pop-ack.md 3). `mode`, `from_us`: where the group starts if it is new (PA-30).

    `lease_ms` None: the queue's leaseTime. `group` is never empty: queue mode is `__QUEUE_MODE__`.
    """
    return packed.pack((
        Kind.POP, request_id, lease_id, queue, partition, group, mode, from_us, batch, partitions, lease_ms,
        commit_on_delivery, max_bytes,
    ))


def ack(request_id: bytes, group: bytes, items: Sequence[AckItem]) -> bytes:
    """Ack `items` of one group (pop-ack.md 8)."""
    return packed.pack((Kind.ACK, request_id, group, items))


def extend(request_id: bytes, lease_id: bytes, seconds: int) -> bytes:
    """Extend a lease (PA-37)."""
    return cbor2.dumps((Kind.EXTEND, request_id, lease_id, seconds))


def hand_back(lease_id: bytes) -> bytes:
    """Give back a lease that nobody received, its attempt uncounted (PA-23). The lease's id serves as the request's."""
    return cbor2.dumps((Kind.HAND_BACK, lease_id, lease_id))


def is_hand_back(command: bytes) -> bool:
    """Whether a command is one of `hand_back`."""
    return command.startswith(bytes((0x83, Kind.HAND_BACK)))


def configure(request_id: bytes, queue: bytes, uuid: bytes, labels: tuple[bytes | None, bytes | None], mode: str,
              options: Sequence[tuple[str, object]]) -> bytes:
    """Create or edit a queue (QU-1). `options`: (name of a QueueOptions field, value or None for the default)."""
    return cbor2.dumps((Kind.CONFIGURE, request_id, queue, uuid, labels, mode, options))


def forget_ids(*, at_most: int, keep_at_least_s: int) -> bytes:
    """Forget message ids whose time is over, up to the entry's stamp (PU-55)."""
    return cbor2.dumps((Kind.FORGET_IDS, b"", at_most, keep_at_least_s))


class KvCaps(NamedTuple):
    """What a tenant may hold, as the node knows that took the call (README 12); 0: as much as there is room for."""

    rows: int = 0
    bytes: int = 0  # of keys and values


NO_CAPS = KvCaps()


def kv(
    request_id: bytes, operations: Sequence[KvOperation], *, one: bool = False, caps: KvCaps = NO_CAPS,
) -> bytes:
    """Key/value operations of one call, one of which at least writes or checks (kv.md); none at all: an entry is wanted
    for the time that it carries. one: answered as the bare element of a path route."""
    return packed.pack((Kind.KV, request_id, operations, one, caps))


def transaction(
    request_id: bytes, *, acks: Sequence[tuple[bytes, AckItem]] = (), pushes: Sequence[PushItem] = (),
    positions: Sequence[PositionItem] = (), kv: Sequence[KvOperation] = (),
    timers: Sequence[ScheduleOp | CancelOp] = (), firing: bool, caps: KvCaps = NO_CAPS,
    rules: RulesOfFire | None = None,
) -> bytes:
    """Do all of it or nothing (transactions.md). acks: each with its consumer group. firing, rules: as in `timers`;
    caps: as in `kv`."""
    more = () if rules is None else (rules,)
    return packed.pack((
        Kind.TRANSACTION, request_id, acks, pushes, positions, kv, timers, firing, caps, *more))


def sweep_kv(*, at_most: int) -> bytes:
    """Remove rows whose lifetime is over at the entry's stamp (KV-23)."""
    return cbor2.dumps((Kind.SWEEP_KV, b"", at_most))


def locks(request_id: bytes, operations: Sequence[LockOperation], *, caps: KvCaps = NO_CAPS) -> bytes:
    """Operations on different locks, each by itself (locks.md)."""
    return cbor2.dumps((Kind.LOCKS, request_id, operations, caps))


def create_tenant(request_id: bytes, tenant: bytes, *, at_most: int) -> bytes:
    """Give a tenant a group, unless it has one (M-70). at_most: tenants that the cell takes (QUEEN_MAX_TENANTS)."""
    return cbor2.dumps((Kind.CREATE_TENANT, request_id, tenant, at_most))


def know_members(request_id: bytes, members: Sequence[tuple[int, str, str, bytes]]) -> bytes:
    """Where members of the cell are: (node id, raft address, http address, id of the data directory or empty)."""
    return cbor2.dumps((Kind.KNOW_MEMBERS, request_id, members))


def change_members(
    request_id: bytes, number: int, voters: Sequence[int], learners: Sequence[int], *, force: bool,
    before: tuple[Sequence[int], Sequence[int]],
) -> bytes:
    """Begin a change of members (M-71). number: one above that of the last change, as whoever asks knows it; before:
    the voters and learners that it was checked against."""
    return cbor2.dumps((Kind.CHANGE_MEMBERS, request_id, number, voters, learners, force, *before))


def members_changed(request_id: bytes, number: int) -> bytes:
    """The change of that number has reached every group."""
    return cbor2.dumps((Kind.MEMBERS_CHANGED, request_id, number))


def raise_version(request_id: bytes, version: int) -> bytes:
    """Every member reads formats up to `version`: they may be written from now on (CL-132)."""
    return cbor2.dumps((Kind.RAISE_VERSION, request_id, version))


def request_id_of(command: bytes) -> bytes:
    """The request id, 16 bytes, of a command that has one."""
    return packed.request_id_of(command) if packed.is_packed(command) else command[_REQUEST_ID]


def entry(now_us: int, commands: Sequence[bytes]) -> bytes:
    """The data of a log entry whose requests nobody can repeat: there is no other node."""
    must(0 <= now_us <= U64_MAX, "a stamp does not fit", now_us=now_us)
    return b"".join((b"\x83", cbor2.dumps(ENTRY_VERSION), cbor2.dumps(now_us), _array_head(len(commands)), *commands))


def entry_kept(now_us: int, commands: Sequence[bytes], repeats: Sequence[int]) -> bytes:
    """The data of a log entry whose requests are remembered. repeats: places of those that may have been applied."""
    must(0 <= now_us <= U64_MAX, "a stamp does not fit", now_us=now_us)
    return b"".join((
        b"\x84", cbor2.dumps(ENTRY_VERSION_KEPT), cbor2.dumps(now_us), _array_head(len(commands)), *commands,
        cbor2.dumps(repeats)))


def stamp_of(data: bytes) -> int:
    """The stamp of a log entry, read without the rest of it; 0 for bytes that are no entry of these versions.

    The state machine is where those are refused. Source: M-20; RFC 8949, major type 0.
    """
    if data[:2] not in _ENTRY_HEADS or len(data) < 3:
        return 0
    head = data[2]
    if head < 24:
        return head
    size = _STAMP_BYTES.get(head, 0)
    return int.from_bytes(data[3 : 3 + size], "big") if size and len(data) >= 3 + size else 0


def _array_head(count: int) -> bytes:
    """CBOR's head of an array of `count` items (RFC 8949, major type 4)."""
    if count < 24:
        return bytes((0x80 | count,))
    if count < 256:
        return bytes((0x98, count))
    must(count < 65536, "too many commands in an entry", count=count)
    return b"\x99" + count.to_bytes(2, "big")
