"""Ports for servers that a test or a bench starts, ends and starts again."""

from __future__ import annotations

import random
import socket
from pathlib import Path

PORT_FIRST = 10_240  # below it live services that a developer's machine may run
PORT_TRIES_MAX = 200
OUTGOING_FIRST = 32_768  # where the kernel does not tell its range


class NoFreePort(Exception):
    """Every port that was tried is in use."""


def free_port() -> int:
    """A port of the loopback address that nobody listens on, below the range from which the kernel takes ports for
    outgoing connections. Raises NoFreePort.

    Inside that range a client that keeps knocking at a node which is down can be connected to itself, and then holds
    the port against the node.
    """
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(ranges.read_text().split()[0]) if ranges.exists() else OUTGOING_FIRST
    for _ in range(PORT_TRIES_MAX):
        port = random.randrange(PORT_FIRST, end)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise NoFreePort
