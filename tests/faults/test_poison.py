"""An entry that no apply can carry out stops its group and says which; an operator steps over it (CL-28, CL-133).

The entry is put into the log of a node that is down, by the log's own code: as a release that knows more would have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import cbor2
import pytest
import trio

from queen_node import commands
from queen_node.commands import ENTRY_VERSION, Kind
from queen_node.layout import Places, open_layout
from raft.clock import SystemTime, read_clocks
from raft.disk import FileDisk
from raft.messages import Entry, EntryKind
from raft.wal import GroupWrite, Wal
from tests.conformance.calls import HOUR_MS, PATIENCE_S, POLL_S, Calls, b64, texts
from tests.support.http_client import HttpClient
from tests.support.node_process import NodeProcess, log_record

LIFE = 1  # of the default tenant's group, the first that is made
KIND_UNKNOWN = max(Kind) + 100
SAID = "entry cannot be applied"
QUEUE = "q"


def of_an_unknown_kind(now_us: int) -> bytes:
    """A command that only a later release knows, behind one that this release knows too: neither may take effect."""
    item = (QUEUE.encode(), b"Default", b"half", bytes(16), b'"half"', 0, None, None)
    return commands.entry(now_us, [commands.push(b"r", [item]), cbor2.dumps((KIND_UNKNOWN, b"r"))])


def of_an_unknown_version(now_us: int) -> bytes:
    """An entry in a form that only a later release knows."""
    return cbor2.dumps((ENTRY_VERSION + 1, now_us, []))


def no_entry_at_all(now_us: int) -> bytes:
    """Bytes that are no CBOR."""
    return b"\xff\x00 not an entry"


POISONS = (of_an_unknown_kind, of_an_unknown_version, no_entry_at_all)


def append_to_log(node: NodeProcess, datas: Sequence[bytes]) -> list[int]:
    """Entries behind the last of a log whose node is down; their indexes."""
    places = Places(node.data)
    layout, is_new = open_layout(places, node_id=1)
    assert not is_new
    wal, recovered = Wal.open(
        places.log, FileDisk(), identity=bytes.fromhex(layout.directory_id), must_exist=True)
    group = recovered.groups[LIFE]
    first, term = group.last_index + 1, group.hard_state.term
    entries = [
        Entry(term=term, index=first + place, kind=EntryKind.COMMANDS, data=data) for place, data in enumerate(datas)]
    clock = read_clocks(SystemTime())
    wal.write([GroupWrite(LIFE, group.hard_state, previous_term=group.terms[-1][1], entries=entries)], clock)
    wal.close()
    return [entry.index for entry in entries]


@pytest.mark.parametrize("poison", POISONS)
async def test_a_poisoned_entry_stops_its_group_until_it_is_stepped_over(poison: Any, node: NodeProcess) -> None:
    """CL-28, CL-29, CL-133, README 22, on a single node."""
    node.announced.append(SAID)
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        calls = Calls(http, QUEUE)
        await calls.push_texts("before")
        await calls.schedule("timer", delayMs=HOUR_MS)
        await calls.schedule("soon", delayMs=1500, payload=b64("fired"))
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    data = poison(0)
    (index,) = append_to_log(node, [data])
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()

    await _start_poisoned(node)
    async with HttpClient(node.port, timeout_s=PATIENCE_S) as http:
        await _must_say_what_is_wrong(http, index, digest)
        await _must_refuse(Calls(http, QUEUE))
    records = [record for line in node.log_lines() if (record := log_record(line)).get("event") == SAID]
    assert len(records) == 1
    skip = str(records[0]["skip"]).split()[0]
    assert skip == f"QUEEN_RAFT_APPLY_SKIP=g{LIFE}/{index}:{digest}", "what an operator can copy"
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()

    name, _, value = skip.partition("=")
    for spelled in (value, value.removeprefix(f"g{LIFE}/")):
        await trio.to_thread.run_sync(node.start, {name: spelled})
        async with HttpClient(node.port) as http:
            health = (await http.get("/health")).json()
            assert health["raft"]["apply"] == {"failure": None, "skipped": [value]}
            assert health["groups"]["failed"] == []
        await trio.to_thread.run_sync(node.kill)  # before any flush: the next start meets the entry again
    await trio.to_thread.run_sync(node.start, {name: value})
    await _must_have_all_but_the_entry(node)
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    await trio.to_thread.run_sync(node.start)  # the store is past it now: the variable may go
    assert (await _health(node))["raft"]["apply"] == {"failure": None, "skipped": []}
    node.check_log()


async def test_a_skip_that_names_another_entry_steps_over_nothing(node: NodeProcess) -> None:
    """CL-133: refused unless index and digest match; two poisons need two names."""
    node.announced.append(SAID)
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        await Calls(http, QUEUE).push_texts("before")
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    datas = [of_an_unknown_version(0), of_an_unknown_kind(0)]
    first, second = append_to_log(node, datas)
    one, two = (hashlib.blake2b(data, digest_size=8).hexdigest() for data in datas)
    for skips, failing in (
        (f"{first}:{two}", first),
        (f"{second}:{one}", first),
        (f"g{LIFE + 1}/{first}:{one}", first),
        (f"{first}:{one}", second),
    ):
        await _start_poisoned(node, {"QUEEN_RAFT_APPLY_SKIP": skips})
        assert (await _health(node))["raft"]["apply"]["failure"]["index"] == failing, skips
        await trio.to_thread.run_sync(node.kill)
    await trio.to_thread.run_sync(node.start, {"QUEEN_RAFT_APPLY_SKIP": f"{first}:{one}, {second}:{two}"})
    async with HttpClient(node.port) as http:
        calls = Calls(http, QUEUE)
        assert texts(await calls.pop(subscriptionMode="all")) == ["before"]
        assert (await calls.push_texts("after"))[0]["status"] == "queued"
    node.check_log()


async def test_a_client_can_write_the_poison_where_a_hook_refuses_the_key(node: NodeProcess) -> None:
    """config.md 10: committed and not applied; without the hook it applies at the next start."""
    node.announced.append(SAID)
    await trio.to_thread.run_sync(node.start, {"QUEEN_TEST_APPLY_REFUSE_KEY": "bad"})
    row = {"value": 1, "forever": True}
    async with HttpClient(node.port) as http:
        assert (await http.request("PUT", "/api/v1/kv/n/good", row)).status == 200
        assert (await http.request("PUT", "/api/v1/kv/n/bad", row)).status == 503
        health = (await http.get("/health")).json()
        assert health["groups"]["failed"] == [LIFE] and "REFUSE_KEY" in health["raft"]["apply"]["failure"]["error"]
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        for key in ("good", "bad"):
            assert (await http.get(f"/api/v1/kv/n/{key}")).json()["value"] == 1
    node.check_log()


async def _start_poisoned(node: NodeProcess, extra: dict[str, str] | None = None) -> None:
    """Start, and wait until the node has met the entry."""
    node.launch(extra)
    with trio.fail_after(PATIENCE_S):
        while True:
            health = await _health(node)
            if health and health["raft"]["apply"]["failure"]:
                return
            assert node.is_running(), node.log_tail()
            await trio.sleep(POLL_S)


async def _health(node: NodeProcess) -> dict[str, Any]:
    if await trio.to_thread.run_sync(node.health_status) is None:
        return {}
    async with HttpClient(node.port) as http:
        document: dict[str, Any] = (await http.get("/health")).json()
        return document


async def _must_say_what_is_wrong(http: HttpClient, index: int, digest: str) -> None:
    """AD-7, cluster.md 13."""
    answer = await http.get("/health")
    assert answer.status == 503
    health = answer.json()
    assert health["status"] == "settling"
    assert health["groups"]["failed"] == [LIFE]
    failure = health["raft"]["apply"]["failure"]
    assert (failure["class"], failure["index"], failure["digest"]) == ("deterministic", index, digest)
    assert failure["term"] >= 1
    assert failure["effect"] is None
    assert failure["error"]
    for path in ("/metrics", "/metrics/prometheus", "/status"):
        assert (await http.get(path)).status == 200, path


async def _must_refuse(calls: Calls) -> None:
    http = calls.http
    for answer in (
        await calls.timers(calls.operation("late")),
        await http.delete(f"/api/v1/timers/{QUEUE}/timer"),
        await http.get(f"/api/v1/timers/{QUEUE}/timer"),
        await http.post("/api/v1/push", {"items": [calls.item("late")]}),
        await calls.pop_answer(),
        await calls.pop_answer(wait="true", timeout=60_000),
        await http.post("/api/v1/ack", {"transactionId": "before", "partitionId": "1"}),
    ):
        assert answer.status == 503, answer
        assert int(answer.headers["retry-after"]) >= 1


async def _must_have_all_but_the_entry(node: NodeProcess) -> None:
    """Nothing of the entry, everything else: messages, pending timers, timers that came due meanwhile."""
    async with HttpClient(node.port) as http:
        calls = Calls(http, QUEUE)
        await calls.wait_until_fired("soon")
        options = {"subscriptionMode": "all", "commitOnDelivery": "true"}
        assert texts(await calls.pop(**options)) == ["before", "fired"]
        assert (await calls.peek("timer"))["found"]
        assert (await calls.cancel("timer"))["status"] == "cancelled"
        await calls.push_texts("after")
        assert texts(await calls.pop(**options)) == ["after"]
