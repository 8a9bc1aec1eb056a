"""A store with flipped bits or missing files: refused, stopped or answered with an error, never served (G-D3)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random

import trio

from tests.support.http_client import HttpClient
from tests.support.node_process import NodeFailed, NodeProcess, files_under, is_error_line

QUEUE = "kept"
CALLS, ITEMS_A_CALL = 20, 50
FLIPS = 6
POP = f"/api/v1/pop/queue/{QUEUE}?consumerGroup=reader&subscriptionMode=all&commitOnDelivery=true"
SETTINGS = {"QUEEN_RAFT_SEGMENT_BYTES": str(1024 * 1024)}  # small: the folder is copied for each trial
POPS_MAX = 1000

Seen = list[tuple[int, str, str]]  # offset, id, payload


@dataclass(frozen=True, slots=True)
class Found:
    """What a node on damaged files did: refused to boot, stopped or erred after `seen`, or served it all."""

    refused: bool
    failed: bool
    seen: Seen


async def test_flipped_bits_are_never_served(node: NodeProcess, seed: int, tmp_path: Path) -> None:
    """G-D3: each trial on a copy of its own, one bit of one table flipped."""
    dice = Random(seed)
    whole = await _fill(node)
    tables = [path.relative_to(node.data) for path in files_under(node.data, ("*.sst",))]
    assert tables, "an orderly stop left no table in the store"
    noticed = 0
    for trial in range(FLIPS):
        copy = _copy(node, tmp_path / f"flip-{trial}")
        victim = copy.data / dice.choice(tables)
        content = bytearray(victim.read_bytes())
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        victim.write_bytes(content)
        noticed += await _judge(copy, whole)
    assert noticed, "no flip was noticed: nothing checks what it reads"


async def test_missing_tables_are_never_served(node: NodeProcess, tmp_path: Path) -> None:
    """FAULTS (a deleted file goes unnoticed): each table, the manifest and CURRENT, taken away in turn."""
    whole = await _fill(node)
    victims = [path.relative_to(node.data) for path in files_under(node.data, ("*.sst", "MANIFEST-*", "CURRENT"))]
    for trial, victim in enumerate(victims):
        copy = _copy(node, tmp_path / f"missing-{trial}")
        (copy.data / victim).unlink()
        assert await _judge(copy, whole), f"{victim} was missing and nobody noticed"


async def _fill(node: NodeProcess) -> Seen:
    """Push, stop in order so that all of it is in tables, and read what a sound node shows."""
    node.settings.update(SETTINGS)
    await trio.to_thread.run_sync(node.start)
    pushed: Seen = []
    async with HttpClient(node.port) as http:
        for call in range(CALLS):
            texts = [f"{call}-{number}-{'x' * 100}" for number in range(ITEMS_A_CALL)]
            items = [{"queue": QUEUE, "payload": text} for text in texts]
            results = (await http.post("/api/v1/push", {"items": items})).json()
            pushed += [(one["offset"], one["message_id"], text) for one, text in zip(results, texts, strict=True)]
    assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
    return pushed


def _copy(node: NodeProcess, folder: Path) -> NodeProcess:
    copy = NodeProcess(folder, SETTINGS)
    shutil.copytree(node.data, copy.data)
    return copy


async def _judge(copy: NodeProcess, whole: Seen) -> bool:
    """Whether the damage was noticed. Fails when what was served is not what was pushed, or not all of it."""
    try:
        found = await trio.to_thread.run_sync(_read_all, copy)
    finally:
        copy.close()
    assert found.seen == whole[: len(found.seen)], "damaged data was served"
    if not found.refused and not found.failed:
        assert found.seen == whole, "damaged data was left out, and nobody said so"
        return False
    assert any(is_error_line(line) for line in copy.log_lines()), f"nobody was told\n{copy.log_tail()}"
    return True


def _read_all(copy: NodeProcess) -> Found:
    try:
        copy.start()
    except NodeFailed:
        return Found(True, False, [])
    seen: Seen = []
    connection = HTTPConnection("127.0.0.1", copy.port, timeout=60)
    try:
        for _ in range(POPS_MAX):
            connection.request("GET", POP)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 204:
                return Found(False, False, seen)
            if answer.status != 200:
                return Found(False, True, seen)
            seen += [(one["offset"], one["id"], one["data"]) for one in json.loads(body)["messages"]]
    except (OSError, HTTPException):
        return Found(False, True, seen)
    finally:
        connection.close()
    raise AssertionError(f"not at the end after {POPS_MAX} pops")
