"""kill -9 of a node that writes: what it said to be durable is found again (CL-121, CL-122)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from raft.disk import FileDisk
from raft.wal import Wal
from tests.node.log_writer_victim import LIFE, SEGMENT_BYTES, data_of

KILLS = 4
DURABLE_BEFORE_KILL = 150


def test_what_was_reported_survives_kill_9_again_and_again(tmp_path: Path) -> None:
    durable = 0
    for _ in range(KILLS):
        victim = subprocess.Popen(
            [sys.executable, "-m", "tests.node.log_writer_victim", str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        for _ in range(DURABLE_BEFORE_KILL):
            word, number = victim.stdout.readline().split()
            assert (word, int(number)) == ("durable", durable + 1), "reported in order, going on where the log ended"
            durable += 1
        victim.kill()
        rest = victim.stdout.read().splitlines()
        victim.stdout.close()
        victim.wait()
        durable += sum(line.startswith("durable ") for line in rest)
        # The writer process may still be at its last write: opening waits for the lock that it shares.
        wal, recovered = Wal.open(tmp_path, FileDisk(), segment_bytes=SEGMENT_BYTES)
        last = recovered.groups[LIFE].last_index
        assert last >= durable
        entries = wal.read(LIFE, 1, last, 1 << 30)
        assert [entry.data for entry in entries] == [data_of(index) for index in range(1, last + 1)]
        durable = last
        wal.close()
