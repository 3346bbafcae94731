"""Each change of the console, made in the browser as an operator makes it, and looked at behind it with `Admin`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from halfmoon import Admin, LocalTransactionState, Message, TransactionProducer
from halfmoon.errors import QueryNotFound
from tests.console.browser.chromium import Watch
from tests.console.browser.running import Visit
from tests.console.browser.shop import INVOICES, ORDERS, PAYING, PAYMENTS, SHIPPING, Shop
from tests.waiting import until


@pytest.fixture
def admin(shop: Shop) -> Iterator[Admin]:
    with Admin(nameserver=shop.nameserver) as admin:
        yield admin


def form(page: Page, button: str) -> Locator:
    """Return the form with a button."""
    return page.locator("form").filter(has=page.get_by_role("button", name=button, exact=True))


def said(page: Page, text: str) -> None:
    """Wait for the sentence that says what was done."""
    expect(page.get_by_role("status").filter(has_text=text)).to_be_visible()


def test_a_topic_is_created_changed_and_deleted_with_its_name_typed(visit: Visit, admin: Admin) -> None:
    page = visit("/topics")
    page.get_by_text("Create topic").click()
    form(page, "Create").get_by_label("Name").fill("returns")
    form(page, "Create").get_by_label("Queues on each broker").fill("3")
    form(page, "Create").get_by_role("button").click()
    said(page, "returns")
    page.goto("/topic?name=returns")
    page.get_by_text("Change", exact=True).first.click()
    change = form(page, "Change")
    change.get_by_label("Queues to read").fill("2")
    change.get_by_label("Queues to write").fill("2")
    change.get_by_label("Permission").select_option("read only")
    change.get_by_role("button").click()
    said(page, "returns")
    (made,) = [config for config in admin.topic_configs(admin.topic_route("returns").broker_datas[0].broker_addrs[0]).items()
               if config[0] == "returns"]  # fmt: skip

    page.get_by_role("link", name="Delete topic").click()
    button = page.get_by_role("button", name="Delete topic")
    expect(button).to_be_disabled()
    form(page, "Delete topic").get_by_label("Type returns to confirm").fill("return")
    expect(button).to_be_disabled()
    form(page, "Delete topic").get_by_label("Type returns to confirm").fill("returns")
    form(page, "Delete topic").get_by_label("Reason").fill("nobody returns anything")
    button.click()
    said(page, "returns")

    assert (made[1].read_queue_nums, made[1].write_queue_nums, made[1].perm) == (2, 2, 4)
    assert "returns" not in admin.topics()


def test_a_group_is_created_and_deleted_with_its_name_typed(visit: Visit, admin: Admin) -> None:
    page = visit("/groups")
    page.get_by_text("Create group").first.click()
    form(page, "Create group").get_by_label("New group").fill("returns-worker")
    form(page, "Create group").get_by_role("button").click()
    said(page, "returns-worker")
    there = "returns-worker" in admin.groups()

    page.goto("/group?name=returns-worker")
    page.get_by_role("link", name="Delete group").click()
    form(page, "Delete group").get_by_label("Type returns-worker to confirm").fill("returns-worker")
    form(page, "Delete group").get_by_label("Reason").fill("unused")
    page.get_by_role("button", name="Delete group").click()
    said(page, "returns-worker")

    assert there
    assert "returns-worker" not in admin.groups()


def test_a_message_is_sent_again_to_its_topic_or_to_one_group(visit: Visit, shop: Shop, admin: Admin) -> None:
    (message,) = admin.messages_by_key(ORDERS, "order-4709")
    page = visit(f"/message?topic={ORDERS}&id={message.offset_msg_id}")

    page.get_by_text("Send again").first.click()
    form(page, "Send again").get_by_role("button").click()

    said(page, "all groups of topic")
    assert len(until(lambda: len(found := admin.messages_by_key(ORDERS, "order-4709")) == 2 and found)) == 2
    page.goto(f"/message?topic={ORDERS}&id={message.offset_msg_id}")
    page.get_by_text("Send again").first.click()
    form(page, "Send again").get_by_role("combobox").select_option(f"group {SHIPPING} alone")
    form(page, "Send again").get_by_role("button").click()
    said(page, SHIPPING)
    assert len(admin.messages_by_key(ORDERS, "order-4709")) == 2


def test_a_delayed_message_is_cancelled_and_never_comes(visit: Visit, admin: Admin) -> None:
    page = visit(f"/delays?topic={INVOICES}")
    row = page.get_by_role("row").filter(has_text="invoice-24")

    row.get_by_role("link", name="Cancel").click()
    page.get_by_label("Reason").fill("sent in error")
    page.get_by_role("button", name="Cancel the message").click()

    said(page, "is cancelled")
    waiting = [each.keys for each in admin.delayed_messages(topic=INVOICES).messages]
    assert not any("invoice-24" in keys for keys in waiting)
    assert any("invoice-1" in keys for keys in waiting)


def test_a_setting_is_changed_and_marked(visit: Visit, shop: Shop, admin: Admin) -> None:
    page = visit("/settings")
    page.get_by_role("link", name="Change autoCreateTopicEnable").click()
    form(page, "Change").get_by_label("Value").fill("false")
    form(page, "Change").get_by_role("button").click()
    said(page, "autoCreateTopicEnable")

    page.get_by_role("link", name="Changed", exact=True).click()

    row = page.get_by_role("row").filter(has_text="autoCreateTopicEnable")
    expect(row).to_contain_text("changed")
    (broker,) = admin.brokers()
    assert admin.broker_config(broker.address)["autoCreateTopicEnable"] == "false"
    admin.update_broker_config(broker.address, {"autoCreateTopicEnable": "true"})


def test_a_setting_that_does_not_fit_is_refused_in_words(visit: Visit, watch: Watch, admin: Admin) -> None:
    watch.expect("400|409")
    page = visit("/settings")
    page.get_by_role("link", name="Change fileReservedTime").click()
    form(page, "Change").get_by_label("Value").fill("much")
    form(page, "Change").get_by_role("button").click()

    expect(page.get_by_role("alert")).to_contain_text("fileReservedTime")


def test_what_was_typed_stays_where_a_change_is_refused_and_the_next_try_counts(visit: Visit, watch: Watch, admin: Admin) -> None:
    watch.expect("400|409")
    page = visit("/topics")
    page.get_by_text("Create topic").click()
    create = form(page, "Create")
    create.get_by_label("Name").fill("no name!")
    create.get_by_label("Queues on each broker").fill("3")
    create.get_by_label("Permission").select_option("read only")
    create.get_by_role("button").click()
    expect(page.get_by_role("alert")).to_contain_text("illegal characters")
    expect(create.get_by_label("Name")).to_have_value("no name!")
    create.get_by_label("Name").fill("typed-once")
    create.get_by_role("button").click()
    said(page, "typed-once")

    (broker,) = admin.brokers()
    made = admin.topic_configs(broker.address)["typed-once"]
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 4)


def test_without_scripts_a_refusal_leads_back_and_the_browser_keeps_what_was_typed(visit: Visit, watch: Watch) -> None:
    watch.expect("400|409")
    page = visit("/topics", java_script_enabled=False)
    page.get_by_text("Create topic").click()
    form(page, "Create").get_by_label("Name").fill("no name!")
    form(page, "Create").get_by_role("button").click()
    expect(page.get_by_role("alert")).to_contain_text("illegal characters")
    expect(page.get_by_role("link", name="Back")).to_have_attribute("href", "/topics")

    page.go_back()
    page.get_by_text("Create topic").click()

    expect(form(page, "Create").get_by_label("Name")).to_have_value("no name!")


def test_a_change_whose_answer_is_lost_is_not_carried_out_again(visit: Visit, watch: Watch, admin: Admin) -> None:
    watch.expect("ERR_FAILED")
    watch.expect("409")
    page = visit("/topics")
    page.get_by_text("Create topic").click()
    page.route("**/topics/create", lambda route: (route.fetch(max_redirects=0), route.abort()))
    form(page, "Create").get_by_label("Name").fill("answer-lost")
    form(page, "Create").get_by_role("button").click()
    expect(page.get_by_role("alert")).to_have_text("The console does not answer: whether this was carried out is not known.")
    page.unroute("**/topics/create")

    form(page, "Create").get_by_role("button").click()

    expect(page.get_by_role("alert")).to_contain_text("This form was sent before; it was carried out once.")


def test_a_producer_that_is_gone_is_asked_in_vain_and_its_transaction_rolled_back_for_ever(
    visit: Visit, watch: Watch, shop: Shop, admin: Admin
) -> None:
    name = shop.order_service_dies("order-4888", INVOICES)
    page = visit(f"/transaction?id={name}")
    watch.expect("4\\d\\d")
    form(page, "Ask now").get_by_role("button").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.goto(f"/transaction?id={name}")
    page.get_by_role("link", name="Roll back").click()
    page.get_by_label("Reason").fill("the order failed")

    page.get_by_role("button", name="Roll back").click()

    said(page, "rolled back")
    assert admin.messages_by_key(INVOICES, "order-4888") == []
    assert admin.transaction(name).state == "ROLLED_BACK"


def test_an_expired_transaction_is_resumed_checked_again_and_committed(visit: Visit, shop: Shop, admin: Admin) -> None:
    (broker,) = admin.brokers()
    unknown = LocalTransactionState.UNKNOWN
    with TransactionProducer(group="returns-service", nameserver=shop.nameserver, check=lambda message: unknown) as producer:
        half = producer.prepare(Message(INVOICES, b'{"return": 1}', keys=["return-1"]))
        half.leave()
        often = {"transactionCheckInterval": "200", "transactionTimeOut": "100", "transactionCheckMax": "1"}
        usual = {name: admin.broker_config(broker.address)[name] for name in often}
        admin.update_broker_config(broker.address, often)
        try:
            until(lambda: any(each.keys == "return-1" for each in admin.expired_page().transactions))
            admin.update_broker_config(broker.address, {"transactionCheckMax": "15"})
            page = visit("/transactions/expired")
            row = page.get_by_role("row").filter(has_text="return-1")
            row.get_by_role("button", name="Resume").click()
            said(page, "pending again")
            expect(row).to_contain_text("resumed")
            page.goto("/transactions?group=returns-service")
            page.get_by_role("row").filter(has_text="return-1").get_by_role("link").first.click()
            expect(page.get_by_role("cell", name="UNKNOWN").first).to_be_visible()
        finally:
            admin.update_broker_config(broker.address, usual)
        page.get_by_role("link", name="Commit").click()
        page.get_by_label("Reason").fill("the return is booked")
        page.get_by_role("button", name="Commit").click()
        said(page, "committed")

    assert [message.body for message in admin.messages_by_key(INVOICES, "return-1")] == [b'{"return": 1}']


def test_transactions_renew_themselves_and_nothing_typed_ticked_or_in_focus_is_lost(visit: Visit, shop: Shop, admin: Admin) -> None:
    listed, one = visit("/transactions"), visit(f"/transaction?id={shop.half_id}")
    listed.evaluate("document.querySelector('[data-live]').dataset.every = 100")
    listed.get_by_label("Producer group").fill("order-serv")
    later = shop.order_service_dies("order-4889", INVOICES)
    expect(listed.get_by_role("link", name=later)).to_be_visible()
    expect(listed.get_by_label("Producer group")).to_have_value("order-serv")
    expect(listed.get_by_label("Producer group")).to_be_focused()

    link = listed.get_by_role("link", name=later)
    link.focus()
    admin.decide_transaction(later, commit=False, operator="ada")
    age = one.get_by_text("Pending for").text_content()
    expect(one.get_by_text("Pending for")).not_to_have_text(age or "")
    expect(link).to_be_focused()
    listed.get_by_label("Producer group").focus()
    expect(link).to_have_count(0)

    two = visit(f"/transaction?id={later}")
    assert two.get_by_role("link", name="Commit").count() == 0


def test_what_was_decided_while_it_was_looked_at_is_said(visit: Visit, shop: Shop, admin: Admin) -> None:
    name = shop.order_service_dies("order-4890", INVOICES)
    page = visit(f"/transaction?id={name}")
    admin.decide_transaction(name, commit=True, operator="ada")
    page.get_by_text("It is COMMITTED now.").get_by_role("link").click()
    expect(page.get_by_role("link", name="Commit")).to_have_count(0)


def test_a_dead_letter_is_replayed_with_another_body(visit: Visit, shop: Shop, admin: Admin) -> None:
    letter = next(each for each in admin.dead_letters(PAYING) if "order-4702" in each.message.keys)
    page = visit(f"/dead-letter?group={PAYING}&id={letter.message.offset_msg_id}")
    page.get_by_label("To topic").fill(PAYMENTS)
    page.get_by_text("Edit the copy").click()
    page.get_by_label("Body").fill('{"order": 4702, "amount": 1}')
    page.get_by_label("Keys").fill("order-4702 repaired")

    page.get_by_role("button", name="Replay", exact=True).click()

    expect(page.get_by_text("repaired").or_(page.get_by_role("status")).first).to_be_visible()

    def repaired() -> bytes:
        try:
            return next((message.body for message in admin.messages_by_key(PAYMENTS, "repaired")), b"")
        except QueryNotFound:
            return b""

    assert until(repaired) == b'{"order": 4702, "amount": 1}'


def test_one_box_chooses_all_dead_letters_of_a_page(visit: Visit, shop: Shop) -> None:
    page = visit(f"/dead-letters?group={PAYING}")
    boxes = page.get_by_role("checkbox", name="Choose").all()

    page.get_by_label("All of this page").check()

    assert boxes
    assert all(box.is_checked() for box in boxes)
