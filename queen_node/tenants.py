"""Whose call it is: the tenant's id, from a request's header (tenancy-auth.md 1)."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

TENANT_BYTES: Final = 16
DEFAULT_TENANT: Final = (1).to_bytes(TENANT_BYTES, "big")  # TA-2
RESERVED: Final = frozenset(number.to_bytes(TENANT_BYTES, "big") for number in (0, 0xFE, 0xFF))  # TA-5
HEADER: Final = b"x-queen-tenant"
_FORM: Final = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class BadTenant(ValueError):
    """The header holds what is no UUID."""


def tenant_of(header: bytes | None) -> bytes:
    """The tenant that a header names, 16 bytes; none is the default one (TA-3). Raises BadTenant."""
    text = b"" if header is None else header.strip(b" ")
    if not text:
        return DEFAULT_TENANT
    if not _FORM.fullmatch(text):
        raise BadTenant
    return bytes.fromhex(text.replace(b"-", b"").decode())


def tenant_text(tenant: bytes) -> str:
    """The id as people read it: canonical, lower case (TA-1)."""
    return str(UUID(bytes=tenant))
