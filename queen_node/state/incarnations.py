"""Which rows are a group's state: `life -> incarnation` (M-61, CL-112).

A snapshot is written under an incarnation of its own, beside the state that lives; one batch flips the life to it; what
the life no longer names is removed later. The row of a life names every incarnation that may have rows, and is written
before the first of them: so a crash leaves nothing that is not found at the next start. A life that never took a
snapshot has no row, and its incarnation is the first.

Nothing is flushed here, and nothing waits: what RocksDB keeps at a crash is a prefix of the batches.
"""

from __future__ import annotations

import msgspec

from queen_node.state.keys import INCARNATIONS, META, after, group_prefix
from queen_node.state.store import Engine, Meta
from raft.invariants import must

ROW_VERSION = 1
FIRST = 1
HIGHEST = 0xFFFF  # of two bytes in a key; the numbers come round
LEFTOVERS_MAX = 16  # of one life; before another one is begun some must be removed
POINT_DELETES_MAX = 1000  # rows; as many or more are removed by a range delete (M-5)
LOOKED_AT_BYTES_MAX = 1 << 20  # of rows, to find whether they are so many


class IncarnationRow(msgspec.Struct, array_like=True, frozen=True):
    """leftovers: incarnations that may have rows beside `current`. flipped_index, flipped_term: the last entry that the
    state stood for when the life was flipped to it, while the log was not told yet that it starts behind; 0: it was.
    """

    version: int = ROW_VERSION
    current: int = FIRST
    leftovers: tuple[int, ...] = ()
    flipped_index: int = 0
    flipped_term: int = 0


class UnknownRow(Exception):
    """The store was written by another release, or is damaged (CL-124)."""


class Incarnations:
    """The rows of all lives. One a node; every method that writes raises StoreBusy, and then nothing was done."""

    def __init__(self, engine: Engine) -> None:
        """Raises UnknownRow."""
        self._engine = engine
        self._rows: dict[int, IncarnationRow] = {}
        self._with_leftovers: dict[int, None] = {}  # lives
        for key, value in engine.iterate(INCARNATIONS, after(INCARNATIONS)):
            try:
                row = msgspec.msgpack.decode(value, type=IncarnationRow)
            except msgspec.MsgspecError as error:
                raise UnknownRow(f"the row of incarnations at {key.hex()}: {error}") from error
            if row.version != ROW_VERSION:
                raise UnknownRow(f"a row of incarnations of version {row.version}, this release reads {ROW_VERSION}")
            self._keep(int.from_bytes(key[len(INCARNATIONS) :], "big"), row)

    # --- looking

    def current(self, life: int) -> int:
        """Under which the life's state stands."""
        return self._row(life).current

    def flipped(self, life: int) -> tuple[int, int] | None:
        """(index, term) at which the log is still to be told that it starts behind; None: it knows.

        Only while the state stands at just that entry: it moves on from there by what the log holds.
        """
        row = self._row(life)
        return (row.flipped_index, row.flipped_term) if row.flipped_index else None

    def leftovers(self) -> list[tuple[int, int]]:
        """(life, incarnation) of all that may have rows and is nobody's state."""
        return [(life, number) for life in self._with_leftovers for number in self._rows[life].leftovers]

    def may_begin(self, life: int) -> bool:
        """Whether another one may be begun: not while too many wait to be removed."""
        return len(self._row(life).leftovers) < LEFTOVERS_MAX

    # --- installing

    def begin(self, life: int) -> int:
        """A fresh incarnation; it counts as left over until the life is flipped to it."""
        row = self._row(life)
        must(self.may_begin(life), "too many incarnations", life=life, leftovers=row.leftovers)
        taken, number = {row.current, *row.leftovers}, max(row.current, *row.leftovers, FIRST)
        while number in taken:
            number = number + 1 if number < HIGHEST else FIRST
        self._write(life, msgspec.structs.replace(row, leftovers=(*row.leftovers, number)))
        return number

    def write(self, life: int, incarnation: int, rows: dict[bytes, bytes | None]) -> None:
        """Rows of the state that is being installed, keys without the group's prefix."""
        must(incarnation in self._row(life).leftovers, "wrote what was not begun", life=life, incarnation=incarnation)
        if rows:
            self._engine.write(group_prefix(life, incarnation), rows)

    def flip(self, life: int, incarnation: int, meta: bytes) -> Meta:
        """The life's state is this one from now on, in one batch with its row META; what `meta` says.

        Durable with the next flush. The log is told after that (`told`).
        """
        row = self._row(life)
        must(incarnation in row.leftovers, "flipped to what was not begun", life=life, incarnation=incarnation)
        said = msgspec.msgpack.decode(meta, type=Meta)
        leftovers = (*(number for number in row.leftovers if number != incarnation), row.current)
        flipped = IncarnationRow(ROW_VERSION, incarnation, leftovers, said.applied_index, said.applied_term)
        self._write(life, flipped, {group_prefix(life, incarnation) + META: meta})
        return said

    def told(self, life: int, index: int) -> None:
        """The log says on disk that it starts behind `index`: from now on a store ahead of it is damage (M-3)."""
        row = self._row(life)
        if row.flipped_index == index:
            self._write(life, msgspec.structs.replace(row, flipped_index=0, flipped_term=0))

    # --- removing

    def remove(self, life: int, incarnation: int) -> bool:
        """Remove what is left over. Returns whether it took a range delete, of which one a second is allowed (M-5)."""
        row = self._row(life)
        must(incarnation in row.leftovers, "removed a state that lives", life=life, incarnation=incarnation)
        prefix = group_prefix(life, incarnation)
        keys = self._keys_if_few(prefix)
        if keys is None:
            self._engine.remove_range(prefix, after(prefix))
        elif keys:
            self._engine.write(b"", dict.fromkeys(keys))
        leftovers = tuple(number for number in row.leftovers if number != incarnation)
        self._write(life, msgspec.structs.replace(row, leftovers=leftovers))
        return keys is None

    def _keys_if_few(self, prefix: bytes) -> list[bytes] | None:
        """The keys, unless there are too many, or reading them would hold up the loop."""
        keys: list[bytes] = []
        left_bytes = LOOKED_AT_BYTES_MAX
        for key, value in self._engine.iterate(prefix, after(prefix)):
            left_bytes -= len(value)
            if len(keys) == POINT_DELETES_MAX - 1 or left_bytes < 0:
                return None
            keys.append(key)
        return keys

    def _row(self, life: int) -> IncarnationRow:
        return self._rows.get(life) or IncarnationRow()

    def _write(self, life: int, row: IncarnationRow, more: dict[bytes, bytes] | None = None) -> None:
        key = INCARNATIONS + life.to_bytes(4, "big")
        self._engine.write(b"", {**(more or {}), key: msgspec.msgpack.encode(row)})
        self._keep(life, row)

    def _keep(self, life: int, row: IncarnationRow) -> None:
        self._rows[life] = row
        if row.leftovers:
            self._with_leftovers[life] = None
        else:
            self._with_leftovers.pop(life, None)
