"""What must hold for the node to go on. What a peer, a client or a disk can do wrong does not belong here."""

from __future__ import annotations

from typing import NoReturn


class InvariantBroken(Exception):
    """Our own code is wrong. Nobody catches this: the node stops rather than go on with state it cannot trust."""


def broken(what: str, **facts: object) -> NoReturn:
    """Stop the node: `what` happened, with the facts that a reader of the log needs."""
    shown = ", ".join(f"{name}={value!r}" for name, value in facts.items())
    raise InvariantBroken(f"{what} ({shown})" if shown else what)


def must(condition: bool, what: str, **facts: object) -> None:
    """Raise InvariantBroken unless `condition` holds. Unlike `assert` it survives `python -O`.

    `what` says what went wrong, not what was expected: "flushed what we do not hold".
    """
    if not condition:
        broken(what, **facts)
