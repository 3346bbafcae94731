"""What operators come for, from the first login on, each as somebody does it who sees the console for the first time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from halfmoon import Admin
from tests.console.browser.running import Console, Visit, menu, tab_to
from tests.console.browser.shop import (
    BILLING,
    ENTRIES,
    INVOICES,
    LEDGER,
    ORDERS,
    PAYING,
    PAYMENTS,
    REASON,
    REPORTS,
    SHIPPING,
    STUCK_AT,
    Shop,
)
from tests.waiting import until

OWN = "a lamp for the moon"


def numbers(page: Page, table: str) -> list[list[str]]:
    """Return the rows of a table, by its name, as texts."""
    rows = page.get_by_role("table", name=table).locator("tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_by_keyboard_alone_the_first_user_is_made_logs_in_changes_the_password_and_logs_out(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    with Console("127.0.0.1:9", tmp_path) as console:  # whatever the cluster does
        page, elsewhere = open_page(base_url=console.url), open_page(base_url=console.url)
        page.goto("/clients")
        said = page.get_by_role("status").locator("code").inner_text()
        one_time = console.command(said.replace("NAME", "ada"))["password"]
        elsewhere.goto("/login")
        elsewhere.get_by_label("Name").fill("ada")
        elsewhere.get_by_label("Password").fill(one_time)
        elsewhere.get_by_role("button", name="Log in").click()
        expect(elsewhere.get_by_role("heading", name="Password")).to_be_visible()

        page.goto("/")
        keys = page.keyboard
        expect(page.get_by_label("Name")).to_be_focused()
        keys.type("ada")
        keys.press("Tab")
        keys.type(one_time)
        keys.press("Enter")
        expect(page.get_by_label("One-time password")).to_be_focused()
        for text in (one_time, OWN, OWN):
            keys.type(text)
            keys.press("Tab")
        keys.press("Enter")

        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.locator(".notice[role=status]")).to_have_text("Your password is changed; other sessions of yours have ended.")
        elsewhere.goto("/")
        expect(elsewhere.get_by_role("button", name="Log in")).to_be_visible()
        tab_to(page, page.get_by_role("button", name="Log out"))
        keys.press("Enter")
        expect(page.get_by_label("Name")).to_be_focused()
        page.goto("/")
        expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_a_message_is_found_by_its_key_and_its_life_is_read(visit: Visit, shop: Shop) -> None:
    page = visit()
    menu(page).get_by_role("link", name="Messages").click()
    page.get_by_label("Topic").fill(ORDERS)
    page.get_by_label("Id, key, place or time").fill("order-4745")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name="Key order-4745")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="order-4745")
    link = row.locator("th").get_by_role("link")
    name = link.text_content() or ""

    link.click()

    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    events = {row[1]: row for row in numbers(page, "What happened, in the order of time")}
    groups = {row[0]: row for row in numbers(page, "How far each group is with it")}
    assert "stored" in events
    assert groups[SHIPPING][1] == "consumed"
    assert groups[BILLING][1] == "waits"
    expect(page.locator(".tree")).to_contain_text("order: 4745")


def test_it_is_said_why_a_group_is_behind_and_it_is_moved_as_the_preview_shows(visit: Visit, shop: Shop) -> None:
    page = visit()
    menu(page).get_by_role("link", name="Groups").click()
    expect(page.get_by_role("row").filter(has_text=REPORTS)).to_contain_text("No member is online, and 12 messages wait.")
    page.locator("tbody").get_by_role("link", name=REPORTS).click()
    expect(page.get_by_text("Start a consumer of this group.")).to_be_visible()
    page.get_by_role("link", name="Move its progress …").click()
    page.get_by_label("Topic").fill(ORDERS)
    page.get_by_role("combobox", name="To", exact=True).select_option("the end, skipping the backlog")
    page.get_by_role("button", name="Preview").click()
    preview = numbers(page, "Queues")
    expect(page.get_by_text("Messages consumed again: 0. Skipped: 12.")).to_be_visible()

    page.get_by_label("Reason").fill("nobody needs old reports")
    page.get_by_role("button", name="Move progress").click()

    expect(page.locator(".notice[role=status]")).to_have_text(
        f"Moved {REPORTS} in {ORDERS}. Messages consumed again: 0; skipped: 12. Members online: 0."
    )
    with Admin(nameserver=shop.nameserver) as admin:
        stats = admin.consume_stats(REPORTS)
        offsets = {(queue.broker_name, str(queue.queue_id)): one.consumer_offset for queue, one in stats.items()}
    assert len(preview) == 4
    assert {(row[0], row[1]): int(row[3]) for row in preview} == offsets


def test_the_transaction_of_an_order_service_that_died_is_decided_and_its_message_delivered(visit: Visit, shop: Shop) -> None:
    name = shop.order_service_dies("order-4799", INVOICES)
    page = visit()
    menu(page).get_by_role("link", name="Transactions").click()
    row = page.get_by_role("row", name=name)
    expect(row).to_contain_text("there is nobody to ask")
    row.get_by_role("link", name=name).click()
    expect(page.get_by_role("definition").filter(has_text="PREPARED")).to_be_visible()
    page.get_by_role("link", name="Commit").click()
    page.get_by_label("Reason").fill("the order was paid")
    page.get_by_role("button", name="Commit").click()

    expect(page.locator(".notice[role=status]")).to_have_text(
        f"The transaction is committed: consumers of {INVOICES} get its message."
    )
    with Admin(nameserver=shop.nameserver) as admin:
        (message,) = until(lambda: admin.messages_by_key(INVOICES, "order-4799"))
        assert message.body == b'{"order": "new"}'
    menu(page).get_by_role("link", name="Transactions").click()
    expect(page.get_by_role("heading", name="Transactions", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name=name)).to_have_count(0)


def test_a_dead_letter_is_replayed_and_arrives(visit: Visit, shop: Shop) -> None:
    page = visit()
    menu(page).get_by_role("link", name="Dead letters").click()
    page.locator("tbody").get_by_role("link", name=PAYING).click()
    row = page.get_by_role("row", name="order-4701")
    expect(row).to_contain_text(REASON)
    row.get_by_role("checkbox").check()
    shop.pays = True
    page.get_by_role("combobox", name="To", exact=True).select_option("the topic it came from, to all groups")

    page.get_by_role("button", name="Replay the chosen").click()

    expect(page.locator(".notice[role=status]")).to_have_text("1 replayed.")
    until(lambda: shop.paid)
    assert [b'"order": 4701' in body for body in shop.paid] == [True]
    page.get_by_role("row", name="order-4701").get_by_role("link").click()
    assert [row[0] for row in numbers(page, "Replays")] == ["payments"]


def test_a_stuck_queue_stands_first_on_the_overview_and_its_message_is_moved_to_the_dead_letters(visit: Visit, shop: Shop) -> None:
    page = visit()
    finding = page.get_by_role("listitem").filter(has_text=f"is stuck at offset {STUCK_AT}: KeyError")
    expect(finding).to_contain_text("Blocked")
    finding.get_by_role("link", name="See the message").click()
    expect(page.locator("tbody tr").first).to_contain_text(f'"entry": {STUCK_AT}')
    page.goto(f"/group?name={LEDGER}")
    page.get_by_role("link", name="Move it to the dead letters").click()
    expect(page.get_by_text(f"{ENTRIES} broker-a/0 at offset {STUCK_AT}")).to_be_visible()
    page.get_by_label("Reason").fill("entry without an account")

    page.get_by_role("button", name="Move it to the dead letters").click()

    expect(page.locator(".notice[role=status]")).to_contain_text("is moved to the dead letters")
    with Admin(nameserver=shop.nameserver) as admin:
        until(lambda: admin.lag(LEDGER, ENTRIES) == 0)
        assert [letter.message.keys for letter in admin.dead_letters(LEDGER)] == [(f"entry-{STUCK_AT}",)]
    page.goto("/audit")
    expect(page.get_by_role("row").filter(has_text="group skip")).to_contain_text("entry without an account")


def test_a_message_is_sent_and_followed(visit: Visit, shop: Shop) -> None:
    page, other = visit(f"/messages?topic={PAYMENTS}&follow=1"), visit(f"/messages/send?topic={PAYMENTS}")
    other.get_by_label("Keys").fill("order-4999")
    other.get_by_label("Body").fill('{"order": 4999}')
    other.get_by_role("button", name="Send", exact=True).click()
    expect(other.locator(".notice[role=status]")).to_contain_text("The message is stored in payments")
    expect(page.get_by_role("row").filter(has_text="order-4999")).to_be_visible()


def test_ids_are_copied_charts_say_their_values_and_what_opens_closes_by_escape(visit: Visit, shop: Shop) -> None:
    page = visit(f"/messages?topic={ORDERS}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cell = page.locator("tbody th").first
    cell.hover()
    cell.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == cell.locator("[data-copy]").get_attribute("data-copy")

    page.goto("/")
    chart = page.get_by_role("figure").filter(has_text="Messages per second").locator("svg").first
    expect(chart).to_be_visible()
    chart.hover()
    expect(page.locator(".chart output")).to_have_text(re.compile(r"\d\d:\d\d:\d\d UTC: in .+, out .+"))

    page.goto("/topics")
    page.get_by_text("Create topic").click()
    expect(page.get_by_label("Queues on each broker")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Queues on each broker")).to_be_hidden()
    expect(page.locator(".drop summary")).to_be_focused()
