"""Ready lists: which partitions have something for a consumer group, in the order in which that became true (PA-12).

A partition that holds anything above a group's cursor stands in the list of its (queue, group) exactly once, with the
time from which it can be claimed: now, when a lease ends, or when a delay does. So nothing has to happen at that moment
(PA-63): a pop looks at the list up to its own stamp, and a parked pop's next chance is the list's first row.

A row may turn out too early (a `windowBuffer` that starts anew with each append): whoever looks checks with `moment`
and files it again. It must never be too late. A changed delay could make it so; therefore a list has generations: rows
filed under other delays are all looked at and filed again, a bounded number with each pop, before the list is trusted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import lru_cache
from typing import NamedTuple

from queen_node.state.keys import READY, named, read_two_u64, read_u64, two_u64, u64
from queen_node.state.messages import created_at_us_of, message_key
from queen_node.state.rows import CursorRow, PartitionRow, QueueOptions, QueueRow, Row
from queen_node.state.step import Step
from queen_node.state.store import Store
from raft.invariants import broken, must

SECOND_US = 1_000_000
WINDOWS_MAX = 10  # a writer that never pauses holds a partition back no longer than this many windows (PA-14)
FAR_US = 1 << 63  # a delay that reaches further than a key can say
HEAD_MAX = 1024  # rows of a list's beginning kept in memory
HEAD_PAGE = 256  # rows read at once when they are used up
_JUST_ABOVE = b"\x00"  # key + this: the least key above key


class ReadyListRow(Row, dict=True):
    """One (queue, group) list as a whole, and the group's pace there (PA-41). Stands where its rows' keys begin.

    `dict=True`: the decoded object also carries the list's `Head`, which is not written; it is lost with the object.
    """

    generation: int = 0
    outdated_from: bytes | None = None  # end of a key: rows of older generations may be left from here on; None: none
    delayed_processing: int = 0  # the delays under which rows of `generation` are filed
    window_buffer: int = 0
    # Nothing of `generation` stands below this end of a key: a scan from the list's beginning would walk over the
    # tombstones of all that was ever claimed. What is filed later is never earlier than the stamp of what moved it.
    floor: bytes = b""
    acked_second: int = 0  # second of the group clock that `acked_now` counts
    acked_now: int = 0
    acked_before: int = 0  # in the second before


class Place(NamedTuple):
    """A row of a list."""

    ready_at_us: int
    sequence: int
    partition_id: int


class Head:
    """The beginning of a list as it stands in the store, kept decoded: below `end`, rows are here and nowhere else.

    Most leases are acked long before they end, so a list is full of tombstones where rows once stood in the future: one
    look at the store for a parked pop cost 0.7 ms after 4,000 acks. With the beginning in memory nothing is scanned
    unless more than HEAD_MAX partitions wait.
    """

    __slots__ = ("end", "partition_ids", "places")

    def __init__(self, end: bytes | None) -> None:
        self.end = end  # None: the whole list is here
        self.places: list[bytes] = []  # ends of keys (time, sequence), ascending
        self.partition_ids: dict[bytes, int] = {}

    def add(self, place: bytes, partition_id: int) -> None:
        """A row was put."""
        if self.end is not None and place >= self.end:
            return
        insort(self.places, place)
        self.partition_ids[place] = partition_id
        if len(self.places) > HEAD_MAX:
            self.end = self.places.pop()
            del self.partition_ids[self.end]

    def remove(self, place: bytes) -> None:
        """A row was deleted."""
        if self.partition_ids.pop(place, None) is not None:
            del self.places[bisect_left(self.places, place)]


def list_key(queue: QueueRow, group: bytes) -> bytes:
    """Where the list of a (queue, group) begins."""
    return _list_key(queue.queue_id, group)


def moment(store: Store, options: QueueOptions, partition: PartitionRow, cursor: CursorRow) -> int | None:
    """When the partition can be claimed: a time of the group clock, perhaps past; None when it holds nothing.

    Judged by the options of this moment, also for what is stored long since (PA-14), and by the lease (PA-10).
    """
    head = max(cursor.committed + 1, partition.log_start)
    if head >= partition.next_offset:
        return None
    at_us = cursor.lease_expires_us if cursor.lease_id else 0
    delay_us, window_us = options.delayed_processing * SECOND_US, options.window_buffer * SECOND_US
    if delay_us or window_us:
        stored = store.get_young(message_key(partition.partition_id, head))
        if stored is None:
            broken("a retained message is missing", partition=partition.partition_id, offset=head)
        created_at_us = created_at_us_of(stored)
        quiet_us = min(partition.last_write_us + window_us, created_at_us + WINDOWS_MAX * window_us)
        at_us = min(max(at_us, created_at_us + delay_us, quiet_us if window_us else 0), FAR_US)
    return at_us


def file(step: Step, queue: QueueRow, group: bytes, partition: PartitionRow, cursor: CursorRow) -> None:
    """Put a partition where it belongs in the list of `group`, or strike it out. The caller puts the cursor back."""
    store = step.store
    key, row = _open(step, queue, group)
    head = _head(row)
    stem = _stem(key, row.generation)
    if cursor.ready_at_us >= 0:
        # If it stands in another generation nothing is deleted; it is known for outdated there by its sequence.
        place = two_u64(cursor.ready_at_us, cursor.ready_sequence)
        store.delete(stem + place)
        head.remove(place)
        cursor.ready_at_us = -1
    at_us = moment(store, queue.options, partition, cursor)
    if at_us is None:
        return
    cursor.ready_at_us = max(at_us, step.now_us)
    cursor.ready_sequence = step.sequence()
    place = two_u64(cursor.ready_at_us, cursor.ready_sequence)
    must(place >= row.floor, "a partition was filed where nobody looks", queue=queue.name, group=group)
    store.put(stem + place, u64(partition.partition_id))
    head.add(place, partition.partition_id)


def front(store: Store, queue: QueueRow, group: bytes, end_us: int, at_most: int) -> list[Place]:
    """The first rows with ready_at_us < end_us, at most `at_most`. All there are as soon as `has_outdated` is False."""
    key = list_key(queue, group)
    row = store.row(key, ReadyListRow)
    if row is None:
        return []
    head = _head(row)
    if len(head.places) < at_most and head.end is not None:
        _read_on(store, _stem(key, row.generation), head, at_most)
    found = []
    for place in head.places[:at_most]:
        ready_at_us, sequence = read_two_u64(place, 0)
        if ready_at_us >= end_us:
            break
        found.append(Place(ready_at_us, sequence, head.partition_ids[place]))
    return found


def pass_over(step: Step, queue: QueueRow, group: bytes, place: Place) -> None:
    """Begin the next look above `place`: it and all before it were claimed, filed again or struck out."""
    key, row = _open(step, queue, group)
    row.floor = two_u64(place.ready_at_us, place.sequence) + _JUST_ABOVE
    step.store.put_row(key, row)


def has_outdated(store: Store, queue: QueueRow, group: bytes) -> bool:
    """Whether rows stand in the list that were filed under other delays than the queue has now."""
    key = list_key(queue, group)
    row = store.row(key, ReadyListRow)
    if row is None:
        return False
    if _is_of(row, queue.options):
        start, end = row.outdated_from, row.generation
    else:
        start, end = _outdated_with_current(row), row.generation + 1
    return start is not None and store.first(key + start, _stem(key, end)) is not None


def take_outdated(step: Step, queue: QueueRow, group: bytes, at_most: int) -> list[Place]:
    """Take rows filed under other delays out of the list, at most `at_most`; the caller files what they mean again.

    A cursor that remembers another sequence has been filed again since: its row here meant nothing any more.
    """
    store = step.store
    key, row = _open(step, queue, group)
    if row.outdated_from is None:
        return []
    pairs = store.scan(key + row.outdated_from, _stem(key, row.generation), at_most)
    row.outdated_from = pairs[-1][0][len(key):] + _JUST_ABOVE if len(pairs) == at_most else None
    store.put_row(key, row)
    places = []
    position = len(key) + _GENERATION_BYTES
    for row_key, value in pairs:
        store.delete(row_key)
        places.append(Place(*read_two_u64(row_key, position), read_u64(value)))
    return places


def count_acked(step: Step, queue: QueueRow, group: bytes, count: int) -> None:
    """Note that the group finished `count` messages now."""
    key, row = _open(step, queue, group)
    second = step.now_us // SECOND_US
    if second != row.acked_second:
        row.acked_before = row.acked_now if second == row.acked_second + 1 else 0
        row.acked_second, row.acked_now = second, 0
    row.acked_now += count
    step.store.put_row(key, row)


def acked_in_last_second(store: Store, queue: QueueRow, group: bytes, now_us: int) -> int:
    """About how many messages the group finished in the second up to now: whole numbers only (M-80)."""
    row = store.row(list_key(queue, group), ReadyListRow)
    if row is None:
        return 0
    second, into_us = divmod(now_us, SECOND_US)
    if second == row.acked_second:
        return row.acked_now + row.acked_before * (SECOND_US - into_us) // SECOND_US
    return row.acked_now * (SECOND_US - into_us) // SECOND_US if second == row.acked_second + 1 else 0


_GENERATION_BYTES = 4


@lru_cache(maxsize=4096)  # the same few lists, several times a command
def _list_key(queue_id: int, group: bytes) -> bytes:
    return READY + u64(queue_id) + named(group)


def _stem(key: bytes, generation: int) -> bytes:
    """Where the rows of a generation begin."""
    return key + generation.to_bytes(_GENERATION_BYTES, "big")


def _open(step: Step, queue: QueueRow, group: bytes) -> tuple[bytes, ReadyListRow]:
    """The list's key and row, in a new generation if the queue's delays have changed."""
    key = list_key(queue, group)
    row = step.store.row(key, ReadyListRow)
    options = queue.options
    if row is None:
        row = ReadyListRow(delayed_processing=options.delayed_processing, window_buffer=options.window_buffer)
    elif _is_of(row, options):
        return key, row
    else:
        row.outdated_from = _outdated_with_current(row)
        row.generation += 1
        row.delayed_processing, row.window_buffer = options.delayed_processing, options.window_buffer
        row.floor = b""
    row.__dict__["head"] = Head(None)  # nothing stands in a new generation
    step.store.put_row(key, row)
    return key, row


def _outdated_with_current(row: ReadyListRow) -> bytes:
    """Where outdated rows begin once those of the current generation are outdated too."""
    return row.outdated_from if row.outdated_from is not None else _stem(b"", row.generation) + row.floor


def _is_of(row: ReadyListRow, options: QueueOptions) -> bool:
    return row.delayed_processing == options.delayed_processing and row.window_buffer == options.window_buffer


def _head(row: ReadyListRow) -> Head:
    """The list's beginning; empty when the row has just been read from the store."""
    head: Head | None = row.__dict__.get("head")
    if head is None:
        head = row.__dict__["head"] = Head(row.floor)
    return head


def _read_on(store: Store, stem: bytes, head: Head, at_most: int) -> None:
    """Read the next rows of a list into its head, so that it holds `at_most` if there are as many."""
    must(head.end is not None, "a list that is known whole is read on")
    wanted = max(HEAD_PAGE, at_most - len(head.places))
    pairs = store.scan(stem + (head.end or b""), stem + u64(FAR_US + 1), wanted)
    for row_key, value in pairs:
        place = row_key[len(stem):]
        head.places.append(place)
        head.partition_ids[place] = read_u64(value)
    head.end = pairs[-1][0][len(stem):] + _JUST_ABOVE if len(pairs) == wanted else None
