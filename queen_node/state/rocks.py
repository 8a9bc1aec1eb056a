"""RocksDB as the engine of the store (M-1, M-2, M-4). Nothing above this file knows that it is RocksDB.

One column family; RocksDB's own log off, because the Raft log is the log; compactions in threads of low priority. What
survives a crash is a prefix of the batches, as long as what the last flush had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    Env,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from queen_node.state.store import Pair, StoreBusy

BLOCK_CACHE_BYTES = 32 << 20
WRITE_BUFFER_BYTES = 24 << 20  # above what a durable point lets gather (M-2), so that we choose the moment to flush
WRITE_BUFFERS = 4
MEMTABLE_FILTER_SHARE = 0.01  # of a write buffer
BLOOM_BITS_PER_KEY = 10  # scheduling a new key asks first whether it exists: without the filter that reads a block
LEVEL_0_FILES_STOP = 36
LEVEL_0_FILES_FULL = 24  # admission closes here, before writes are refused (M-4)
PENDING_COMPACTION_BYTES_FULL = 48 << 30

_STALL = "Write stall"  # in the text of what rocksdict raises for a write refused by no_slowdown


class StoreDamaged(Exception):
    """RocksDB reports corruption: nothing it says may be served (CL-124)."""


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_level_zero_slowdown_writes_trigger(LEVEL_0_FILES_STOP - 4)
    options.set_level_zero_stop_writes_trigger(LEVEL_0_FILES_STOP)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_compression_options(-14, 1, 0, 0)
    options.set_bottommost_compression_options(-14, 1, 0, 0, True)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(512)  # the usual limit of a process is 1,024 descriptors
    options.set_stats_dump_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)  # opening must not read every table (restart time)
    options.set_paranoid_checks(True)
    env = Env()
    env.lower_thread_pool_cpu_priority()
    options.set_env(env)
    # What is not there is asked for with each schedule, put and first push of an id; in the memtable, which has no
    # filter by itself, that took 5 µs. With one of 240 KB 3 µs, and a write of a row 0.1 more.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE)
    table = BlockBasedOptions()
    # Filters and indexes in small parts, in the one bounded cache: memory does not grow with the number of rows. As
    # whole blocks in an LRU cache of this size they did not fit its shards, and a get of an absent key read them again
    # each time: 76 µs with 400,000 timers, against 1.6 so and 1.1 with all of them kept in memory for good.
    table.set_block_cache(Cache.new_hyper_clock_cache(BLOCK_CACHE_BYTES, 0))
    table.set_block_size(8 << 10)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options


class RocksEngine:
    """The node's database."""

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises StoreDamaged with RocksDB's own words."""
        try:
            self._database = Rdict(str(directory), _options())
        except Exception as error:  # rocksdict raises bare Exception for everything
            raise StoreDamaged(f"{directory}: {error}") from error
        self._write_options = WriteOptions()
        setattr(self._write_options, "disable_wal", True)  # noqa: B010 - a property that the stub calls a method
        self._write_options.no_slowdown = True  # a stalled put held the interpreter for 3.3 s (M-4)
        self._get = self._database.get

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`, or None. Raises StoreDamaged."""
        try:
            found: bytes | None = self._get(key)
        except Exception as error:  # rocksdict raises bare Exception for everything
            raise StoreDamaged(f"a read failed: {error}") from error
        return found

    def iterate(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """Pairs with start <= key < end, ascending, as of the first step. Raises StoreDamaged."""
        rows = self._rows_below(end)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        _check(rows.status)

    def iterate_down(self, start: bytes, end: bytes) -> Iterator[Pair]:
        """The same pairs, descending. Raises StoreDamaged."""
        rows = self._rows_below(end)
        rows.seek_for_prev(end)
        while rows.valid():
            key: bytes = rows.key()
            if key < start:  # rocksdict ignores a lower bound
                return
            yield key, rows.value()
            rows.prev()
        _check(rows.status)

    def _rows_below(self, end: bytes) -> RdictIter:
        # The bound keeps an iterator from walking through tombstones behind the range.
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        return self._database.iter(options)

    def write(self, prefix: bytes, batch: dict[bytes, bytes | None]) -> None:
        """Write `batch` or nothing. Raises StoreBusy when RocksDB would stall, StoreDamaged when it cannot write."""
        rocks_batch = WriteBatch(raw_mode=True)
        put, delete = rocks_batch.put, rocks_batch.delete
        for key, value in batch.items():
            if value is None:
                delete(prefix + key)
            else:
                put(prefix + key, value)
        self._write(rocks_batch)

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Delete a range with one tombstone. Raises as `write` does."""
        rocks_batch = WriteBatch(raw_mode=True)
        rocks_batch.delete_range(start, end)
        self._write(rocks_batch)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._database.write(batch, self._write_options)
        except Exception as error:  # rocksdict raises bare Exception for everything
            if _STALL in str(error):
                raise StoreBusy(str(error)) from error
            raise StoreDamaged(f"{self._database.path()}: {error}") from error

    def flush(self) -> None:
        """Make durable what was written before the call. Blocks; releases the interpreter's lock (M-2).

        Raises StoreDamaged: a disk that failed or is full. RocksDB takes no more writes then (M-6).
        """
        try:
            self._database.flush(True)
        except Exception as error:  # rocksdict raises bare Exception for everything
            raise StoreDamaged(f"{self._database.path()}: a flush failed: {error}") from error

    def full(self) -> bool:
        """Whether writes come faster than compaction digests them: admission should close (M-4)."""
        return (
            int(self._database.property_value("rocksdb.num-files-at-level0") or 0) >= LEVEL_0_FILES_FULL
            or (self._database.property_int_value("rocksdb.estimate-pending-compaction-bytes") or 0)
            >= PENDING_COMPACTION_BYTES_FULL
        )

    def size_bytes(self) -> int:
        """Bytes of the live tables."""
        return self._database.property_int_value("rocksdb.live-sst-files-size") or 0

    def close(self) -> None:
        """Close the database. What was not flushed is replayed from the log at the next start. Raises StoreDamaged."""
        try:
            self._database.close()
        except Exception as error:  # rocksdict raises bare Exception for everything, and has no path any more
            raise StoreDamaged(str(error)) from error


def _check(status: Callable[[], None]) -> None:
    try:
        status()
    except Exception as error:  # rocksdict raises bare Exception for everything
        raise StoreDamaged(f"a scan ended early: {error}") from error
