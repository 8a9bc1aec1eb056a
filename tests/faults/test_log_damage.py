"""A log that a crash tore is cut and goes on; one that is damaged is refused, by its name (M-12, CL-124, G-D3)."""

from __future__ import annotations

import shutil
from pathlib import Path

import trio

from tests.faults.campaign import Campaign
from tests.faults.load import Shape, now_ns
from tests.support.node_process import NodeProcess, files_under, is_error_line

SHAPE = Shape(clients=4, delay_ms_max=800, lease_s_max=1)
REFUSAL_TIMEOUT_S = 60.0
SEGMENTS = ("segment-*.log",)


async def test_garbage_behind_the_log_is_cut(node: NodeProcess, seed: int, again: str) -> None:
    """M-12: half of a record that was never acknowledged costs nothing of what was."""
    campaign = await _killed_under_load(node, seed, again)
    for _ in range(3):
        path = _segments(node)[-1]
        with path.open("r+b") as file:
            file.seek(_written_bytes(path))
            file.write(campaign.dice.randbytes(campaign.dice.randint(1, 5000)))
        await campaign.restart()
        async with campaign.load():
            await campaign.world.wait_for_calls(200)
            await campaign.kill()
    await campaign.restart()
    await campaign.finish()


async def test_a_record_torn_before_its_fsync_is_cut(node: NodeProcess, seed: int, again: str) -> None:
    """M-12: the node dies between write and fsync, and the disk holds only a part of what was written."""
    campaign = Campaign(node, seed, SHAPE, again=again)
    await campaign.begin()
    for tear in (_cut_tail, _zero_sector, _flip_tail):
        async with campaign.load():
            await campaign.world.wait_for_calls(200)
        assert await trio.to_thread.run_sync(node.stop) == 0, node.log_tail()
        count = campaign.dice.randint(20, 200)
        await trio.to_thread.run_sync(node.launch, {"QUEEN_TEST_CRASH_AT": f"wal.after_write:{count}"})
        campaign.history.outages.append((now_ns(), now_ns()))
        async with campaign.load():
            assert await trio.to_thread.run_sync(node.wait, 60.0) == -9, node.log_tail()
        tear(_segments(node)[-1])
        await campaign.restart()
    await campaign.finish()


async def test_damage_in_the_middle_is_refused_by_name(node: NodeProcess, seed: int, again: str) -> None:
    """CL-124, G-D3: a flipped bit below what was synced stops the boot, and putting the byte back starts it again."""
    campaign = await _killed_under_load(node, seed, again)
    path = _segments(node)[0]
    written = path.read_bytes()[: _written_bytes(path)]
    places = [place for place in range(len(written) // 2) if written[place]]
    for place in campaign.dice.sample(places, 4):
        _write_byte(path, place, written[place] ^ 1 << campaign.dice.randrange(8))
        await _refuses(node, path.name)
        _write_byte(path, place, written[place])
    await campaign.restart()
    await campaign.finish()


async def test_a_missing_file_is_refused_by_name(node: NodeProcess, seed: int, again: str, tmp_path: Path) -> None:
    """CL-124: each file of the log, and the layout, taken away in turn."""
    campaign = await _killed_under_load(node, seed, again)
    for path in [*_segments(node), *files_under(node.data, ("layout.json",))]:
        shutil.move(path, tmp_path / "aside")
        await _refuses(node, path.name)
        shutil.move(tmp_path / "aside", path)
    await campaign.restart()
    await campaign.finish()


async def _killed_under_load(node: NodeProcess, seed: int, again: str) -> Campaign:
    campaign = Campaign(node, seed, SHAPE, again=again)
    await campaign.begin()
    async with campaign.load():
        await campaign.world.wait_for_calls(400)
        await campaign.kill()
    return campaign


async def _refuses(node: NodeProcess, name: str) -> None:
    """A start must end by itself, with a code that says failure and exactly one error line, which names the file."""
    lines_before = len(node.log_lines())
    node.launch()
    exit_code = await trio.to_thread.run_sync(node.wait, REFUSAL_TIMEOUT_S)
    said = node.log_lines()[lines_before:]
    errors = [line for line in said if is_error_line(line)]
    assert exit_code > 0, (exit_code, said)
    assert len(errors) == 1, said
    assert name in errors[0], said
    node.announced.append(errors[0])


def _segments(node: NodeProcess) -> list[Path]:
    found = files_under(node.data, SEGMENTS)
    assert found, f"no segment of the log below {node.data}"
    return found


def _written_bytes(path: Path) -> int:
    """Where the zeros begin that fill the room made in advance."""
    return len(path.read_bytes().rstrip(b"\0"))


def _cut_tail(path: Path) -> None:
    end = _written_bytes(path)
    with path.open("r+b") as file:
        file.truncate(end - 1)


def _zero_sector(path: Path) -> None:
    """The last sector of the write did not reach the disk."""
    end = _written_bytes(path)
    start = max(0, end - 1) // 512 * 512
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def _flip_tail(path: Path) -> None:
    end = _written_bytes(path)
    _write_byte(path, end - 1, path.read_bytes()[end - 1] ^ 0x40)


def _write_byte(path: Path, place: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes((value,)))
