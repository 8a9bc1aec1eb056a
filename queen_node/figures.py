"""From what the actors know to the numbers of `Metrics`: tallies of entries, batches of the log, gauges at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queen_node.group_actor import GroupActor
from queen_node.host import Host
from queen_node.keeper import Keeper
from queen_node.metrics import Metrics
from queen_node.state import kv, timers
from queen_node.state.rocks import RocksEngine
from queen_node.state.step import Tally
from queen_node.state.store import Store
from raft.clock import TimeSource
from raft.log_writer import LogWriter

DUE_COUNTED_MAX = 1000  # a scrape must be quick: beyond these the number of due timers only says "at least so many"


class Figures:
    """Fills `metrics`. Nothing here decides anything."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def count(self, tally: Tally) -> None:
        """What an applied entry did."""
        metrics = self.metrics
        metrics.push_messages += tally.pushed - tally.fired
        metrics.pop_messages += tally.popped
        metrics.ack_messages += tally.acked
        metrics.pop_handed_back += tally.handed_back
        metrics.leases_expired += tally.leases_expired
        metrics.timers_scheduled += tally.scheduled
        metrics.timers_cancelled["cancelled"] += tally.cancelled
        fired = metrics.timers_fired
        fired["appended"] += tally.fired
        fired["duplicate"] += tally.timer_duplicates
        fired["dead_lettered"] += tally.timer_dead_letters
        failures = tally.timer_failures + tally.timer_failures_transient
        fired["retried"] += failures - tally.timer_dead_letters
        metrics.timers_fire_failures["permanent"] += tally.timer_failures
        metrics.timers_fire_failures["transient"] += tally.timer_failures_transient
        for lag_us in tally.fire_lag_us:
            metrics.timers_fire_lag_s.observe(lag_us / 1_000_000)

    def count_slow(self) -> None:
        """A command took longer to apply than QUEEN_RAFT_SLOW_COMMAND_MS."""
        self.metrics.raft_slow_commands += 1

    def wrote(self, write_count: int, entry_count: int, data_bytes: int, seconds: float) -> None:
        """A batch of the log is durable (`raft.log_writer.LogObserver`)."""
        self.metrics.wal_fsync_s.observe(seconds)
        self.metrics.wal_batch_entries.observe(entry_count)
        self.metrics.raft_proposals += entry_count

    def tidied(self, seconds: float) -> None:
        """A segment was begun or removed: counted with the batches, whose successor had to wait for it."""
        self.metrics.wal_fsync_s.observe(seconds)

    def gauges(
        self, host: Host, keeper: Keeper, log_writer: LogWriter, engine: RocksEngine, source: TimeSource,
    ) -> Callable[[], None]:
        """What brings the gauges up to date before a scrape, reading what is committed."""

        def read() -> None:
            metrics, actors = self.metrics, list(host.groups.opened.values())
            counters = [actor.group.machine.store.counters() for actor in actors]
            metrics.timers_pending = sum(row.timers_pending for row in counters)
            metrics.leases_live = sum(row.leases_live for row in counters)
            metrics.dlq_depth = sum(row.dead_letters for row in counters)
            metrics.parked_polls = sum(len(actor.group.pops) for actor in actors) + host.antechamber.polls
            metrics.timers_due, late_us = _due(actors, timers.due_figures)
            metrics.timers_oldest_late_s = late_us / 1_000_000
            led = [actor for actor in actors if actor.group.raft.may_propose]
            rows = [actor.group.machine.store.counters() for actor in led]
            metrics.kv_rows, metrics.kv_stored_bytes = sum(row.kv_rows for row in rows), sum(
                row.kv_bytes for row in rows)
            metrics.kv_expired_not_pruned, ended_us = _due(led, kv.ended_figures)
            metrics.kv_expiry_lag_s = ended_us / 1_000_000
            metrics.push_requests = _answered(metrics, "/api/v1/push")
            metrics.pop_requests = _answered(metrics, "/api/v1/pop")
            metrics.ack_requests = _answered(metrics, "/api/v1/ack")
            cores = [actor.group.raft.core for actor in actors]
            metrics.raft_index = {
                "log": sum(core.log.last_index for core in cores),
                "committed": sum(core.commit_index for core in cores),
                "applied": sum(core.applied_index for core in cores),
                "durable": sum(keeper.durable_index.values()),
            }
            failed = sum(actor.poison is not None for actor in actors)
            leading = sum(
                actor.group.raft.may_propose and actor.poison is None and not actor.sleeper.sleeps for actor in actors)
            following = len(actors) - leading - failed - host.quiet_count
            metrics.raft_groups = {
                "leading": leading, "following": following, "quiet": host.quiet_count, "failed": failed}
            metrics.raft_inflight = sum(core.log.last_index - core.applied_index for core in cores)
            metrics.raft_storage_full = int(keeper.gates.storage_full)
            metrics.disk_used_percent = {"node": keeper.used_percent, "cluster": keeper.fullest().used_percent}
            metrics.store_bytes = engine.size_bytes()
            metrics.clock_offset_s = (source.wall_us() - host.cell.group.raft.clock.now_us()) / 1_000_000
            metrics.inbox_depth = {
                "group": sum(len(actor.inbox) for actor in actors), "log": log_writer.waiting_count}
            metrics.inbox_peak = {"group": max(actor.inbox.peak for actor in actors)}

        return read


def _due(actors: Sequence[GroupActor], figures_of: Callable[[Store, int, int], tuple[int, int]]) -> tuple[int, int]:
    """How many deadlines of a kind have passed, at least, and by how many µs the oldest is late."""
    count = late_us = 0
    for actor in actors:
        group = actor.group
        store, now_us = group.machine.store, group.raft.clock.now_us()
        # Between two slices of an entry the calendar is not anybody's to read.
        if group.deadline_us is None or group.deadline_us > now_us or store.batch_count:
            continue
        due, oldest_us = figures_of(store, now_us, DUE_COUNTED_MAX)
        count, late_us = count + due, max(late_us, oldest_us)
    return count, late_us


def _answered(metrics: Metrics, beginning: str) -> int:
    """Requests answered on routes whose pattern begins so."""
    return sum(sum(route.answers.values()) for route in metrics.routes if route.pattern.startswith(beginning))
