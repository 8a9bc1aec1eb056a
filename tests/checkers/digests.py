"""Digests of the state that nodes tell of, group by group (G-D7, M-81)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.checkers.history import Violation


class Digests:
    """What was seen: where each node stands now, and which digest it had at each entry where it was seen."""

    def __init__(self) -> None:
        self._now: dict[int, dict[int, int]] = {}  # node -> group -> entry
        self._seen: dict[tuple[int, int], dict[int, str]] = {}  # group and entry -> node -> digest

    def hear(self, node: int, groups: Iterable[Mapping[str, Any]]) -> None:
        """The groups of a node, as its status route shows them."""
        self._now[node] = {}
        for group in groups:
            index, digest = group["digest"].split(":")
            self._now[node][group["group"]] = int(index)
            self._seen.setdefault((group["group"], int(index)), {})[node] = digest

    @property
    def meet(self) -> bool:
        """Whether all who were heard stand at the same entry of the same groups."""
        first, *others = self._now.values()
        return all(other == first for other in others)

    def check(self) -> list[Violation]:
        """Two digests of one entry."""
        return [
            Violation("G-D7", f"group {group} has several states after entry {index}: {digests}")
            for (group, index), digests in self._seen.items() if len(set(digests.values())) > 1]
