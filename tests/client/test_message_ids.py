"""The sender's own id of a message, and how a repeat of it travels."""

from __future__ import annotations

import threading
from random import Random

import pytest

from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.unanswered import UNSURE_MAX, UnansweredSends
from halfmoon.client.core.route import PublishInfo
from halfmoon.errors import ConnectFailed, ConnectionLost, HalfmoonError, MessageIllegal, UsageError
from halfmoon.model import REPEAT, UNIQ_KEY, Message, MessageQueue
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.ids import UniqueIds
from halfmoon.wire.properties import decode
from tests.client.scripted import SILENT, Scripted
from tests.client.transacting import half_stored, transactions


def sent(script: Scripted) -> dict[str, str]:
    """The properties of the one message that was sent."""
    (seen,) = script.asked(SendMessageV2)
    return decode(seen.request.properties.encode())


def test_the_id_of_the_caller_is_the_one_that_travels_and_comes_back():
    script = Scripted()
    core = transactions(script)

    result = script.run(core.sender.send(Message("orders", b"x", msg_id="order-7")))

    assert result.msg_id == "order-7"
    assert sent(script)[UNIQ_KEY] == "order-7"
    assert REPEAT not in sent(script)


def test_a_half_message_of_a_second_attempt_says_so():
    script = Scripted()
    core = transactions(script)

    stored = script.run(core.store(Message("orders", b"x", msg_id="order-7", attempt=2)))

    assert stored.result.msg_id == "order-7"
    assert (sent(script)[UNIQ_KEY], sent(script)[REPEAT]) == ("order-7", "2")


@pytest.mark.parametrize("attempt", [0, -1, 1_000_001])
def test_a_count_of_attempts_that_cannot_be_is_refused(attempt):
    with pytest.raises(MessageIllegal, match="attempt"):
        Message("orders", b"x", msg_id="a", attempt=attempt).wire_properties()


def test_nobody_gives_the_mark_of_a_repeat_as_a_property():
    with pytest.raises(MessageIllegal, match=REPEAT):
        Message("orders", b"x", properties={REPEAT: "2"}).wire_properties()


def test_a_batch_takes_ids_but_no_repeats_and_none_twice():
    script = Scripted()
    sender = transactions(script).sender

    assert sender.prepare_batch([Message("orders", b"x", msg_id="a"), Message("orders", b"y", msg_id="b")], 1).msg_id == "a,b"
    with pytest.raises(UsageError, match="alone"):
        sender.prepare_batch([Message("orders", b"x", msg_id="a", attempt=2)], 1)
    with pytest.raises(UsageError, match="same msg_id"):
        sender.prepare_batch([Message("orders", b"x", msg_id="a"), Message("orders", b"y", msg_id="a")], 1)


def test_ids_made_by_many_threads_are_all_different():
    ids, found = UniqueIds(b"\x0a\0\0\1", 1, Random(7)), []

    def make() -> None:
        mine = [ids.next(1_700_000_000_000) for _ in range(5_000)]
        found.extend(mine)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 40_000


# ---------------------------------------------------------------- the broker that may have it


TWO = {"broker-a": 1, "broker-b": 1}


def attempt(script: Scripted, core, msg_id: str, number: int) -> str:
    """Make one attempt and return where it went."""
    before = len(script.asked(SendMessageV2))
    try:
        script.run(core.store(Message("orders", b"x", msg_id=msg_id, attempt=number), timeout_ms=500))
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
