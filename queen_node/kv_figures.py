"""What a door counts of key/value calls (kv.md 9). No label ever holds a namespace or a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from queen_node.commands import KvOp
from queen_node.metrics import Metrics
from queen_node.state.kv import KvAnswer, Single

_WRITES_VALUE = frozenset((KvOp.PUT, KvOp.PUT_IF_ABSENT, KvOp.INCR))


class Outcome(Enum):
    """What became of an operation. REJECTED: by a verdict; ERROR: its call was refused, or nobody decided it."""

    APPLIED = "applied"
    REJECTED = "rejected"
    ERROR = "error"


class KvFigures:
    """Adds to a door's metrics. monotonic_s: the time that calls are measured with."""

    def __init__(self, metrics: Metrics, monotonic_s: Callable[[], float]) -> None:
        self._metrics, self.now_s = metrics, monotonic_s

    def failed(self, words: Sequence[str]) -> None:
        """A call with these operations came to no answer of the store."""
        for word in words:
            self._count(word, Outcome.ERROR)

    def answered(self, words: Sequence[str], answer: KvAnswer, began_s: float) -> None:
        """A call was answered that began at `began_s`."""
        _one, lost, exceeds, elements = answer
        took_ms = (self.now_s() - began_s) * 1000
        for word in words:
            self._metrics.kv_op_ms[word] = took_ms
        if exceeds:
            self.failed(words)
        elif lost is not None:
            for word in words:
                self._count(word, Outcome.REJECTED)
        for word, element in zip(words, elements, strict=False):  # of neither there are elements
            if not isinstance(element, Single):
                self._count(word, Outcome.APPLIED)
                self._metrics.kv_bytes["read"] += sum(len(row.value or b"") for row in element.rows)
                continue
            is_get = element.op == KvOp.GET
            self._count(word, Outcome.APPLIED if element.done or is_get else Outcome.REJECTED)
            if element.done and element.value is not None:
                if is_get:
                    self._metrics.kv_bytes["read"] += len(element.value)
                elif element.op in _WRITES_VALUE:
                    self._metrics.kv_bytes["written"] += len(element.value)

    def read_rejected(self, reason: str) -> None:
        """A read was refused before it reached the store."""
        table = self._metrics.kv_read_rejected
        table[reason] = table.get(reason, 0) + 1

    def _count(self, word: str, outcome: Outcome) -> None:
        table, key = self._metrics.kv_ops, f"{word},{outcome.value}"
        table[key] = table.get(key, 0) + 1
