"""What a door may ask of the node behind it. Commands and queries go in as bytes, results come out as bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Protocol


class Lane(IntEnum):
    """Which waits when not everything fits into an entry: what empties the system goes first (CL-32)."""

    DRAINING = 0  # acks, extensions, hand-backs, cancels, timers, configure
    PUSHES = 1


class Unavailable(Exception):
    """No group decided the call. `code` is `timeout`, `retry`, `no_leader` or `tenant_limit`; the last two were never
    proposed."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Broker(Protocol):
    """The way from a door to the group that decides (the pipeline implements it).

    A write is answered with its packed answer (`answers.pack`), a read with `answers.result(...)`. Every method raises
    Unavailable at its deadline or when nobody leads. `tenant`: whose state it is about, 16 bytes (tenants.py); its
    first write makes its group.
    """

    async def write(
        self, tenant: bytes, command: bytes, *, timeout_ms: int, lane: Lane = Lane.DRAINING,
        places: tuple[bytes, ...] = (),
    ) -> bytes:
        """Propose a command and wait until it has committed and applied here.

        `places`: where the command may append (`places.place`), each as often as it has messages for it, so that pops
        waiting there can ride behind it in the same entry (M-41).
        """
        ...

    async def write_all(
        self, tenant: bytes, parts: Sequence[tuple[bytes, tuple[bytes, ...]]], *, timeout_ms: int, lane: Lane,
    ) -> list[bytes]:
        """Propose the commands of one call, (command, places) each, adjacent and in order (PU-43); their results."""
        ...

    async def read(self, tenant: bytes, query: bytes, *, timeout_ms: int) -> bytes:
        """A linearizable read (`queries.py`): read-index, then from this node's store (M-40)."""
        ...

    async def pop(
        self, tenant: bytes, command: bytes, *, lease_id: bytes, queue: bytes, group: bytes, partition: bytes | None,
        wait_ms: int | None, client_gone: Callable[[], Awaitable[None]] | None,
    ) -> bytes:
        """Pop, now or when something can be delivered. `wait_ms` None: try once (PA-20).

        Nothing to deliver: `answers.NOTHING`. When `client_gone` returns first, the pop is withdrawn: nothing stays
        claimed for it (PA-23).
        """
        ...

    async def hand_back(self, tenant: bytes, lease_id: bytes) -> None:
        """The answer of a pop could not be delivered (PA-23)."""
        ...

    def admits(self, body_bytes: int, *, grows: bool = True) -> bool:
        """Whether a body of this size may be taken at once; `admit` says why not, or waits.

        grows: whether the call adds to what is stored; what does not, or is not known to, passes a full disk's gate.
        """
        ...

    def takes_growth(self) -> bool:
        """Whether calls are taken that add to what is stored."""
        ...

    def takes_changes(self) -> bool:
        """Whether calls are taken that change something and empty nothing: not on a volume that is full (README 26)."""
        ...

    async def admit(self, body_bytes: int, *, grows: bool = True) -> None:
        """Take a permit for a body about to be read; raises errors.Refused OVERLOADED (CL-34) or STORAGE_FULL."""
        ...
