"""Damage to what lies on the disk is found while the node runs, and told by the file's name (CL-125, CL-128)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import trio

from tests.support.figures import at_least, wait_for_metric
from tests.support.http_client import HttpClient
from tests.support.node_process import POLL_S, NodeProcess, files_under, is_error_line

QUEUE = "kept"
PATIENCE_S = 60.0  # for what only a broken node does not do; never a measure of speed
PUSHES_A_ROUND = 30  # of 50 KB: a few segments
SETTINGS = {
    "QUEEN_STORE_SCRUB_EVERY_S": "1", "QUEEN_STORE_SCRUB_ROWS_PER_S": "100000",
    "QUEEN_RAFT_SEGMENT_BYTES": str(256 * 1024),
}
SAID = "what is on disk is not what was written"
ROUNDS, DAMAGED = "queen_scrub_rounds_total", "queen_storage_damaged"


async def test_a_sound_disk_is_read_again_and_again(node: NodeProcess) -> None:
    """Under load: segments come, tables come and go, and none of that is damage."""
    node.settings |= SETTINGS
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http, HttpClient(node.port) as other:
        for rounds in (1, 2, 3):
            async with trio.open_nursery() as nursery:
                # So many and no more: on a machine that is slower at reading than at writing no round would ever end.
                nursery.start_soon(push, other, PUSHES_A_ROUND)
                await wait_for_metric(http, ROUNDS, at_least(rounds))
    assert node.health_status() == 200
    assert await trio.to_thread.run_sync(node.stop) == 0


async def test_a_bit_that_changed_in_a_sealed_segment_is_found(node: NodeProcess) -> None:
    await started_and_filled(node, SETTINGS)
    segments = files_under(node.data, ("segment-*.log",))
    assert len(segments) > 2, "nothing is sealed"
    await must_be_found(node, segments[0], len(segments[0].read_bytes().rstrip(b"\0")) // 2)


async def test_a_bit_that_changed_in_the_store_is_found(node: NodeProcess) -> None:
    """RocksDB's own words about its own checksum."""
    await started_and_filled(node, {"QUEEN_STORE_SCRUB_EVERY_S": "0"})
    assert await trio.to_thread.run_sync(node.stop) == 0  # so that all is in tables
    node.settings |= SETTINGS
    await trio.to_thread.run_sync(node.start)
    table = max(files_under(node.data, ("*.sst",)), key=lambda path: path.stat().st_size)
    await must_be_found(node, table, 30)


async def must_be_found(node: NodeProcess, path: Path, place: int) -> None:
    """Flip a bit there: one line that names the file, not ready from then on; and the node goes on."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes((byte ^ 1,)))
    node.announced.append(SAID)
    deadline = time.monotonic() + PATIENCE_S
    while node.health_status() != 503:
        assert time.monotonic() < deadline, f"nobody noticed\n{node.log_tail()}"
        await trio.sleep(POLL_S)
    (line,) = [line for line in node.log_lines() if is_error_line(line)]
    assert SAID in line
    assert path.name in line
    async with HttpClient(node.port) as http:
        await wait_for_metric(http, DAMAGED, at_least(1))
        assert (await http.post("/api/v1/push", {"items": [{"queue": "other", "payload": "1"}]})).status == 201


async def push(http: HttpClient, count: int) -> None:
    for _ in range(count):
        items = [{"queue": QUEUE, "payload": "x" * 500} for _ in range(100)]
        assert (await http.post("/api/v1/push", {"items": items})).status == 201


async def started_and_filled(node: NodeProcess, settings: Mapping[str, str]) -> None:
    """1.5 MB are too few for a flush: the log still holds them."""
    node.settings |= settings
    await trio.to_thread.run_sync(node.start)
    async with HttpClient(node.port) as http:
        await push(http, 30)
