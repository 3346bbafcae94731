"""The attempts of a send: which failures are worth another, where it goes, and the one budget of time."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.attempts import LOOK_MS_MIN
from halfmoon.errors import (
    ACCESS_REFUSED,
    AccessRefused,
    ConnectFailed,
    ConnectionLost,
    NoPermission,
    RequestTimeout,
    SendFailed,
    SystemBusy,
    TooManyRequests,
    broker_error,
)
from halfmoon.model import REPEAT, SendStatus
from halfmoon.wire.bodies import to_json
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageV2
from tests.client.core.produce.orders import ORDER, TWO, properties
from tests.client.scripted import REFUSED, SILENT, Reply, Scripted, producer, route, stored


@pytest.mark.mission("000-26", "004-11", "000-27", "000-38")
def test_three_attempts_at_most_and_the_failure_names_them_all():
    script = Scripted()
    sender = producer(script, TWO)
    script.run(sender.queues("orders"))
    script.on(SendMessageV2, REFUSED)

    with pytest.raises(SendFailed) as caught:
        script.run(sender.send(ORDER))

    assert len(script.asked(SendMessageV2)) == 3
    failure = caught.value
    assert (failure.topic, len(failure.brokers), failure.cost_ms, failure.code) == ("orders", 3, 5, 10001)
    tried = f"3 attempts in 5 ms, at {', '.join(failure.brokers)}"
    assert str(failure) == f"Could not send to orders: {failure.brokers[-1]} refused the connection ({tried})"


@pytest.mark.mission("000-33", "002-33")
@pytest.mark.parametrize("failure", [ConnectFailed("no", "b"), ConnectionLost("gone", "b"), RequestTimeout("late", "b")])
def test_failures_of_the_network_are_tried_again_and_raised_when_they_last(failure):
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, failure, stored())
    assert script.run(sender.send(ORDER)).status is SendStatus.SEND_OK

    script.on(SendMessageV2, failure)
    with pytest.raises(SendFailed) as caught:
        script.run(sender.send(ORDER))

    assert caught.value.code == (10002 if isinstance(failure, RequestTimeout) else 10001)


@pytest.mark.mission("000-34", "004-04")
def test_a_broker_without_a_master_is_never_sent_to_and_another_is_tried():
    script = Scripted()
    sender = producer(script, TWO)
    script.run(sender.send(ORDER))
    for name in list(sender.routes.brokers):
        if name == "broker-a":
            sender.routes.brokers[name] = {1: "broker-a:2"}
    script.on(GetRouteinfoByTopic, Reply(1))

    for _ in range(4):
        script.run(sender.send(ORDER))

    assert {seen.address for seen in script.asked(SendMessageV2)[1:]} == {"broker-b:1"}


@pytest.mark.mission("000-35")
@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205, 2, 1500])
def test_refusals_worth_another_broker_are_tried_again(code):
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, Reply(code, remark="no"), stored())

    assert script.run(sender.send(ORDER)).status is SendStatus.SEND_OK
    first, second = script.asked(SendMessageV2)
    assert first.address != second.address
    assert properties(first)["UNIQ_KEY"] == properties(second)["UNIQ_KEY"]


@pytest.mark.mission("000-35")
@pytest.mark.parametrize("code", [3, 13, 26, 29, 207, 215])
def test_other_refusals_are_raised_at_once(code):
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, Reply(code, remark="because"))

    with pytest.raises(type(broker_error(code, ""))) as caught:
        script.run(sender.send(ORDER))

    assert (caught.value.code, caught.value.remark, len(script.asked(SendMessageV2))) == (code, "because", 1)


def test_what_access_control_refuses_is_not_tried_again_though_it_has_the_code_of_other_failures():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, Reply(1, remark=f"{ACCESS_REFUSED}Check signature failed for accessKey=RocketMQ"))

    with pytest.raises(AccessRefused):
        script.run(sender.send(ORDER))

    assert len(script.asked(SendMessageV2)) == 1


def test_the_retried_codes_are_a_setting():
    script = Scripted()
    sender = producer(script, TWO, retry_codes=(1, 14, 16, 17, 204, 205))
    script.on(SendMessageV2, Reply(2))

    with pytest.raises(SystemBusy):
        script.run(sender.send(ORDER))


def test_a_topic_that_may_not_be_written_to_is_tried_once_at_each_broker_and_not_again():
    for brokers, tries in ((1, 1), (TWO, 2)):
        script = Scripted()
        sender = producer(script, brokers)
        script.on(SendMessageV2, Reply(16, remark="forbidden"))

        with pytest.raises(SendFailed, match=r"Could not send to orders: broker-.: forbidden \(code 16 NO_PERMISSION\)") as caught:
            script.run(sender.send(ORDER))

        assert (len(script.asked(SendMessageV2)), caught.value.retry) == (tries, False)


@pytest.mark.parametrize("other", [Reply(14, remark="full"), ConnectionLost("gone", "b")], ids=["no space", "lost"])
def test_a_send_goes_on_while_one_broker_refuses_it_for_good_and_another_has_not(other):
    script = Scripted()
    sender = producer(script, TWO)
    answers = {"broker-a:1": [Reply(16, remark="forbidden")] * 3, "broker-b:1": [other, stored(), stored()]}
    script.on(SendMessageV2, lambda seen: answers[seen.address].pop(0))

    failed = None
    try:
        script.run(sender.send(ORDER))
    except SendFailed as error:  # the refusing broker was asked first, and the attempts are used up
        failed = error

    assert failed is None or (len(failed.brokers), failed.retry) == (3, True)
    assert len(script.asked(SendMessageV2)) == 3


def test_a_send_of_one_attempt_may_be_repeated_where_another_broker_was_not_asked():
    for brokers, retry in ((1, False), (TWO, True)):
        script = Scripted()
        sender = producer(script, brokers, retries_max=0)
        script.on(SendMessageV2, Reply(16, remark="forbidden"))

        with pytest.raises(SendFailed) as caught:
            script.run(sender.send(ORDER))

        assert caught.value.retry is retry


def test_a_broker_that_is_closed_for_a_while_may_be_asked_again():
    script = Scripted()
    sender = producer(script)
    script.on(SendMessageV2, Reply(16, remark="the broker[broker-a] sending message is forbidden"), stored())

    assert script.run(sender.send(ORDER)).status is SendStatus.SEND_OK


def test_a_refusal_at_every_broker_gives_its_code():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, Reply(16, remark="forbidden"))

    with pytest.raises(SendFailed) as caught:
        script.run(sender.send(ORDER))

    assert caught.value.code == 16
    assert isinstance(caught.value.cause, NoPermission)


@pytest.mark.mission("000-32")
@pytest.mark.parametrize(
    ("code", "status"),
    [(10, SendStatus.FLUSH_DISK_TIMEOUT), (11, SendStatus.SLAVE_NOT_AVAILABLE), (12, SendStatus.FLUSH_SLAVE_TIMEOUT)],
)
def test_a_broken_promise_of_flushing_is_a_result_unless_another_broker_is_wanted(code, status):
    script = Scripted()
    sender, eager = producer(script, TWO), producer(script, TWO, retry_not_stored=True)
    script.on(SendMessageV2, stored(code))
    assert script.run(sender.send(ORDER)).status is status
    assert len(script.asked(SendMessageV2)) == 1

    script.on(SendMessageV2, stored(code), stored())
    assert script.run(eager.send(ORDER)).status is SendStatus.SEND_OK


@pytest.mark.mission("000-37")
@pytest.mark.parametrize("after", [REFUSED, Reply(13)])
def test_an_earlier_result_is_returned_when_nothing_better_comes(after):
    script = Scripted()
    sender = producer(script, TWO, retry_not_stored=True)
    script.on(SendMessageV2, stored(10), after)

    assert script.run(sender.send(ORDER)).status is SendStatus.FLUSH_DISK_TIMEOUT


@pytest.mark.mission("000-36")
def test_a_cancelled_send_is_not_tried_again():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, SILENT)
    task = script.spawn(sender.send(ORDER))
    script.run_for(100)

    task.cancel()
    script.run_for(60_000)

    assert len(script.asked(SendMessageV2)) == 1


@pytest.mark.mission("000-41", "004-10", "000-54")
def test_the_first_attempt_knows_no_last_broker_and_later_ones_avoid_it():
    script = Scripted()
    sender = producer(script, {"broker-a": 8, "broker-b": 1})
    script.on(SendMessageV2, REFUSED)

    for _ in range(20):
        with pytest.raises(SendFailed) as caught:
            script.run(sender.send(ORDER))
        one, two, three = caught.value.brokers
        assert one != two != three


@pytest.mark.mission("000-30", "000-29", "004-12", "004-14", "000-23")
def test_all_attempts_share_one_budget_of_three_seconds():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, Reply(14, ms=1_000), Reply(14, ms=1_500), SILENT)
    begin = script.now

    with pytest.raises(SendFailed) as caught:
        script.run(sender.send(ORDER))

    first, second, third = script.asked(SendMessageV2)
    assert first.timeout_ms <= 3_000
    assert (second.timeout_ms, third.timeout_ms) == (first.timeout_ms - 1_001, first.timeout_ms - 2_502)  # a look at the route each
    assert 3_000 <= script.now - begin <= 3_000 + LOOK_MS_MIN
    assert caught.value.code == 10002


@pytest.mark.mission("002-34", "002-35")
@pytest.mark.parametrize("stores", [True, False])
def test_a_timeout_raises_and_leaves_open_whether_the_broker_has_the_message(stores):
    script = Scripted()
    sender = producer(script, {"broker-a": 1})
    log = []

    def answer(seen):
        if stores:
            log.append(seen.body)
        return SILENT

    script.on(SendMessageV2, answer)

    with pytest.raises(SendFailed, match="nobody knows whether it is stored") as caught:
        script.run(sender.send(ORDER))

    assert caught.value.retry
    assert caught.value.may_be_stored
    assert isinstance(caught.value.__cause__, RequestTimeout)
    assert log == ([b"paid"] if stores else [])


@pytest.mark.mission("000-29")
def test_no_attempt_begins_after_the_budget_is_spent():
    script = Scripted()
    sender = producer(script, TWO)
    script.run(sender.queues("orders"))
    script.on(SendMessageV2, Reply(14, ms=1_000))

    with pytest.raises(SendFailed, match=r"2 attempts in 200\d ms") as caught:
        script.run(sender.send(ORDER, timeout_ms=2_000))

    assert len(script.asked(SendMessageV2)) == 2
    assert caught.value.retry
    assert all(name in str(caught.value) for name in TWO)
    assert caught.value.__cause__ is not None


@pytest.mark.mission("000-62")
def test_the_budget_is_looked_at_again_just_before_the_request_leaves():
    script = Scripted()
    sender = producer(script)
    script.run(sender.queues("orders"))
    sender.routes.brokers.clear()
    script.on(GetRouteinfoByTopic, Reply(body=to_json(route()), ms=2_000))

    with pytest.raises(TooManyRequests):
        script.run(sender.send(ORDER, timeout_ms=1_500))

    assert script.asked(SendMessageV2) == []
    assert script.run(sender.send(ORDER)).status is SendStatus.SEND_OK


@pytest.mark.parametrize("way", ["send", "send_async"])
@pytest.mark.parametrize("failure", [ConnectionLost("gone", "b"), RequestTimeout("late", "b"), ConnectFailed("no", "b")])
def test_an_attempt_at_a_broker_that_may_have_the_message_says_so(failure, way):
    script = Scripted()
    sender = producer(script, {"broker-a": 1})
    script.on(SendMessageV2, failure, failure, stored())

    result = script.run(getattr(sender, way)(ORDER))

    marks = [properties(seen).pop(REPEAT, None) for seen in script.asked(SendMessageV2)]
    may_be_there = not isinstance(failure, ConnectFailed)
    assert marks == [None, "2", "2"] if may_be_there else [None] * 3
    assert {properties(seen)["UNIQ_KEY"] for seen in script.asked(SendMessageV2)} == {result.msg_id}


def test_an_attempt_at_another_broker_is_not_marked_for_that_one_cannot_know():
    script = Scripted()
    sender = producer(script, TWO)
    script.on(SendMessageV2, ConnectionLost("gone", "b"), stored())

    script.run(sender.send(ORDER))

    first, second = script.asked(SendMessageV2)
    assert first.address != second.address
    assert REPEAT not in properties(second)
