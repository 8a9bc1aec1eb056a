"""The house's arrows: who may import whom, and what the deterministic rooms may not know (DESIGN; M-80)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE_RAFT = (
    "changes", "configurations", "core", "group", "handlers", "leadership", "log", "member", "membership", "messages",
    "peer_frames", "peer_handshake", "peer_outbox", "progress", "promises", "quorum", "reads", "ready", "settings",
    "snapshot", "snapshot_messages", "versioned",
)
# What could tell two nodes, or two runs, apart: clocks, randomness, the machine, the loop.
IMPURE = {
    "asyncio", "datetime", "os", "pathlib", "random", "secrets", "select", "socket", "subprocess", "tempfile",
    "threading", "time", "trio", "uuid",
}


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", modules("raft"), ids=lambda path: path.stem)
def test_raft_knows_nothing_of_the_broker(path: Path) -> None:
    assert "queen_node" not in packages(path)


@pytest.mark.parametrize("name", PURE_RAFT)
def test_the_core_has_no_clock_no_loop_and_no_disk(name: str) -> None:
    path = ROOT / "raft" / f"{name}.py"
    # `Random` is the type of what is passed in; nothing calls the module.
    allowed = {"random"} if name in ("core", "member") else set()
    assert packages(path) & (IMPURE - allowed) == set()
    if allowed:
        assert {each for each in imports(path) if each.startswith("random")} <= {"random", "random.Random"}
    assert not any(isinstance(node, ast.Await | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text())))


WALL_CLOCK = {"time", "time_ns", "gmtime", "localtime", "ctime", "CLOCK_REALTIME", "now", "utcnow", "today"}
# The group clock's machine, which hands the wall clock on; and the ids of messages, which only look like a time.
MAY_KNOW_THE_DAY = {("raft", "clock"), ("queen_node", "ids")}
# Of a restart's estimate, of a metric, and of the records that the estimate is made of (M-22, M-23).
MAY_READ_IT = {"clock", "wal_index", "wal_format", "wal_recovery", "wal", "figures"}


@pytest.mark.parametrize("folder", ["raft", "queen_node"])
def test_nothing_that_waits_or_elects_reads_a_wall_clock(folder: str) -> None:
    """CL-55: elections, heartbeats and silences are counted on the monotonic clock, which no operator can set."""
    for path in modules(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            read = ast.unparse(node.value)
            if read in ("time", "datetime", "date", "datetime.datetime") and node.attr in WALL_CLOCK:
                assert (folder, path.stem) in MAY_KNOW_THE_DAY, f"{path}:{node.lineno}"
            if node.attr == "wall_us":
                assert path.stem in MAY_READ_IT, f"{path}:{node.lineno}"


STATE = [path for path in modules("queen_node/state") if path.stem not in ("rocks", "rocks_check")]


def _makes_a_set(value: ast.expr) -> bool:
    made_by_call = isinstance(value, ast.Call) and ast.unparse(value.func) in ("set", "frozenset")
    return made_by_call or isinstance(value, ast.Set | ast.SetComp)


@pytest.mark.parametrize("path", STATE, ids=lambda path: path.stem)
def test_state_is_a_function_of_the_entries(path: Path) -> None:
    """No clock, no randomness, no trio, no sockets; no hash(), no walk over a set (M-80)."""
    assert packages(path) & IMPURE == set()
    tree = ast.parse(path.read_text())
    assert not any(isinstance(node, ast.Await | ast.AsyncFunctionDef) for node in ast.walk(tree))
    sets = {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _makes_a_set(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("hash", "id"), f"{path}:{node.lineno}: {node.func.id}()"
        if isinstance(node, ast.For | ast.comprehension):
            assert ast.unparse(node.iter) not in sets, f"{path}: {ast.unparse(node.iter)} is walked in no order"
            assert not isinstance(node.iter, ast.Set | ast.SetComp), f"{path}: a set is walked in no order"
        if isinstance(node, ast.Constant):
            assert not isinstance(node.value, float), f"{path}:{node.lineno}: no floats in state"


@pytest.mark.parametrize("path", STATE, ids=lambda path: path.stem)
def test_state_imports_only_state_and_what_may_enter_the_log(path: Path) -> None:
    mine = {name for name in imports(path) if name.startswith("queen_node.")}
    # `times` writes an instant as text and asks no clock: a lock says so since when it is held (LK-2).
    allowed = (
        "queen_node.state", "queen_node.commands", "queen_node.packed", "queen_node.places", "queen_node.times")
    assert all(name.startswith(allowed) for name in mine), sorted(mine)


GROUP = [
    path for path in modules("queen_node")
    if path.stem in ("group", "group_actor", "parked_pops", "keeper", "queries") or path.parent.name == "answers"
]


@pytest.mark.parametrize("path", GROUP, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_group_knows_nothing_of_http(path: Path) -> None:
    assert not any(name.startswith("queen_node.http") for name in imports(path))


BEHIND_THE_BROKER = (
    "queen_node.group", "queen_node.pipeline", "queen_node.node", "queen_node.keeper", "queen_node.state.store",
    "queen_node.state.machine", "queen_node.state.step", "queen_node.state.rocks", "raft.core", "raft.group",
    "raft.wal",
)


@pytest.mark.parametrize("path", modules("queen_node/http"), ids=lambda path: path.stem)
def test_the_doors_reach_the_group_only_through_the_broker(path: Path) -> None:
    """What crosses is bytes: a door shares words and limits with the state, and no object with it or the group."""
    for name in imports(path):
        assert not name.startswith(BEHIND_THE_BROKER), name


@pytest.mark.parametrize("folder", ["raft", "queen_node"])
def test_product_code_has_no_assert_no_bare_except_and_no_global(folder: str) -> None:
    """`python -O` drops asserts; a swallowed error or a module's variable is where the second truth hides."""
    for path in modules(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert | ast.Global), f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{path}:{node.lineno}"
