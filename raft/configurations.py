"""The configurations that a member's log holds, and their CBOR form. Which change is legal does not belong here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import cbor2

from raft.invariants import must
from raft.quorum import Configuration

UNNAMED_VERSION: Final = 1  # knows nothing of directories
NAMED_VERSION: Final = 2
VOTERS_MAX: Final = 5  # M-71; a joint configuration names as many old ones beside them
NODE_ID_MAX: Final = 2**63 - 1
DIRECTORY_ID_BYTES: Final = 16


class MalformedConfiguration(ValueError):
    """Bytes that are no configuration of a version known here."""


def encode_configuration(configuration: Configuration) -> bytes:
    """The data of a CONFIGURATION entry: `[version, voters, outgoing, learners]`, and in the second version also
    `[[node id, directory], ...]`. One that names no directory is written in the first."""
    members = configuration.voters, configuration.outgoing, configuration.learners
    if not configuration.directories:
        return cbor2.dumps((UNNAMED_VERSION, *members))
    return cbor2.dumps((NAMED_VERSION, *members, configuration.directories))


def decode_configuration(data: bytes) -> Configuration:
    """What `encode_configuration` made `data` from. Raises MalformedConfiguration for anything else."""
    try:
        value = cbor2.loads(data)
    except (cbor2.CBORError, RecursionError) as error:
        raise MalformedConfiguration(f"not CBOR: {error}") from error
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        raise MalformedConfiguration("not a version and three lists of node ids")
    if value[0] not in (UNNAMED_VERSION, NAMED_VERSION):
        raise MalformedConfiguration(f"version {value[0]}, not {UNNAMED_VERSION} or {NAMED_VERSION}")
    if len(value) != (4 if value[0] == UNNAMED_VERSION else 5):
        raise MalformedConfiguration(f"{len(value)} fields in version {value[0]}")
    for ids in value[1:4]:
        if not isinstance(ids, list) or len(ids) > VOTERS_MAX:
            raise MalformedConfiguration(f"not a list of at most {VOTERS_MAX} node ids: {ids!r}")
        if not all(type(node_id) is int and 0 < node_id <= NODE_ID_MAX for node_id in ids):
            raise MalformedConfiguration(f"not node ids: {ids!r}")
    voters, outgoing, learners = map(tuple, value[1:4])
    try:
        return Configuration(voters, outgoing, learners, _directories(value[4:]))
    except ValueError as error:
        raise MalformedConfiguration(str(error)) from error


def _directories(fields: list[Any]) -> tuple[tuple[int, bytes], ...]:
    if not fields:
        return ()
    if not isinstance(fields[0], list):
        raise MalformedConfiguration(f"not a list of directories: {fields[0]!r}")
    for pair in fields[0]:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
            raise MalformedConfiguration(f"not a node id and its directory: {pair!r}")
        if type(pair[1]) is not bytes or len(pair[1]) != DIRECTORY_ID_BYTES:
            raise MalformedConfiguration(f"not the {DIRECTORY_ID_BYTES} bytes of a directory's id: {pair[1]!r}")
    if len({node_id for node_id, _ in fields[0]}) != len(fields[0]):
        raise MalformedConfiguration("two directories for one node")
    return tuple((node_id, directory_id) for node_id, directory_id in fields[0])


class Configurations:
    """From the one that the state holds to the last one appended, oldest first.

    A configuration rules from the moment it is appended, committed or not, and no longer when its entry is cut (Raft
    paper §6); so all that could come back are kept.
    """

    __slots__ = ("_history",)

    def __init__(self, applied_index: int, configuration: Configuration) -> None:
        """configuration: as of the applied index. That one is committed, and never cut."""
        self._history = [(applied_index, 0, configuration)]

    @property
    def latest(self) -> Configuration:
        return self._history[-1][2]

    @property
    def latest_index(self) -> int:
        """Index of the entry that holds the latest; for that of the state, of an entry at or behind it."""
        return self._history[-1][0]

    def at(self, index: int) -> Configuration:
        """The one that ruled once the entry at `index`, not before the applied one, was appended."""
        must(index >= self._history[0][0], "asked for a configuration that is forgotten", index=index)
        return next(configuration for at, _, configuration in reversed(self._history) if at <= index)

    def may_stand(self, node_id: int, directory_id: bytes, commit_index: int) -> bool:
        """Whether the node votes by that directory in the latest configuration known to be committed, or in any after.

        Who is left out by one that is not committed yet may be the only one that can be elected (Raft thesis 4.2.2).
        """
        for index, _, configuration in reversed(self._history):
            if configuration.is_voter(node_id) and configuration.is_member_by(node_id, directory_id):
                return True
            if index <= commit_index:
                return False
        return False

    def add(self, index: int, term: int, configuration: Configuration, *, applied_index: int) -> None:
        """The entry at `index` was appended. What the state has moved past is forgotten."""
        must(index > self.latest_index, "configurations out of order", index=index, latest=self.latest_index)
        self._history.append((index, term, configuration))
        while self._history[1][0] <= applied_index:
            del self._history[0]

    def cut(self, holds: Callable[[int, int], bool], commit_index: int) -> None:
        """Take back what the log no longer holds."""
        while self._history[-1][0] > commit_index and not holds(*self._history[-1][:2]):
            self._history.pop()
