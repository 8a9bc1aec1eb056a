"""Reads a RocksDB that another process uses, from its first row to its last, with the checksum of every block.

For a process of its own: the binding holds the interpreter's lock while it reads, and steps over 400,000 deleted rows
for 0.35 s. What only the other process's memory holds is not on disk and not seen here.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, ReadOptions

from queen_node.state.rocks import StoreDamaged

CONFIGURATION = "rocksdict-config.json"  # of the binding, which writes it at every open: it gets a copy
NOT_NEEDED = ("LOCK", "LOG")
OPEN_TRIES, OPEN_PAUSE_S = 5, 1.0
REOPENED_AFTER_S = 60.0  # what the other process has removed meanwhile keeps its place on the disk while it is open
_GONE = "No such file"  # in the text for a file that the other process has removed meanwhile


def check_store(
    directory: Path, went_on: Callable[[int], None], *, reopened_after_s: float = REOPENED_AFTER_S,
) -> None:
    """Read all of it. went_on: hears the bytes of each row, and may wait. Raises StoreDamaged, which names the file."""
    with tempfile.TemporaryDirectory(prefix="queen-scrub-") as scratch:
        start: bytes | None = b""
        try:
            while start is not None:
                database = _open(directory, Path(scratch))
                try:
                    start = _read(database, start, went_on, time.monotonic() + reopened_after_s)
                finally:
                    database.close()
        except StoreDamaged as error:
            raise StoreDamaged(str(error).replace(f"{scratch}/view", str(directory))) from error


def _open(directory: Path, scratch: Path) -> Rdict:
    """All tables are opened at once: none that is removed later is missed. Raises StoreDamaged."""
    tries = 1
    while True:
        try:
            return _open_view(directory, scratch)
        except Exception as error:  # rocksdict raises bare Exception for everything
            if tries == OPEN_TRIES or _GONE not in str(error):
                raise StoreDamaged(f"{directory}: {error}") from error
        tries += 1
        time.sleep(OPEN_PAUSE_S)


def _open_view(directory: Path, scratch: Path) -> Rdict:
    """The binding writes beside what it opens, RocksDB its own log: so both get a directory of links."""
    view = scratch / "view"
    shutil.rmtree(view, ignore_errors=True)
    view.mkdir()
    for path in directory.iterdir():
        if path.name == CONFIGURATION:
            shutil.copyfile(path, view / path.name)
        elif not path.name.startswith(NOT_NEEDED):
            (view / path.name).symlink_to(path.absolute())
    options = Options(raw_mode=True)
    options.set_max_open_files(-1)
    options.set_paranoid_checks(True)
    options.set_skip_stats_update_on_db_open(True)
    return Rdict(str(view), options, access_type=AccessType.read_only())


def _read(database: Rdict, start: bytes, went_on: Callable[[int], None], until_s: float) -> bytes | None:
    """Where to go on; None: this was the end. Raises StoreDamaged."""
    options = ReadOptions()
    options.set_verify_checksums(True)
    rows = database.iter(options)
    rows.seek(start)
    while rows.valid():
        key: bytes = rows.key()
        went_on(len(key) + len(rows.value()))
        rows.next()
        if time.monotonic() >= until_s and rows.valid():
            following: bytes = rows.key()
            return following
    try:
        rows.status()
    except Exception as error:  # rocksdict raises bare Exception for everything
        raise StoreDamaged(str(error)) from error
    return None
