"""What the data directory is: whose it is and in which format. Written once, compared at every boot.

What must never change once data exists stands here, so that a changed setting or a lost file is told by its name
instead of being read as an empty node (CL-124, CL-125).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

LAYOUT_VERSION = 3
LAYOUT_FILE = "layout.json"


class CannotStart(Exception):
    """The node must not start; the text is one line for the operator, naming the file or the variable."""


class Layout(msgspec.Struct, frozen=True):
    """The file's content. `directory_id`: random, made with the directory; a copy of it is a second node's. founders:
    ids of the first voters of the node's groups, as far as it knew them: of one that was added later it is none itself;
    empty before the others were met; directories: ids of the founders' (CL-105); cluster_id: of those it speaks to
    (CL-4, CL-106), empty while it waits to be added."""

    version: int
    node_id: int
    directory_id: str
    founders: tuple[int, ...]
    cluster_id: str
    directories: dict[int, str] = {}
    recovered_at: int = 0  # index in group 0's log of the last forced recovery (CL-108)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are in the data directory."""

    directory: Path

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.directory / "log"

    @property
    def store(self) -> Path:
        """RocksDB."""
        return self.directory / "store"

    @property
    def layout(self) -> Path:
        """This module's file."""
        return self.directory / LAYOUT_FILE


def open_layout(
    places: Places, *, node_id: int, founders: tuple[int, ...] = (), cluster_id: str = "", joins: bool = False,
) -> tuple[Layout, bool]:
    """Read the layout, or write it if the directory is new; and whether it was. Raises CannotStart.

    founders: as they are listed; without any the node is alone. joins: a new node waits to be added to them (CL-106);
    else several found a cluster together once they have met (`founding`).
    """
    others = tuple(founder for founder in founders if founder != node_id)
    if joins:
        cluster_id = ""
    try:
        raw = places.layout.read_bytes()
    except FileNotFoundError:
        decided = others if joins else () if others else (node_id,)
        return _found_directory(places, node_id, decided, cluster_id), True
    except OSError as error:
        raise CannotStart(f"{places.layout}: {error.strerror} (QUEEN_RAFT_DIR)") from error
    try:
        layout = msgspec.json.decode(raw, type=Layout)
    except msgspec.MsgspecError as error:
        raise CannotStart(f"{places.layout}: damaged ({error}); replace this node, or restore the file") from error
    if layout.version != LAYOUT_VERSION:
        raise CannotStart(f"{places.layout}: version {layout.version}, this release reads {LAYOUT_VERSION}")
    if layout.node_id != node_id:
        raise CannotStart(
            f"{places.layout}: the data belongs to node {layout.node_id}, QUEEN_RAFT_NODE_ID says {node_id}")
    for part in (places.log, places.store):
        if not part.is_dir():
            raise CannotStart(f"{part}: missing, though {places.layout} says that data was kept here")
    if joins and not layout.founders:
        layout = write_layout(places, msgspec.structs.replace(layout, founders=others, cluster_id=""))
    return layout, False


def _found_directory(places: Places, node_id: int, founders: tuple[int, ...], cluster_id: str) -> Layout:
    for part in (places.log, places.store):
        if part.is_dir() and any(part.iterdir()):
            raise CannotStart(f"{places.layout}: missing, though {part} holds data; restore the file")
    layout = Layout(LAYOUT_VERSION, node_id, secrets.token_hex(16), founders, cluster_id)
    try:
        places.directory.mkdir(parents=True, exist_ok=True)
        for part in (places.log, places.store):
            part.mkdir(exist_ok=True)
    except OSError as error:
        raise CannotStart(f"{places.directory}: {error.strerror} (QUEEN_RAFT_DIR)") from error
    # Last: a directory without it, and with nothing else, is a new one.
    return write_layout(places, layout)


def write_layout(places: Places, layout: Layout) -> Layout:
    """Put the file there, whole or not at all; what stands in it now. Raises CannotStart."""
    try:
        written = places.directory / (LAYOUT_FILE + ".new")
        with written.open("wb") as file:
            file.write(msgspec.json.encode(layout))
            file.flush()
            os.fsync(file.fileno())
        written.rename(places.layout)
        descriptor = os.open(places.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CannotStart(f"{places.directory}: {error.strerror} (QUEEN_RAFT_DIR)") from error
    return layout
