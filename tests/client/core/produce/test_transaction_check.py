"""Checks that brokers ask: who is asked, what is answered where, and what happens when there are too many."""

from __future__ import annotations

import gc
import logging

import pytest

from halfmoon.client.core.produce import transaction_check
from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.client.core.produce.transaction_check import CheckFunctions, answer_not_mine
from halfmoon.errors import UsageError
from halfmoon.model import Message
from halfmoon.wire.command import request_command
from halfmoon.wire.headers.transaction import CheckTransactionState, EndTransaction
from tests.client.scripted import REFUSED, Later, Scripted
from tests.client.transacting import COMMIT, NOT_MINE, ROLLBACK, UNKNOWN, Shop, ask, check, ends, transactions

ORDER = Message("orders", b"paid")


# ---------------------------------------------------------------- the answer


@pytest.mark.mission("000-71", "003-24", "004-34")
@pytest.mark.parametrize(("said", "number"), [(COMMIT, 8), (ROLLBACK, 12), (UNKNOWN, 0), (None, 0)])
def test_a_check_is_answered_one_way_on_its_connection_with_its_own_offsets(said, number):
    script, shop = Scripted(), Shop(check=said)
    core = transactions(script, shop)

    ask(script, core, check("ID7"), "10.9.8.7:10911")

    (end,) = ends(script)
    assert (end.oneway, end.address, end.timeout_ms, end.remark) == (True, "10.9.8.7:10911", 3_000, None)
    assert end.fields == {
        "producerGroup": "P", "tranStateTableOffset": "7", "commitLogOffset": "700", "commitOrRollback": str(number),
        "msgId": "ID7", "transactionId": "ID7", "fromTransactionCheck": "true", "topic": "orders",
    }  # fmt: skip


def test_a_check_of_5_x_gets_its_broker_name_back():
    script = Scripted()
    core = transactions(script, Shop())

    ask(script, core, check(broker_name="broker-x"))

    assert ends(script)[0].fields["bname"] == "broker-x"


def test_the_listener_sees_the_whole_half_message():
    script, shop = Scripted(), Shop()
    core = transactions(script, shop, namespace="NS")

    ask(script, core, check("ID7", topic="NS%orders", group="NS%P"))

    (seen,) = shop.checked
    assert (seen.topic, seen.body, seen.keys, seen.transaction_id) == ("orders", b"paid", ("k1",), "ID7")
    assert ends(script)[0].fields["topic"] == "NS%orders"


def test_a_listener_that_raises_is_unknown_with_the_reason_in_the_remark(caplog):
    script = Scripted()
    core = transactions(script, Shop(check=ValueError("no database")))

    ask(script, core, check())

    (end,) = ends(script)
    assert end.request.commit_or_rollback == 0
    assert end.remark == "checkLocalTransactionState Exception, ValueError: no database"
    (line,) = [entry for entry in caplog.records if entry.levelname == "ERROR"]
    assert line.getMessage() == "check failed: group=P topic=orders message=ID7; the broker asks again"
    assert "ValueError: no database" in caplog.text


def test_a_listener_that_says_something_else_is_unknown():
    script = Scripted()
    core = transactions(script, Shop(check=True))

    ask(script, core, check())

    assert ends(script)[0].request.commit_or_rollback == 0
    assert "expected a LocalTransactionState" in ends(script)[0].remark


def test_an_answer_that_cannot_leave_is_logged_and_the_next_check_is_answered(caplog):
    script = Scripted()
    core = transactions(script, Shop())
    script.on(EndTransaction, REFUSED)

    ask(script, core, check("ID1"))
    ask(script, core, check("ID2"))

    assert [end.fields["msgId"] for end in ends(script)] == ["ID1", "ID2"]
    assert caplog.text.count("answer not sent") == 2


# ---------------------------------------------------------------- who is asked


def test_a_check_for_another_group_is_ignored_with_a_warning(caplog):
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)

    ask(script, core, check(group="Q"))

    assert (shop.checked, ends(script)) == ([], [])
    assert "for another group" in caplog.text


def test_a_check_that_is_no_message_is_ignored_with_a_warning(caplog):
    script, shop = Scripted(), Shop()
    core = transactions(script, shop)
    header = CheckTransactionState(tran_state_table_offset=7, commit_log_offset=700)

    ask(script, core, request_command(header, b"\0" * 100, oneway=True))
    ask(script, core, request_command(header, b"", oneway=True))

    assert (shop.checked, ends(script)) == ([], [])
    assert caplog.text.count("does not decode") == 2


@pytest.mark.parametrize("said", [None, NOT_MINE])
def test_a_check_that_is_not_for_this_member_is_answered_so_and_to_other_brokers_it_is_unknown(said):
    script = Scripted()
    core = transactions(script)
    core.checkers.add("payments" if said is None else "orders", lambda message: said)

    ask(script, core, check("ID7", topic="orders"))

    (end,) = ends(script)
    assert end.fields == {
        "producerGroup": "P", "tranStateTableOffset": "7", "commitLogOffset": "700", "commitOrRollback": "0",
        "msgId": "ID7", "transactionId": "ID7", "fromTransactionCheck": "true", "topic": "orders", "notMine": "true",
    }  # fmt: skip


def test_a_check_of_a_transaction_that_runs_here_is_open_though_no_function_is_for_its_topic():
    script = Scripted()
    core = transactions(script)
    stored = script.run(OpenHalf(core, ORDER).store())

    ask(script, core, check(stored.result.msg_id))

    (end,) = ends(script)
    assert (end.fields["stillOpen"], "notMine" in end.fields) == ("true", False)


def test_a_producer_without_transactions_answers_that_a_check_of_its_group_is_not_its_own():
    asked = answer_not_mine("P")
    (told,) = asked("10.9.8.7:10911", check("ID7"))

    assert (told.address, told.request.not_mine, told.request.commit_or_rollback) == ("10.9.8.7:10911", "true", 0)
    assert (told.request.producer_group, told.request.tran_state_table_offset, told.request.commit_log_offset) == ("P", 7, 700)
    assert answer_not_mine("others")("10.9.8.7:10911", check("ID7")) is None


def test_several_checkers_are_routed_by_topic():
    script, shop, asked = Scripted(), Shop(check=UNKNOWN), []
    core = transactions(script, shop)
    for name in ("orders_*", "orders_eu", "orders_e?", "*_log"):
        core.checkers.add(name, lambda message, name=name: asked.append((name, message.topic)))

    for topic in ("orders_eu", "orders_us", "orders_log", "web_log", "payments"):
        ask(script, core, check(topic=topic))

    assert asked == [("orders_eu", "orders_eu"), ("orders_*", "orders_us"), ("orders_*", "orders_log"), ("*_log", "web_log")]
    assert [message.topic for message in shop.checked] == ["payments"]


def test_a_checker_is_a_function_for_something_that_may_be_a_topic():
    checkers = CheckFunctions()

    for topic, function in (("or ders", print), ("", print), ("orders", None)):
        with pytest.raises(UsageError):
            checkers.add(topic, function)

    assert not checkers


def test_checkers_have_a_bound():
    checkers = CheckFunctions()
    checkers.add("b*", print)
    for number in range(transaction_check.CHECKERS_MAX - 2):
        checkers.add(f"orders_{number}", print)
    checkers.add("a", print)
    checkers.add("a", repr)

    with pytest.raises(UsageError, match="use a pattern"):
        checkers.add("c", print)

    assert checkers.find("a") is repr


# ---------------------------------------------------------------- beside the reader, within bounds


@pytest.mark.mission("004-33")
def test_checks_are_answered_beside_the_connection_one_by_one_unless_told_otherwise():
    script, shop = Scripted(), Shop(check=Later(1_000, COMMIT))
    core = transactions(script, shop)

    for number in range(3):
        answer = core.instance.asked("broker-a:1", check(f"ID{number}"))
        if answer is not None:
            script.spawn(answer)
    assert ends(script) == [], "taking the question answers nothing yet"
    script.run_for(1_500)
    assert len(ends(script)) == 1
    script.run_for(2_000)

    assert [end.fields["msgId"] for end in ends(script)] == ["ID0", "ID1", "ID2"]


def test_more_threads_answer_side_by_side():
    script, shop = Scripted(), Shop(check=Later(1_000, COMMIT))
    core = transactions(script, shop, check_threads=2)

    for number in range(3):
        answer = core.instance.asked("broker-a:1", check(f"ID{number}"))
        if answer is not None:
            script.spawn(answer)
    script.run_for(1_500)

    assert len(ends(script)) == 2


@pytest.mark.parametrize("bound", ["count", "bytes"])
def test_checks_over_the_bound_are_dropped_with_a_warning_and_may_be_asked_again(bound, caplog, monkeypatch):
    script, shop = Scripted(), Shop(check=Later(1_000, COMMIT))
    core = transactions(script, shop, check_hold_max=2 if bound == "count" else 2_000)
    if bound == "bytes":
        monkeypatch.setattr(transaction_check, "HELD_BYTES_MAX", 25)

    answers = [core.instance.asked("broker-a:1", check(f"ID{number}", body=b"0123456789")) for number in range(4)]
    for answer in answers:
        if answer is not None:
            script.spawn(answer)
    script.run_for(5_000)
    ask(script, core, check("ID3", body=b"0123456789"))

    assert [end.fields["msgId"] for end in ends(script)] == ["ID0", "ID1", "ID3"]
    assert caplog.text.count("check dropped") == 2


# ---------------------------------------------------------------- while the local transaction runs


def test_a_check_of_a_transaction_that_still_runs_here_is_unknown_and_nobody_is_asked(caplog):
    caplog.set_level(logging.INFO)
    script, shop = Scripted(), Shop(execute=Later(10_000, COMMIT), check=ROLLBACK)
    core = transactions(script, shop)
    task = script.spawn(core.send(ORDER))
    script.run_for(6_000)
    (unique,) = core.running

    script.spawn(core.instance.asked("broker-a:1", check(unique)))
    script.run_for(1_000)
    assert shop.checked == []
    (during,) = ends(script)
    assert (during.request.commit_or_rollback, during.remark) == (0, "the local transaction is still running")
    script.run_for(10_000)

    assert task.value.local_state is COMMIT
    after = ends(script)[-1]
    assert (after.fields["commitOrRollback"], after.fields["fromTransactionCheck"]) == ("8", "true")
    assert (after.fields["tranStateTableOffset"], after.fields["commitLogOffset"]) == ("7", "700"), "those of the newest copy"


def test_a_half_message_whose_caller_was_interrupted_and_is_gone_does_not_count_as_running():
    script, shop = Scripted(), Shop(check=ROLLBACK)
    core = transactions(script, shop)
    stored = script.run(OpenHalf(core, ORDER).store())
    unique = stored.result.msg_id
    assert list(core.running) == [unique]

    del stored
    gc.collect()
    ask(script, core, check(unique))

    assert not core.running
    assert [message.transaction_id for message in shop.checked] == [unique]


def test_a_check_after_the_local_transaction_asks_the_listener():
    script, shop = Scripted(), Shop(execute=None, check=ROLLBACK)
    core = transactions(script, shop)
    result = script.run(core.send(ORDER))

    ask(script, core, check(result.msg_id))

    assert len(shop.checked) == 1
    assert [end.request.commit_or_rollback for end in ends(script)] == [0, 12]
