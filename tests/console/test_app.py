"""The frame of the console: who sees and does what, forms of its own alone, once, and what goes wrong in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from halfmoon.console import app
from halfmoon.console.access.audit import UNKNOWN
from halfmoon.console.app import Console
from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.errors import ConnectFailed, ConnectionLost, RequestTimeout, SettingError, UsageError, broker_error
from tests.console.conftest import URL, Site

HOSTILE = "<script>alert(1)</script>\u202e\x00'\""


class Shop:
    """Pages and changes of a test, and what was carried out."""

    def __init__(self) -> None:
        self.sold: list[str] = []
        self.fails: Exception | None = None
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def clients(self, asked: Asked) -> Facts:
        """Show what was asked for, where a page of the console shows names."""
        if self.fails:
            raise self.fails
        return {"clients": [], "next": None, "not_reported": [asked.text("name", "")]}

    async def sell(self, asked: Asked) -> Done:
        """Sell a thing."""
        self.asked.set()
        await self.gate.wait()
        if self.fails:
            raise self.fails
        self.sold.append(asked.text("thing"))
        return Done(f"{asked.text('thing')} is sold.", "/clients")


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def console(site: Site, shop: Shop) -> AsyncIterator[Site]:
    """The console with the pages of the test."""
    pages = [
        Page("/clients", "Clients", "clients.html", shop.clients, menu="Data"),
        Page("/secret", "Secret", "clients.html", shop.clients, operators=True),
        Page("/live", "Live", "clients.html", shop.clients, fragment=True),
        Change("/sell", shop.sell, audit=("thing",)),
        Change("/burn", shop.sell, audit=("thing",), irreversible=True),
    ]
    cookies = site.http.cookies
    await site.http.aclose()
    transport = httpx.ASGITransport(Console(site.services, pages), raise_app_exceptions=True)
    site.http = httpx.AsyncClient(transport=transport, base_url=URL, cookies=cookies)
    async with site.http:
        yield site


async def test_nobody_sees_a_page_without_a_login_and_comes_back_to_it_after(console: Site):
    console.http.cookies.clear()

    page, twin, live = await console.get("/clients", name="x"), await console.get("/clients.json"), await console.get("/nothing")

    assert (page.status_code, page.headers["location"]) == (303, "/login?then=%2Fclients%3Fname%3Dx")
    assert (twin.status_code, twin.json()["error"]) == (401, "log in first")
    assert live.status_code == 404


async def test_a_page_and_its_twin_show_the_same_and_names_of_others_are_text(console: Site):
    page, twin = await console.get("/clients", name=HOSTILE), await console.json("/clients", name=HOSTILE)

    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x00" in page.text
    assert twin["not_reported"] == [HOSTILE]


@pytest.mark.parametrize("path", ["/clients", "/clients.json", "/nothing", "/login", "/static/console.css"])
async def test_no_answer_can_be_framed_sniffed_or_given_scripts(console: Site, path: str):
    answer = await console.get(path)

    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert ("immutable" if "static" in path else "no-store") in answer.headers["cache-control"]


@pytest.mark.parametrize("path", ["/", "/login", "/static/halfmoon.svg", "/none"])
async def test_who_asks_for_another_host_gets_nothing_so_that_no_site_reads_along(console: Site, path: str):
    """A name that its owner points at this machine would make the console's answers those of the owner's site."""
    for host in ("evil.com", "127.0.0.1.evil.com:8080", "", "["):
        answer = await console.http.get(path, headers={"Host": host, "Accept": "application/json"})
        assert (answer.status_code, "set-cookie" in answer.headers) == (421, False)
        assert 'class="button"' not in (await console.http.get(path, headers={"Host": host})).text, "nothing can be done here"
    for host in ("127.0.0.1:8080", "[::1]", "localhost", "console"):
        assert (await console.http.get(path, headers={"Host": host})).status_code != 421
    behind_proxy = Console(console.services._replace(secure=True, public_url="https://halfmoon.example.com"), ())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(behind_proxy), base_url="https://halfmoon.example.com") as client:
        assert (await client.get("/login")).status_code == 200
        assert (await client.get("/login", headers={"Host": "evil.com"})).status_code == 421


async def test_behind_tls_browsers_are_told_to_come_by_nothing_else(console: Site):
    secure = Console(console.services._replace(secure=True), ())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(secure), base_url="https://halfmoon.example.com") as client:
        for path in ("/login", "/none"):
            assert (await client.get(path)).headers["strict-transport-security"] == "max-age=31536000"
    assert "strict-transport-security" not in (await console.get("/login")).headers


async def test_templates_and_scripts_hold_nothing_that_the_policy_forbids():
    from halfmoon.console.render import HERE

    templates = list((HERE / "templates").iterdir())
    assert len(templates) > 10
    for path in templates:
        text = path.read_text()
        assert " style=" not in text, path.name
        assert "<style" not in text, path.name
        assert "|safe" not in text, path.name
        assert " onclick=" not in text, path.name
        assert "http://" not in text, path.name
        assert "https://" not in text, path.name


async def test_a_change_is_carried_out_recorded_and_said_once(console: Site, shop: Shop):
    first = await console.post("/sell", thing="shoes")
    second = await console.get("/clients")

    assert shop.sold == ["shoes"]
    assert console.said(first) == "shoes is sold."
    assert console.said(second) == ""
    entry = console.services.audit.read(1)[0]
    assert (entry.user, entry.action, entry.fields, entry.outcome) == ("admin", "sell", {"thing": "shoes"}, "done: shoes is sold.")


async def test_an_irreversible_change_needs_a_reason_which_is_bounded_and_kept(console: Site, shop: Shop):
    for reason, words in (("", "reason is missing"), (" ", "reason is missing"), ("x" * 201, "reason is 201 characters long")):
        refused = await console.post("/burn", thing="shoes", reason=reason)
        assert (refused.status_code, words in console.said(refused)) == (400, True)
    assert shop.sold == []

    await console.post("/burn", thing="shoes", reason="worn <out>")

    assert shop.sold == ["shoes"]
    [entry] = console.services.audit.read(5)
    assert entry.fields == {"thing": "shoes", "reason": "worn <out>"}


async def test_the_side_bar_is_collapsed_where_the_browser_says_so(console: Site):
    assert '<details class="rail" open>' in (await console.get("/clients")).text
    console.http.cookies.set("halfmoon-side", "collapsed")
    assert '<details class="rail">' in (await console.get("/clients")).text


async def test_a_form_that_is_sent_twice_is_carried_out_once(console: Site, shop: Shop):
    shop.gate.clear()
    first = asyncio.ensure_future(console.post("/sell", thing="shoes", once="one"))
    await shop.asked.wait()
    during = await console.post("/sell", thing="shoes", once="one")
    shop.gate.set()
    await first
    after = await console.post("/sell", thing="shoes", once="one")

    assert shop.sold == ["shoes"]
    assert (during.status_code, console.said(during)) == (409, "This form is being carried out.")
    assert (after.status_code, "shoes is sold." in console.said(after)) == (409, True)


async def test_a_viewer_may_look_and_change_nothing(console: Site, shop: Shop):
    console.log_in("guest", "viewer")

    page, secret, change = await console.get("/clients"), await console.get("/secret"), await console.post("/sell", thing="x")

    assert [page.status_code, secret.status_code, change.status_code] == [200, 403, 403]
    assert "viewer" in console.said(change)
    assert "<h1>Not allowed</h1>" in change.text
    assert shop.sold == []


async def test_a_form_that_failed_is_not_carried_out_when_sent_again_and_the_reason_is_said_anew(console: Site, shop: Shop):
    shop.fails = UsageError("there are no shoes")
    await console.post("/sell", thing="shoes", once="one")
    shop.fails = None
    again = await console.post("/sell", thing="shoes", once="one")

    assert console.said(again) == "This form was sent before; it failed: there are no shoes"
    assert shop.sold == []


@pytest.mark.parametrize("error", [ConnectionLost("it ended", "h:1"), RequestTimeout("no answer", "h:1")])
async def test_of_a_change_that_a_broker_does_not_answer_it_is_said_and_recorded_that_nobody_knows(
    console: Site, shop: Shop, error: Exception
):
    shop.fails = error
    answer = await console.post("/sell", thing="shoes", once="one")
    shop.fails = None
    again = await console.post("/sell", thing="shoes", once="one")

    unknown = f"it is not known whether it was carried out: {error}"
    assert (answer.status_code, console.said(answer)) == (502, unknown)
    assert (again.status_code, console.said(again)) == (409, f"This form was sent before; {unknown}")
    assert console.services.audit.read(1)[0].outcome.startswith("not known: ")


async def test_of_a_change_under_way_when_the_console_ends_it_is_recorded_that_nobody_knows(console: Site, shop: Shop):
    shop.gate.clear()
    under_way = asyncio.ensure_future(console.post("/sell", thing="shoes"))
    await shop.asked.wait()
    under_way.cancel()
    with suppress(asyncio.CancelledError):
        await under_way

    assert console.services.audit.read(1)[0].outcome == UNKNOWN


async def test_who_loses_the_role_while_a_form_arrives_changes_nothing(console: Site, shop: Shop):
    async def body() -> AsyncIterator[bytes]:
        yield f"csrf={console.csrf}&once=one&".encode()
        console.services.users.set_role("admin", "viewer")
        yield b"thing=shoes"

    sent = {"Content-Type": "application/x-www-form-urlencoded", "Origin": URL}
    answer = await console.http.post("/sell", content=body(), headers=sent)

    assert (answer.status_code, shop.sold) == (403, [])


@pytest.mark.parametrize("path", ["/clients/", "/login/", "/clients.json/", "/static/console.css/"])
async def test_a_path_with_another_end_is_no_page_and_leads_nowhere(console: Site, path: str):
    answer = await console.http.get(path, headers={"Host": "evil.test"})

    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert "content-security-policy" in answer.headers


async def test_of_a_viewer_no_form_is_read(console: Site):
    console.log_in("guest", "viewer")

    async def body() -> AsyncIterator[bytes]:
        yield b"csrf="
        raise AssertionError

    sent = {"Content-Type": "application/x-www-form-urlencoded", "Origin": URL}
    assert (await console.http.post("/sell", content=body(), headers=sent)).status_code == 403


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"Origin": URL}, "forged"), ({"Origin": URL}, ""), ({"Origin": "http://evil.test"}, None), ({"Origin": "null"}, None),
        ({"Sec-Fetch-Site": "cross-site"}, None), ({"Sec-Fetch-Site": "same-site"}, None),
    ],
)  # fmt: skip
async def test_a_form_of_another_site_or_session_is_refused(console: Site, shop: Shop, headers: dict[str, str], token: str | None):
    sent = {"csrf": console.csrf if token is None else token, "once": "x", "thing": "shoes"}
    answer = await console.http.post("/sell", data=sent, headers=headers)

    assert answer.status_code == 403
    assert console.said(answer) in ("another site has sent this form", "this form belongs to another session: open the page again")
    assert shop.sold == []


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"a=1&" * 2000, "application/x-www-form-urlencoded", 400),
        (b"\xff\xfe", "application/x-www-form-urlencoded", 400),
        (b"thing=" + b"x" * (14 << 20), "application/x-www-form-urlencoded", 413),
    ],
)  # fmt: skip
async def test_what_is_no_form_or_too_large_is_refused_in_words(console: Site, shop: Shop, body: bytes, kind: str, status: int):
    answer = await console.http.post("/sell", content=body, headers={"Content-Type": kind, "Origin": URL})

    assert answer.status_code == status
    assert console.said(answer)
    assert shop.sold == []


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UsageError("the name is too long"), 400, "the name is too long"),
        (ConnectFailed("cannot connect", "h:1"), 502, "cannot connect"),
        (broker_error(17, "no topic"), 404, "no topic (code 17 TOPIC_NOT_EXIST)"),
        (broker_error(16, "no permission"), 409, "no permission (code 16 NO_PERMISSION)"),
        (RuntimeError("a secret"), 500, "Internal error; see the console's log."),
    ],
)  # fmt: skip
async def test_what_goes_wrong_is_said_in_words_and_recorded(
    console: Site, shop: Shop, error: Exception, status: int, text: str, caplog: pytest.LogCaptureFixture
):
    shop.fails = error
    page, twin = await console.get("/clients"), await console.get("/clients.json")
    change = await console.post("/sell", thing="shoes")

    assert (page.status_code, twin.status_code, change.status_code) == (status, status, status)
    assert text in console.said(page)
    assert text in json.loads(twin.text)["error"]
    assert "a secret" not in page.text
    outcome = "not known: internal error" if status == 500 else "failed: "
    assert console.services.audit.read(1)[0].outcome.startswith(outcome)


async def test_a_user_who_was_removed_or_demoted_loses_what_the_role_gave_at_once(console: Site, shop: Shop):
    console.services.users.set_role("admin", "viewer")
    demoted = await console.post("/sell", thing="x")
    console.services.users.remove("admin")
    removed = await console.get("/clients")

    assert (demoted.status_code, removed.status_code) == (403, 303)
    assert shop.sold == []


async def test_a_script_that_sends_a_form_is_told_where_to_go_and_the_notice_stays_for_that_page(console: Site, shop: Shop):
    console.http.headers["Accept"] = "application/json"
    answer = await console.post("/sell", thing="shoes", follow=False)

    assert (answer.status_code, answer.headers["location"], shop.sold) == (201, "/clients", ["shoes"])
    del console.http.headers["Accept"]
    assert console.said(await console.get("/clients")) == "shoes is sold."


async def test_a_script_whose_form_is_refused_is_told_why_in_characters_that_can_be_seen(console: Site, shop: Shop):
    shop.fails = UsageError("there are no \u202eseohs\n")
    console.http.headers["Accept"] = "application/json"
    refused = await console.post("/sell", thing="shoes")
    console.http.cookies.clear()
    stranger = await console.post("/sell", thing="shoes")

    assert (refused.status_code, refused.json()["error"]) == (400, "there are no \\u202eseohs\\n")
    assert (stranger.status_code, stranger.json()["error"]) == (401, "log in first")


async def test_what_has_no_link_to_an_icon_finds_it_where_browsers_ask_for_one(console: Site):
    console.http.cookies.clear()
    answer = await console.get("/favicon.ico")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")


@pytest.mark.parametrize("query", [{"after": "9" * 9_000}, {"group": "g" * 60_000}])
async def test_queries_that_make_no_sense_are_said(site: Site, query: dict[str, str]):
    answer = await site.get("/clients", **query)

    assert answer.status_code == 400
    assert site.said(answer)
    assert len(answer.text) < 10_000


async def test_a_file_of_users_that_does_not_read_is_named_in_words(console: Site, tmp_path: Path):
    (tmp_path / "console.db").touch(0o600)
    (tmp_path / "console.db").write_text("{}")

    answer = await console.get("/clients")

    assert answer.status_code == 500
    assert "console.db: the users cannot be read: file is not a database" in console.said(answer)


async def test_a_mistake_in_asking_who_asks_is_said_with_the_headers_that_all_answers_have(
    console: Site, monkeypatch: pytest.MonkeyPatch
):
    def mistaken(_name: str) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(console.services.users, "get", mistaken)
    answer = await console.get("/clients")

    assert (answer.status_code, console.said(answer)) == (500, "Internal error; see the console's log.")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_users_that_cannot_be_read_are_not_waited_for_twice_and_logged_once(
    console: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    asked: list[str] = []

    def locked(name: str) -> None:
        asked.append(name)
        raise SettingError("the users cannot be read: database is locked")

    monkeypatch.setattr(console.services.users, "get", locked)
    app._log_once.cache_clear()

    assert (await console.get("/clients")).status_code == 500
    assert asked == ["admin"]
    await console.get("/clients")
    assert caplog.messages == ["console: the users cannot be read: database is locked"]


@pytest.mark.parametrize(
    ("referer", "link"),
    [
        (f"{URL}/clients?group=a%26b", "/clients?group=a%26b"),
        (f"{URL}//evil.test/", None),
        ("http://[", None),
        ("javascript:alert(1)", None),
        (None, None),
    ],
)
async def test_what_went_wrong_with_a_form_leads_back_to_it(console: Site, shop: Shop, referer: str | None, link: str | None):
    shop.fails = UsageError("no")
    sent = {"csrf": console.csrf, "once": "x", "thing": "shoes"}
    headers = {"Origin": URL} | ({"Referer": referer} if referer else {})

    answer = await console.http.post("/sell", data=sent, headers=headers)

    assert (f'<a class="button" href="{link}">Back</a>' in answer.text) == (link is not None)
    assert ("Back" in answer.text) == (link is not None)
