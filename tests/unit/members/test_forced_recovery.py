"""A survivor becomes the only voter of all its groups, and of nothing less than all (CL-108)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from queen_node import commands, config
from queen_node.forced_recovery import recover_alone
from queen_node.layout import CannotStart, write_layout
from queen_node.opening import CELL_LIFE, Opened, close_data, open_data, open_group, open_machine
from queen_node.peers import parse_force_recover
from queen_node.state.members import members_of
from queen_node.state.tenants import tenants
from raft.clock import SystemTime, read_clocks
from raft.configurations import encode_configuration
from raft.messages import Entry, EntryKind, HardState
from raft.quorum import Configuration
from raft.wal import GroupWrite

ALONE = Configuration((1,))
TENANT = bytes(15) + b"\x09"
PEERS = "1=127.0.0.1:7401/127.0.0.1:6632,2=127.0.0.1:7402/127.0.0.1:6633,3=127.0.0.1:7403/127.0.0.1:6634"


class Survivor:
    """The data directory of node 1 of three, from one start to the next."""

    def __init__(self, path: Path) -> None:
        self._environ = {
            "QUEEN_RAFT_DIR": str(path), "QUEEN_RAFT_REPLICATOR": "raft", "QUEEN_RAFT_PEERS": PEERS,
            "QUEEN_RAFT_NODE_ID": "1"}
        self.opened = open_data(config.load(self._environ))
        write_layout(self.opened.places, msgspec.structs.replace(self.opened.layout, founders=(1, 2, 3)))
        self.again()

    def again(self) -> Opened:
        close_data(self.opened)
        self.opened = open_data(config.load(self._environ))
        return self.opened

    def holds(self, life: int, *entries: Entry, commit_index: int = 0) -> None:
        """The log has these, of which so much is known to be committed."""
        term = entries[-1].term
        self.opened.wal.write(
            [GroupWrite(life, HardState(term, 2, commit_index), previous_term=0, entries=entries)],
            read_clocks(SystemTime()))

    def recover(self, named: str = "1") -> None:
        settings = config.load(self._environ | {"QUEEN_RAFT_FORCE_RECOVER": named})
        recover_alone(self.again(), settings, read_clocks(SystemTime()))
        self.again()

    def members(self, life: int) -> Configuration:
        machine = open_machine(self.opened, life)
        return open_group(self.opened, config.load(self._environ), SystemTime(), life, machine).core.configuration

    @property
    def log_ends(self) -> dict[int, tuple[int, int]]:
        """By life: index and term of the last entry."""
        return {life: (group.last_index, group.terms[-1][1]) for life, group in self.opened.recovered.groups.items()}


@pytest.fixture
def survivor(tmp_path: Path) -> Iterator[Survivor]:
    made = Survivor(tmp_path / "data")
    yield made
    close_data(made.opened)


def created(index: int, term: int) -> Entry:
    data = commands.entry(1000, [commands.create_tenant(bytes(16), TENANT, at_most=9)])
    return Entry(term, index, EntryKind.COMMANDS, data)


def test_what_the_log_holds_is_kept_committed_or_not(survivor: Survivor) -> None:
    """A tenant that appears in what nobody had committed yet has a group too, and it is recovered with the others."""
    survivor.holds(CELL_LIFE, Entry(4, 1, EntryKind.BLANK, b""), created(2, 4), commit_index=1)
    survivor.recover()
    assert survivor.members(CELL_LIFE) == survivor.members(1) == ALONE
    assert survivor.log_ends == {CELL_LIFE: (4, 5), 1: (1, 1)}
    cell = open_machine(survivor.opened, CELL_LIFE).store.committed()
    assert [tenant.tenant for tenant in tenants(cell)] == [TENANT]
    assert [member.node_id for member in members_of(cell).members] == [1]


def test_a_tenants_log_goes_on_behind_its_last_entry_in_a_new_term(survivor: Survivor) -> None:
    survivor.holds(CELL_LIFE, Entry(1, 1, EntryKind.BLANK, b""), created(2, 1), commit_index=2)
    survivor.holds(1, Entry(7, 1, EntryKind.BLANK, b""), Entry(7, 2, EntryKind.COMMANDS, commands.entry(2000, [])))
    survivor.recover()
    assert survivor.log_ends[1] == (3, 8)
    assert survivor.members(1) == ALONE


def test_done_twice_it_is_done_once(survivor: Survivor) -> None:
    """A crash may have come between; and an operator may forget to unset it."""
    survivor.holds(CELL_LIFE, Entry(1, 1, EntryKind.BLANK, b""), created(2, 1))
    survivor.recover()
    ends = survivor.log_ends
    survivor.recover()
    assert survivor.log_ends == ends


def test_after_members_were_added_only_the_printed_override_does_it_again(survivor: Survivor) -> None:
    survivor.holds(CELL_LIFE, Entry(1, 1, EntryKind.BLANK, b""))
    survivor.recover()
    end, term = survivor.log_ends[CELL_LIFE]
    added = Entry(term, end + 1, EntryKind.CONFIGURATION, encode_configuration(Configuration((1,), (), (2,))))
    write = GroupWrite(CELL_LIFE, HardState(term, 1, end), previous_term=term, entries=(added,))
    survivor.opened.wal.write([write], read_clocks(SystemTime()))
    with pytest.raises(CannotStart, match=f"set it to 1@{end + 1}"):
        survivor.recover()
    with pytest.raises(CannotStart, match="members were added"):
        survivor.recover(f"1@{end}")
    survivor.recover(f"1@{end + 1}")
    assert survivor.members(CELL_LIFE) == ALONE


@pytest.mark.parametrize(("text", "named"), [("2", (2, 0)), ("2@417", (2, 417))])
def test_the_forms_of_the_variable(text: str, named: tuple[int, int]) -> None:
    assert parse_force_recover(text) == named


@pytest.mark.parametrize("environ", [
    {"QUEEN_RAFT_FORCE_RECOVER": "yes"}, {"QUEEN_RAFT_FORCE_RECOVER": "1@"}, {"QUEEN_RAFT_FORCE_RECOVER": "1"},
    {"QUEEN_RAFT_FORCE_RECOVER": "2", "QUEEN_RAFT_PEERS": PEERS, "QUEEN_RAFT_REPLICATOR": "raft"},
])
def test_a_name_that_is_not_this_nodes_stops_the_boot(environ: dict[str, str]) -> None:
    with pytest.raises(config.BadSetting, match="QUEEN_RAFT_FORCE_RECOVER"):
        config.load(environ)
