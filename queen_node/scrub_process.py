"""The process that reads the store again: `python -m queen_node.scrub_process DIRECTORY ROWS_A_S` (see `scrub`).

Ends with 0 when all is sound, with DAMAGED and one line about it when not, and by itself when its node has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from queen_node.state.rocks import StoreDamaged
from queen_node.state.rocks_check import check_store

DAMAGED: Final = 3  # exit code
SLICE_ROWS_MAX: Final = 500  # in one go
SLICE_BYTES: Final = 256 << 10  # the same: rows may be large
BYTES_A_S: Final = 16 << 20
NICE: Final = 19


class Pacer:
    """Waits, so that no more than so many rows and bytes are read in a second."""

    def __init__(self, rows_a_s: int) -> None:
        self._rows_a_s = rows_a_s
        self._node = os.getppid()
        self._rows = self._bytes = 0

    def went_on(self, size_bytes: int) -> None:
        """A row was read. Ends the process when the node that started it is gone."""
        self._rows += 1
        self._bytes += size_bytes
        if self._rows < min(SLICE_ROWS_MAX, self._rows_a_s) and self._bytes < SLICE_BYTES:
            return
        time.sleep(pause_s(self._rows, self._bytes, self._rows_a_s))
        self._rows = self._bytes = 0
        if os.getppid() != self._node:
            sys.exit("the node has ended")


def pause_s(rows: int, size_bytes: int, rows_a_s: int) -> float:
    """How long to wait after so much was read."""
    return max(rows / rows_a_s, size_bytes / BYTES_A_S)


def main() -> None:
    """Read the command line and the store."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the node decides when this ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))  # leaves nothing behind
    os.nice(NICE)
    directory, rows_a_s = Path(sys.argv[1]), int(sys.argv[2])
    try:
        check_store(directory, Pacer(rows_a_s).went_on)
    except StoreDamaged as error:
        print(error)
        sys.exit(DAMAGED)


if __name__ == "__main__":
    main()
