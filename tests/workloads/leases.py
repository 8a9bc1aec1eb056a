"""How long the workers of pipelines and state machines lease what they take."""

from __future__ import annotations

LEASES_S = (1, 1, 2)
