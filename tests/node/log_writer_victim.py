"""A node's log writer in a process of its own, to be killed: writes one entry after another and says which are durable.

Run as: python -m tests.node.log_writer_victim <directory>. Prints `durable <index>` after each report.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import trio

from raft.clock import SystemTime, read_clocks
from raft.disk import FileDisk
from raft.log_writer import LogWriter
from raft.messages import Entry, EntryKind, HardState
from raft.wal import GroupWrite, Wal
from raft.wal_hand import ProcessHand

SEGMENT_BYTES = 1 << 16
LIFE = 1


def data_of(index: int) -> bytes:
    return index.to_bytes(8, "big") * (index % 97 + 1)


async def main() -> None:
    disk, source = FileDisk(), SystemTime()
    wal, recovered = Wal.open(Path(sys.argv[1]), disk, segment_bytes=SEGMENT_BYTES)
    group = recovered.groups.get(LIFE)
    index = group.last_index if group else 0
    writer = LogWriter(wal, ProcessHand(disk), lambda: read_clocks(source))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        while True:
            index += 1
            entry = Entry(1, index, EntryKind.COMMANDS, data_of(index))
            write = GroupWrite(LIFE, HardState(1, 1, index - 1), 1 if index > 1 else 0, [entry])
            await writer.submit(write, partial(print, "durable", index, flush=True))


if __name__ == "__main__":
    trio.run(main)
