"""Linearizable reads without a log entry: the rounds by which a leader makes sure that it still leads."""

from __future__ import annotations

from collections import deque

OPEN_ROUNDS_MAX = 64
"""Rounds on their way at once. Reads asked for beyond that gather for the next one."""


class ReadRounds:
    """The reads of one term of one leader (Raft thesis 6.4).

    A read may be served at the commit index of a moment after it was asked for, once a majority answered something
    that the leader sent after that moment: none of them had let another leader be elected before.
    """

    __slots__ = ("_answered", "_asked", "_open", "round")

    def __init__(self) -> None:
        self.round = 0
        """The round begun last; every append and heartbeat carries it, every answer echoes it."""
        self._asked: list[int] = []
        self._open: deque[tuple[int, int, list[int]]] = deque()
        self._answered: list[tuple[int, int]] = []

    @property
    def may_begin(self) -> bool:
        return bool(self._asked) and len(self._open) < OPEN_ROUNDS_MAX

    @property
    def waiting(self) -> bool:
        """Whether a round is on its way."""
        return bool(self._open)

    @property
    def is_idle(self) -> bool:
        """Whether no read waits for anything."""
        return not (self._asked or self._open or self._answered)

    @property
    def has_answers(self) -> bool:
        return bool(self._answered)

    def ask(self, request: int) -> None:
        self._asked.append(request)

    def begin(self, commit_index: int) -> None:
        """One round for all that was asked so far, at this commit index."""
        self.round += 1
        self._open.append((self.round, commit_index, self._asked))
        self._asked = []

    def confirmed(self, round: int) -> None:
        """A majority answered something of this round, and so confirmed it and the earlier ones."""
        while self._open and self._open[0][0] <= round:
            _, index, requests = self._open.popleft()
            self._answered += [(request, index) for request in requests]

    def take_answers(self) -> tuple[tuple[int, int], ...]:
        """(request, index) of the reads that may be served once `index` is applied; each is handed out once."""
        answers = tuple(self._answered)
        self._answered = []
        return answers
