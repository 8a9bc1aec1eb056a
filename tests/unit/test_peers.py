"""The peer list and what else the settings say of peers (CL-1, CL-3 to CL-6)."""

from __future__ import annotations

import pytest
import structlog.testing

from queen_node.config import BadSetting, Settings, effective, load, warnings
from queen_node.peers import Member, PeerLog, cluster_id, listen_address, parse_node_id, parse_peers
from raft.peer_frames import CLUSTER_ID_MAX_BYTES, Hello
from raft.peer_handshake import Address, Purpose

LIST = "1=a:7400/a:6632,2=b:7400/b:6632,3=c:7400/c:6632"
CLUSTER = {"QUEEN_RAFT_PEERS": LIST, "QUEEN_RAFT_REPLICATOR": "raft", "QUEEN_RAFT_TOKEN": "secret"}


def test_a_list_with_spaces_in_any_order_of_names_and_addresses() -> None:
    assert parse_peers(" 3 = c.d:7400 / c.d:6632 ,1=[::1]:7400/10.0.0.1:6632 ") == (
        Member(1, Address("::1", 7400), Address("10.0.0.1", 6632)),
        Member(3, Address("c.d", 7400), Address("c.d", 6632)),
    )
    assert load(CLUSTER).raft_peers == LIST


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:1/a:2", "must be id=raft_host:port"),
        ("1=a:1", "must be id=raft_host:port"),
        ("1=a:1/a:2,", "must be id=raft_host:port"),
        ("0=a:1/a:2", "from 1 to 65535"),
        ("-1=a:1/a:2", "from 1 to 65535"),
        ("٣=a:1/a:2", "from 1 to 65535"),
        ("65536=a:1/a:2", "from 1 to 65535"),
        ("ordinal=a:1/a:2", "from 1 to 65535"),
        ("=a:1/a:2", "from 1 to 65535"),
        ("1=/a:2", "host:port, not ''"),
        ("1=a:1/", "host:port, not ''"),
        ("1=:1/a:2", "host:port"),
        ("1=a/a:2", "host:port"),
        ("1=a:0/a:2", "host:port"),
        ("1=a:65536/a:2", "host:port"),
        ("1=::1:7400/a:2", "host:port"),
        ("1=a b:1/a:2", "host:port"),
        ("1=a:1/a:2/a:3", "host:port"),
        *((f"1={host}:1/a:2", "host:port") for host in (
            "a..b", ".a", "é", "a\0b", "a" * 64, ".".join(["a" * 63] * 4))),  # no resolver takes any of them
        ("1=a:1/a:2,1=b:1/b:2", "id 1 twice"),
        ("1=a:1/a:2,2=a:1/b:2", "raft address a:1 twice"),
        ("1=a:1/a:2,2=b:1/a:2", "http address a:2 twice"),
        (",".join(f"{node}=a{node}:1/a{node}:2" for node in range(1, 7)), "names 6 nodes, more than 5"),
        ("2=a:1/a:2", "does not name this node, 1"),
    ],
)
def test_a_bad_list_stops_the_boot_and_names_the_variable(text: str, problem: str) -> None:
    """CL-3."""
    with pytest.raises(BadSetting, match="QUEEN_RAFT_PEERS") as caught:
        load({**CLUSTER, "QUEEN_RAFT_PEERS": text})
    assert problem in str(caught.value)


@pytest.mark.parametrize("replicator", ["local", ""])
def test_a_list_on_a_single_node_stops_the_boot(replicator: str) -> None:
    """CL-5: no cluster of one node in silence."""
    with pytest.raises(BadSetting, match="QUEEN_RAFT_REPLICATOR") as caught:
        load({**CLUSTER, "QUEEN_RAFT_REPLICATOR": replicator})
    assert caught.value.env == "QUEEN_RAFT_PEERS"


@pytest.mark.parametrize(
    ("text", "host_name", "node_id"),
    [("7", "h", 7), ("ordinal", "queen-0", 1), ("Ordinal", "queen-12", 13), ("ordinal", "q2-x07", 8)],
)
def test_the_nodes_own_id(text: str, host_name: str, node_id: int) -> None:
    """CL-3: the trailing number of the host name plus one."""
    assert parse_node_id(text, host_name) == node_id


@pytest.mark.parametrize(
    ("text", "host_name"), [("ordinal", "queen"), ("ordinal", "queen-0.local"), ("ordinal", "q65535"), ("one", "q-1")])
def test_an_id_that_is_none(text: str, host_name: str) -> None:
    with pytest.raises(ValueError, match=r"ordinal|a node's id"):
        parse_node_id(text, host_name)


def test_ordinal_asks_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "queen-2")
    assert load({**CLUSTER, "QUEEN_RAFT_NODE_ID": "ordinal"}).node_id == 3
    monkeypatch.setattr("socket.gethostname", lambda: "queen")
    with pytest.raises(BadSetting, match="QUEEN_RAFT_NODE_ID"):
        load({**CLUSTER, "QUEEN_RAFT_NODE_ID": "ordinal"})


def test_where_a_node_listens() -> None:
    """CL-3: every interface on the own raft port, unless told otherwise."""
    members = parse_peers("1=a:7400/a:1,2=b:7401/b:1")
    assert listen_address("", members, 2) == Address("0.0.0.0", 7401)
    assert listen_address("127.0.0.1:9", members, 2) == Address("127.0.0.1", 9)
    with pytest.raises(BadSetting, match="QUEEN_RAFT_LISTEN"):
        load({"QUEEN_RAFT_LISTEN": "7400"})


@pytest.mark.parametrize(
    ("listen", "token", "is_warned"),
    [
        ("", "", True), ("0.0.0.0:1", "", True), ("10.0.0.1:1", "", True), ("node.local:1", "", True),
        ("[::]:1", "", True), ("127.0.0.1:1", "", False), ("127.8.8.8:1", "", False),
        ("[::1]:1", "", False), ("localhost:1", "", False),
        ("", "secret", False),
    ],
)
def test_an_open_port_beyond_loopback_is_warned_of(listen: str, token: str, is_warned: bool) -> None:
    """CL-6."""
    environ = {**CLUSTER, "QUEEN_RAFT_LISTEN": listen, "QUEEN_RAFT_TOKEN": token}
    lines = [line for line in warnings(load(environ), {}) if line.startswith("QUEEN_RAFT_TOKEN")]
    assert len(lines) == is_warned


def test_a_single_node_has_no_raft_port_to_warn_of() -> None:
    assert warnings(Settings(), {}) == []


def test_a_token_that_no_request_can_carry_stops_the_boot_and_is_not_shown() -> None:
    with pytest.raises(BadSetting, match="QUEEN_RAFT_TOKEN") as caught:
        load({"QUEEN_RAFT_TOKEN": "hush hush"})
    assert "hush" not in str(caught.value)
    assert dict(effective(load(CLUSTER)))["QUEEN_RAFT_TOKEN"] == "***"


def test_elections_of_a_cluster_take_their_own_time() -> None:
    """cluster.md 6."""
    settings = load(CLUSTER)
    assert (settings.election_ms, settings.heartbeat_ms) == (1000, 100)
    assert load({**CLUSTER, "QUEEN_RAFT_ELECTION_MS": "700"}).election_ms == 700


def test_the_clusters_name() -> None:
    """CL-106: nodes that were given the same list, however written, agree."""
    members = parse_peers(LIST)
    same = parse_peers("3=c:7400/c:6632, 2=b:7400/b:6632, 1=a:7400/a:6632")
    assert cluster_id("", members) == cluster_id("", same) != cluster_id("", members[:2])
    assert cluster_id("cell", members) == b"cell"
    assert len(cluster_id("", members)) <= CLUSTER_ID_MAX_BYTES
    with pytest.raises(BadSetting, match="QUEEN_CELL_ID"):
        load({"QUEEN_CELL_ID": "é" * 33})


def test_each_event_of_a_connection_is_one_line() -> None:
    """Issue 4, 1. None of them needs a person by itself: below ERROR."""
    with structlog.testing.capture_logs() as lines:
        peer_log = PeerLog()
        peer_log.connected(2, Purpose.CONTROL, Hello(b"cell", 2, b"d" * 16, b"b" * 16, 77, 1, 1))
        peer_log.ended(2, Purpose.BULK, "replaced by a newer connection")
        peer_log.failed(None, "wrong token")
    assert [dict(line) for line in lines] == [
        {"event": "peer connected", "peer": 2, "connection": "control", "process": 77, "log_level": "info"},
        {"event": "peer connection ended", "peer": 2, "connection": "bulk",
         "reason": "replaced by a newer connection", "log_level": "warning"},
        {"event": "peer connection failed", "peer": None, "reason": "wrong token", "log_level": "warning"},
    ]
