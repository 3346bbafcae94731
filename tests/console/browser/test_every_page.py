"""Every page of the console over a shop: nothing keeps people from it, its twin is JSON, and its picture for the documentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from halfmoon import Admin, LocalTransactionState, Message, TransactionProducer
from halfmoon.client.batches import BatchName, BatchPromise, BatchTransactions
from halfmoon.console.page import Page as Declared
from halfmoon.console.pages import ALL
from halfmoon.wire.record import BatchItem, encode_batch
from tests.console.browser.accessibility import faults
from tests.console.browser.chromium import DESKTOP, PHONE, Watch, shot
from tests.console.browser.running import Console, Visit, menu
from tests.console.browser.shop import BILLING, ENTRIES, INVOICES, LEDGER, ORDERS, PAYING, REPORTS, SHIPPING, STUCK_AT, Shop
from tests.waiting import until

PAGES = [page for page in ALL if isinstance(page, Declared) and page.template and not page.fragment]
QUERIES = {
    "/topic": f"name={ORDERS}",
    "/topic/delete": f"name={ORDERS}",
    "/messages": f"topic={ORDERS}",
    "/messages/send": f"topic={ORDERS}&from={{message}}",
    "/message": f"topic={ORDERS}&id={{message}}",
    "/group": f"name={LEDGER}",
    "/group/skip": f"group={LEDGER}&topic={ENTRIES}&broker=broker-a&queue=0&offset={STUCK_AT}&to=dead-letters",
    "/group/delete": f"group={REPORTS}",
    "/group/reset": f"group={REPORTS}&topic={ORDERS}&to=latest",
    "/transaction": "id={half}",
    "/transaction/decide": "id={half}&decision=commit",
    "/delays/cancel": f"topic={INVOICES}&id={{message}}",
    "/dead-letters": f"group={PAYING}",
    "/dead-letter": f"group={PAYING}&id={{letter}}",
    "/broker": "address={broker}",
    "/settings": "setting=autoCreateTopicEnable",
}
MORE = {
    "message-by-key": f"/messages?topic={ORDERS}&key=order-4711",
    "message-by-time": f"/messages?topic={ORDERS}&q=1h",
    "followed": f"/messages?topic={ORDERS}&follow=1",
    "no-topic": "/messages",
    "groups-by-name": "/groups?sort=name",
    "day": "/?range=24+h",
    "queue": f"/messages?topic={ORDERS}&broker=broker-a&queue=0",
    "group-behind": f"/group?name={REPORTS}",
    "group-online": f"/group?name={SHIPPING}",
    "dead-letter-groups": "/dead-letters",
    "delays-of-a-topic": f"/delays?topic={INVOICES}",
    "settings-changed": "/settings?only=changed",
    "transactions-of-a-group": "/transactions?group=order-service",
    "batches-of-one": "/batches?id=nightly-invoices",
    "no-such-topic": "/topic?name=oders",
}
"""What pages show besides: other queries of the same."""
GROUPS = ("Data", "Trouble", "Cluster")
LISTS = ("/topics", "/topic", "/messages", "/groups", "/group", "/transactions", "/dead-letters", "/delays", "/brokers", "/clients")
NARROW: ViewportSize = {"width": 390, "height": 844}
HEIGHTS = {"/broker": 600, "/settings": 640, "/group/skip": 360}
"""Where less of a page is pictured than a screen shows; of questions this one alone is pictured."""


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    """Half messages whose producer answers that it does not know expire after one check."""
    return {"transactionCheckInterval": 200, "transactionTimeOut": 100, "transactionCheckMax": 1}


@pytest.fixture(scope="module", autouse=True)
def batch_and_expired(shop: Shop) -> None:
    """A batch transaction of which an attempt is undecided, a transaction that has expired, and some that were committed."""
    body = encode_batch([BatchItem(b"one", b""), BatchItem(b"two", b"")])
    with BatchTransactions(nameserver=shop.nameserver) as batches:
        queue, batch = batches.queues(INVOICES)[0], BatchName("nightly-invoices", 0)
        stored = batches.prepare(batch, "first", 0, queue, 0, 2, body).result(60)
        attempts = {"first": BatchPromise(2, stored.checksum)}
        assert batches.vote(batch, queue.broker_name, stored.coordinator, attempts) is None
        batches.decide(batch, stored.coordinator, {queue.broker_name: attempts})
        batches.apply(batch, queue.broker_name, stored.coordinator, attempts)
        batches.prepare(BatchName("nightly-invoices", 1), "second", 0, queue, 0, 2, body).result(60)
    unknown = LocalTransactionState.UNKNOWN
    with (
        Admin(nameserver=shop.nameserver) as admin,
        TransactionProducer(group="invoice-service", nameserver=shop.nameserver, check=lambda message: unknown) as producer,
    ):
        producer.prepare(Message(INVOICES, b'{"order": 4711}', keys=["invoice-4711"], tag="new"))
        for _ in range(3):
            with producer.half(Message(INVOICES, b'{"order": 4712}')):
                pass  # its end commits
        until(lambda: admin.expired_page(count=10).transactions)


@pytest.fixture(scope="module")
def ids(shop: Shop) -> dict[str, str]:
    """What queries name."""
    with Admin(nameserver=shop.nameserver) as admin:
        return {
            "message": admin.messages_by_key(ORDERS, "order-4720")[0].offset_msg_id,
            "half": shop.half_id,
            "letter": admin.dead_letters(PAYING)[0].offset_msg_id,
            "broker": quote(admin.brokers()[0].address),
        }


def address(page: Declared, ids: dict[str, str]) -> str:
    query = QUERIES.get(page.path, "").format_map(ids)
    return f"{page.path}?{query}" if query else page.path


def name_of(page: Declared) -> str:
    return page.path.strip("/").replace("/", "-") or "overview"


@pytest.mark.parametrize("declared", PAGES, ids=name_of)
def test_nothing_keeps_people_from_a_page_and_its_twin_is_json(
    visit: Visit, shop: Shop, ids: dict[str, str], declared: Declared
) -> None:
    page = visit(address(declared, ids))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.locator(".error[role=alert]").count() == 0
    if declared.template != "confirm.html" or declared.path in HEIGHTS:
        shot(page, name_of(declared), HEIGHTS.get(declared.path, DESKTOP["height"]))
    where = page.url.removeprefix(page.context.pages[0].evaluate("location.origin"))
    path, _, query = where.partition("?")
    answer = page.request.get(f"{'/overview' if path == '/' else path}.json?{query}")
    assert (answer.status, isinstance(json.loads(answer.body()), dict)) == (200, True)

    assert faults(page) == []
    page.set_viewport_size(PHONE)
    page.reload()
    assert faults(page) == []


@pytest.mark.parametrize("name", MORE)
def test_nor_from_what_it_shows_besides(visit: Visit, shop: Shop, watch: Watch, name: str) -> None:
    if name == "no-such-topic":
        watch.expect("404")
    page = visit(MORE[name])
    assert faults(page) == []
    page.set_viewport_size(PHONE)
    page.reload()
    assert faults(page) == []


def test_nor_from_the_way_in(console: Console, open_page: Callable[..., Page], visit: Visit) -> None:
    page = open_page(base_url=console.url)
    page.goto("/login")
    shot(page, "login")
    assert faults(page) == []
    page = visit("/password")
    assert faults(page) == []
    page.set_viewport_size(PHONE)
    assert faults(page) == []


def test_the_menu_is_a_side_bar_of_three_groups_that_collapses_and_stays_so(visit: Visit) -> None:
    page = visit("/")
    bar = menu(page)
    titles = {group: bar.get_by_role("list", name=group).get_by_role("link").all_inner_texts() for group in GROUPS}
    assert titles == {
        "Data": ["Topics", "Messages", "Groups"],
        "Trouble": ["Transactions", "Dead letters", "Delays", "Batches"],
        "Cluster": ["Brokers", "Clients", "Settings", "Audit"],
    }
    assert bar.evaluate("bar => bar.getBoundingClientRect().bottom") < DESKTOP["height"]
    wide = bar.bounding_box()

    page.get_by_text("Side bar").locator("..").click()
    remembered = {"name": "halfmoon-side", "value": "collapsed"}.items()
    until(lambda: any(remembered <= cookie.items() for cookie in page.context.cookies()), "the browser to remember it")
    page.goto("/topics")

    narrow = bar.bounding_box()
    assert wide is not None
    assert narrow is not None
    assert narrow["width"] < 60 < wide["width"]
    assert faults(page) == []


@pytest.mark.parametrize("declared", [page for page in PAGES if page.path in LISTS], ids=name_of)
def test_a_table_fits_its_page_and_is_cards_on_a_phone(visit: Visit, shop: Shop, ids: dict[str, str], declared: Declared) -> None:
    page = visit(address(declared, ids))
    too_wide = "boxes => boxes.some(box => box.scrollWidth > box.clientWidth)"
    assert not page.locator(".scroll").evaluate_all(too_wide)
    page.set_viewport_size(NARROW)
    row = page.locator("tbody tr").first
    cells = row.locator("td:visible, th:visible").evaluate_all("cells => cells.map(cell => cell.getBoundingClientRect().left)")
    assert len(set(cells)) <= 2
    if (lead := row.locator(".lead")).count():
        assert row.evaluate("row => row.querySelector('.lead').getBoundingClientRect().top - row.getBoundingClientRect().top") < 20
        assert lead.evaluate("cell => parseFloat(getComputedStyle(cell).fontSize)") >= 18


def test_without_a_script_the_menu_sorting_and_every_value_are_there(visit: Visit, shop: Shop) -> None:
    page = visit("/groups", java_script_enabled=False)
    header = page.get_by_role("columnheader").filter(has_text="Group").get_by_role("link")
    header.click()
    expect(header).to_have_attribute("href", "/groups?sort=-name")
    expect(page.locator("tbody tr").first).to_contain_text(BILLING)
    phone = visit("/groups", java_script_enabled=False, viewport=PHONE, has_touch=True)
    expect(menu(phone).get_by_role("link", name="Brokers")).to_be_hidden()
    phone.get_by_text("Menu", exact=True).tap()
    expect(menu(phone).get_by_role("link", name="Brokers")).to_be_visible()


def test_a_phone_has_the_menu_behind_a_button_and_goes_to_every_page_of_it(visit: Visit, shop: Shop) -> None:
    page = visit("/", viewport=PHONE, has_touch=True)
    for declared in PAGES:
        if declared.menu:
            page.get_by_text("Menu", exact=True).tap()
            menu(page).get_by_role("link", name=declared.title, exact=True).tap()
            expect(page.get_by_role("heading", name=declared.title, exact=True, level=1)).to_be_visible()
