"""From what the actors know to the numbers of `Metrics`: tallies of entries, batches of the log, gauges at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from queen_node.group_actor import GroupActor
from queen_node.host import Host
from queen_node.keeper import Keeper
from queen_node.metrics import Metrics
from queen_node.peering import Peering
from queen_node.state import kv, timers
from queen_node.state.rocks import RocksEngine
from queen_node.state.step import Tally
from raft.clock import TimeSource
from raft.log_writer import LogWriter

GROUPS_A_STEP: Final = 64  # half a millisecond; 10,000 in one step kept the loop for 100 ms
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

    def read_peers(self, peering: Peering) -> Iterable[None]:
        """Before a scrape: there are few of them."""
        self.metrics.peers = peering.figures()
        return ()

    def gauges(
        self, host: Host, keeper: Keeper, log_writer: LogWriter, engine: RocksEngine, source: TimeSource,
    ) -> Callable[[], Iterator[None]]:
        """What brings the gauges up to date before a scrape, reading what is committed, in steps of GROUPS_A_STEP."""

        def read() -> Iterator[None]:
            totals = _Totals()
            for count, actor in enumerate(list(host.groups.opened.values()), 1):
                totals.add(actor)
                if count % GROUPS_A_STEP == 0:
                    yield
            metrics = self.metrics
            totals.tell(metrics)
            metrics.parked_polls += host.antechamber.polls
            metrics.push_requests = _answered(metrics, "/api/v1/push")
            metrics.pop_requests = _answered(metrics, "/api/v1/pop")
            metrics.ack_requests = _answered(metrics, "/api/v1/ack")
            metrics.raft_index["durable"] = sum(keeper.durable_index.values())
            metrics.raft_groups["quiet"] += host.groups.closed_count
            metrics.raft_storage_full = int(keeper.gates.storage_full)
            metrics.disk_used_percent = {"node": keeper.used_percent, "cluster": keeper.fullest().used_percent}
            metrics.store_bytes = engine.size_bytes()
            metrics.clock_offset_s = (source.wall_us() - host.cell.group.raft.clock.now_us()) / 1_000_000
            metrics.inbox_depth["log"] = log_writer.waiting_count

        return read


class _Totals:
    """What is summed over the groups, one after another; the figures change only when all are through."""

    def __init__(self) -> None:
        self._timers_pending = self._leases_live = self._dead_letters = self._parked = 0
        self._timers_due = self._timers_late_us = self._kv_ended = self._kv_late_us = 0
        self._kv_rows = self._kv_bytes = 0
        self._last = self._committed = self._applied = 0
        self._states = {"leading": 0, "following": 0, "quiet": 0, "failed": 0}
        self._waiting = self._waiting_peak = 0

    def add(self, actor: GroupActor) -> None:
        """Read one group, as it is now."""
        group, core = actor.group, actor.group.raft.core
        counters = group.machine.store.counters()
        self._timers_pending += counters.timers_pending
        self._leases_live += counters.leases_live
        self._dead_letters += counters.dead_letters
        self._parked += len(group.pops)
        self._last += core.log.last_index
        self._committed += core.commit_index
        self._applied += core.applied_index
        self._states[_state(actor)] += 1
        self._waiting += len(actor.inbox)
        self._waiting_peak = max(self._waiting_peak, actor.inbox.peak)
        leads = group.raft.may_propose
        if leads:
            self._kv_rows += counters.kv_rows
            self._kv_bytes += counters.kv_bytes
        store, now_us = group.machine.store, group.raft.clock.now_us()
        # Between two slices of an entry the calendar is not anybody's to read.
        if group.deadline_us is None or group.deadline_us > now_us or store.batch_count:
            return
        due, late_us = timers.due_figures(store, now_us, DUE_COUNTED_MAX)
        self._timers_due, self._timers_late_us = self._timers_due + due, max(self._timers_late_us, late_us)
        if leads:
            ended, late_us = kv.ended_figures(store, now_us, DUE_COUNTED_MAX)
            self._kv_ended, self._kv_late_us = self._kv_ended + ended, max(self._kv_late_us, late_us)

    def tell(self, metrics: Metrics) -> None:
        """All groups were read."""
        metrics.timers_pending, metrics.leases_live = self._timers_pending, self._leases_live
        metrics.dlq_depth, metrics.parked_polls = self._dead_letters, self._parked
        metrics.timers_due, metrics.timers_oldest_late_s = self._timers_due, self._timers_late_us / 1_000_000
        metrics.kv_rows, metrics.kv_stored_bytes = self._kv_rows, self._kv_bytes
        metrics.kv_expired_not_pruned, metrics.kv_expiry_lag_s = self._kv_ended, self._kv_late_us / 1_000_000
        metrics.raft_index = {"log": self._last, "committed": self._committed, "applied": self._applied, "durable": 0}
        metrics.raft_groups = self._states
        metrics.raft_inflight = self._last - self._applied
        metrics.inbox_depth, metrics.inbox_peak = {"group": self._waiting}, {"group": self._waiting_peak}


def _state(actor: GroupActor) -> str:
    """A group that failed does not sleep."""
    if actor.poison is not None:
        return "failed"
    if actor.sleeper.sleeps:
        return "quiet"
    return "leading" if actor.group.raft.may_propose else "following"


def _answered(metrics: Metrics, beginning: str) -> int:
    """Requests answered on routes whose pattern begins so."""
    return sum(sum(route.answers.values()) for route in metrics.routes if route.pattern.startswith(beginning))
