"""What operators come for, from the first login on, each as somebody does it who sees the console for the first time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from halfmoon import Admin
from tests.console.browser.running import Console, Visit, tab_to
from tests.console.browser.shop import BILLING, INVOICES, ORDERS, PAYING, REASON, REPORTS, SHIPPING, Shop
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
        expect(page.get_by_role("status")).to_have_text("Your password is changed; other sessions of yours have ended.")
        elsewhere.goto("/")
        expect(elsewhere.get_by_role("button", name="Log in")).to_be_visible()
        tab_to(page, page.get_by_role("button", name="Log out"))
        keys.press("Enter")
        expect(page.get_by_label("Name")).to_be_focused()
        page.goto("/")
        expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_a_message_is_found_by_its_key_and_its_life_is_read(visit: Visit, shop: Shop) -> None:
    page = visit()
    page.get_by_role("link", name="Messages", exact=True).click()
    search = page.locator("form").filter(has=page.get_by_label("Key"))
    search.get_by_label("Topic").fill(ORDERS)
    search.get_by_role("textbox", name="Key", exact=True).fill("order-4745")
    search.get_by_role("button", name="Find").click()
    (found,) = numbers(page, "Messages")
    assert found[4] == "order-4745"

    page.get_by_role("link", name=found[2]).click()

    expect(page.get_by_role("heading", name="Message")).to_contain_text(found[2])
    events = {row[1]: row for row in numbers(page, "What happened, in the order of time")}
    groups = {row[0]: row for row in numbers(page, "How far each group is with it")}
    assert "stored" in events
    assert groups[SHIPPING][1] == "consumed"
    assert groups[BILLING][1] == "waits"
    expect(page.locator("pre").first).to_contain_text('"order": 4745')


def test_it_is_said_why_a_group_is_behind_and_it_is_moved_as_the_preview_shows(visit: Visit, shop: Shop) -> None:
    page = visit()
    page.get_by_role("link", name="Groups", exact=True).click()
    expect(page.get_by_role("row").filter(has_text=REPORTS)).to_contain_text("No member is online, and 12 messages wait.")
    page.get_by_role("link", name=REPORTS).click()
    expect(page.get_by_text("Start a consumer of this group.")).to_be_visible()
    page.get_by_role("link", name="Move its progress …").click()
    page.get_by_label("Topic").fill(ORDERS)
    page.get_by_role("combobox", name="To", exact=True).select_option("the end, skipping what waits")
    page.get_by_role("button", name="Preview").click()
    preview = numbers(page, "Queues")
    expect(page.get_by_text("Messages consumed again: 0. Skipped: 12.")).to_be_visible()

    page.get_by_role("button", name="Move progress").click()

    expect(page.get_by_role("status")).to_have_text(
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
    page.get_by_role("link", name="Transactions", exact=True).click()
    row = page.get_by_role("row", name=name)
    expect(row).to_contain_text("there is nobody to ask")
    row.get_by_role("link", name=name).click()
    expect(page.get_by_role("definition").filter(has_text="PREPARED")).to_be_visible()
    form = page.locator("form").filter(has=page.get_by_role("button", name="Commit"))
    form.get_by_role("checkbox").check()

    form.get_by_role("button", name="Commit").click()

    expect(page.get_by_role("status")).to_have_text(f"The transaction is committed: consumers of {INVOICES} get its message.")
    with Admin(nameserver=shop.nameserver) as admin:
        (message,) = until(lambda: admin.messages_by_key(INVOICES, "order-4799"))
        assert message.body == b'{"order": "new"}'
    page.get_by_role("link", name="Transactions", exact=True).click()
    expect(page.get_by_role("heading", name="Transactions", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name=name)).to_have_count(0)


def test_a_dead_letter_is_replayed_and_arrives(visit: Visit, shop: Shop) -> None:
    page = visit()
    page.get_by_role("link", name="Dead letters", exact=True).click()
    page.get_by_role("link", name=PAYING).click()
    row = page.get_by_role("row", name="order-4701")
    expect(row).to_contain_text(REASON)
    row.get_by_role("checkbox").check()
    shop.pays = True
    page.get_by_role("combobox", name="To", exact=True).select_option("the topic it came from, to all groups")

    page.get_by_role("button", name="Replay the chosen").click()

    expect(page.get_by_role("status")).to_have_text("1 replayed.")
    until(lambda: shop.paid)
    assert [b'"order": 4701' in body for body in shop.paid] == [True]
    page.get_by_role("row", name="order-4701").get_by_role("link").click()
    assert [row[0] for row in numbers(page, "Replays")] == ["payments"]
