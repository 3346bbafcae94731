"""What operators ask about messages that wait: several masters, of which some cannot say, and pages with nothing of a topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.client.core.admin.delay import ROUNDS_MAX, cancel_delayed, delayed_messages, delayed_page
from halfmoon.errors import ConnectFailed, IllegalOperation, UsageError
from halfmoon.wire.bodies import DelayedMessage, DelayedMessages, to_json
from halfmoon.wire.headers.delay import ListDelayedMessages, RecallMessage, RecallMessageReply
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import Reply, Scripted

CANCELLED = Reply(header=RecallMessageReply(msg_id="ID"))
NO_TOPIC, NOT_HERE, DOWN = Reply(17, remark="no topic"), Reply(604, remark="none waits"), ConnectFailed("refused", "broker-a:1")


@pytest.mark.parametrize("first", [NO_TOPIC, NOT_HERE, DOWN])
def test_a_message_is_cancelled_at_the_master_that_has_it_whatever_others_say(first):
    script = Scripted()
    core = admin(script)
    script.on(RecallMessage, lambda seen: first if seen.address == "broker-a:1" else CANCELLED)

    assert script.run(cancel_delayed(core, "orders", "ID")) == "ID"


@pytest.mark.parametrize(("first", "error"), [(NO_TOPIC, IllegalOperation), (NOT_HERE, IllegalOperation), (DOWN, ConnectFailed)])
def test_that_a_master_could_not_be_asked_is_told_when_no_other_has_the_message(first, error):
    script = Scripted()
    core = admin(script)
    script.on(RecallMessage, lambda seen: first if seen.address == "broker-a:1" else NOT_HERE)

    with pytest.raises(error):
        script.run(cancel_delayed(core, "orders", "ID"))


def test_pages_with_nothing_of_the_topic_are_followed_and_never_in_a_circle():
    script = Scripted()
    core = admin(script)
    one = DelayedMessage(due_ms=9, look_ms=9, msg_id="ID", topic="orders")
    pages = {
        -1: DelayedMessages(more=True, last_ms=5, last_level=1, last_offset=1),
        5: DelayedMessages(more=True, last_ms=9, last_level=0, last_offset=0, messages=[one]),
        9: DelayedMessages(more=True, last_ms=9, last_level=0, last_offset=0),
    }
    script.on(
        ListDelayedMessages,
        lambda seen: Reply(body=to_json(pages[seen.request.after_ms] if seen.address == "broker-a:1" else DelayedMessages())),
    )

    result = script.run(delayed_messages(core, topic="orders"))

    assert [(message.msg_id, message.broker) for message in result.messages] == [("ID", "broker-a")]
    assert [seen.request.after_ms for seen in script.asked(ListDelayedMessages) if seen.address == "broker-a:1"] == [-1, 5, 9]


# ---------------------------------------------------------------- page by page


class Waiting:
    """Two brokers with delayed messages; they look at so many of them for an answer."""

    def __init__(self, lists, *, looked_at=1000):
        self.script, self.lists, self.looked_at = Scripted(), lists, looked_at
        self.admin = admin(self.script)
        self.script.on(ListDelayedMessages, self.list)

    def list(self, seen):
        request, listed = seen.request, self.lists.get(seen.address, [])
        if isinstance(listed, Reply | Exception):
            return listed
        behind = (request.after_ms, request.after_level, request.after_offset)
        body = DelayedMessages(last_ms=behind[0], last_level=behind[1], last_offset=behind[2], by_level={1: len(listed)}, now_ms=7)
        for looked, message in enumerate(sorted(message for message in listed if message[:3] > behind)):
            if looked >= self.looked_at or len(body.messages) == request.count:
                body.more = True
                break
            body.last_ms, body.last_level, body.last_offset = message[:3]
            if request.topic in (None, message[4]):
                look_ms, level, offset, later_ms, topic = message
                body.messages.append(
                    DelayedMessage(due_ms=look_ms + later_ms, look_ms=look_ms, level=level, queue_offset=offset, topic=topic)
                )
        body.due_within = {60: len(listed)} if behind[0] < 0 else {}
        return Reply(body=to_json(body))

    def page(self, **choice):
        return self.script.run(delayed_page(self.admin, **choice))

    def pages(self, **choice):
        pages = [self.page(**choice)]
        while pages[-1].next is not None:
            pages.append(self.page(after=pages[-1].next, **choice))
        return pages


def place(message):
    return message.broker, message.look_ms, message.level, message.queue_offset


MESSAGES = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 2), st.integers(0, 9), st.sampled_from([0, 0, 50]), st.sampled_from("AB")),
    max_size=50, unique_by=lambda message: message[:3],
)  # fmt: skip


@given(MESSAGES, MESSAGES, st.integers(1, 30), st.integers(1, 20), st.sampled_from([None, "A"]))
def test_all_pages_together_are_all_that_waits_and_none_is_twice(at_a, at_b, count, looked_at, topic):
    waiting = Waiting({"broker-a:1": at_a, "broker-b:1": at_b}, looked_at=looked_at)

    pages = waiting.pages(topic=topic, count_max=count)

    found = [message for page in pages for message in page.messages]
    wanted = [
        (broker, *message[:3])
        for broker, listed in (("broker-a", at_a), ("broker-b", at_b))
        for message in listed
        if topic in (None, message[4])
    ]
    assert sorted(map(place, found)) == sorted(wanted)
    looks = [sorted(message.look_ms for message in page.messages) for page in pages]
    in_order = [look_ms for page in looks for look_ms in page]
    assert in_order == sorted(in_order)
    assert all(
        [message.due_ms for message in page.messages] == sorted(message.due_ms for message in page.messages) for page in pages
    )
    assert all(len(page.messages) <= count for page in pages)
    assert (pages[0].by_level, pages[0].due_within) == ({1: len(at_a) + len(at_b)}, {60: len(at_a) + len(at_b)})


def test_a_page_asks_so_often_for_a_topic_of_which_little_waits_and_says_so():
    few = [(at, 0, 0, 0, "B" if at < 50 else "A") for at in range(1, 51)]
    waiting = Waiting({"broker-a:1": few}, looked_at=1)

    first, second = waiting.pages(topic="A")

    assert (first.messages, len(second.messages), second.short) == ([], 1, "")
    assert "so many were looked at" in first.short
    assert len([seen for seen in waiting.script.asked(ListDelayedMessages) if seen.address == "broker-a:1"]) == ROUNDS_MAX + 10


def test_a_broker_that_keeps_no_list_or_does_not_answer_is_named_and_hides_no_other():
    waiting = Waiting({"broker-a:1": [(1, 0, 0, 0, "A")], "broker-b:1": Reply(3, remark="unknown code")})
    page = waiting.page()
    waiting.lists["broker-b:1"] = DOWN
    other = waiting.page()

    assert (len(page.messages), page.not_reported) == (1, ["broker-b keeps no list of delayed messages"])
    assert (len(other.messages), other.not_reported) == (1, [f"broker-b: {DOWN}"])


def test_where_no_broker_keeps_a_list_that_is_said_and_where_none_answers_it_is_an_error():
    foreign = Reply(3, remark="unknown code")
    page = Waiting({"broker-a:1": foreign, "broker-b:1": foreign}).page()

    assert (page.messages, page.next, len(page.not_reported)) == ([], None, 2)
    with pytest.raises(ConnectFailed):
        Waiting({"broker-a:1": DOWN, "broker-b:1": foreign}).page()
    with pytest.raises(UsageError):
        Waiting({}).page(after="x")
