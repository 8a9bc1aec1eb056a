"""Ports for servers that a test or a bench starts, ends and starts again."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

PORT_FIRST = 10_240  # below it live services that a developer's machine may run
PORT_TRIES_MAX = 200
OUTGOING_FIRST = 32_768  # where the kernel does not tell its range


class NoFreePort(Exception):
    """Every port that was tried is in use or claimed."""


def free_port() -> int:
    """A port of the loopback address that nobody listens on, below the range from which the kernel takes ports for
    outgoing connections. It belongs to the calling process until that ends: no other call, here or in another process
    of this user, gets it, even while its server is down. Raises NoFreePort.

    Inside the kernel's range a client that keeps knocking at a node which is down can be connected to itself, and then
    holds the port against the node.
    """
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(ranges.read_text().split()[0]) if ranges.exists() else OUTGOING_FIRST
    draws = random.SystemRandom()  # the module's own generator starts again wherever a test seeds it
    for _ in range(PORT_TRIES_MAX):
        port = draws.randrange(PORT_FIRST, end)
        if _is_free(port) and _claim(port):
            return port
    raise NoFreePort


def claims_folder() -> Path:
    """Where processes of this user mark the ports that they hold: one file a port, locked."""
    folder = Path(tempfile.gettempdir()) / f"queen-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Whether the claim is ours now. It ends with the process, however that ends: the kernel gives the lock back."""
    claim = os.open(claims_folder() / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(claim)
        return False
    return True
