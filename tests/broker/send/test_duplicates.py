"""A message sent again under its id, because an answer was lost: stored once, answered as before."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC
from halfmoon.model import REPEAT
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.send import SendMessage, SendMessageReply, SendMessageV2
from tests.broker.half import CHECKS, COMMIT, GROUP, ROLLBACK, TOPIC, end, half_properties, prepare, produce, stored
from tests.broker.talk import send_header

AGAIN = f"{REPEAT}\x012\x02"


def plain(key="u1", again=False):
    return f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02{AGAIN if again else ''}"


def place(reply):
    """What an answer says of where a message lies."""
    header = reply.header(SendMessageReply)
    return reply.code, header.msg_id, header.queue_id, header.queue_offset


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_repeated_half_message_is_answered_as_the_first_and_stored_once(talk, serialization):
    first = prepare(talk, serialization=serialization)

    again = prepare(talk, more=AGAIN, serialization=serialization)

    assert (again.msg_id, again.queue_id, again.queue_offset) == (first.msg_id, first.queue_id, first.queue_offset)
    assert len(stored(talk, HALF_TOPIC)) == 1


def test_either_answer_decides_it_and_it_is_seen_once(talk):
    prepare(talk)
    again = prepare(talk, more=AGAIN)

    end(talk, again, COMMIT)

    assert [message.body for message in stored(talk, TOPIC, 3)] == [b"order"]


def test_what_was_committed_is_answered_as_before_and_not_stored_again(talk):
    first = prepare(talk)
    end(talk, first, COMMIT)

    again = prepare(talk, more=AGAIN)
    reply = end(talk, again, COMMIT)

    assert again.msg_id == first.msg_id
    assert reply.code == 0
    assert len(stored(talk, HALF_TOPIC)) == len(stored(talk, TOPIC, 3)) == 1


def test_what_was_rolled_back_is_refused_and_says_so(talk):
    end(talk, prepare(talk), ROLLBACK)

    reply = talk.send(TOPIC, b"order", queue_id=3, properties=half_properties(more=AGAIN))

    assert reply.code == 4
    assert "u1 was rolled back" in reply.remark
    assert len(stored(talk, HALF_TOPIC)) == 1


def test_what_expired_is_refused_and_says_so(make_talk):
    talk = make_talk(**CHECKS, transaction_check_max=1)
    produce(talk, GROUP)
    prepare(talk)
    talk.wait(12_000)
    assert len(stored(talk, EXPIRED_TOPIC)) == 1

    reply = talk.send(TOPIC, b"order", queue_id=3, properties=half_properties(more=AGAIN))

    assert reply.code == 4
    assert "u1 expired" in reply.remark
    assert "rolled back" not in reply.remark
    assert len(stored(talk, HALF_TOPIC)) == 1


def test_a_repeat_whose_first_never_arrived_is_stored_without_its_mark(talk):
    prepare(talk, "u7", more=AGAIN)
    talk.send(TOPIC, b"plain", properties=plain("u8", again=True))

    assert [REPEAT in one.properties for one in stored(talk, HALF_TOPIC) + stored(talk, TOPIC)] == [False, False]


@pytest.mark.parametrize(("group", "key"), [("others", "u1"), (GROUP, "u2")])
def test_another_group_or_another_id_is_another_message(talk, group, key):
    prepare(talk)

    prepare(talk, key, group=group, more=AGAIN)

    assert len(stored(talk, HALF_TOPIC)) == 2


def test_a_key_that_looks_like_the_id_is_not_the_id(talk):
    prepare(talk, "u1")  # its KEYS are "k"

    prepare(talk, "k", more=AGAIN)

    assert len(stored(talk, HALF_TOPIC)) == 2


def test_without_the_mark_everything_is_stored_as_ever(talk):
    prepare(talk)
    prepare(talk)

    assert len(stored(talk, HALF_TOPIC)) == 2


@pytest.mark.parametrize("kind", [SendMessageV2, SendMessage])
def test_a_repeated_plain_message_is_answered_as_the_first_and_stored_once(talk, kind):
    first = talk.send(TOPIC, b"x", queue_id=1, properties=plain())

    header = send_header(TOPIC, queue_id=2, properties=plain(again=True))
    again = talk.ask(kind(**{name: getattr(header, name) for name in kind.__struct_fields__}), b"x")

    assert place(again) == place(first)
    assert stored(talk, TOPIC, 2) == []


def test_both_attempts_in_one_turn_are_one_message(talk):
    one = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties()), b"order")
    two = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties(more=AGAIN)), b"order")
    talk.turn()

    assert place(talk.answer(one)) == place(talk.answer(two))
    assert len(stored(talk, HALF_TOPIC)) == 1


def test_it_holds_over_a_restart(talk):
    first = prepare(talk)
    sent = talk.send(TOPIC, b"x", queue_id=1, properties=plain("u9"))
    talk.restart()

    assert prepare(talk, more=AGAIN).msg_id == first.msg_id
    assert place(talk.send(TOPIC, b"x", queue_id=1, properties=plain("u9", again=True))) == place(sent)


@pytest.mark.parametrize("behind", [0, 2_000])
def test_it_is_found_whether_the_index_has_reached_it_or_not(talk, behind):
    for number in range(3_000 - behind):
        talk.post(send_header(TOPIC, queue_id=0, properties=plain(f"x{number}")), b"x")
    first = prepare(talk)
    for number in range(behind):
        talk.post(send_header(TOPIC, queue_id=0, properties=plain(f"y{number}")), b"x")
    talk.turn()

    assert prepare(talk, more=AGAIN).msg_id == first.msg_id


def test_a_redelivery_and_a_delay_are_no_repeats(talk):
    talk.send(TOPIC, b"x", properties=plain())
    header = send_header(TOPIC, properties=plain(again=True), reconsume_times=1)
    talk.ask(header, b"x")
    talk.send(TOPIC, b"x", properties=plain(again=True) + "DELAY\x011\x02")

    assert len(stored(talk, TOPIC)) == 2
    assert len(stored(talk, "SCHEDULE_TOPIC_XXXX")) == 1


# ---------------------------------------------------------------- sync flush


def sync(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.send(TOPIC, b"first", queue_id=3, properties=plain("u0"))
    prepare(talk, "u00")
    return talk


def test_with_sync_flush_a_repeat_waits_until_the_first_is_durable_and_is_answered_as_it_was(make_talk):
    talk = sync(make_talk)
    talk.held_back = []
    first = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties()), b"order")
    talk.turn()
    again = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties(more=AGAIN)), b"order")
    talk.turn()
    assert talk.answer(again) is None

    talk.release()

    assert place(talk.answer(again)) == place(talk.answer(first))
    assert len(stored(talk, HALF_TOPIC)) == 2


def test_with_sync_flush_two_repeats_of_a_message_that_never_arrived_are_one_message(make_talk):
    talk = sync(make_talk)
    talk.held_back = []
    talk.post(send_header(TOPIC, queue_id=3, properties=plain("u5")), b"something before")
    talk.turn()
    one = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties("u6", more=AGAIN)), b"order")
    two = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties("u6", more=AGAIN)), b"order", peer=2)
    talk.turn()

    talk.release()
    talk.turn()

    assert place(talk.answer(one)) == place(talk.answer(two, peer=2))
    assert len(stored(talk, HALF_TOPIC)) == 2


def test_with_sync_flush_a_repeat_behind_a_failed_sync_is_refused(make_talk):
    talk = sync(make_talk)
    talk.held_back = []
    talk.post(send_header(TOPIC, queue_id=3, properties=half_properties()), b"order")
    again = talk.post(send_header(TOPIC, queue_id=3, properties=half_properties(more=AGAIN)), b"order")
    talk.turn()
    works, talk.held_back = talk.held_back, None

    for work in works:
        work.done(OSError("the device is gone"), talk.instant)
    talk.run_effects()

    reply = talk.answer(again)
    assert reply is not None
    assert reply.code != 0


def test_repeats_that_wait_have_a_bound(make_talk):
    talk = sync(make_talk)
    talk.broker.pending_replies.waiting_max = 4  # one of them is the first attempt
    talk.held_back = []
    talk.post(send_header(TOPIC, queue_id=3, properties=half_properties()), b"order")
    asked = [talk.post(send_header(TOPIC, queue_id=3, properties=half_properties(more=AGAIN)), b"order") for _ in range(5)]
    talk.turn()

    early = [reply.code for one in asked if (reply := talk.answer(one)) is not None]
    talk.release()

    assert early == [2, 2]
    assert [talk.answer(one).code for one in asked[:3]] == [0, 0, 0]
