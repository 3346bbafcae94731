"""What is hostile or goes wrong while a page is open: none of it runs, nothing is carried out that must not be, and it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from halfmoon import Admin, ConsumeContext, ConsumeFrom, LocalTransactionState, Message, Producer, PushConsumer, TransactionProducer
from halfmoon.testing.local import LocalCluster
from tests.cli.console.browsing import OWN, Browser
from tests.console.browser.chromium import Watch
from tests.console.browser.running import Console, Visit
from tests.topics import new_topic
from tests.waiting import until

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"""'"><img src=x onerror=alert(2)>{SCRIPT}{{{{7*7}}}}\u202egnp.exe\u2066"""
KEY = "'\"><img/src=x/onerror=alert(3)>\u202e"
"""As `HOSTILE`, without blanks, which part keys."""
NAME = KEY[:-1]
"""As `KEY`, of visible characters alone."""
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
FETCH = """async ([path, fields]) => {
    const sent = { method: "POST", body: new URLSearchParams(fields), redirect: "manual" };
    const answer = await fetch(path, sent);
    return [answer.status, await answer.text()];
}"""
NEW = "a lamp for the moon"
_names = count()


class Hostile:
    """Hostile texts in a message, a dead letter's reason, a transaction, a delay, a consumer's id; ``pages`` show them."""

    def __init__(self, nameserver: str) -> None:
        self.topic, self.group = new_topic(nameserver), "C_hostile"
        message = Message(self.topic, HOSTILE.encode(), keys=[KEY], tag="a<b>", properties={f"p{SCRIPT}": HOSTILE})
        self.consumer = PushConsumer(
            group=self.group, nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, instance_name=NAME
        )
        self.consumer.subscribe(self.topic)

        @self.consumer.on_message
        def listen(messages: object, context: ConsumeContext) -> None:
            context.delay_level = -1
            raise ValueError(HOSTILE)

        with (
            Admin(nameserver=nameserver) as admin,
            Producer(group="P_hostile", nameserver=nameserver) as producer,
            TransactionProducer(group="P_half", nameserver=nameserver, check=lambda _: LocalTransactionState.UNKNOWN) as halves,
        ):
            self.message = producer.send(message).msg_id
            producer.send(Message(self.topic, HOSTILE.encode(), keys=[KEY], tag="a<b>", delay=3600))
            self.half = halves.prepare(Message(self.topic, HOSTILE.encode(), keys=[KEY], tag="a<b>")).message_id
            self.consumer.start()
            (letter,) = until(lambda: admin.dead_letters(self.group))
            self.letter = letter.offset_msg_id

    def pages(self) -> list[str]:
        """Return the pages that show them."""
        return [
            f"/messages?topic={self.topic}&key={quote(KEY)}",
            f"/message?topic={self.topic}&id={self.message}",
            f"/dead-letters?group={self.group}",
            f"/dead-letter?group={self.group}&id={self.letter}",
            f"/transaction?id={self.half}",
            "/transactions?group=P_half",
            f"/delays?topic={self.topic}",
            f"/group?name={self.group}",
            "/clients",
        ]


@pytest.fixture(scope="module")
def hostile(cluster: LocalCluster) -> Iterator[Hostile]:
    hostile = Hostile(cluster.nameserver)
    yield hostile
    hostile.consumer.close()


def hidden(page: Page, button: str) -> dict[str, str]:
    """Return what the form of a button hands on unseen."""
    form = page.locator("form").filter(has=page.get_by_role("button", name=button, exact=True))
    read = "inputs => inputs.map(input => [input.name, input.value])"
    return dict(form.locator("input[type=hidden]").evaluate_all(read))


@pytest.mark.parametrize("number", range(9))
def test_hostile_texts_are_shown_as_texts_and_nothing_in_them_runs(visit: Visit, hostile: Hostile, number: int) -> None:
    page = visit(hostile.pages()[number])
    text = page.locator("main").inner_text()
    assert "<img" in text
    assert "alert(" in text
    assert not set(text) & set(BIDI), "what turns the direction of a line is escaped"
    assert ("\\u202e" in text) == (number < 7)
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("path", ["/topic?name=", "/group?name=", "/messages?topic=", "/dead-letters?group=", "/login?then=", "/"])
def test_hostile_queries_are_answered_in_words(visit: Visit, watch: Watch, path: str) -> None:
    page = visit("/clients")
    watch.faults.clear()
    page.goto(path + quote(HOSTILE) if "=" in path else f"/{quote(HOSTILE)}")
    watch.faults = [fault for fault in watch.faults if "Failed to load resource" not in fault]  # an answer from 400 on is right
    assert page.locator("main").count() == 1
    assert page.locator("main img, main script").count() == 0


def test_a_viewer_sees_no_form_and_one_made_by_hand_is_refused(visit: Visit, hostile: Hostile, watch: Watch) -> None:
    watch.expect("403")
    page = visit(role="viewer")
    for path in (*hostile.pages(), f"/topic?name={hostile.topic}", f"/group?name={hostile.group}", "/settings", "/topics"):
        page.goto(path)
        assert page.locator("form[method=post]:not(.who)").count() == 0, path
    token = page.locator("input[name=csrf]").input_value()
    status, text = page.evaluate(
        FETCH, ["/topics/create", {"csrf": token, "once": "x", "name": "mine", "queues": "1", "perm": "6"}]
    )
    assert (status, "only operators may change anything" in text) == (403, True)
    page.goto("/audit")
    expect(page.get_by_role("alert")).to_have_text("Only operators may see this.")


@pytest.mark.parametrize("token", ["", "forged", "A" * 43])
def test_a_forged_token_changes_nothing(visit: Visit, cluster: LocalCluster, watch: Watch, token: str) -> None:
    watch.expect("403")
    page, name = visit("/topics"), f"forged-{next(_names)}"
    status, text = page.evaluate(FETCH, ["/topics/create", {"csrf": token, "once": "x", "name": name, "queues": "1", "perm": "6"}])
    assert (status, "this form belongs to another session" in text) == (403, True)
    with Admin(nameserver=cluster.nameserver) as admin:
        assert name not in admin.topics()


def test_a_form_that_a_second_tab_sends_again_is_said_to_be_carried_out_once(visit: Visit, watch: Watch) -> None:
    watch.expect("409")
    page, name = visit("/groups"), f"group-{next(_names)}"
    page.get_by_text("Create group").first.click()
    fields = {**hidden(page, "Create group"), "name": name}
    page.get_by_label("New group").fill(name)
    page.get_by_role("button", name="Create group").click()
    expect(page.get_by_role("status")).to_have_text(f"Consumer group {name} is created.")
    second = page.context.new_page()
    second.goto("/groups")
    status, text = second.evaluate(FETCH, ["/groups/create", fields])
    assert status == 409
    assert f"This form was sent before; it was carried out once. Consumer group {name} is created." in text


def test_a_form_whose_button_is_pressed_twice_is_sent_once(visit: Visit) -> None:
    page, name = visit("/groups"), f"group-{next(_names)}"
    page.get_by_text("Create group").first.click()
    page.get_by_label("New group").fill(name)
    page.get_by_role("button", name="Create group").dblclick()
    expect(page.get_by_role("status")).to_have_text(f"Consumer group {name} is created.")


def test_a_session_that_ended_elsewhere_leads_to_the_login_and_back(visit: Visit, hostile: Hostile) -> None:
    page, elsewhere = visit("/groups", name="grace"), visit("/password", name="grace")
    for label, text in (("Old password", OWN), ("New password", NEW), ("New password again", NEW)):
        elsewhere.get_by_label(label, exact=label != "New password").first.fill(text)
    elsewhere.get_by_role("button", name="Change password").click()
    expect(elsewhere.get_by_role("heading", name="Overview")).to_be_visible()

    page.get_by_role("link", name=hostile.group, exact=True).click()
    page.get_by_label("Name").fill("grace")
    page.get_by_label("Password").fill(NEW)
    page.get_by_role("button", name="Log in").click()

    expect(page.get_by_role("heading", name=f"Group {hostile.group}")).to_be_visible()


def test_what_was_typed_is_sent_after_a_login_in_another_tab_where_the_session_ended_meanwhile(
    visit: Visit, console: Console, watch: Watch
) -> None:
    watch.expect("401")
    page, name = visit("/groups", name="heidi"), f"group-{next(_names)}"
    page.get_by_text("Create group").first.click()
    page.get_by_label("New group").fill(name)
    again = console.command("console user reset heidi")["password"]
    send = page.get_by_role("button", name="Create group")
    for _ in range(2):
        send.click()
        expect(page.get_by_role("alert")).to_have_text("Your session is over: log in in another tab, then send this again.")
        expect(send).not_to_have_attribute("aria-busy", "true")

    with Browser(console.url) as other:
        other.log_in("heidi", again)
        token = other.cookies[console.cookie_name]
    page.context.add_cookies([{"name": console.cookie_name, "value": token, "url": console.url}])
    send.click()

    expect(page.get_by_role("status")).to_have_text(f"Consumer group {name} is created.")


def test_a_group_that_another_deletes_is_not_called_a_cluster_that_does_not_answer(
    visit: Visit, cluster: LocalCluster, watch: Watch
) -> None:
    watch.expect("404")
    name = f"group-{next(_names)}"
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_group(name)
        page = visit(f"/group?name={name}")
        admin.delete_group(name)
    expect(page.get_by_role("alert")).to_have_text("What follows is older: reload the page to see why.")


def test_a_user_who_was_removed_is_led_to_the_login_by_an_open_overview_and_not_let_in(
    visit: Visit, console: Console, watch: Watch
) -> None:
    watch.expect("401")
    watch.expect("403")
    page = visit("/", name="mallory")
    console.command("console user remove mallory --yes")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()  # nothing was clicked
    page.get_by_label("Name").fill("mallory")
    page.get_by_label("Password").fill(OWN)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("Wrong name or password.")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of the test's own, to be killed."""
    with LocalCluster(tmp_path / "store") as cluster:
        yield cluster


def test_a_broker_killed_and_started_again_is_seen_on_the_open_overview(
    mortal: LocalCluster, open_page: Callable[..., Page], tmp_path: Path, watch: Watch
) -> None:
    watch.expect("502")
    with Console(mortal.nameserver, tmp_path / "data") as console:
        page = Visit(console, open_page)("/")
        expect(page.get_by_text("The cluster is healthy")).to_be_visible()
        mortal.kill()
        expect(page.get_by_text("The cluster is down")).to_be_visible()
        expect(page.locator(".findings").get_by_role("listitem").first).to_contain_text(mortal.nameserver)
        other = Visit(console, open_page)("/groups")
        expect(other.get_by_role("alert")).to_contain_text("connect")
        mortal.start()
        with Producer(group="P_back", nameserver=mortal.nameserver) as producer:
            producer.send(Message(new_topic(mortal.nameserver), b"x"))
        expect(page.get_by_text("The cluster is healthy")).to_be_visible()
        expect(page.locator(".tile", has_text="Disk used").locator("strong")).to_contain_text("%")
        other.reload()
        expect(other.get_by_role("heading", name="Groups")).to_be_visible()
        page.close()  # else it may ask a console that has just ended


def test_a_console_that_ended_is_named_on_the_open_overview(open_page: Callable[..., Page], tmp_path: Path, watch: Watch) -> None:
    watch.expect("ERR_CONNECTION_REFUSED")
    with Console("127.0.0.1:9", tmp_path) as console:
        page = Visit(console, open_page)("/")
        expect(page.get_by_text("The cluster is down")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_text("What follows is older: the console does not answer.")
    expect(page.get_by_text("The cluster is down")).to_be_visible()
