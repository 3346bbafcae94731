"""The first phase and the local transaction: what is refused, what a half message carries, what runs, and who is known."""

from __future__ import annotations

import logging
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest

from halfmoon import AsyncTransactionProducer, TransactionProducer
from halfmoon.errors import BrokerError, MessageIllegal, NoRoute, NotRunning, SendFailed, UsageError
from halfmoon.model import Message, SendStatus, TransactionSendResult
from halfmoon.wire.codes import COMPRESSED, TRANSACTION_MASK, TRANSACTION_PREPARED
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.properties import decode
from tests.client.scripted import REFUSED, SILENT, Later, Reply, Scripted, route, routes
from tests.client.transacting import (
    COMMIT,
    OFFSET_ID,
    ROLLBACK,
    UNKNOWN,
    GetRouteinfoByTopic,
    Shop,
    ends,
    half_stored,
    transactions,
)

ORDER = Message("orders", b"paid", tag="A", keys=["k1"], properties={"who": "me"})
TWO = {"broker-a": 1, "broker-b": 1}


def sent(script):
    """The properties of the one half message that was sent."""
    (seen,) = script.asked(SendMessageV2)
    return decode(seen.request.properties.encode())


# ---------------------------------------------------------------- before anything leaves


@pytest.mark.mission("003-05")
def test_without_a_listener_nothing_is_sent():
    script = Scripted()
    core = transactions(script)

    with pytest.raises(UsageError, match=r"^TransactionListener is null$"):
        script.run(core.send(ORDER))

    assert script.seen == []


@pytest.mark.mission("000-03", "003-07")
def test_with_somebody_to_check_but_nothing_to_execute_nothing_is_sent():
    script = Scripted()
    core = transactions(script)
    core.checkers.add("orders", lambda message: COMMIT)

    with pytest.raises(UsageError, match=r"^tranExecutor is null$"):
        script.run(core.send(ORDER))

    assert script.seen == []


def test_an_executor_without_anybody_to_check_is_refused():
    script = Scripted()
    core = transactions(script)

    with pytest.raises(UsageError, match=r"^localTransactionBranchCheckListener is null$"):
        script.run(core.send(ORDER, None, lambda message, arg: COMMIT))

    assert script.seen == []


@pytest.mark.mission("000-06", "003-09")
@pytest.mark.parametrize(
    "message", [None, Message("or ders", b"x"), Message("orders", b""), Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x")]
)
def test_the_message_is_checked_before_anything_is_sent(message):
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)

    with pytest.raises(UsageError):
        script.run(core.send(message))

    assert script.seen == []
    assert shop.executed == []


@pytest.mark.mission("000-24")
def test_a_producer_that_does_not_run_begins_no_transaction():
    script = Scripted()
    core = transactions(script, Shop())
    core.sender.running = False

    with pytest.raises(NotRunning):
        script.run(core.send(ORDER))

    assert script.seen == []


@pytest.mark.parametrize("seconds", [-1, 7 * 24 * 3600 + 1])
def test_an_age_for_the_first_check_out_of_range_is_refused(seconds):
    script = Scripted()
    core = transactions(script, Shop())

    with pytest.raises(UsageError, match="check_after_s"):
        script.run(core.send(ORDER, check_after_s=seconds))

    assert script.seen == []


def test_reserved_names_stay_refused():
    script = Scripted()
    core = transactions(script, Shop())

    with pytest.raises(MessageIllegal):
        script.run(core.send(Message("orders", b"x", properties={"PGROUP": "other"})))


# ---------------------------------------------------------------- the half message


@pytest.mark.mission("000-07", "000-08", "003-10", "003-11")
def test_a_half_message_says_so_and_names_the_group():
    script = Scripted()
    core = transactions(script, Shop())

    script.run(core.send(ORDER))

    properties = sent(script)
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "P")
    assert (properties["who"], properties["KEYS"], properties["TAGS"]) == ("me", "k1", "A")
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" not in properties
    assert script.asked(SendMessageV2)[0].request.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED


def test_a_large_half_message_is_compressed_as_any_other():
    script = Scripted()
    core = transactions(script, Shop())

    script.run(core.send(Message("orders", b"x" * 10_000)))

    seen = script.asked(SendMessageV2)[0]
    assert seen.request.sys_flag & (TRANSACTION_PREPARED | COMPRESSED) == TRANSACTION_PREPARED | COMPRESSED
    assert len(seen.body) < 1_000


def test_the_age_of_the_first_check_travels_with_the_message():
    script = Scripted()
    core = transactions(script, Shop())

    script.run(core.send(ORDER, check_after_s=90))

    assert sent(script)["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "90"


@pytest.mark.mission("000-05", "003-08")
def test_a_delay_is_taken_off_with_a_warning_and_no_error(caplog):
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)
    message = Message("orders", b"paid", delay_level=3)

    result = script.run(core.send(message))

    assert "DELAY" not in sent(script)
    assert result.local_state is COMMIT
    assert shop.executed[0][0].delay_level == 0
    assert message.delay_level == 3, "the caller's message is not changed"
    assert "delay of a half message ignored" in caplog.text


@pytest.mark.mission("003-06", "000-61")
def test_topic_and_group_are_wrapped_with_the_namespace_and_the_callers_message_is_not_changed():
    script, shop = Scripted(), Shop()
    core = transactions(script, shop, namespace="NS")
    message = deepcopy(ORDER)

    result = script.run(core.send(message))

    (seen,) = script.asked(SendMessageV2)
    assert (seen.request.topic, seen.request.producer_group) == ("NS%orders", "NS%P")
    assert sent(script)["PGROUP"] == "NS%P"
    assert (ends(script)[0].request.producer_group, ends(script)[0].request.topic) == ("NS%P", "NS%orders")
    assert (result.queue.topic, shop.executed[0][0].topic) == ("orders", "orders")
    assert message == ORDER


@pytest.mark.mission("003-12", "000-22", "003-01")
def test_the_half_message_goes_the_way_of_every_send_and_is_waited_for():
    script, order = Scripted(), []
    core = transactions(script, Shop(), TWO)
    slow = half_stored(ms=700)
    script.on(SendMessageV2, REFUSED, lambda seen: (order.append("stored"), slow(seen))[1])

    began = script.now
    result = script.run(core.send(ORDER, None, lambda message, arg: order.append((script.now - began, "local")) or COMMIT))

    assert order == ["stored", (703, "local")], "the local transaction waits for the answer; a ms goes for the route asked anew"
    assert [seen.address for seen in script.asked(SendMessageV2)] != ["broker-a:1"] * 2
    assert len({decode(seen.request.properties.encode())["UNIQ_KEY"] for seen in script.asked(SendMessageV2)}) == 1
    assert result.local_state is COMMIT


# ---------------------------------------------------------------- the local transaction


@pytest.mark.mission("000-02", "000-13", "000-21", "004-18")
def test_one_call_stores_executes_and_commits():
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)

    result = script.run(core.send(ORDER, {"order": 1}))

    assert [type(seen.request) for seen in script.seen[-2:]] == [SendMessageV2, EndTransaction]
    assert isinstance(result, TransactionSendResult)
    assert (result.status, result.local_state, result.local_error) == (SendStatus.SEND_OK, COMMIT, None)
    assert (result.msg_id, result.offset_msg_id, result.queue_offset) == (sent(script)["UNIQ_KEY"], OFFSET_ID, 5)
    assert [arg for _, arg in shop.executed] == [{"order": 1}]


@pytest.mark.mission("000-11", "000-12")
def test_the_local_transaction_knows_its_ids():
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)

    result = script.run(core.send(ORDER))

    (seen, _) = shop.executed[0]
    assert seen.transaction_id == result.msg_id == sent(script)["UNIQ_KEY"]
    assert seen.properties == {"who": "me", "__transactionId__": "TX"}
    assert ORDER.properties == {"who": "me"}
    assert ORDER.transaction_id is None


@pytest.mark.mission("000-11")
def test_without_a_transaction_id_in_the_answer_no_property_is_set():
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)
    script.on(SendMessageV2, half_stored(transaction_id=None))

    script.run(core.send(ORDER))

    assert shop.executed[0][0].properties == {"who": "me"}
    assert ends(script)[0].request.transaction_id is None


@pytest.mark.mission("000-04")
def test_the_executor_of_the_call_wins_over_the_listener():
    script, shop, called = Scripted(), Shop(COMMIT), []
    core = transactions(script, shop)

    with_executor = script.run(core.send(ORDER, 1, lambda message, arg: called.append(arg) or ROLLBACK))
    without = script.run(core.send(ORDER, 2))

    assert called == [1]
    assert [arg for _, arg in shop.executed] == [2]
    assert (with_executor.local_state, without.local_state) == (ROLLBACK, COMMIT)


@pytest.mark.mission("000-10", "000-14")
def test_a_local_transaction_that_says_nothing_is_unknown():
    script = Scripted()
    core = transactions(script, Shop(None))

    assert script.run(core.send(ORDER)).local_state is UNKNOWN
    assert ends(script)[0].request.commit_or_rollback == 0


@pytest.mark.mission("000-15")
@pytest.mark.parametrize(("said", "is_logged"), [(COMMIT, False), (ROLLBACK, True), (UNKNOWN, True), (None, True)])
def test_what_is_not_committed_is_logged_with_the_message(said, is_logged, caplog):
    caplog.set_level(logging.INFO)
    script = Scripted()
    core = transactions(script, Shop(said))

    result = script.run(core.send(ORDER))

    assert ("local transaction not committed" in caplog.text) is is_logged
    assert (result.msg_id in caplog.text and "b'paid'" in caplog.text and "topic=orders" in caplog.text) is is_logged


@pytest.mark.mission("000-10", "000-16", "000-67")
def test_a_local_transaction_that_raises_is_unknown_logged_remembered_and_told(caplog):
    script, error = Scripted(), ValueError("no\ndatabase \ud800")
    core = transactions(script, Shop(error))

    result = script.run(core.send(ORDER))

    assert (result.local_state, result.local_error) == (UNKNOWN, error)
    (end,) = ends(script)
    assert (end.request.commit_or_rollback, end.remark) == (
        0, "executeLocalTransactionBranch exception: ValueError: no database ?",
    )  # fmt: skip
    (line,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"]
    facts, _, then = line.partition("; ")
    assert facts == f"local transaction failed: group=P topic=orders message={result.msg_id} tag=A keys=k1 body=b'paid'"
    assert then == "its outcome is UNKNOWN, so that the broker asks"
    assert "ValueError: no" in caplog.text


def test_the_text_of_an_error_has_a_bound():
    script = Scripted()
    core = transactions(script, Shop(ValueError("x" * 1_000_000)))

    script.run(core.send(ORDER))

    assert len(ends(script)[0].remark) == 1_000


@pytest.mark.parametrize("said", [True, False, 8, "COMMIT"])
def test_anything_but_a_state_is_an_error_of_the_local_transaction_and_commits_nothing(said):
    script = Scripted()
    core = transactions(script, Shop(said))

    result = script.run(core.send(ORDER))

    assert (result.local_state, type(result.local_error)) == (UNKNOWN, UsageError)
    assert ends(script)[0].request.commit_or_rollback == 0


@pytest.mark.mission("000-36")
def test_a_local_transaction_that_is_cancelled_tells_nothing():
    script = Scripted()
    core = transactions(script, Shop(Later(10_000, COMMIT)))
    task = script.spawn(core.send(ORDER))
    script.run_for(5_000)
    assert list(core.running) == [sent(script)["UNIQ_KEY"]]

    task.cancel()
    script.run_for(10_000)

    assert len(script.asked(SendMessageV2)) == 1
    assert ends(script) == []
    assert not core.running


# ---------------------------------------------------------------- no local transaction


@pytest.mark.mission("000-09")
@pytest.mark.parametrize(
    ("answer", "error"), [(REFUSED, SendFailed), (Reply(13, remark="too long"), BrokerError), (SILENT, SendFailed)]
)
def test_a_half_message_that_fails_is_raised_and_nothing_else_happens(answer, error):
    script, shop = Scripted(), Shop()
    core = transactions(script, shop, TWO)
    script.on(SendMessageV2, answer)

    with pytest.raises(error):
        script.run(core.send(ORDER))

    assert shop.executed == []
    assert ends(script) == []
    assert not core.running


@pytest.mark.mission("000-09")
def test_a_topic_without_a_route_is_raised():
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)
    script.on(GetRouteinfoByTopic, routes())

    with pytest.raises(NoRoute):
        script.run(core.send(ORDER))

    assert shop.executed == []


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(SendStatus.FLUSH_DISK_TIMEOUT, marks=pytest.mark.mission("000-17")),
        pytest.param(SendStatus.FLUSH_SLAVE_TIMEOUT, marks=pytest.mark.mission("000-18")),
        pytest.param(SendStatus.SLAVE_NOT_AVAILABLE, marks=pytest.mark.mission("000-19")),
    ],
)
def test_a_promise_not_kept_rolls_back_and_the_local_transaction_does_not_run(status):
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)
    script.on(SendMessageV2, half_stored(status.value))

    result = script.run(core.send(ORDER))

    assert (result.status, result.local_state) == (status, ROLLBACK)
    assert shop.executed == []
    assert [end.request.commit_or_rollback for end in ends(script)] == [12]


# ---------------------------------------------------------------- being known, and said


@pytest.mark.mission("003-11")
def test_every_broker_hears_of_the_group_before_anything_is_sent():
    script = Scripted()
    core = transactions(script, Shop())
    script.on(GetRouteinfoByTopic, routes(SELF_TEST_TOPIC=route(TWO)))
    script.on(HeartBeat, Reply())
    for operation in [*core.instance.background_work(), core.meet_brokers()]:
        script.spawn(operation)

    script.run_for(10)

    beats = script.asked(HeartBeat)
    assert {seen.address for seen in beats} == {"broker-a:1", "broker-b:1"}
    assert all(b'"groupName":"P"' in seen.body for seen in beats)


def run_unsent(script, **values):
    """Run what a producer does beside its work, which sends nothing."""
    core = transactions(script, Shop(), heartbeat_ms=40_000, **values)
    script.on(HeartBeat, Reply())
    for operation in [*core.instance.background_work(), core.meet_brokers()]:
        script.spawn(operation)
    return core


def test_name_servers_that_do_not_answer_at_the_start_are_asked_again_soon(caplog):
    script = Scripted()
    run_unsent(script)
    script.on(GetRouteinfoByTopic, *[REFUSED] * 4, routes(SELF_TEST_TOPIC=route(1)))

    script.run_for(10_000)

    assert len(script.asked(HeartBeat)) == 1
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text.partition(": ")[2].partition(";")[0][:15] for text in warned] == ["no name server ", "works again"]


@pytest.mark.parametrize("answer", [REFUSED, SILENT, Reply(17)], ids=["refused", "silent", "no broker"])
def test_while_no_broker_is_found_one_warning_is_enough_and_the_pauses_grow(caplog, answer):
    script = Scripted()
    run_unsent(script, route_refresh_ms=600_000)
    script.on(GetRouteinfoByTopic, answer)

    script.run_for(29_000)

    asked = [seen.at for seen in script.asked(GetRouteinfoByTopic)]
    assert 4 <= len(asked) <= 8
    assert asked[-1] - asked[-2] > 4 * (asked[1] - asked[0]) or answer is SILENT
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1

    script.run_for(600_000)

    asked = [seen.at for seen in script.asked(GetRouteinfoByTopic)]
    assert max(later - sooner for sooner, later in pairwise(asked)) <= 30_000 + 3_000  # a pause, and a try


def test_a_broker_that_joins_later_hears_of_the_group_without_a_message_to_it():
    script = Scripted()
    run_unsent(script)
    script.on(GetRouteinfoByTopic, routes(SELF_TEST_TOPIC=route(1)), routes(SELF_TEST_TOPIC=route(TWO)))

    script.run_for(30_100)

    assert {seen.address for seen in script.asked(HeartBeat)} == {"broker-a:1", "broker-b:1"}


@pytest.mark.mission("000-72")
def test_the_documentation_warns_against_unknown_on_purpose():
    page = (Path(__file__).resolve().parents[4] / "docs" / "transactions.md").read_text()

    assert "Do not return UNKNOWN on purpose" in page
    for cls in (TransactionProducer, AsyncTransactionProducer):
        assert "Do not return UNKNOWN on purpose" in cls.send_in_transaction.__doc__
