"""The log writer: one batch in flight, reports in order and only of what is durable, an end without loss (M-12, M-14,
CL-126, CL-131).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from queen_node.pass_end import PassEnd
from raft import log_writer
from raft.clock import SystemTime, read_clocks
from raft.disk import FileDisk, Reached, Step, WriteAt
from raft.log_writer import CLOCKS_EVERY_S, MARK_AFTER_S, LogWriter
from raft.wal import LogFailed, Wal
from raft.wal_hand import InlineHand, ProcessHand
from raft.wal_process import SHARED_BYTES
from tests.support.fake_disk import FakeDisk
from tests.unit.wal.model import READ_ALL, Model, clock, open_wal, write


class SlowHand:
    """Does the work when the test lets it."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk
        self._begun = trio.Event()
        self._go, self._going = trio.open_memory_channel[None](100)
        self.lists: list[Sequence[Step]] = []
        self.is_closed = False

    def let_go(self) -> None:
        self._go.send_nowait(None)

    def begin(self, steps: Sequence[Step]) -> None:
        self.lists.append(steps)
        self._begun.set()

    async def done(self) -> None:
        await self._begun.wait()
        await self._going.receive()
        self._begun = trio.Event()
        self._disk.carry_out(self.lists[-1])

    async def aclose(self) -> None:
        self.is_closed = True


class Figures:
    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []
        self.tidied_count = 0

    def wrote(self, write_count: int, entry_count: int, data_bytes: int, seconds: float) -> None:
        assert seconds >= 0
        self.batches.append((write_count, entry_count, data_bytes))

    def tidied(self, seconds: float) -> None:
        self.tidied_count += 1


def note(told: list[int], number: int) -> Callable[[], None]:
    return lambda: told.append(number)


async def test_while_one_batch_is_written_the_next_gathers() -> None:
    """M-14: exactly one in flight; reports in order of submission."""
    disk, told, figures = FakeDisk(), list[int](), Figures()
    wal, _ = open_wal(disk)
    hand = SlowHand(disk)
    writer = LogWriter(wal, hand, clock, figures)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        writer.submit_nowait(write(1, 1, b"a"), note(told, 1))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2, 6):
            writer.submit_nowait(write(number, 1, b"b", b"c"), note(told, number))
        await trio.testing.wait_all_tasks_blocked()
        assert (len(hand.lists), told) == (1, [])
        assert writer.waiting_count == 4
        hand.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(hand.lists), told) == (2, [1])
        hand.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [1, 2, 3, 4, 5]
        assert figures.batches == [(1, 1, 1), (4, 8, 8)]
        hand.let_go()
        writer.stop()


async def test_what_is_submitted_in_one_pass_is_one_batch() -> None:
    """It is on its way before the loop waits, in no later pass."""
    disk, told = FakeDisk(), list[int]()
    hand = SlowHand(disk)
    writer = LogWriter(open_wal(disk)[0], hand, clock, later=PassEnd().leave)
    begun_in_the_pass: list[int] = []

    async def group(life: int) -> None:
        writer.submit_nowait(write(life, 1, b"a"), note(told, life))
        begun_in_the_pass.append(len(hand.lists))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await trio.testing.wait_all_tasks_blocked()
        for life in range(1, 4):
            nursery.start_soon(group, life)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert (begun_in_the_pass, len(hand.lists)) == ([0, 0, 0], 1)
        hand.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(told) == [1, 2, 3]
        hand.let_go()
        writer.stop()


async def test_who_wrote_alone_begins_at_once() -> None:
    """It need not wait for the end of the pass: nobody is likely to join. Where several did, the next waits again."""
    disk = FakeDisk()
    hand = SlowHand(disk)
    writer = LogWriter(open_wal(disk)[0], hand, clock, later=PassEnd().leave)
    last: Counter[int] = Counter()
    begun: list[int] = []  # batches, when each write was just submitted

    async def submit(*lives: int) -> None:
        for life in lives:
            last[life] += 1
            writer.submit_nowait(write(life, last[life], b"a"), lambda: None)
            begun.append(len(hand.lists))
        await trio.testing.wait_all_tasks_blocked()

    async def finish() -> None:
        hand.let_go()
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await submit(1)
        await finish()
        await submit(1, 2, 3)
        await finish()  # of the first
        await finish()  # of the two that gathered meanwhile
        await submit(1, 2)
        await finish()
        assert begun == [0, 2, 2, 2, 3, 3]
        assert len(hand.lists) == 4
        hand.let_go()
        writer.stop()


async def test_a_batch_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "BATCH_WRITES_MAX", 3)
    monkeypatch.setattr(log_writer, "BATCH_BYTES_MAX", 1000)
    disk, told, figures = FakeDisk(), list[int](), Figures()
    writer = LogWriter(open_wal(disk)[0], InlineHand(disk), clock, figures)
    sizes = [10, 10, 10, 10, 600, 600, 5000, 10]
    for number, size in enumerate(sizes):
        writer.submit_nowait(write(number + 1, 1, b"x" * size), note(told, number))
    writer.stop()
    await writer.run()
    assert told == list(range(len(sizes)))
    written = [(count, size) for count, _, size in figures.batches]
    assert written == [(3, 30), (2, 610), (1, 600), (1, 5000), (1, 10), (0, 0)]


async def test_stop_writes_all_that_was_submitted(autojump_clock: trio.testing.MockClock) -> None:
    """CL-131: everything submitted is durable, then the files are closed."""
    disk, told, model = FakeDisk(), list[int](), Model()
    writer = LogWriter(open_wal(disk)[0], InlineHand(disk), clock, inbox_max=500)
    for number in range(1, 401):
        one = write(1, number, b"x")
        writer.submit_nowait(one, note(told, number))
        model.write([one])
    writer.stop()
    await writer.run()
    assert told == list(range(1, 401))
    assert not disk.is_open
    model.must_be_in(*open_wal(disk.after_power_loss()))
    with pytest.raises(LogFailed, match="has stopped"):
        writer.submit_nowait(write(1, 401, b"late"), note(told, 401))


async def test_a_full_inbox_makes_groups_wait() -> None:
    disk, told = FakeDisk(), list[int]()
    hand = SlowHand(disk)
    writer = LogWriter(open_wal(disk)[0], hand, clock, inbox_max=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        writer.submit_nowait(write(1, 1, b"in flight"), note(told, 1))
        await trio.testing.wait_all_tasks_blocked()
        writer.submit_nowait(write(2, 1, b"waits in the inbox"), note(told, 2))
        with pytest.raises(trio.WouldBlock):
            writer.submit_nowait(write(3, 1, b"finds it full"), note(told, 3))
        with trio.CancelScope() as gives_up:
            gives_up.cancel()
            await writer.submit(write(3, 1, b"gives up"), note(told, 3))
        nursery.start_soon(writer.submit, write(4, 1, b"waits for room"), note(told, 4))
        for _ in range(4):
            await trio.testing.wait_all_tasks_blocked()
            hand.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [1, 2, 4]
        writer.stop()


async def test_a_failed_batch_is_reported_to_nobody() -> None:
    """CL-126: run raises, those who wait are told, nothing is tried again."""
    disk, told = FakeDisk(), list[int]()
    wal, _ = open_wal(disk)
    disk.fail_at = len(disk.steps_done) + 5 + 3  # the second sync
    hand = SlowHand(disk)
    writer = LogWriter(wal, hand, clock, inbox_max=1)
    refused: list[str] = []

    async def waits_for_room() -> None:
        try:
            await writer.submit(write(9, 1, b"never"), note(told, 9))
        except LogFailed as error:
            refused.append(str(error))

    with pytest.RaisesGroup(LogFailed):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            writer.submit_nowait(write(1, 1, b"durable"), note(told, 1))
            await trio.testing.wait_all_tasks_blocked()
            writer.submit_nowait(write(2, 1, b"lost"), note(told, 2))
            hand.let_go()
            await trio.testing.wait_all_tasks_blocked()
            writer.submit_nowait(write(3, 1, b"waits"), note(told, 3))
            nursery.start_soon(waits_for_room)
            await trio.testing.wait_all_tasks_blocked()
            hand.let_go()
    assert told == [1]
    assert hand.is_closed
    assert len(refused) <= 1, "cancelled or told, but not accepted"
    with pytest.raises(LogFailed):
        writer.submit_nowait(write(1, 2, b"later"), note(told, 4))


async def test_cancelled_in_the_middle_of_a_batch_it_finishes_that_one() -> None:
    """What is on its way to the disk cannot be called back."""
    disk, told = FakeDisk(), list[int]()
    hand = SlowHand(disk)
    writer = LogWriter(open_wal(disk)[0], hand, clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        writer.submit_nowait(write(1, 1, b"a"), note(told, 1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        hand.let_go()
    assert told == [1]
    assert hand.is_closed
    assert not disk.is_open


async def test_an_idle_log_writes_a_mark_and_then_its_clocks(autojump_clock: trio.testing.MockClock) -> None:
    """M-12: after 100 ms it names what is synced. M-22: every 10 s it records the clocks."""
    disk, told = FakeDisk(), list[int]()
    wal, _ = open_wal(disk)
    began_at = trio.current_time()
    at: list[float] = []

    class Times(Figures):
        def wrote(self, write_count: int, entry_count: int, data_bytes: int, seconds: float) -> None:
            at.append(round(trio.current_time() - began_at, 3))

    writer = LogWriter(wal, InlineHand(disk), clock, Times())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await trio.sleep(1)
        writer.submit_nowait(write(1, 1, b"a"), note(told, 1))
        await trio.sleep(25)
        writer.stop()
    first, second = MARK_AFTER_S, 1 + MARK_AFTER_S
    assert at == [first, 1.0, second, second + CLOCKS_EVERY_S, second + 2 * CLOCKS_EVERY_S]
    assert wal.is_idle


# -- with the writer process


async def test_the_writer_process_writes_what_the_log_says(tmp_path: Path) -> None:
    """M-14, with segments begun and removed, and a write larger than the memory it travels through."""
    disk, told, model, source, figures = FileDisk(), list[int](), Model(), SystemTime(), Figures()
    wal, _ = Wal.open(tmp_path, disk, segment_bytes=1 << 20)
    writer = LogWriter(wal, ProcessHand(disk), lambda: read_clocks(source), figures)
    durable = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for number in range(1, 31):
            size = SHARED_BYTES * 2 + 99 if number == 7 else 200_000
            one = write(1, number, number.to_bytes(1, "big") * size)
            model.write([one])
            await writer.submit(one, durable.set if number == 30 else note(told, number))
            if number == 20:
                await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(30):
            await durable.wait()
        wal.release(1, 28)
        model.release(1, 28)
        writer.stop()
    assert told == list(range(1, 30))
    assert figures.tidied_count >= 2
    wal, recovered = Wal.open(tmp_path, FileDisk(), segment_bytes=1 << 20, must_exist=True)
    model.must_be_in(wal, recovered)
    assert recovered.torn is None
    wal.close()


async def test_the_writer_process_says_what_the_disk_said(tmp_path: Path) -> None:
    disk = FileDisk()
    disk.prepare(str(tmp_path))
    hand = ProcessHand(disk)
    with pytest.raises(FileNotFoundError, match="none"):
        hand.begin([WriteAt(str(tmp_path / "none"), 0, b"x")])
        await hand.done()
    await hand.aclose()
    disk.close()


async def test_a_writer_process_that_dies_fails_the_log(tmp_path: Path) -> None:
    """CL-126."""
    disk, told, source = FileDisk(), list[int](), SystemTime()
    wal, _ = Wal.open(tmp_path, disk)
    hand = ProcessHand(disk)
    writer = LogWriter(wal, hand, lambda: read_clocks(source))
    os.kill(hand.process_id, signal.SIGKILL)
    writer.submit_nowait(write(1, 1, b"lost"), note(told, 1))
    with pytest.raises(LogFailed, match="writer process has ended"), trio.fail_after(30):
        await writer.run()
    assert told == []


async def test_the_writer_process_keeps_the_lock_until_its_last_write(tmp_path: Path) -> None:
    """A node that was killed and started again must not read the log while its old writer still writes."""
    first = FileDisk()
    first.prepare(str(tmp_path))
    hand = ProcessHand(first, fsync_delay_ms=50)
    first.close()  # as a kill of the node does
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert not can_lock(tmp_path)
    with trio.fail_after(30):
        await hand.aclose()
    assert can_lock(tmp_path)


def can_lock(directory: Path) -> bool:
    import fcntl

    with (directory / "lock").open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


async def test_named_points_are_reached_in_order(tmp_path: Path) -> None:
    """Fault tests stop the node there."""
    disk, reached, source = FileDisk(), list[str](), SystemTime()
    wal, _ = Wal.open(tmp_path, disk, segment_bytes=4096)
    writer = LogWriter(wal, ProcessHand(disk, reached=reached.append), lambda: read_clocks(source))
    writer.submit_nowait(write(1, 1, b"x" * 5000), lambda: wal.release(1, 1))
    writer.stop()
    with trio.fail_after(30):
        await writer.run()
    batch = ["wal.before_write", "wal.after_write", "wal.after_fsync"]
    assert reached == [*batch, "wal.segment_created", *batch, "wal.before_unlink"]


async def test_entries_are_readable_while_the_writer_process_writes(tmp_path: Path) -> None:
    disk, source = FileDisk(), SystemTime()
    wal, _ = Wal.open(tmp_path, disk, segment_bytes=4096)
    writer = LogWriter(wal, ProcessHand(disk), lambda: read_clocks(source))
    durable = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for number in range(1, 40):
            await writer.submit(write(1, number, b"x" * 500), durable.set if number == 39 else note([], number))
        with trio.fail_after(30):
            await durable.wait()
        assert [entry.index for entry in wal.read(1, 1, 39, READ_ALL)] == list(range(1, 40))
        writer.stop()


def test_named_points_do_nothing_to_a_disk_without_a_hook(tmp_path: Path) -> None:
    FileDisk().carry_out([Reached("nobody listens")])
    assert not list(tmp_path.iterdir())
