"""What a door counts of key/value calls (kv.md 9). No label ever holds a namespace or a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queen_node.commands import KvOp
from queen_node.metrics import Metrics
from queen_node.state.kv import Element, KvAnswer, Page

_WRITES_VALUE = frozenset((KvOp.PUT, KvOp.PUT_IF_ABSENT, KvOp.INCR))


# What became of an operation. REJECTED: by a verdict; ERROR: its call was refused, or nobody decided it.
APPLIED, REJECTED, ERROR = "applied", "rejected", "error"


class KvFigures:
    """Adds to a door's metrics. monotonic_s: the time that calls are measured with."""

    def __init__(self, metrics: Metrics, monotonic_s: Callable[[], float]) -> None:
        self._metrics, self.now_s = metrics, monotonic_s

    def failed(self, words: Sequence[str]) -> None:
        """A call with these operations came to no answer of the store."""
        self._count(words, ERROR)

    def answered(self, words: Sequence[str], answer: KvAnswer, began_s: float) -> None:
        """A call was answered that began at `began_s`."""
        _one, lost, exceeds, elements = answer
        took_ms, latest = (self.now_s() - began_s) * 1000, self._metrics.kv_op_ms
        for word in words:
            latest[word] = took_ms
        if exceeds:
            self._count(words, ERROR)
        elif lost is not None:
            self._count(words, REJECTED)
        else:
            self._count_elements(words, elements)

    def read_rejected(self, reason: str) -> None:
        """A read was refused before it reached the store."""
        table = self._metrics.kv_read_rejected
        table[reason] = table.get(reason, 0) + 1

    def _count(self, words: Sequence[str], outcome: str) -> None:
        table = self._metrics.kv_ops
        for word in words:
            key = f"{word},{outcome}"
            table[key] = table.get(key, 0) + 1

    def _count_elements(self, words: Sequence[str], elements: Sequence[Element]) -> None:
        table, sizes = self._metrics.kv_ops, self._metrics.kv_bytes
        for word, element in zip(words, elements, strict=True):
            applied = True
            if isinstance(element, Page):
                sizes["read"] += sum(len(row.value or b"") for row in element.rows)
            elif element.op == KvOp.GET:
                if element.done and element.value is not None:
                    sizes["read"] += len(element.value)
            else:
                applied = element.done
                if applied and element.value is not None and element.op in _WRITES_VALUE:
                    sizes["written"] += len(element.value)
            key = f"{word},{APPLIED if applied else REJECTED}"
            table[key] = table.get(key, 0) + 1
