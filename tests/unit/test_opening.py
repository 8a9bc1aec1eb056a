"""Log and store must be of one history; only a recorded flip explains a store that is ahead (M-3, M-61, CL-124)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queen_node import config
from queen_node.closed_groups import Glance
from queen_node.layout import CannotStart
from queen_node.opening import Opened, glance_at, open_data, open_group, open_machine, time_source, untold_flip
from queen_node.state.keys import INCARNATIONS
from queen_node.state.snapshot_rows import RowsReader, view
from queen_node.state.store import Store
from raft.clock import SystemTime, read_clocks
from raft.configurations import encode_configuration
from raft.messages import Entry, EntryKind, HardState
from raft.quorum import Configuration
from raft.wal import GroupWrite
from tests.support.memory_engine import MemoryEngine

LIFE = 1
SNAPSHOT_INDEX, SNAPSHOT_TERM = 9, 4


class Directory:
    """A node's data directory between two starts."""

    def __init__(self, path: Path) -> None:
        self._settings = config.load({"QUEEN_RAFT_DIR": str(path)})
        self.opened: Opened | None = None

    def start(self) -> Opened:
        if self.opened is not None:
            self.opened.engine.flush()
            self.opened.engine.close()
            self.opened.wal.close()
        self.opened = open_data(self._settings)
        return self.opened

    def group(self, opened: Opened) -> tuple[int, int, int | None]:
        """(applied index, term, behind which entry the first write restarts the log) of the group, as it starts."""
        machine = open_machine(opened, LIFE)
        raft = open_group(opened, self._settings, SystemTime(), LIFE, machine)
        core = raft.core
        return core.applied_index, core.term, core.ready().restart_after if core.has_ready() else None


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path / "data")
    yield made
    if made.opened is not None:
        made.opened.engine.close()
        made.opened.wal.close()


def log_holds(opened: Opened, *entries: Entry, restart_after: int | None = None, term: int = 1) -> None:
    opened.wal.write([GroupWrite(
        LIFE, HardState(term, 0, 0), previous_term=SNAPSHOT_TERM if restart_after else 0, entries=entries,
        restart_after=restart_after)], read_clocks(SystemTime()))


def flip(opened: Opened) -> None:
    """A snapshot of another node is installed and flipped to; nothing is said to the log."""
    source = Store(MemoryEngine(), life=7)
    for index in range(1, SNAPSHOT_INDEX + 1):
        source.put(b"\x40%d" % index, b"row")
        source.commit(index=index, term=SNAPSHOT_TERM, stamp_us=index,
                      configuration=encode_configuration(Configuration((1, 2))))
    seen, reader, incarnations = view(source.engine, 7, 1, 50), RowsReader(), opened.incarnations
    assert seen is not None
    number = incarnations.begin(LIFE)
    for part in seen.parts:
        incarnations.write(LIFE, number, reader.read(part))
    assert reader.meta is not None
    incarnations.flip(LIFE, number, reader.meta)


def test_a_flip_that_the_log_does_not_know_of_starts_and_tells_it(directory: Directory) -> None:
    """CL-112: the log holds what was before, or nothing of the group at all."""
    opened = directory.start()
    flip(opened)
    assert directory.group(directory.start()) == (SNAPSHOT_INDEX, SNAPSHOT_TERM, SNAPSHOT_INDEX)
    opened = directory.start()
    log_holds(opened, *(Entry(1, index, EntryKind.COMMANDS, b"") for index in range(1, 12)))
    opened = directory.start()
    assert untold_flip(opened, LIFE) == (SNAPSHOT_INDEX, SNAPSHOT_TERM)
    assert directory.group(opened) == (SNAPSHOT_INDEX, SNAPSHOT_TERM, SNAPSHOT_INDEX)


def test_a_flip_that_the_log_knows_of_goes_on_by_the_log(directory: Directory) -> None:
    opened = directory.start()
    flip(opened)
    log_holds(opened, Entry(5, 10, EntryKind.COMMANDS, b""), restart_after=SNAPSHOT_INDEX, term=5)
    opened = directory.start()
    assert untold_flip(opened, LIFE) is None
    assert directory.group(opened) == (SNAPSHOT_INDEX, 5, None)
    machine = open_machine(opened, LIFE)
    assert machine.store.get(b"\x409") == b"row"


def test_a_log_that_was_told_and_is_lost_refuses_the_start(directory: Directory) -> None:
    """M-3, CL-124: what was told once explains nothing any more."""
    opened = directory.start()
    flip(opened)
    opened.incarnations.told(LIFE, SNAPSHOT_INDEX)
    with pytest.raises(CannotStart, match="log files are missing"):
        directory.group(directory.start())


def test_a_state_that_moved_on_from_its_flip_is_explained_by_its_log_alone(directory: Directory) -> None:
    opened = directory.start()
    flip(opened)
    store = Store(opened.engine, life=LIFE, incarnation=opened.incarnations.current(LIFE))
    store.commit(index=SNAPSHOT_INDEX + 1, term=SNAPSHOT_TERM, stamp_us=99)
    with pytest.raises(CannotStart, match=f"holds {SNAPSHOT_INDEX + 1}"):
        directory.group(directory.start())


def test_a_glance_shows_what_opening_would_and_refuses_what_it_would(directory: Directory) -> None:
    """CL-124: damage shows at the start, not when somebody first asks for the group."""
    opened = directory.start()
    assert glance_at(opened, LIFE) == Glance(0, 0)
    log_holds(opened, *(Entry(1, index, EntryKind.COMMANDS, b"") for index in (1, 2, 3)))
    store = Store(opened.engine, life=LIFE)
    for index in (1, 2):
        store.commit(index=index, term=1, stamp_us=index)
    opened = directory.start()
    assert glance_at(opened, LIFE) == Glance(2, 3)
    assert open_machine(opened, LIFE).applied_index == 2
    store = Store(opened.engine, life=LIFE)
    for index in (3, 4):
        store.commit(index=index, term=1, stamp_us=index)
    for look in (glance_at, open_machine):
        with pytest.raises(CannotStart, match="log files are missing"):
            look(directory.start(), LIFE)


def test_a_group_that_was_flipped_to_a_snapshot_is_opened_at_the_start(directory: Directory) -> None:
    """M-61: its log is still to be told, and that is for the group to say."""
    opened = directory.start()
    flip(opened)
    assert glance_at(directory.start(), LIFE) is None


def test_a_row_of_incarnations_that_cannot_be_read_refuses_the_start(directory: Directory) -> None:
    opened = directory.start()
    opened.engine.write(b"", {INCARNATIONS + LIFE.to_bytes(4, "big"): b"\xff"})
    with pytest.raises(CannotStart, match="the row of incarnations"):
        directory.start()
    directory.opened = None


@pytest.mark.parametrize("text", ["soon", "1.5", None])
def test_a_clock_file_without_a_number_stops_the_boot_by_name(tmp_path: Path, text: str | None) -> None:
    """README 24, config.md 10; None: a directory."""
    if text is None:
        (tmp_path / "offset").mkdir()
    else:
        (tmp_path / "offset").write_text(text)
    hooked = config.load({"QUEEN_TEST_HOOKS": "1", "QUEEN_TEST_CLOCK_FILE": str(tmp_path / "offset")})
    with pytest.raises(CannotStart, match="QUEEN_TEST_CLOCK_FILE: "):
        time_source(hooked)


def test_a_directory_that_is_none_is_refused_by_the_name_of_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="QUEEN_RAFT_DIR"):
        open_data(config.load({"QUEEN_RAFT_DIR": str(tmp_path / "file")}))
