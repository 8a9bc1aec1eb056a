"""Where each row lives: the kinds of rows and their keys.

A key is `kind` followed by fields that sort as they should: numbers as eight bytes big-endian, names behind their
length (PU-20: any byte may stand in a name). In front of it the store puts format version, life and incarnation of the
group (M-1). What a value holds stands in `rows.py`.
"""

from __future__ import annotations

import struct

FORMAT_VERSION = 1  # first byte of every key of a group
NODE_ROWS = b"\x00"  # first byte of the keys that belong to the node and to no group
INCARNATIONS = NODE_ROWS + b"\x01"  # life, u32 -> IncarnationRow (incarnations.py)

META = b"\x01"  # -> Meta: applied index, term, digest, last stamp
COUNTERS = b"\x02"  # -> CountersRow
OUTCOMES = b"\x03"  # log index -> stamp (us), request ids of that entry (outcomes.py)
QUEUE = b"\x10"  # queue name -> QueueRow
PARTITION_NAME = b"\x11"  # queue id, partition name -> PartitionNameRow
PARTITION = b"\x12"  # partition id -> PartitionRow
PARTITION_OF_QUEUE = b"\x13"  # queue id, partition id -> nothing: the partitions of a queue in order of creation
GROUP = b"\x14"  # queue id, consumer group name -> GroupRow; without a name: GroupNamesRow
CURSOR = b"\x15"  # partition id, consumer group name -> CursorRow
READY = b"\x16"  # queue id, named group -> ReadyListRow; + generation, ready at (us), sequence -> partition id
LEASE = b"\x17"  # lease id -> LeaseRow
MESSAGE = b"\x18"  # partition id, offset -> message (messages.py)
MESSAGE_ID = b"\x19"  # partition id, 16 bytes of the transaction id's hash -> the lowest offset kept (dedup.py)
MESSAGE_ID_MORE = b"\x1a"  # partition id, hash, offset -> the same for further offsets with that id
DEAD_LETTER = b"\x1b"  # queue id, failed at (us), sequence -> DeadLetterRow
RELEASED = b"\x1c"  # partition id, name behind its length, slot -> ReleasedRow; without a slot: RingRow
TIMER = b"\x20"  # queue name behind its length, timer key -> where it stands in the calendar (timer_rows.py)
CALENDAR = b"\x21"  # calendar kind, at (us), sequence -> owner

TIMER_PAYLOAD = b"\x22"  # as TIMER -> the payload of a timer, where it is too large for its row in the calendar
KV = b"\x23"  # namespace behind its length, key -> a KV row (kv_rows.py)
KV_NAMESPACE = b"\x24"  # namespace -> NamespaceRow

# Of group 0 only:
CELL = b"\x30"  # -> CellRow
TENANT = b"\x31"  # tenant's id, 16 bytes -> TenantRow
TENANT_OF_LIFE = b"\x32"  # life of a tenant's group -> the tenant's id
MEMBERS = b"\x33"  # -> MembersRow

CALENDAR_FLOORS = b"\x00"  # calendar kind -> where a scan of that kind may begin after a restart
CALENDAR_TIMERS = b"\x01"  # row: the timer itself, so that a fire reads in order (timer_rows.py)
CALENDAR_KV = b"\x03"  # at the end of a row's lifetime, its version for the sequence; owner: size, key behind KV
CALENDAR_MESSAGE_IDS = b"\x02"  # owner: partition id whose oldest message id may be forgotten then

_U64 = struct.Struct(">Q")
_TWO_U64 = struct.Struct(">QQ")

_u16 = struct.Struct(">H").pack
u64 = _U64.pack
two_u64 = _TWO_U64.pack


def group_prefix(life: int, incarnation: int) -> bytes:
    """What stands before every key of a group (M-1). incarnation: which copy of its state (M-61)."""
    return bytes((FORMAT_VERSION,)) + life.to_bytes(4, "big") + incarnation.to_bytes(2, "big")


def read_u64(value: bytes) -> int:
    """The number that `u64` wrote."""
    number: int = _U64.unpack(value)[0]
    return number


def read_two_u64(value: bytes, position: int) -> tuple[int, int]:
    """The two numbers that `two_u64` wrote at `position` of `value`."""
    first, second = _TWO_U64.unpack_from(value, position)
    return first, second


def named(name: bytes) -> bytes:
    """A name in the middle of a key: behind its length, two bytes, so that no name is the beginning of another."""
    return _u16(len(name)) + name


def after(prefix: bytes) -> bytes:
    """The least key above all keys that begin with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,))
