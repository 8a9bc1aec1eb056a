"""The table of settings: every value, good and bad."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from queen_node import config
from queen_node.config import BadSetting, Settings, effective, load, rows, usual_doors, warnings

HOOKS = {"QUEEN_TEST_HOOKS": "1"}


def test_defaults_of_a_single_node() -> None:
    """config.md; README 24; contract note M-10."""
    settings = load({})
    assert settings == dataclasses.replace(Settings(), server_id=settings.server_id, doors=usual_doors())
    assert settings.server_id
    assert (settings.port, settings.bind_address, settings.max_body_bytes) == (6632, "0.0.0.0", 67_108_864)
    assert (settings.election_ms, settings.heartbeat_ms) == (150, 50)
    assert (settings.admit_max_mb, settings.log_budget_mb, settings.max_tenants) == (128, 256, 100_000)
    assert (settings.timer_tick_ms, settings.timers_max_horizon_s) == (50, 7_776_000)


def test_every_default_would_pass_its_own_check() -> None:
    for attribute, row in rows().items():
        default = getattr(Settings(), attribute)
        if default != "":
            assert row.parse(str(default)) == default, row.env


def test_a_variable_stands_in_one_row_only_and_has_a_meaning() -> None:
    names = [name for row in rows().values() for name in (row.env, row.also) if name]
    assert len(names) == len(set(names))
    assert not set(names) & set(config._NO_EFFECT)
    assert all(row.meaning for row in rows().values())


@pytest.mark.parametrize("word", ["true", "1", "YES", "On", " on "])
def test_words_for_yes(word: str) -> None:
    assert load({"QUEEN_LOG_JSON": word}).log_json


@pytest.mark.parametrize("word", ["false", "0", "No", "OFF"])
def test_words_for_no(word: str) -> None:
    assert not load({"QUEEN_PARTITION_CLEANUP_ENABLED": word}).partition_cleanup


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_is_the_default(text: str) -> None:
    assert load({"PORT": text, "QUEEN_LOG_JSON": text, "QUEEN_BIND_ADDR": text}) == load({})


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("PORT", "http"), ("PORT", "-1"), ("PORT", "65536"), ("PORT", "6632.0"), ("PORT", "0x10"), ("PORT", "1_000"),
        ("PORT", "٣"), ("QUEEN_LOG_JSON", "maybe"), ("LOG_LEVEL", "loud"), ("QUEEN_RAFT_TIMER_TICK_MS", "-5"),
        ("QUEEN_MAX_BODY_BYTES", "0"), ("QUEEN_RAFT_REPLICATOR", "etcd"), ("JWT_ALGORITHM", "none"),
        ("METRICS_FLUSH_MS", "999"), ("QUEEN_RAFT_GROUPS", "65"), ("QUEEN_RAFT_LOG_KEEP", "many"),
        ("QUEEN_STMT_TIMEOUT_MS", "soon"), ("DEFAULT_TIMEOUT", "x"),
        ("QUEEN_RAFT_NODE_ID", "0"), ("QUEEN_MAX_BODY_BYTES", "9" * 30),
        ("JWT_ALGORITHM", "hs256"), ("JWT_ALGORITHM", "AUTO"),  # TA-30: case matters
        ("QUEEN_KV_REQUIRE_GRANT", "perhaps"), ("QUEEN_KV_MAX_TENANTS", "0"),
        ("QUEEN_KV_QUOTA_RELEASE_PERCENT", "101"),
    ],
)
def test_a_bad_value_stops_the_boot_and_names_the_variable(env: str, text: str) -> None:
    """README 24: of any variable, aliases without effect included."""
    with pytest.raises(BadSetting, match=env) as caught:
        load({env: text})
    assert caught.value.env == env
    assert str(caught.value).count(repr(text)) == 1  # what was given is said, once


@pytest.mark.parametrize(
    "environ",
    [
        {"JWT_ENABLED": "true"},
        {"QUEEN_TLS_CERT": "/cert.pem"},
        {"QUEEN_TLS_KEY": "/key.pem"},
        {"QUEEN_ENCRYPTION_KEY": "00" * 32},
        {"QUEEN_KV_REQUIRE_GRANT": "1"},
        {"QUEEN_CONSUME_FAST": "1"},
        {"QUEEN_RAFT_CLIENT_OFFLOAD": "0"},
    ],
)
def test_what_is_not_built_is_never_silently_off(environ: dict[str, str]) -> None:
    """README 24, config.md 5 and 7."""
    with pytest.raises(BadSetting, match=r"not supported yet|cannot be"):
        load(environ)


def test_a_node_that_is_to_be_added_needs_to_know_to_whom() -> None:
    """CL-106."""
    with pytest.raises(BadSetting, match="QUEEN_RAFT_PEERS"):
        load({"QUEEN_RAFT_JOIN": "1"})


def test_switching_off_what_is_off_is_fine() -> None:
    load({"JWT_ENABLED": "false", "QUEEN_CONSUME_FAST": "0", "QUEEN_RAFT_CLIENT_OFFLOAD": "on", "JWT_SECRET": "s"})


def test_a_secret_stands_neither_in_the_block_nor_in_an_error() -> None:
    settings = load({"JWT_SECRET": "hush", "QUEEN_RAFT_TOKEN": "hush"})
    block = dict(effective(settings))
    assert block["JWT_SECRET"] == block["QUEEN_RAFT_TOKEN"] == "***"
    assert "hush" not in str(block)
    assert block["PORT"] == "6632"
    assert block["QUEEN_ENCRYPTION_KEY"] == ""
    with pytest.raises(BadSetting) as caught:
        load({"QUEEN_ENCRYPTION_KEY": "hush"})
    assert "hush" not in str(caught.value)


def test_deadlines_are_clamped() -> None:
    """config.md 1: 1..60000."""
    assert load({"QUEEN_STMT_TIMEOUT_MS": "0"}).call_timeout_ms == 1
    assert load({"QUEEN_STMT_TIMEOUT_MS": "600000"}).call_timeout_ms == 60_000


def test_the_first_of_two_names_wins() -> None:
    assert load({"DEFAULT_TIMEOUT": "5000"}).pop_timeout_ms == 5000
    assert load({"DEFAULT_TIMEOUT": "5000", "POP_DEFAULT_TIMEOUT_MS": "6000"}).pop_timeout_ms == 6000


def test_rust_log_wins_when_it_is_a_level() -> None:
    assert load({"LOG_LEVEL": "warn", "RUST_LOG": "debug"}).log_level == "debug"
    assert load({"LOG_LEVEL": "warn", "RUST_LOG": "queen=debug,hyper=off"}).log_level == "warn"


@pytest.mark.parametrize(
    "environ",
    [
        {"QUEEN_SWEEPER_BACKOFF_MIN_MS": "70000"},
        {"QUEEN_RAFT_DISK_LOW_PCT": "90"},
        {"QUEEN_RAFT_HEARTBEAT_MS": "151"},
    ],
)
def test_bounds_that_contradict_each_other(environ: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match="is greater than"):
        load(environ)


@pytest.mark.parametrize("env", [row.env for row in rows().values() if row.test_hook])
def test_hooks_need_leave(env: str) -> None:
    """config.md 10."""
    with pytest.raises(BadSetting, match="QUEEN_TEST_HOOKS=1"):
        load({env: "1"})
    assert dict(effective(load({env: "1", **HOOKS})))[env] in ("1", "True")


def test_warnings_name_what_has_no_effect() -> None:
    """config.md 9 and 10: one line a family; silence for the rest of the environment."""
    environ = {"QUEEN_S3_BUCKET": "b", "QUEEN_S3_KEY": "k", "GITHUB_TOKEN": "t", "QUEEN_TIMER_TICK": "5", "HOME": "/"}
    environ |= HOOKS
    lines = warnings(load(environ), environ)
    assert len(lines) == 4
    assert any(line.startswith("QUEEN_S3_BUCKET, QUEEN_S3_KEY: ") for line in lines)
    assert any(line.startswith("GITHUB_TOKEN: ") for line in lines)
    assert any(line.startswith("QUEEN_TIMER_TICK: not a setting") for line in lines)
    assert any("made to fail" in line for line in lines)
    assert warnings(load({}), {"HOME": "/", "QUEEN_RAFT_GROUPS": "3", "PORT": "1"}) == []


def test_a_setting_of_a_later_release_is_accepted_with_a_warning() -> None:
    """What does nothing must not be silent about it."""
    environ = {"METRICS_FLUSH_MS": "60000", "RETENTION_INTERVAL": "1000", "PORT": "0"}
    (line,) = warnings(load(environ), environ)
    assert line == "RETENTION_INTERVAL, METRICS_FLUSH_MS: accepted, without effect in this release"
    assert warnings(load({}), {}) == []


def test_a_setting_that_no_code_reads_says_so() -> None:
    """Of every setting: it is read somewhere, or it stops the boot, or it is warned about."""
    sources = [path.read_text() for path in Path(config.__file__).parent.rglob("*.py")]
    for attribute, row in rows().items():
        is_read = any(re.search(rf"\.{attribute}\b", source) for source in sources)
        is_told = bool(warnings(Settings(), {row.env: "1"})) or attribute in config._NOT_BUILT
        assert is_read or is_told, row.env


def test_tenancy_needs_somebody_in_front_who_sets_the_header() -> None:
    """TA-4."""
    with pytest.raises(BadSetting, match="QUEEN_TENANCY_HEADER: needs QUEEN_KV_TRUSTED_PROXY=1"):
        config.load({"QUEEN_TENANCY_HEADER": "true"})
    assert config.load({"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "1"}).tenancy_header
