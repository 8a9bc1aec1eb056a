"""DELETE, peek, list and count (timers.md 1, 3, 4): paths, pages and their refusals."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import trio

from tests.conformance.calls import Calls
from tests.conformance.test_timers_schedule import bad, refusal
from tests.support.http_client import segment

# key, the spellings of it that a path may have
SPELLINGS = [
    ("a/b", ["a/b", "a%2Fb", "a%2fb"]),
    ("a//b", ["a//b", "a%2F%2Fb", "a%2F/b"]),
    ("a%2Fb", ["a%252Fb"]),
    ("a/", ["a/", "a%2F"]),
    ("/", ["/", "%2F"]),
    ("..", ["..", "%2E%2E"]),
    ("../x", ["../x"]),
    ("a/./b", ["a/./b"]),
    ("a+b", ["a+b", "a%2Bb"]),
    ("a b", ["a%20b"]),
    ("é☂", ["%C3%A9%E2%98%82"]),
    ("?#", ["%3F%23"]),
]


@pytest.mark.parametrize(("key", "spellings"), SPELLINGS)
async def test_paths(calls: Calls, key: str, spellings: list[str]) -> None:
    """TM-3: split at `/` first, decode once, normalise nothing; for peek and cancel alike."""
    for spelling in spellings:
        await calls.schedule(key)
        path = f"/api/v1/timers/{calls.queue}/{spelling}"
        peeked = (await calls.http.get(path)).json()
        assert (peeked["found"], peeked.get("timerKey")) == (True, key)
        assert (await calls.http.delete(path)).json()["status"] == "cancelled"
        assert (await calls.http.get(path)).json() == {"found": False}


async def test_a_queue_with_a_slash(calls: Calls) -> None:
    """TM-3: it arrives as %2F, in every route that names it."""
    calls.queue += "/x y☂"
    await calls.schedule("k")
    assert (await calls.peek("k"))["queue"] == calls.queue
    assert len((await calls.page())["rows"]) == 1
    assert (await calls.page("?mode=count&prefix=k")) == {"count": 1}
    assert (await calls.cancel("k"))["queue"] == calls.queue


@pytest.mark.parametrize("path", ["%ZZ", "%", "%E2%98", "%FF", "k%"])
async def test_a_path_that_cannot_be_decoded(calls: Calls, path: str) -> None:
    """TM-3."""
    for method in ("GET", "DELETE"):
        answer = await calls.http.request(method, f"/api/v1/timers/{calls.queue}/{path}")
        assert refusal(answer) == bad("timers_bad_op")


async def test_an_empty_key_is_no_route(calls: Calls) -> None:
    """TM-3: 404 `no_such_route`."""
    for method in ("GET", "DELETE"):
        answer = await calls.http.request(method, f"/api/v1/timers/{calls.queue}/")
        assert (answer.status, answer.json()["code"]) == (404, "no_such_route")


async def test_cancel(calls: Calls) -> None:
    """TM-30, TM-32, TM-33: the timer's own txn when it was there, the one sent when not; the txn is no condition."""
    await calls.schedule("k", txn="own")
    base = {"queue": calls.queue, "timerKey": "k"}
    assert await calls.cancel("k", "?txn=another") == {"ok": True, "status": "cancelled", **base, "txn": "own"}
    assert await calls.cancel("k", "?txn=another") == {"ok": False, "status": "absent", **base, "txn": "another"}
    assert await calls.cancel("k") == {"ok": False, "status": "absent", **base, "txn": None}
    assert await calls.cancel("k", "?txn=a+b%2Bc") == {"ok": False, "status": "absent", **base, "txn": "a b+c"}


async def test_cancel_ignores_a_body(calls: Calls) -> None:
    """timers.md 1: none; ignored."""
    await calls.schedule("k")
    answer = await calls.http.request("DELETE", f"/api/v1/timers/{calls.queue}/k", b"{nonsense")
    assert (answer.status, answer.json()["status"]) == (200, "cancelled")


async def test_a_cancelled_timer_does_not_fire(calls: Calls) -> None:
    """G-M3: a neighbour with a later due time comes alone."""
    await calls.schedule("gone", delayMs=300)
    await calls.schedule("stays", delayMs=400)
    assert (await calls.cancel("gone"))["status"] == "cancelled"
    assert [message["transactionId"] for message in await calls.pop_until(1)] == ["txn-stays"]
    assert await calls.pop() == []


async def test_list(calls: Calls) -> None:
    """TM-41: byte order of keys, exclusive `after`, `truncated` and `nextAfter`; peek's fields but two."""
    keys = ["b", "a", "é", "B", "a/b", "aa"]
    for key in keys:
        await calls.schedule(key)
    ordered = sorted(keys, key=str.encode)
    page = await calls.page()
    assert set(page) == {"rows", "truncated", "nextAfter"}
    assert [row["timerKey"] for row in page["rows"]] == ordered
    assert (page["truncated"], page["nextAfter"]) == (False, None)
    peeked = await calls.peek("a")
    assert page["rows"][1] == {name: peeked[name] for name in peeked if name not in ("found", "payload")}
    first = await calls.page("?limit=2&mode=list")
    assert [row["timerKey"] for row in first["rows"]] == ordered[:2]
    assert (first["truncated"], first["nextAfter"]) == (True, ordered[1])
    rest = await calls.page(f"?after={quote(ordered[1])}&limit=4")
    assert [row["timerKey"] for row in rest["rows"]] == ordered[2:]
    assert (rest["truncated"], rest["nextAfter"]) == (False, None)
    between = await calls.page("?after=aZ-not-there")
    assert [row["timerKey"] for row in between["rows"]] == ["aa", "b", "é"]
    assert [row["timerKey"] for row in (await calls.page("?after="))["rows"]] == ordered


@pytest.mark.parametrize(("limit", "rows"), [("0", 1), ("-3", 1), ("", 3), ("1", 1), ("2", 2), ("99999999999", 3)])
async def test_a_limit_is_clamped(calls: Calls, limit: str, rows: int) -> None:
    """TM-41: never refused when it is a whole number."""
    for key in "abc":
        await calls.schedule(key)
    assert len((await calls.page(f"?limit={limit}"))["rows"]) == rows


@pytest.mark.parametrize(("query", "reason"), [
    ("limit=x", "timers_bad_query"), ("limit=1.5", "timers_bad_query"),
    ("mode=count", "timers_count_prefix_required"), ("mode=count&prefix=", "timers_count_prefix_required"),
    ("mode=count&prefix=" + "p" * 129, "timers_count_prefix_invalid"),
    ("mode=count&prefix=a%00", "timers_count_prefix_invalid"),
    ("mode=count&prefix=a&after=b", "timers_count_no_paging"),
    ("mode=count&prefix=a&limit=1", "timers_count_no_paging"),
    ("mode=sum", "timers_read_mode_unknown"), ("mode=Count", "timers_read_mode_unknown"),
])
async def test_queries_refused(calls: Calls, query: str, reason: str) -> None:
    """TM-41, TM-42."""
    assert refusal(await calls.http.get(f"/api/v1/timers/{calls.queue}?{query}")) == bad(reason)


async def test_count(calls: Calls) -> None:
    """TM-42: exact, the prefix literal, as bytes; 128 bytes are allowed."""
    for key in ("a", "a%", "a_", "ab", "b", "é1", "é2"):
        await calls.schedule(key)
    for prefix, count in (("a", 4), ("a%", 1), ("a_", 1), ("b", 1), ("c", 0), ("é", 2), ("p" * 128, 0)):
        assert await calls.page(f"?mode=count&prefix={segment(prefix)}") == {"count": count}


async def test_an_unknown_queue_is_an_empty_page(calls: Calls) -> None:
    """TM-41, TM-40: not 404."""
    assert await calls.page() == {"rows": [], "truncated": False, "nextAfter": None}
    assert await calls.page("?mode=count&prefix=a") == {"count": 0}
    assert await calls.peek("a") == {"found": False}


async def test_pages_while_keys_fire(calls: Calls) -> None:
    """timers.md 11: 2,500 keys by pages, of which 500 fire meanwhile; those that stay are all seen once, in order."""
    stay = [f"stay-{number:04}" for number in range(2000)]
    fire = [f"stay-{number:04}-fires" for number in range(0, 2000, 4)]
    for at in range(0, len(stay), 250):
        assert (await calls.timers(*(calls.operation(key, txn=key) for key in stay[at : at + 250]))).status == 200
    for at in range(0, len(fire), 250):
        operations = (calls.operation(key, txn=key, delayMs=100) for key in fire[at : at + 250])
        assert (await calls.timers(*operations)).status == 200
    seen: list[str] = []
    after = ""
    while True:
        page = await calls.page(f"?limit=97&after={after}")
        seen += [row["timerKey"] for row in page["rows"]]
        if not page["truncated"]:
            break
        after = page["nextAfter"]
        await trio.sleep(0.005)
    assert seen == sorted(set(seen))
    assert [key for key in seen if key in set(stay)] == stay
    assert set(seen) <= {*stay, *fire}
    await calls.wait_until_fired(fire[-1])
    assert await calls.page("?mode=count&prefix=stay") == {"count": 2000}
