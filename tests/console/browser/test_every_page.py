"""Every page of the console over a shop: nothing keeps people from it, its twin is JSON, and its picture for the documentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from halfmoon import Admin, LocalTransactionState, Message, TransactionProducer
from halfmoon.client.batches import BatchName, BatchPromise, BatchTransactions
from halfmoon.console.page import Page as Declared
from halfmoon.console.pages import ALL
from halfmoon.wire.record import BatchItem, encode_batch
from tests.console.browser.accessibility import faults
from tests.console.browser.chromium import DESKTOP, PHONE, Watch, shot
from tests.console.browser.running import Console, Visit
from tests.console.browser.shop import INVOICES, ORDERS, PAYING, REPORTS, SHIPPING, Shop
from tests.waiting import until

PAGES = [page for page in ALL if isinstance(page, Declared) and page.template and not page.fragment]
QUERIES = {
    "/topic": f"name={ORDERS}",
    "/messages": f"topic={ORDERS}&since=1h",
    "/message": f"topic={ORDERS}&id={{message}}",
    "/group": f"name={REPORTS}",
    "/group/reset": f"group={REPORTS}&topic={ORDERS}&to=latest",
    "/transaction": "id={half}",
    "/dead-letters": f"group={PAYING}",
    "/dead-letter": f"group={PAYING}&id={{letter}}",
    "/broker": "address={broker}",
    "/settings": "setting=autoCreateTopicEnable",
}
MORE = {
    "message-by-key": f"/messages?topic={ORDERS}&key=order-4711",
    "queue": f"/messages?topic={ORDERS}&broker=broker-a&queue=0",
    "group-online": f"/group?name={SHIPPING}",
    "dead-letter-groups": "/dead-letters",
    "delays-of-a-topic": f"/delays?topic={INVOICES}",
    "settings-changed": "/settings?only=changed",
    "transactions-of-a-group": "/transactions?group=order-service",
    "batches-of-one": "/batches?id=nightly-invoices",
    "no-such-topic": "/topic?name=oders",
}
"""What pages show besides: other queries of the same."""
HEIGHTS = {"/broker": 600, "/settings": 640}
"""Where less of a page is pictured than a screen shows."""


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


def test_the_menu_is_one_line_of_a_page_of_1280_pixels(visit: Visit) -> None:
    links = visit("/").get_by_role("navigation", name="Pages").get_by_role("link")

    assert links.count() == sum(declared.menu for declared in PAGES)
    assert len(set(links.evaluate_all("links => links.map(link => link.getBoundingClientRect().top)"))) == 1


def test_a_phone_has_the_menu_behind_a_button_and_goes_to_every_page_of_it(visit: Visit, shop: Shop) -> None:
    page = visit("/", viewport=PHONE, has_touch=True)
    for declared in PAGES:
        if declared.menu:
            page.get_by_text("Menu", exact=True).tap()
            page.get_by_role("link", name=declared.title, exact=True).tap()
            expect(page.get_by_role("heading", name=declared.title, exact=True, level=1)).to_be_visible()
