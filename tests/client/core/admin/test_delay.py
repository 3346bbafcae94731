"""What operators ask about messages that wait: several masters, of which some cannot say, and pages with nothing of a topic."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.delay import cancel_delayed, delayed_messages
from halfmoon.errors import ConnectFailed, IllegalOperation
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
