"""The audit log as a page: for operators, the newest first, a page at a time."""

from __future__ import annotations

from halfmoon.console.page import PAGE_SIZE
from tests.console.pages.test_cluster import HOSTILE, text_of


async def test_entries_the_newest_first(site):
    audit = site.services.audit
    audit.end(audit.begin("admin", "10.0.0.1", "settings set", {"setting": "brokerPermission", "value": "6"}), "done: it is 6")
    audit.note("", "10.0.0.9", "login", {}, "refused")
    page, facts = await site.text("/audit"), await site.json("/audit")
    assert [(entry["action"], entry["outcome"]) for entry in facts["entries"]] == [
        ("login", "refused"), ("settings set", "done: it is 6"),
    ]  # fmt: skip
    assert "admin settings set setting: brokerPermission, value: 6 done: it is 6 10.0.0.1" in text_of(page)


async def test_a_page_at_a_time(site):
    for number in range(PAGE_SIZE + 5):
        site.services.audit.note("admin", "10.0.0.1", f"action {number}", {})
    first = await site.json("/audit")
    rest = await site.json("/audit", after=first["next"])
    actions = [entry["action"] for entry in first["entries"] + rest["entries"]]
    assert actions == [f"action {number}" for number in reversed(range(PAGE_SIZE + 5))]
    assert rest["next"] is None
    assert "Next rows" in await site.text("/audit")
    assert "First rows" in await site.text("/audit", after=first["next"])


async def test_an_empty_log_and_an_entry_that_is_not_there(site):
    assert "Nothing has been recorded." in await site.text("/audit")
    assert (await site.json("/audit", after="1"))["entries"] == []
    assert (await site.get("/audit", after="gone")).status_code == 400


async def test_failed_logins_that_share_an_entry_are_counted(site):
    for number in range(12):
        site.services.audit.login_failed("", f"10.0.0.{number}")
    assert "login failed: wrong name or password (3 times) several addresses" in text_of(await site.text("/audit"))


async def test_viewers_neither_see_it_nor_a_link_to_it(site):
    site.log_in("looker", "viewer")
    assert (await site.get("/audit")).status_code == 403
    assert (await site.get("/audit.json")).status_code == 403
    assert 'href="/audit"' not in await site.text("/brokers")


async def test_hostile_texts_are_shown_and_do_nothing(site):
    site.services.audit.note(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, HOSTILE)
    page = await site.text("/audit")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
