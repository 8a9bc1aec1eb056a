"""What can be said of one item of an ack: one byte, as it is kept and as it crosses to the answer."""

from __future__ import annotations

DONE = 0x01  # carried out: success
DLQ = 0x02  # and filed as a dead letter
NOOP = 0x04  # nothing had to change
REDELIVERS = 0x08  # without effect: a lower message of the call comes back, and this one with it

INVALID_LEASE = 0x10
UNRESOLVABLE = 0x20
ALREADY_COMMITTED = 0x30
CONSUMER_NOT_FOUND = 0x40
