"""The node's numbers: plain attributes that their owners add to, and one table that says how they are shown.

An update is an integer addition or, for a histogram, a search in a few bounds: 40 and 130 ns, where
prometheus-client's own take 450 and 680, and 970 with a label (measured). Nothing else happens before a scrape; then
`Exposition` reads the attributes.
Contract: admin.md 3, timers.md 8. Not here: who answers a scrape (http/handlers/operations.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from queen_node.processes import usage
from raft.messages import NodeId
from raft.peer_frames import FrameKind
from raft.peer_handshake import Purpose

RATE_WINDOW_S = 10  # over which /metrics gives rates
CALL_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LATE_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # admin.md: 5 ms to 60 s
FSYNC_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
BATCH_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Histogram:
    """Counts of values by the least bound that is not below them, the last place for those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def latency_histogram() -> Histogram:
    """A histogram for the time a call takes, in seconds."""
    return Histogram(CALL_BOUNDS_S)


class RouteCounts(Protocol):
    """What a route of the HTTP server counts by itself."""

    method: str
    pattern: str
    answers: dict[int, int]
    seconds: Histogram


class PeerCounts(Protocol):
    """What the transport counts of one peer: see `raft.peer_connection.PeerFigures`, which brings a websocket along."""

    @property
    def frames_sent(self) -> Mapping[FrameKind, int]: ...
    @property
    def bytes_sent(self) -> Mapping[FrameKind, int]: ...
    @property
    def frames_taken(self) -> Mapping[FrameKind, int]: ...
    @property
    def bytes_taken(self) -> Mapping[FrameKind, int]: ...
    @property
    def refused(self) -> Mapping[FrameKind, int]: ...
    @property
    def lost(self) -> Mapping[FrameKind, int]: ...
    @property
    def connects(self) -> Mapping[Purpose, int]: ...
    @property
    def standing(self) -> frozenset[Purpose]: ...
    @property
    def round_trip_s(self) -> float | None: ...


class Metrics:
    """One node's numbers. Counters only grow; gauges are set by their owner, at the latest by a scrape."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s  # by the clock that `Exposition` and LoopWatch read: trio's
        self.before_scrape: list[Callable[[], Iterable[None]]] = []  # owners bring their gauges up to date: in steps
        self.routes: Sequence[RouteCounts] = ()
        self.peers: Mapping[NodeId, PeerCounts] = {}
        self._rates: deque[tuple[float, int, int]] = deque()  # (monotonic s, requests, messages), oldest first

        # --- HTTP
        self.connections = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.parked_polls = 0

        # --- messages
        self.push_requests = 0
        self.push_messages = 0
        self.push_declined = {"binary": 0, "compressed": 0}
        self.pop_requests = 0
        self.pop_messages = 0
        self.pop_handed_back = 0
        self.ack_requests = 0
        self.ack_messages = 0
        self.leases_live = 0
        self.leases_expired = 0
        self.dlq_depth = 0

        # --- timers
        self.timers_pending = 0
        self.timers_due = 0
        self.timers_oldest_late_s = 0.0
        self.timers_scheduled = 0
        self.timers_cancelled = {"cancelled": 0, "absent": 0}
        self.timers_schedule_rejected: dict[str, int] = {}
        self.timers_fired = {"appended": 0, "duplicate": 0, "retried": 0, "dead_lettered": 0}
        self.timers_fire_failures = {"permanent": 0, "transient": 0}
        self.timers_fire_lag_s = Histogram(LATE_BOUNDS_S)
        self.timers_tick_late_s = Histogram(LATE_BOUNDS_S)

        # --- key/value
        self.kv_ops: dict[str, int] = {}  # operation, outcome
        self.kv_bytes = {"written": 0, "read": 0}
        self.kv_op_ms: dict[str, float] = {}
        self.kv_read_rejected: dict[str, int] = {}
        self.kv_rows = 0
        self.kv_stored_bytes = 0
        self.kv_expired_not_pruned = 0
        self.kv_expiry_lag_s = 0.0

        # --- log and groups
        self.raft_index = {"log": 0, "committed": 0, "applied": 0, "durable": 0}
        self.raft_groups = {"leading": 0, "following": 0, "quiet": 0, "failed": 0}
        self.raft_inflight = 0
        self.raft_storage_full = 0
        self.disk_used_percent = {"node": 0.0, "cluster": 0.0}
        self.raft_proposals = 0
        self.raft_large_commands = 0
        self.raft_slow_commands = 0
        self.raft_leader_changes = 0
        self.raft_forward: dict[str, int] = {}
        self.admit_total = {"admitted": 0, "held": 0, "refused": 0}
        self.wal_fsync_s = Histogram(FSYNC_BOUNDS_S)
        self.wal_batch_entries = Histogram(BATCH_BOUNDS)
        self.store_bytes = 0
        self.scrub_rounds = 0
        self.storage_damaged = 0
        self.clock_offset_s = 0.0

        # --- actors and the loop
        self.inbox_depth: dict[str, int] = {}
        self.inbox_peak: dict[str, int] = {}
        self.loop_lag_s = Histogram(LAG_BOUNDS_S)
        self.loop_lag_avg_ms = 0.0

    @property
    def timers_dead_lettered(self) -> int:
        """Upstream's own family for one result of a fire."""
        return self.timers_fired["dead_lettered"]

    @property
    def requests_total(self) -> int:
        """HTTP requests answered."""
        return sum(sum(route.answers.values()) for route in self.routes)

    @property
    def messages_total(self) -> int:
        """Messages pushed and popped."""
        return self.push_messages + self.pop_messages

    def count_rejected(self, reason: str) -> None:
        """A POST of timers was refused."""
        self.timers_schedule_rejected[reason] = self.timers_schedule_rejected.get(reason, 0) + 1

    def note_rates(self, now_s: float) -> None:
        """Remember the totals of this moment; called about once a second."""
        self._rates.append((now_s, self.requests_total, self.messages_total))
        while now_s - self._rates[0][0] > RATE_WINDOW_S:
            self._rates.popleft()

    def rates(self) -> tuple[float, float]:
        """Requests and messages a second over the last RATE_WINDOW_S; 0 before there are two moments to compare."""
        if len(self._rates) < 2:
            return 0.0, 0.0
        (then_s, requests_then, messages_then), (now_s, requests_now, messages_now) = self._rates[0], self._rates[-1]
        elapsed_s = now_s - then_s
        return (requests_now - requests_then) / elapsed_s, (messages_now - messages_then) / elapsed_s


class Kind(Enum):
    """How a family is shown."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """A row of the table: name and kind shown, attribute of Metrics, words for people, label of its parts.

    label: of several, a comma between them; then it stands between their values in the parts too.
    """

    name: str
    kind: Kind
    attribute: str
    meaning: str
    label: str = ""


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
FAMILIES = (
    Family("queen_http_connections", _G, "connections", "Client connections open now."),
    Family("queen_http_connections_accepted_total", _C, "connections_accepted", "Client connections taken."),
    Family("queen_http_connections_refused_total", _C, "connections_refused", "Client connections beyond the bound."),
    Family("queen_parked_long_polls", _G, "parked_polls", "Pops that wait for a message."),
    Family("queen_process_push_requests_total", _C, "push_requests", "Push calls."),
    Family("queen_process_push_messages_total", _C, "push_messages", "Messages pushed."),
    Family("queen_push_declined_total", _C, "push_declined", "Bodies in a form that is not spoken here.", "form"),
    Family("queen_process_pop_requests_total", _C, "pop_requests", "Pop calls."),
    Family("queen_process_pop_messages_total", _C, "pop_messages", "Messages popped."),
    Family("queen_pop_handed_back_total", _C, "pop_handed_back", "Pops whose answer nobody received."),
    Family("queen_process_ack_requests_total", _C, "ack_requests", "Ack calls."),
    Family("queen_process_ack_messages_total", _C, "ack_messages", "Messages acknowledged."),
    Family("queen_leases_live", _G, "leases_live", "Leases held by consumers."),
    Family("queen_leases_expired_total", _C, "leases_expired", "Leases that ran out."),
    Family("queen_dlq_depth", _G, "dlq_depth", "Dead letters kept."),
    Family("queen_timers_pending", _G, "timers_pending", "Timers scheduled and not fired."),
    Family("queen_timers_due", _G, "timers_due", "Timers due and not fired."),
    Family("queen_timers_oldest_late_seconds", _G, "timers_oldest_late_s", "Lateness of the oldest due timer."),
    Family("queen_timers_scheduled_total", _C, "timers_scheduled", "Timers scheduled or rescheduled."),
    Family("queen_timers_cancelled_total", _C, "timers_cancelled", "Cancels by what they found.", "status"),
    Family("queen_timers_schedule_rejected_total", _C, "timers_schedule_rejected", "Refused schedules.", "reason"),
    Family("queen_timers_fired_total", _C, "timers_fired", "Fires by what became of them.", "result"),
    Family("queen_timers_dlq_total", _C, "timers_dead_lettered", "Timers that became dead letters."),
    Family("queen_timers_fire_failures_total", _C, "timers_fire_failures", "Refused fires by kind.", "class"),
    Family("queen_timers_fire_lag_seconds", _H, "timers_fire_lag_s", "Stamp of the fire minus deliverAt."),
    Family("queen_timers_tick_late_seconds", _H, "timers_tick_late_s", "Lateness of the timer tick itself."),
    Family("queen_kv_ops_total", _C, "kv_ops", "Key/value operations by what became of them.", "op,outcome"),
    Family("queen_kv_bytes_total", _C, "kv_bytes", "Bytes of key/value values.", "direction"),
    Family("queen_kv_op_duration_milliseconds", _G, "kv_op_ms", "Latency of the last call with it.", "op"),
    Family("queen_kv_read_rejected_total", _C, "kv_read_rejected", "Reads refused before the store.", "reason"),
    Family("queen_kv_rows", _G, "kv_rows", "Key/value rows stored, of the groups led here."),
    Family("queen_kv_stored_bytes", _G, "kv_stored_bytes", "Bytes of their keys and values."),
    Family("queen_kv_expired_not_pruned", _G, "kv_expired_not_pruned", "Dead key/value rows not swept yet."),
    Family("queen_kv_expiry_lag_seconds", _G, "kv_expiry_lag_s", "Since the oldest of them ended."),
    Family("queen_raft_index", _G, "raft_index", "Places in the logs, summed over the groups.", "kind"),
    Family("queen_raft_groups", _G, "raft_groups", "Groups on this node.", "state"),
    Family("queen_raft_inflight", _G, "raft_inflight", "Entries proposed and not applied."),
    Family("queen_raft_storage_full", _G, "raft_storage_full", "1 while the disk gate is closed."),
    Family("queen_disk_used_percent", _G, "disk_used_percent", "Of this node's volume, and of the fullest.", "of"),
    Family("queen_raft_proposals_total", _C, "raft_proposals", "Entries proposed."),
    Family("queen_raft_large_commands_total", _C, "raft_large_commands", "Commands larger than an entry's bound."),
    Family("queen_raft_slow_commands_total", _C, "raft_slow_commands", "Commands that applied slowly."),
    Family("queen_raft_leader_changes_total", _C, "raft_leader_changes", "Changes of leader seen."),
    Family("queen_raft_forward_total", _C, "raft_forward", "Commands sent on to a leader.", "kind"),
    Family("queen_raft_admit_total", _C, "admit_total", "Admissions by outcome.", "outcome"),
    Family("queen_wal_fsync_seconds", _H, "wal_fsync_s", "Time of one sync of the write-ahead log."),
    Family("queen_wal_batch_entries", _H, "wal_batch_entries", "Entries in one write of the write-ahead log."),
    Family("queen_store_bytes", _G, "store_bytes", "Bytes of the store on disk."),
    Family("queen_scrub_rounds_total", _C, "scrub_rounds", "Times that all on disk was read again and found sound."),
    Family("queen_storage_damaged", _G, "storage_damaged", "1 when reading it again found damage."),
    Family("queen_clock_offset_seconds", _G, "clock_offset_s", "Wall clock minus group clock."),
    Family("queen_inbox_depth", _G, "inbox_depth", "Messages waiting at an actor.", "actor"),
    Family("queen_inbox_peak", _G, "inbox_peak", "Most messages that ever waited at an actor.", "actor"),
    Family("queen_loop_lag_seconds", _H, "loop_lag_s", "Lateness of a sleep: how long the core's loop was busy."),
    Family("queen_event_loop_lag_avg_milliseconds", _G, "loop_lag_avg_ms", "Average of the same over about a minute."),
)


class Exposition(Collector):
    """Shows a node's numbers to Prometheus, from a registry of its own."""

    def __init__(self, metrics: Metrics, monotonic_s: Callable[[], float]) -> None:
        self._metrics, self._monotonic_s = metrics, monotonic_s
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def refresh(self) -> Iterator[None]:
        """Bring the gauges up to date, in steps between which others may run: of 10,000 groups there is much to sum."""
        for refresh in self._metrics.before_scrape:
            yield from refresh()

    def text(self) -> bytes:
        """All families in Prometheus' text format 0.0.4, as of the last `refresh`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        uptime_s = self._monotonic_s() - metrics.started_s
        yield GaugeMetricFamily("queen_uptime_seconds", "Seconds since the start.", value=uptime_s)
        yield GaugeMetricFamily(
            "queen_process_resident_memory_bytes", "Memory of the node's processes: its own, doors, the log's writer.",
            value=usage().resident_bytes)
        for family in FAMILIES:
            yield _shown(family, getattr(metrics, family.attribute))
        yield from _routes_shown(metrics.routes)
        yield from _peers_shown(metrics.peers)


def _shown(family: Family, value: float | Mapping[str, float] | Histogram) -> Metric:
    if isinstance(value, Histogram):
        histogram = HistogramMetricFamily(family.name, family.meaning)
        histogram.add_metric([], *_buckets(value))
        return histogram
    make = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    shown = make(family.name, family.meaning, labels=family.label.split(",") if family.label else [])
    parts = value.items() if isinstance(value, Mapping) else [("", value)]
    for part, number in parts:
        shown.add_metric(part.split(",") if family.label else [], number)
    return shown


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    names = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True)), histogram.total


def _routes_shown(routes: Sequence[RouteCounts]) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "queen_http_requests_total", "Requests answered.", labels=["method", "route", "status"])
    seconds = HistogramMetricFamily(
        "queen_http_request_seconds", "From a request's last byte to its answer.", labels=["method", "route"])
    for route in routes:
        if route.answers:  # a route that nobody called would only lengthen every scrape
            for status, count in route.answers.items():
                answers.add_metric([route.method, route.pattern, str(status)], count)
            seconds.add_metric([route.method, route.pattern], *_buckets(route.seconds))
    yield answers
    yield seconds


def _peers_shown(peers: Mapping[NodeId, PeerCounts]) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "queen_peer_connected", "1 while the connection to the peer is up.", labels=["peer", "connection"])
    connects = CounterMetricFamily(
        "queen_peer_connects_total", "Connections that came up.", labels=["peer", "connection"])
    round_trip = GaugeMetricFamily("queen_peer_round_trip_seconds", "The last ping's.", labels=["peer"])
    frames = CounterMetricFamily(
        "queen_peer_frames_total", "Frames to and from a peer.", labels=["peer", "direction", "kind"])
    sizes = CounterMetricFamily("queen_peer_bytes_total", "Their bytes.", labels=["peer", "direction", "kind"])
    dropped = CounterMetricFamily(
        "queen_peer_dropped_total",
        "What a full queue or a missing connection did not take (refused), and what waited when one ended (lost).",
        labels=["peer", "reason", "kind"])
    for node_id, figures in peers.items():
        peer = str(node_id)
        for purpose in (Purpose.CONTROL, Purpose.BULK):
            up.add_metric([peer, purpose.value], int(purpose in figures.standing))
            connects.add_metric([peer, purpose.value], figures.connects.get(purpose, 0))
        if figures.round_trip_s is not None:
            round_trip.add_metric([peer], figures.round_trip_s)
        for family, first, counts in (
            (frames, "sent", figures.frames_sent), (frames, "taken", figures.frames_taken),
            (sizes, "sent", figures.bytes_sent), (sizes, "taken", figures.bytes_taken),
            (dropped, "refused", figures.refused), (dropped, "lost", figures.lost),
        ):
            for kind, count in counts.items():
                family.add_metric([peer, first, kind.name.lower()], count)
    yield from (up, connects, round_trip, frames, sizes, dropped)
