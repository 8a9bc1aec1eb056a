"""The bytes of a record, read by a reader of this test's own (M-11)."""

from __future__ import annotations

import struct
import zlib

from raft.messages import HardState
from raft.wal import GroupWrite
from raft.wal_format import SECTOR_BYTES, segment_name
from tests.support.fake_disk import FakeDisk
from tests.unit.wal.model import DIRECTORY, IDENTITY, clock, entries, open_wal

MARK, WRITE = 2, 3
HEAD = "<BBHI"  # version, kind, zero, length
FIELDS = "<QQQQQQQQIqq"  # life, term, vote, commit, previous term, first index, first and last term, count, clock


def test_a_record_says_whose_it_is_what_it_follows_and_where_it_stands() -> None:
    """M-11: hard state and the entries that need it are one record; its CRC covers all of it, the segment's number and
    its position."""
    disk = FakeDisk()
    wal, _ = open_wal(disk)
    state = HardState(7, 3, 40)
    wal.write([
        GroupWrite(5, state, 6, entries(41, b"one", b"twelve", term=7), restart_after=40),
        GroupWrite(9, HardState(2, 0, 0), 0, ())], clock())
    content = bytes(disk.files[f"{DIRECTORY}/{segment_name(1)}"].content)
    found, position = [], SECTOR_BYTES
    while content[position]:
        version, kind, zero, length = struct.unpack_from(HEAD, content, position)
        body = content[position : position + length - 4]
        where = zlib.crc32(struct.pack("<Q", position), zlib.crc32(struct.pack("<Q", 1), zlib.crc32(IDENTITY)))
        assert (version, zero) == (1, 0)
        assert struct.unpack("<I", content[position + length - 4 : position + length])[0] == zlib.crc32(body, where)
        found.append((kind, body[struct.calcsize(HEAD):]))
        position += length
    (mark, _), (first, group), (second, promise) = found
    assert mark == MARK and second == WRITE and first != MARK
    fields = struct.calcsize(FIELDS)
    assert struct.unpack(FIELDS, group[:fields])[:9] == (5, 7, 3, 40, 6, 41, 7, 7, 2)
    assert group[fields:] == b"".join(
        struct.pack("<QBI", 7, 0, len(data)) + data for data in (b"one", b"twelve")), "term, kind, length, data"
    assert struct.unpack(FIELDS, promise)[:9] == (9, 2, 0, 0, 0, 1, 0, 0, 0), "a promise alone is a record, too"
