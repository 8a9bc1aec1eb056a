"""Every setting: environment variable, attribute, type, default, meaning, one line each.

All configuration is environment variables, read once at start (config.md). A bad value of any variable stops the boot
and names the variable (README 24); so does a feature that is switched on and not built yet: never silently insecure.
Unset and empty both mean the default.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from queen_node.peers import (
    check_token,
    listen_address,
    open_port_warning,
    own,
    parse_address,
    parse_cell_id,
    parse_force_recover,
    parse_node_id,
    parse_peers,
)
from queen_node.versions import FORMAT

MiB = 1024 * 1024
DOORS_MAX = 16
KEYS_MAX = 4096  # that a key/value call may name: it looks them all up in one turn of the loop, 20 ms
CLUSTER_ELECTION_MS, CLUSTER_HEARTBEAT_MS = 1000, 100  # cluster.md 6


class BadSetting(Exception):
    """A variable has a value that the node must not start with. Its text names the variable and says what to do."""

    def __init__(self, env: str, problem: str) -> None:
        super().__init__(f"{env}: {problem}")
        self.env = env


class Row(NamedTuple):
    """What the table holds of a setting, beside its attribute and default. secret: its value is never shown."""

    env: str
    parse: Callable[[str], object]
    meaning: str
    also: str = ""  # another name of the variable; the first one wins
    secret: bool = False
    test_hook: bool = False


_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


def _parse_switch(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE and word not in _FALSE:
        raise ValueError("must be true/false, 1/0, yes/no or on/off")
    return word in _TRUE


def _whole_in(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ValueError("must be a whole number")
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"must be from {least} to {most}")
        return number

    return parse


def _clamped_to(least: int, most: int) -> Callable[[str], int]:
    parse_any = _whole_in(0, 10**18)
    return lambda text: min(max(parse_any(text), least), most)


def _one_of(*words: str, fold: bool = True) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.lower() if fold else text
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return word

    return parse


def _parse_node_id(text: str) -> int:
    return parse_node_id(text, socket.gethostname())


def _parse_doors(text: str) -> int:
    return usual_doors() if text.lower() == "auto" else _whole_in(0, DOORS_MAX)(text)


def usual_doors() -> int:
    """Door processes of a node that was told no number: with one core they would only take turns."""
    return 1 if len(os.sched_getaffinity(0)) > 1 else 0


def _row(default: Any, row: Row) -> Any:
    return field(default=default, metadata={"row": row})


def _whole(env: str, default: int, meaning: str, least: int = 1, most: int = 2**53, also: str = "") -> int:
    return cast(int, _row(default, Row(env, _whole_in(least, most), meaning, also)))


def _clamped(env: str, default: int, meaning: str, least: int, most: int, also: str = "") -> int:
    return cast(int, _row(default, Row(env, _clamped_to(least, most), meaning, also)))


def _switch(env: str, default: bool, meaning: str) -> bool:
    return cast(bool, _row(default, Row(env, _parse_switch, meaning)))


def _text(env: str, default: str, meaning: str, secret: bool = False) -> str:
    return cast(str, _row(default, Row(env, str, meaning, secret=secret)))


def _checked(env: str, check: Callable[[str], object], meaning: str, secret: bool = False) -> str:
    """A text that is kept as it is, once `check` has not raised."""
    def parse(text: str) -> str:
        check(text)
        return text

    return cast(str, _row("", Row(env, parse, meaning, secret=secret)))


def _word(env: str, default: str, words: tuple[str, ...], meaning: str) -> str:
    return cast(str, _row(default, Row(env, _one_of(*words), meaning)))


def _hook(env: str, meaning: str) -> str:
    return cast(str, _row("", Row(env, str, meaning, test_hook=True)))


_LEVELS = ("trace", "debug", "info", "warn", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force. Units are in the names; a size without a unit in its name is a count."""

    # --- server (config.md 1)
    port: int = _whole("PORT", 6632, "client HTTP port; 0 takes a free one", 0, 65535)
    bind_address: str = _text("QUEEN_BIND_ADDR", "0.0.0.0", "address the client port binds")
    server_id: str = _text("QUEEN_SERVER_ID", "", "name in logs and status; else the host name, else random")
    cell_id: str = _checked("QUEEN_CELL_ID", parse_cell_id, "the cluster's name; else a hash")
    max_body_bytes: int = _whole("QUEEN_MAX_BODY_BYTES", 64 * MiB, "a larger request body is 413")
    log_level: str = _word("LOG_LEVEL", "info", _LEVELS, "least level of a log line")
    log_json: bool = _switch("QUEEN_LOG_JSON", False, "one JSON object a line")
    call_timeout_ms: int = _clamped("QUEEN_STMT_TIMEOUT_MS", 30_000, "deadline of calls but push and pop", 1, 60_000)
    pop_timeout_ms: int = _clamped(
        "POP_DEFAULT_TIMEOUT_MS", 30_000, "deadline of a push; wait of a long poll", 1, 60_000, "DEFAULT_TIMEOUT")
    subscription_mode: str = _text("DEFAULT_SUBSCRIPTION_MODE", "new", "where a new consumer group starts")
    http_head_timeout_ms: int = _whole("QUEEN_HTTP_HEAD_TIMEOUT_MS", 10_000, "a request's head must be complete within")
    http_body_min_bytes_per_s: int = _whole("QUEEN_HTTP_BODY_MIN_BYTES_PER_S", 1024, "least over any 10 s", 0)
    http_idle_timeout_ms: int = _whole("QUEEN_HTTP_IDLE_TIMEOUT_MS", 75_000, "an idle connection is closed after")
    http_connections_max: int = _whole("QUEEN_HTTP_CONNECTIONS_MAX", 10_000, "client connections; beyond it 503")
    doors: int = _row(0, Row("QUEEN_DOORS", _parse_doors, "door processes; 0: none; auto: 1 with two cores, else 0"))
    tls_cert: str = _text("QUEEN_TLS_CERT", "", "PEM file; not built: stops the boot")
    tls_key: str = _text("QUEEN_TLS_KEY", "", "PEM file; not built: stops the boot")
    tls_ca: str = _text("QUEEN_TLS_CA", "", "PEM file of the peers' authority; not built: stops the boot")

    # --- authentication (config.md 2): known, not built; JWT_ENABLED stops the boot
    jwt_enabled: bool = _switch("JWT_ENABLED", False, "require tokens; not built: stops the boot")
    jwt_algorithm: str = _row("HS256", Row("JWT_ALGORITHM", _one_of(  # case matters (TA-30)
        "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "EdDSA", "auto", fold=False), "of tokens"))
    jwt_secret: str = _text("JWT_SECRET", "", "HMAC secret", secret=True)
    jwt_public_key: str = _text("JWT_PUBLIC_KEY", "", "static RSA or Ed25519 key")
    jwt_jwks_url: str = _text("JWT_JWKS_URL", "", "key set")
    jwt_jwks_refresh_s: int = _whole("JWT_JWKS_REFRESH_INTERVAL", 3600, "refresh period of the key set")
    jwt_jwks_timeout_ms: int = _whole("JWT_JWKS_TIMEOUT_MS", 5000, "fetch timeout of the key set")
    jwt_issuer: str = _text("JWT_ISSUER", "", "enforced when set")
    jwt_audience: str = _text("JWT_AUDIENCE", "", "enforced when set")
    jwt_clock_skew_s: int = _whole("JWT_CLOCK_SKEW", 30, "tolerance for exp, nbf, iat", 0)
    jwt_skip_paths: str = _text("JWT_SKIP_PATHS", "/health,/metrics/prometheus,/metrics,/", "paths without tokens")
    jwt_roles_claim: str = _text("JWT_ROLES_CLAIM", "role", "claim holding one role")
    jwt_roles_array_claim: str = _text("JWT_ROLES_ARRAY_CLAIM", "roles", "claim holding several roles")
    jwt_role_admin: str = _text("JWT_ROLE_ADMIN", "admin", "role name")
    jwt_role_read_write: str = _text("JWT_ROLE_READ_WRITE", "read-write", "role name")
    jwt_role_read_only: str = _text("JWT_ROLE_READ_ONLY", "read-only", "role name")
    jwt_role_write_only: str = _text("JWT_ROLE_WRITE_ONLY", "write-only", "role name")

    # --- tenancy and security (config.md 3)
    tenancy_header: bool = _switch("QUEEN_TENANCY_HEADER", False, "read x-queen-tenant")
    kv_trusted_proxy: bool = _switch("QUEEN_KV_TRUSTED_PROXY", False, "x-queen-tenant is set by a trusted front")
    encryption_key: str = _row("", Row("QUEEN_ENCRYPTION_KEY", str, "64 hex; not built: stops the boot", secret=True))

    # --- timers (config.md 4)
    timer_tick_ms: int = _whole("QUEEN_RAFT_TIMER_TICK_MS", 50, "timer step; 0: none fires", 0, 60_000)
    timer_fire_batch: int = _whole("QUEEN_RAFT_TIMER_FIRE_BATCH", 256, "timers a fire step", 1, 10_000)
    timer_fire_max_bytes: int = _whole("QUEEN_RAFT_TIMER_FIRE_MAX_BYTES", 4 * MiB, "payload bytes a step")
    timers_max_horizon_s: int = _whole("QUEEN_TIMERS_MAX_HORIZON_S", 7_776_000, "longest delay; else 403", 1, 10**10)
    timers_max_payload_bytes: int = _whole("QUEEN_TIMERS_MAX_PAYLOAD_BYTES", MiB, "decoded payload; beyond it 413")
    timers_max_ops_per_call: int = _whole("QUEEN_TIMERS_MAX_OPS_PER_CALL", 256, "operations a call", 1, 10_000)
    fire_backoff_min_ms: int = _whole("QUEEN_SWEEPER_BACKOFF_MIN_MS", 1000, "first wait after a failed fire")
    fire_backoff_max_ms: int = _whole("QUEEN_SWEEPER_BACKOFF_MAX_MS", 60_000, "longest wait after a failed fire")
    fire_transient_backoff_ms: int = _whole("QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS", 1000, "the same, transient failure")
    fire_max_attempts: int = _whole("QUEEN_SWEEPER_MAX_ATTEMPTS", 5, "failures before the dead letter", 1, 1000)

    kv_max_value_bytes: int = _whole("QUEEN_KV_MAX_VALUE_BYTES", 65_536, "a value; beyond it 413", 1, MiB)
    kv_max_ops_per_call: int = _whole("QUEEN_KV_MAX_OPS_PER_CALL", 256, "operations a call", 1, 10_000)
    kv_max_keys_per_call: int = _whole("QUEEN_KV_MAX_KEYS_PER_CALL", 1024, "keys that a call names", 1, KEYS_MAX)
    kv_require_grant: bool = _switch("QUEEN_KV_REQUIRE_GRANT", False, "no quota row: denied; not built: stops the boot")
    kv_max_tenants: int = _whole("QUEEN_KV_MAX_TENANTS", 10_000, "unknown tenants tracked")
    kv_quota_release_percent: int = _whole("QUEEN_KV_QUOTA_RELEASE_PERCENT", 90, "of a cap: refusals end", 1, 100)
    kv_sweep_ms: int = _whole("QUEEN_RAFT_KV_SWEEP_MS", 1000, "between looks for rows whose time is over", 1, 600_000)
    kv_sweep_limit: int = _whole("QUEEN_RAFT_KV_SWEEP_LIMIT", 512, "rows that a step removes", 1, 10_000)
    kv_read_rate: int = _whole("QUEEN_KV_READ_RATE", 200, "reads a second and tenant", 1, 10**9)
    kv_read_burst: int = _whole("QUEEN_KV_READ_BURST", 400, "reads that may come at once", 1, 10**9)
    kv_write_rate: int = _whole("QUEEN_KV_WRITE_RATE", 100, "writes, and calls that schedule, a second", 1, 10**9)
    kv_write_burst: int = _whole("QUEEN_KV_WRITE_BURST", 200, "the same at once", 1, 10**9)

    # --- one node (config.md 5)
    raft_dir: str = _text("QUEEN_RAFT_DIR", "/var/lib/queen/raft", "data directory, never shared")
    replicator: str = _word("QUEEN_RAFT_REPLICATOR", "local", ("local", "openraft", "raft"), "local: a single node")
    node_id: int = _row(1, Row("QUEEN_RAFT_NODE_ID", _parse_node_id, "id of this node, or ordinal"))
    raft_peers: str = _checked("QUEEN_RAFT_PEERS", parse_peers, "id=raft/http,...: members at first boot")
    raft_listen: str = _checked("QUEEN_RAFT_LISTEN", parse_address, "host:port for peers; else own raft port")
    raft_token: str = _checked("QUEEN_RAFT_TOKEN", check_token, "secret of every raft call", secret=True)
    raft_join: bool = _switch("QUEEN_RAFT_JOIN", False, "an empty node waits to be added")
    raft_force_recover: str = _checked(
        "QUEEN_RAFT_FORCE_RECOVER", parse_force_recover, "unsafe: this node, <id>, becomes the only voter")
    raft_apply_skip: str = _text("QUEEN_RAFT_APPLY_SKIP", "", "[g<group>/]<index>:<digest> entries to step over")
    election_ms: int = _whole("QUEEN_RAFT_ELECTION_MS", 150, "silence before an election, or twice it", 10, 600_000)
    heartbeat_ms: int = _whole("QUEEN_RAFT_HEARTBEAT_MS", 50, "between heartbeats", 1, 600_000)
    promote_max_lag: int = _whole("QUEEN_RAFT_PROMOTE_MAX_LAG", 1000, "entries a learner may lack when promoted")
    cluster_version_ms: int = _whole("QUEEN_RAFT_CLUSTER_VERSION_MS", 1000, "between raises of the format; 0: never", 0)
    ready_lag_ms: int = _whole("QUEEN_RAFT_READY_LAG_MS", 2000, "a node that lags more is not ready")
    ready_lag_entries: int = _whole("QUEEN_RAFT_READY_LAG_ENTRIES", 1000, "below this gap a node counts as caught up")
    ready_quorum_ms: int = _whole("QUEEN_RAFT_READY_QUORUM_MS", 5000, "a majority was heard within; 0: not checked", 0)
    fwd_inflight: int = _whole("QUEEN_RAFT_FWD_INFLIGHT", 4096, "calls to the leader in flight")
    hold_ms: int = _whole("QUEEN_RAFT_HOLD_MS", 8000, "a call is held while no leader is known", 0)
    max_tenants: int = _whole("QUEEN_MAX_TENANTS", 100_000, "tenants; beyond it 403")

    # --- log, snapshots, storage (config.md 6)
    batch_max_commands: int = _whole("QUEEN_RAFT_BATCH_MAX_CMDS", 256, "commands an entry holds (M-50)", 1, 4096)
    batch_max_bytes: int = _whole("QUEEN_RAFT_BATCH_MAX_BYTES", MiB, "bytes an entry holds (M-50)", 1024, 4 * MiB)
    entry_max_bytes: int = _whole("QUEEN_RAFT_ENTRY_MAX_BYTES", 96 * MiB, "largest command", 1024)
    command_queue_depth: int = _whole("QUEEN_RAFT_COMMAND_QUEUE_DEPTH", 16_384, "commands waiting to be proposed")
    request_id_window_s: int = _whole("QUEEN_RAFT_REQUEST_ID_WINDOW_S", 60, "outcomes answer an internal retry for")
    purge_hold_s: int = _whole("QUEEN_RAFT_PURGE_HOLD_S", 600, "log kept for a silent member", 0)
    log_cache_mb: int = _whole("QUEEN_RAFT_LOG_CACHE_MB", 512, "entries kept in memory for followers", 0)
    log_budget_mb: int = _whole("QUEEN_RAFT_LOG_BUDGET_MB", 256, "log kept for members that lag (M-10)")
    segment_bytes: int = _whole("QUEEN_RAFT_SEGMENT_BYTES", 64 * MiB, "size at which a new log file begins", 64 * 1024)
    disk_high_percent: int = _whole("QUEEN_RAFT_DISK_HIGH_PCT", 85, "the disk gate closes", 1, 100)
    disk_low_percent: int = _whole("QUEEN_RAFT_DISK_LOW_PCT", 80, "the disk gate opens again", 1, 100)
    scrub_every_s: int = _whole("QUEEN_STORE_SCRUB_EVERY_S", 21_600, "background verification; 0: off", 0)
    scrub_rows_per_s: int = _whole("QUEEN_STORE_SCRUB_ROWS_PER_S", 2000, "pace of verification; 0: off", 0)

    # --- admission, consumption, retention (config.md 7)
    admit_max_mb: int = _whole("QUEEN_RAFT_ADMIT_MAX_MB", 128, "write bytes waiting to be proposed; 0: no bound", 0)
    admit_hold_ms: int = _whole("QUEEN_RAFT_ADMIT_HOLD_MS", 15_000, "wait before 429, give or take a quarter", 0)
    admit_forward_hold_ms: int = _whole("QUEEN_RAFT_ADMIT_FWD_HOLD_MS", 2000, "the same for a forwarded command", 0)
    pop_reply_margin_ms: int = _whole("QUEEN_RAFT_POP_REPLY_MARGIN_MS", 50, "a pop so close to its end is empty", 0)
    slow_command_ms: int = _whole("QUEEN_RAFT_SLOW_COMMAND_MS", 50, "log a command that applies more slowly")
    retention_interval_ms: int = _whole("RETENTION_INTERVAL", 5000, "between retention rounds")
    retention_batch: int = _whole("RETENTION_BATCH_SIZE", 1000, "messages a round removes from a partition")
    retention_scan_per_s: int = _whole("QUEEN_RAFT_RETENTION_SCAN_PER_S", 50_000, "partitions walked a second")
    txn_window_min_s: int = _whole("QUEEN_RAFT_TXN_WINDOW_MIN_S", 900, "least time hashes and rows are kept", 0)
    partition_cleanup_days: int = _whole("PARTITION_CLEANUP_DAYS", 30, "idle empty partitions are deleted after")
    partition_cleanup: bool = _switch("QUEEN_PARTITION_CLEANUP_ENABLED", True, "delete idle empty partitions")
    trace_retention_s: int = _whole("QUEEN_RAFT_TRACE_RETENTION_S", 604_800, "traces are kept for")
    metrics_flush_ms: int = _whole("METRICS_FLUSH_MS", 60_000, "width of a metric bucket", 1000)

    # --- test hooks (config.md 10): refused without QUEEN_TEST_HOOKS
    test_hooks: bool = _switch("QUEEN_TEST_HOOKS", False, "read the test hooks below")
    test_fsync_delay_ms: int = _row(
        0, Row("QUEEN_TEST_FSYNC_DELAY_MS", _whole_in(0, 600_000), "every flush sleeps this long", test_hook=True))
    test_clock_file: str = _hook("QUEEN_TEST_CLOCK_FILE", "file with ms to add to the wall clock")
    test_drop_unsynced: bool = _row(
        False, Row("QUEEN_TEST_DROP_UNSYNCED", _parse_switch, "a start after a kill rolls back to the last flush",
                   test_hook=True))
    test_apply_refuse_key: str = _hook("QUEEN_TEST_APPLY_REFUSE_KEY", "apply refuses a KV write of this key")
    test_fire_fail_queue: str = _hook("QUEEN_TEST_FIRE_FAIL_QUEUE", "fires into this queue fail: <queue>[:transient]")
    test_format: int = _row(
        0, Row("QUEEN_TEST_FORMAT", _whole_in(0, FORMAT), "reads formats up to it, as an earlier release (CL-132)",
               test_hook=True))
    test_net_file: str = _hook("QUEEN_TEST_NET_FILE", "file with from:<node> and to:<node>: what is lost")
    test_disk_file: str = _hook("QUEEN_TEST_DISK_FILE", "file with the percent of the volume that counts as used")
    test_crash_at: str = _hook("QUEEN_TEST_CRASH_AT", "<crash point>[:count] where the process kills itself")


# Accepted, checked for their form, no effect (config.md, "alias").
_NO_EFFECT: Mapping[str, Callable[[str], object]] = {
    "RUST_LOG": str,
    "QUEEN_RAFT_MAX_CLOCK_SKEW_MS": _whole_in(0, 2**53),  # leases are timed by the group clock (M-23)
    "QUEEN_RAFT_CLIENT_OFFLOAD": _parse_switch,
    "QUEEN_RAFT_FWD_STREAMS": _whole_in(1, 64),
    "QUEEN_RAFT_FOLLOWER_ANSWER_AT_DONE": _parse_switch,
    "QUEEN_RAFT_GROUPS": _whole_in(1, 64),
    "QUEEN_TENANT_GROUPS": str,
    "QUEEN_RAFT_PIPELINE": _whole_in(1, 2**53),
    "QUEEN_RAFT_ANSWER_AT_COMMIT": _parse_switch,
    "QUEEN_RAFT_LOG_KEEP": _whole_in(0, 2**53),
    "QUEEN_RAFT_DURABLE_EVERY_MS": _whole_in(0, 2**53),
    "QUEEN_RAFT_DURABLE_EVERY_BYTES": _whole_in(0, 2**53),
    "QUEEN_QLOG_SEAL_AGE_S": _whole_in(0, 2**53),
    "QUEEN_QLOG_SHARDS": _whole_in(0, 2**53),
    "QUEEN_RAFT_QLOG_ZSTD_LEVEL": _whole_in(-100, 100),
    "QUEEN_CONSUME_CHECKPOINT_MS": _whole_in(0, 2**53),
    "QUEEN_CONSUME_LEADER_LEASE_MS": _whole_in(0, 2**53),
    "QUEEN_CONSUME_FAST": _parse_switch,
    "QUEEN_CONSUME_TXN_TTL_MS": _whole_in(0, 2**53),
    "QUEEN_CONSUME_IDLE_UNLOAD_S": _whole_in(0, 2**53),
    "QUEEN_CONSUME_ROWS_PER_COMMAND": _whole_in(1, 2**53),
}
_MUST_STAY = {  # no effect, and one value is refused because it would promise one
    "QUEEN_CONSUME_FAST": (False, "an answer before the commit is unsafe and not offered"),
    "QUEEN_RAFT_CLIENT_OFFLOAD": (True, "every node serves its own clients"),
}

# Features that do not exist here: one warning when a variable of theirs is set (config.md 9).
_RESERVED = (
    "QUEEN_PROXY_", "QUEEN_EDGE_", "QUEEN_LOGIN_", "QUEEN_PUBLIC_ORIGINS", "GOOGLE_", "GITHUB_", "QUEEN_LINK_",
    "QUEEN_KAFKA_", "QUEEN_S3_", "QUEEN_EPHEMERAL_",
)

# Attributes whose feature is not built: any value but the default would promise what is not kept.
_NOT_BUILT = {
    "jwt_enabled": "tokens are not checked by this release: without them anybody could do anything",
    "tls_cert": "this release speaks no TLS",
    "tls_key": "this release speaks no TLS",
    "tls_ca": "this release speaks no TLS",
    "encryption_key": "this release encrypts nothing",
    "kv_require_grant": "this release knows no grants: nobody would be denied",
}


# Attributes that a later release reads: whoever sets one should know that it does nothing yet.
_NO_EFFECT_YET = (
    "kv_max_tenants", "kv_quota_release_percent", "fwd_inflight", "hold_ms", "request_id_window_s", "purge_hold_s",
    "log_cache_mb",
    "admit_forward_hold_ms", "retention_interval_ms", "retention_batch",
    "retention_scan_per_s", "partition_cleanup_days", "partition_cleanup", "trace_retention_s", "metrics_flush_ms",
    "jwt_algorithm", "jwt_secret", "jwt_public_key", "jwt_jwks_url", "jwt_jwks_refresh_s", "jwt_jwks_timeout_ms",
    "jwt_issuer", "jwt_audience", "jwt_clock_skew_s", "jwt_skip_paths", "jwt_roles_claim", "jwt_roles_array_claim",
    "jwt_role_admin", "jwt_role_read_write", "jwt_role_read_only", "jwt_role_write_only",
)


def reads_format(settings: Settings) -> int:
    """The latest format that this node says it reads."""
    return settings.test_format or FORMAT


def rows() -> dict[str, Row]:
    """The table: attribute of Settings -> its row, in order."""
    return {each.name: each.metadata["row"] for each in fields(Settings)}


def load(environ: Mapping[str, str]) -> Settings:
    """The settings that an environment asks for. Raises BadSetting for the first variable that must stop the boot."""
    values: dict[str, Any] = {}
    for attribute, row in rows().items():
        text = _given(environ, row.env) or (_given(environ, row.also) if row.also else "")
        if text:
            values[attribute] = _parsed(row.env if _given(environ, row.env) else row.also, row.parse, text)
    for env, parse in _NO_EFFECT.items():
        if text := _given(environ, env):
            value = _parsed(env, parse, text)
            if env in _MUST_STAY and value != _MUST_STAY[env][0]:
                raise BadSetting(env, f"cannot be {text}: {_MUST_STAY[env][1]}")
    if not values.get("server_id"):
        values["server_id"] = socket.gethostname() or f"queen-{secrets.token_hex(4)}"
    if "doors" not in values:
        values["doors"] = usual_doors()
    if values.get("raft_peers"):  # elections over a network take longer than those of a lone voter
        values = {"election_ms": CLUSTER_ELECTION_MS, "heartbeat_ms": CLUSTER_HEARTBEAT_MS} | values
    if (level := _given(environ, "RUST_LOG").lower()) in _LEVELS:
        values["log_level"] = level  # the second wins; its longer filters mean nothing here
    settings = Settings(**values)
    _check(settings)
    return settings


def _given(environ: Mapping[str, str], env: str) -> str:
    return environ.get(env, "").strip()


def _parsed(env: str, parse: Callable[[str], object], text: str) -> object:
    try:
        return parse(text)
    except ValueError as error:
        problem, got = str(error), f", not {text!r}"
        raise BadSetting(env, problem if env in _SECRETS or problem.endswith(got) else problem + got) from None


def _check(settings: Settings) -> None:
    """What no single value shows: unbuilt features switched on, hooks without leave, bounds that contradict."""
    for attribute, row in rows().items():
        if row.test_hook and getattr(settings, attribute) and not settings.test_hooks:
            raise BadSetting(row.env, "a test hook is read only with QUEEN_TEST_HOOKS=1")
    for attribute, reason in _NOT_BUILT.items():
        if getattr(settings, attribute):
            raise BadSetting(rows()[attribute].env, f"not supported yet: {reason}. Unset it")
    if settings.tenancy_header and not settings.kv_trusted_proxy:  # TA-4: anybody could set the header
        raise BadSetting(
            "QUEEN_TENANCY_HEADER", "needs QUEEN_KV_TRUSTED_PROXY=1: something in front must set x-queen-tenant")
    if settings.raft_force_recover:
        if not settings.raft_peers:
            raise BadSetting("QUEEN_RAFT_FORCE_RECOVER", "is for a node of a cluster: it needs QUEEN_RAFT_PEERS")
        if parse_force_recover(settings.raft_force_recover)[0] != settings.node_id:
            raise BadSetting(
                "QUEEN_RAFT_FORCE_RECOVER", f"must be the id of this node, {settings.node_id} (QUEEN_RAFT_NODE_ID)")
    if settings.raft_join and not settings.raft_peers:
        raise BadSetting("QUEEN_RAFT_JOIN", "needs QUEEN_RAFT_PEERS: this node and those that it is to be added to")
    if settings.raft_peers:
        if settings.replicator == "local":  # CL-5: not a cluster of one node in silence
            raise BadSetting("QUEEN_RAFT_PEERS", "is set, but QUEEN_RAFT_REPLICATOR says that this is a single node")
        try:
            own(parse_peers(settings.raft_peers), settings.node_id)
        except ValueError as error:
            raise BadSetting("QUEEN_RAFT_PEERS", f"{error} (QUEEN_RAFT_NODE_ID)") from error
    for low, high in (
        ("fire_backoff_min_ms", "fire_backoff_max_ms"),
        ("disk_low_percent", "disk_high_percent"),
        ("heartbeat_ms", "election_ms"),
        ("batch_max_bytes", "entry_max_bytes"),
    ):
        if getattr(settings, low) > getattr(settings, high):
            raise BadSetting(rows()[low].env, f"is greater than {rows()[high].env} ({getattr(settings, high)})")


def warnings(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """What an operator should know at boot, one line each: reserved families, names nobody knows, test hooks."""
    lines = []
    known = {name for row in rows().values() for name in (row.env, row.also) if name} | _NO_EFFECT.keys()
    given = sorted(env for env in environ if _given(environ, env) and env not in known)
    for family in _RESERVED:
        if members := [env for env in given if env.startswith(family)]:
            lines.append(f"{', '.join(members)}: set, but this release has no such feature")
    if unknown := [env for env in given if env.startswith("QUEEN_") and not env.startswith(_RESERVED)]:
        lines.append(f"{', '.join(unknown)}: not a setting of this release, ignored")
    table = rows()
    if idle := [env for attribute in _NO_EFFECT_YET if _given(environ, env := table[attribute].env)]:
        lines.append(f"{', '.join(idle)}: accepted, without effect in this release")
    if settings.raft_peers:
        address = listen_address(settings.raft_listen, parse_peers(settings.raft_peers), settings.node_id)
        lines += [line for line in [open_port_warning(address, settings.raft_token)] if line is not None]
    if settings.test_hooks:
        lines.append("QUEEN_TEST_HOOKS is on: this node may be made to fail on purpose")
    return lines


def effective(settings: Settings) -> list[tuple[str, str]]:
    """Every variable with the value in force, secrets masked: the block for the boot log."""
    return [
        (row.env, "***" if row.secret and getattr(settings, attribute) else str(getattr(settings, attribute)))
        for attribute, row in rows().items()
    ]


_SECRETS = frozenset(row.env for row in rows().values() if row.secret)
