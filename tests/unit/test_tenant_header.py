"""Whose call it is (tenancy-auth.md 1)."""

from __future__ import annotations

import pytest

from queen_node.http.messages import Request, Response
from queen_node.http.routes import build_router
from queen_node.tenants import DEFAULT_TENANT, BadTenant, tenant_of, tenant_text

UUID = "0b9dA6c2-3d3b-4c63-8f5e-AAbbccddeeff"


@pytest.mark.parametrize("header", [None, b"", b"   "])
def test_no_header_is_the_default_tenant(header: bytes | None) -> None:
    """TA-2, TA-3."""
    assert tenant_of(header) == DEFAULT_TENANT
    assert tenant_text(DEFAULT_TENANT) == "00000000-0000-0000-0000-000000000001"


def test_case_does_not_matter() -> None:
    """TA-3."""
    assert tenant_text(tenant_of(UUID.encode())) == UUID.lower()
    assert tenant_of(UUID.lower().encode()) == tenant_of(f" {UUID.upper()} ".encode())


@pytest.mark.parametrize("text", [
    "x", UUID[:-1], UUID + "0", UUID.replace("-", ""), "{" + UUID + "}", UUID.replace("-", "_"), "g" + UUID[1:],
    UUID + "\n", "\xe9" + UUID[1:], UUID.replace("-", "", 1) + "-", "0" * 36,
])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadTenant):
        tenant_of(text.encode("latin-1"))


async def echo(request: Request) -> Response:
    return Response(200, request.tenant)


async def asked(header: bytes | None, *, tenancy: bool) -> Response:
    router = build_router({"push": echo}, {"push": lambda request: None}, tenancy=tenancy)
    request = Request("POST", b"/api/v1/push", headers={} if header is None else {b"X-Queen-Tenant": header})
    return await router.find(request).handler(request)


async def test_without_tenancy_no_header_is_read() -> None:
    """TA-2."""
    assert (await asked(UUID.encode(), tenancy=False)).body == DEFAULT_TENANT
    assert (await asked(b"not a UUID", tenancy=False)).status == 200


async def test_with_tenancy_the_header_says_whose_call_it_is() -> None:
    assert (await asked(UUID.encode(), tenancy=True)).body == bytes.fromhex(UUID.replace("-", ""))
    assert (await asked(None, tenancy=True)).body == DEFAULT_TENANT
    refused = await asked(b"not a UUID", tenancy=True)
    assert (refused.status, refused.body) == (400, b'{"error":"invalid x-queen-tenant header (must be a UUID)"}')


@pytest.mark.parametrize("last", ["00", "fe", "ff"])
async def test_reserved_tenants_are_never_served(last: str) -> None:
    """TA-5."""
    refused = await asked(f"00000000-0000-0000-0000-0000000000{last}".encode(), tenancy=True)
    assert (refused.status, refused.body) == (
        403, b'{"error":"this tenant is reserved: no route acts on it","code":"reserved_tenant"}')


def test_a_call_is_refused_before_its_body_is_read() -> None:
    """Tenancy-auth.md 2: the header comes before admission."""
    admitted: list[Request] = []

    def admit(request: Request) -> None:
        admitted.append(request)

    router = build_router({"push": echo}, {"push": admit}, tenancy=True)
    for header, admits in ((b"x", False), (UUID.encode(), True)):
        request = Request("POST", b"/api/v1/push", headers={b"x-queen-tenant": header})
        hook = router.find(request).before_body
        assert hook is not None
        assert (hook(request) is None) == admits
    assert len(admitted) == 1
