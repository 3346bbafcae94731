"""Logging in and out, the one-time password, and those who guess."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest

from halfmoon.console.app import Console
from halfmoon.console.pages import ALL
from tests.console.conftest import URL, Site

LONG = "a password that is long"


@pytest.fixture
def stranger(site: Site) -> Site:
    """The console with no users, and a browser that nobody is logged in with."""
    site.services.users.remove("admin")
    site.http.cookies.clear()
    return site


async def log_in(site: Site, name: str, password: str, then: str = "") -> httpx.Response:
    page = await site.get("/login", then=then)
    fields = {found[1]: found[2] for found in re.finditer(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text)}
    return await site.http.post("/login", data={**fields, "name": name, "password": password}, headers={"Origin": URL})


async def change_password(site: Site, old: str, new: str, again: str, at: str = "/password") -> httpx.Response:
    page = await site.http.get(at)
    fields = {found[1]: unescape(found[2]) for found in re.finditer(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text)}
    sent = {"csrf": fields["csrf"], "then": fields["then"], "old": old, "new": new, "again": again}
    return await site.http.post("/password", data=sent, headers={"Origin": URL})


async def test_a_console_without_users_says_how_the_first_is_made(stranger: Site):
    assert "halfmoon console user add" in await stranger.text("/login")


async def test_the_one_time_password_opens_nothing_but_the_form_for_a_new_one(stranger: Site):
    password = stranger.services.users.add("root", "operator")

    entered = await log_in(stranger, "root", password)
    elsewhere = await stranger.get("/clients")
    change = await stranger.http.post("/groups/create", data={"name": "x"}, headers={"Origin": URL})
    changed = await change_password(stranger, password, LONG, LONG)

    assert (entered.status_code, entered.headers["location"]) == (303, "/password")
    assert (elsewhere.status_code, elsewhere.headers["location"].startswith("/login")) == (303, True)
    assert change.status_code in (401, 404)
    assert (changed.status_code, changed.headers["location"]) == (303, "/")
    assert (await stranger.get("/clients")).status_code == 200
    assert (await log_in(stranger, "root", password)).status_code in (303, 403)
    assert [entry.action for entry in stranger.services.audit.read(10)][:2] == ["password", "login"]


async def test_an_error_leads_to_what_its_visitor_can_do(stranger: Site):
    password = stranger.services.users.add("root", "operator")

    async def links() -> list[tuple[str, str]]:
        answer = await stranger.http.get("/nowhere")
        return re.findall(r'<a class="button" href="([^"]*)">([^<]*)</a>', answer.text)

    as_stranger = await links()
    await log_in(stranger, "root", password)
    with_one_time_password = await links()
    form = await stranger.http.post("/group/reset", data={"name": "x"}, headers={"Origin": URL})
    await change_password(stranger, password, LONG, LONG)

    assert as_stranger == [("/", "Log in")]
    assert with_one_time_password == [("/password", "Choose a password")]
    assert (form.status_code, "choose a password of your own first" in form.text) == (401, True)
    assert await links() == [("/", "Overview")]


@pytest.mark.parametrize(
    ("old", "new", "again", "words"),
    [
        ("wrong", LONG, LONG, "current or one-time password is wrong"),
        (None, LONG, LONG + "x", "differ"),
        (None, "short", "short", "12"),
        (None, None, None, ""),
    ],
)
async def test_a_new_password_that_does_not_do_is_refused_in_words(
    stranger: Site, old: str | None, new: str | None, again: str | None, words: str
):
    password = stranger.services.users.add("root", "operator")
    await log_in(stranger, "root", password)

    answer = await change_password(stranger, old or password, new or password, again or password)

    assert answer.status_code == 400
    assert words in stranger.said(answer)


async def test_a_wrong_password_and_an_unknown_name_are_answered_the_same(stranger: Site):
    stranger.services.users.add("root", "operator")

    wrong, unknown = await log_in(stranger, "root", "x"), await log_in(stranger, "nobody", "x")

    assert (wrong.status_code, unknown.status_code) == (403, 403)
    assert stranger.said(wrong) == stranger.said(unknown) == "Wrong name or password."


async def test_who_guesses_is_locked_out_and_told_for_how_long_and_costs_no_more_hashes(
    stranger: Site, monkeypatch: pytest.MonkeyPatch
):
    password, hashed = stranger.services.users.add("root", "operator"), []
    check = stranger.services.users.check
    monkeypatch.setattr(type(stranger.services.users), "check", lambda _self, *given: (hashed.append(1), check(*given))[1])

    answers = [await log_in(stranger, "root", f"guess {number}") for number in range(60)]
    right = await log_in(stranger, "root", password)

    assert answers[-1].status_code == right.status_code == 429
    assert "try again in" in stranger.said(right)
    assert len(hashed) <= 10


@pytest.mark.parametrize(
    "then", ["//evil.test", "/\\evil.test", "https://evil.test/", "javascript:alert(1)", "x", "/a\r\nSet-Cookie: b=c", "/" * 5000]
)
async def test_a_login_leads_to_no_other_site(stranger: Site, then: str):
    stranger.log_in("root")
    stranger.http.cookies.clear()

    answer = await log_in(stranger, "root", "long password of root", then)

    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_login_leads_to_the_page_that_was_asked_for(stranger: Site):
    stranger.log_in("root")
    stranger.http.cookies.clear()

    answer = await log_in(stranger, "root", "long password of root", "/topic?name=a%26b")

    assert answer.headers["location"] == "/topic?name=a%26b"


async def test_also_with_a_one_time_password_it_leads_there_and_nowhere_else(stranger: Site):
    password = stranger.services.users.add("root", "operator")

    entered = await log_in(stranger, "root", password, "/topic?name=a%26b")
    shown = await stranger.get("/login", then="/topic?name=a%26b")
    wrong = await change_password(stranger, "wrong", LONG, LONG, entered.headers["location"])
    changed = await change_password(stranger, password, LONG, LONG, entered.headers["location"])
    abroad = await change_password(stranger, LONG, LONG + "2", LONG + "2", "/password?then=//evil.test")

    assert entered.headers["location"] == shown.headers["location"] == "/password?then=%2Ftopic%3Fname%3Da%2526b"
    assert 'name="then" value="/topic?name=a%26b"' in wrong.text
    assert changed.headers["location"] == "/topic?name=a%26b"
    assert abroad.headers["location"] == "/"


async def test_a_login_form_of_another_site_is_refused(stranger: Site):
    stranger.log_in("root")
    stranger.http.cookies.clear()
    await stranger.get("/login")

    sent = {"name": "root", "password": "long password of root", "csrf": "x" * 43}
    forged = await stranger.http.post("/login", data=sent, headers={"Origin": URL})
    abroad = await stranger.http.post("/login", data=sent, headers={"Origin": "http://evil.test"})

    assert (forged.status_code, abroad.status_code) == (403, 403)
    assert "halfmoon" not in stranger.http.cookies


async def test_the_cookie_is_for_this_site_and_no_script(stranger: Site):
    stranger.log_in("root")
    stranger.http.cookies.clear()

    plain = (await log_in(stranger, "root", "long password of root")).headers["set-cookie"]
    services = stranger.services._replace(secure=True, public_url="https://console.test")
    transport = httpx.ASGITransport(Console(services, ALL))
    async with httpx.AsyncClient(transport=transport, base_url="https://console.test") as stranger.http:
        page = await stranger.get("/login")
        token = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert token is not None
        sent = {"csrf": token[1], "then": "", "name": "root", "password": "long password of root"}
        secure = await stranger.http.post("/login", data=sent, headers={"Origin": "https://console.test"})

    assert "HttpOnly" in plain
    assert "samesite=strict" in plain.lower()
    assert "__Host-halfmoon=" in secure.headers["set-cookie"]
    assert "Secure" in secure.headers["set-cookie"]


async def test_logging_out_ends_the_session_and_needs_the_form(site: Site):
    kept = dict(site.http.cookies)
    forged = await site.http.post("/logout", data={"csrf": "x"}, headers={"Origin": URL})
    still = await site.get("/clients")
    out = await site.http.post("/logout", data={"csrf": site.csrf}, headers={"Origin": URL})
    site.http.cookies.update(kept)
    after = await site.get("/clients")

    assert [forged.status_code, still.status_code, out.status_code, after.status_code] == [403, 200, 303, 303]


async def test_a_new_password_ends_the_other_sessions_of_that_user(site: Site):
    before = dict(site.http.cookies)
    site.log_in("admin")
    await change_password(site, "long password of admin", LONG, LONG)
    mine = await site.get("/clients")
    site.http.cookies.clear()
    site.http.cookies.update(before)

    assert (mine.status_code, (await site.get("/clients")).status_code) == (200, 303)


@pytest.mark.parametrize("path", ["/login", "/password", "/logout"])
async def test_forms_that_need_no_role_are_small(site: Site, path: str):
    if path == "/login":
        site.http.cookies.clear()

    answer = await site.http.post(path, data={"csrf": site.csrf, "password": "x" * 20_000}, headers={"Origin": URL})

    assert answer.status_code == 413
