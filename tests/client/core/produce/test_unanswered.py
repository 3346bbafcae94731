"""After a lost answer the next attempt goes to the broker that may have the message."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.attempts import UNSURE_MAX, UnansweredSends
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.client.core.route import PublishInfo
from halfmoon.errors import ConnectFailed, ConnectionLost, HalfmoonError
from halfmoon.model import Message, MessageQueue
from halfmoon.wire.headers.send import SendMessageV2
from tests.client.scripted import SILENT, Scripted
from tests.client.transacting import half_stored, transactions

TWO = {"broker-a": 1, "broker-b": 1}


def attempt(script: Scripted, core, msg_id: str, number: int) -> str:
    """Make one attempt and return where it went."""
    before = len(script.asked(SendMessageV2))
    try:
        script.run(OpenHalf(core, Message("orders", b"x", msg_id=msg_id, attempt=number), timeout_ms=500).store())
    except HalfmoonError:
        pass
    (seen,) = script.asked(SendMessageV2)[before:]
    return seen.request.broker_name


@pytest.mark.parametrize("error", [SILENT, ConnectionLost("cut")])
def test_a_repeat_goes_to_the_broker_whose_answer_was_lost(error):
    script = Scripted()
    core = transactions(script, brokers=TWO, retries_max=0)
    script.on(SendMessageV2, error, half_stored())

    first = attempt(script, core, "a", 1)

    assert attempt(script, core, "a", 2) == first
    assert attempt(script, core, "b", 1) != attempt(script, core, "c", 1)  # others come in turn


def test_after_a_refused_connection_another_broker_is_asked():
    script = Scripted()
    core = transactions(script, brokers=TWO, retries_max=0)
    script.on(SendMessageV2, ConnectFailed("nobody there"), half_stored())

    assert attempt(script, core, "a", 1) != attempt(script, core, "a", 2)


def test_a_broker_that_stays_silent_is_asked_twice_and_then_another():
    script = Scripted()
    core = transactions(script, brokers=TWO, retries_max=0)
    script.on(SendMessageV2, SILENT, ConnectFailed("gone"), half_stored())

    asked = [attempt(script, core, "a", number) for number in (1, 2, 3)]

    assert asked[0] == asked[1] != asked[2]


def test_what_is_remembered_has_a_bound():
    unsure = UnansweredSends()
    queue = MessageQueue("orders", "broker-a", 0)
    for number in range(UNSURE_MAX + 10):
        unsure.note(Outgoing("orders", b"", "", str(number)), queue, ConnectionLost("cut"))
    info = PublishInfo("orders", [queue], {"broker-a": 1})

    assert unsure.queue(Outgoing("orders", b"", "", "5"), info) is None
    assert unsure.queue(Outgoing("orders", b"", "", str(UNSURE_MAX)), info) == queue
    assert unsure.queue(Outgoing("orders", b"", "", str(UNSURE_MAX)), info) is None
