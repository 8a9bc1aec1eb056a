"""How deep a JSON text nests, told without decoding it.

A decoder gives up at a depth that depends on how deep its caller stands in the stack. What is kept and read again later
- by apply above all, which must find the same on every node - is therefore held to a bound of its own at the door.
"""

from __future__ import annotations

import re
from typing import Final

DEPTH_MAX: Final = 512  # arrays and objects in one another; the decoders take nearly 1,000 less their caller's depth

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_OPENING = b"[{"
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")


def nests_deeper(text: bytes, most: int = DEPTH_MAX) -> bool:
    """Whether arrays and objects of a well-formed JSON text stand in one another more than `most` deep."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", text).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > most:
            return True
    return False
