"""Which handlers stand behind the routes: the one place where the doors meet the broker."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from queen_node import config
from queen_node.broker import Broker
from queen_node.commands import RulesOfFire
from queen_node.http.handlers.ack import AckHandlers
from queen_node.http.handlers.configure import ConfigureHandlers
from queen_node.http.handlers.deadletters import DeadLetterHandlers
from queen_node.http.handlers.kv import KvHandlers
from queen_node.http.handlers.kv_calls import KvLimits
from queen_node.http.handlers.kv_gate import KvGate
from queen_node.http.handlers.locks import LockHandlers
from queen_node.http.handlers.operations import HealthView, Operations, ReadyLimits
from queen_node.http.handlers.pop import PopHandlers
from queen_node.http.handlers.push import PushHandlers
from queen_node.http.handlers.timer_calls import TimerLimits
from queen_node.http.handlers.timers import TimerHandlers
from queen_node.http.handlers.transaction import COMMAND_MAX_BYTES, TransactionHandlers
from queen_node.http.routes import Handler, Router, build_router
from queen_node.ids import IdMint
from queen_node.kv_figures import KvFigures
from queen_node.metrics import Metrics
from queen_node.quotas import Quotas, Rate

VERSION = "0.1.0"
GARBAGE_YOUNG = 20_000  # objects made before a collection: at the default of 700 one came every 15 requests


def rules_of_fire(settings: config.Settings) -> RulesOfFire:
    """How refused fires are tried again on this node."""
    fail_queue, _, kind = settings.test_fire_fail_queue.partition(":")
    return RulesOfFire(
        settings.fire_backoff_min_ms, settings.fire_backoff_max_ms, settings.fire_transient_backoff_ms,
        settings.fire_max_attempts, fail_queue.encode(), kind == "transient")


def operations(settings: config.Settings, view: HealthView, metrics: Metrics) -> Mapping[str, Handler]:
    """What answers questions after the node itself."""
    return Operations(view, metrics, ready_limits(settings), VERSION).handlers()


def ready_limits(settings: config.Settings) -> ReadyLimits:
    """When a node counts as ready."""
    return ReadyLimits(lag_ms=settings.ready_lag_ms, quorum_ms=settings.ready_quorum_ms)


def build_handlers(
    settings: config.Settings, broker: Broker, operations: Mapping[str, Handler], metrics: Metrics, *, doors: int = 1,
) -> Router:
    """The router with every handler of this release. doors: how many share the node's rates."""
    ids = IdMint()
    call_ms, push_ms = settings.call_timeout_ms, settings.pop_timeout_ms
    rules = None if rules_of_fire(settings) == RulesOfFire() else rules_of_fire(settings)
    limits = TimerLimits(
        operations_max=settings.timers_max_ops_per_call, payload_max_bytes=settings.timers_max_payload_bytes,
        horizon_ms=settings.timers_max_horizon_s * 1000, command_max_bytes=settings.entry_max_bytes)
    quotas = Quotas(
        reads=_share(settings.kv_read_rate, settings.kv_read_burst, doors),
        writes=_share(settings.kv_write_rate, settings.kv_write_burst, doors),
        clock_ns=time.monotonic_ns)

    def firing() -> bool:
        return settings.timer_tick_ms > 0

    timers = TimerHandlers(
        broker, ids, quotas, limits, firing=firing, timeout_ms=call_ms, on_rejected=metrics.count_rejected,
        rules=rules)
    kv_limits = KvLimits(settings.kv_max_ops_per_call, settings.kv_max_keys_per_call, settings.kv_max_value_bytes)
    transactions = TransactionHandlers(
        broker, ids, limits, kv_limits, firing=firing, timeout_ms=call_ms, rules=rules,
        command_max_bytes=min(COMMAND_MAX_BYTES, settings.entry_max_bytes), caps_of=quotas.caps_of)
    gate = KvGate(broker, quotas, KvFigures(metrics, time.monotonic), timeout_ms=call_ms)
    kv = KvHandlers(gate, ids, kv_limits, command_max_bytes=settings.entry_max_bytes)
    pushes = PushHandlers(broker, ids, timeout_ms=push_ms)
    pops = PopHandlers(broker, ids, wait_default_ms=push_ms, subscription_mode=settings.subscription_mode)
    acks = AckHandlers(broker, ids, timeout_ms=call_ms)
    return build_router(
        {
            **operations,
            "timers_batch": timers.apply,
            "timers_cancel": timers.cancel,
            "timers_peek": timers.peek,
            "timers_list": timers.look,
            **kv.handlers(),
            **LockHandlers(gate, ids).handlers(),
            "push": pushes.push,
            "pop_queue": pops.pop_queue,
            "pop_partition": pops.pop_partition,
            "ack": acks.ack,
            "ack_batch": acks.ack_batch,
            "lease_extend": acks.extend,
            "transaction": transactions.commit,
            "configure": ConfigureHandlers(broker, ids, timeout_ms=call_ms).configure,
            "dlq_list": DeadLetterHandlers(broker, timeout_ms=call_ms).list,
        },
        {"push": pushes.before_push, "transaction": transactions.before_commit}, tenancy=settings.tenancy_header)


def put_off_garbage() -> None:
    """Until `settle_garbage`: what a boot makes stays, and the collector would walk over it again and again."""
    gc.disable()


def settle_garbage() -> None:
    """What was made during the boot lives as long as the process: keep the collector from walking over it (M-52)."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(GARBAGE_YOUNG, 20, 50)


def _share(per_second: int, burst: int, doors: int) -> Rate:
    """A door's part of a rate: several doors together let through no more than one would."""
    return Rate(per_second / doors, max(1, burst // doors))
