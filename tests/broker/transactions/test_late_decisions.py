"""Decisions that come after a half message expired: a commit is honoured once, a rollback is final, whatever is in between."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.ports import DiskUsage
from halfmoon.wire.bodies import Transaction, TransactionStats, from_json
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.transaction import (
    DecideTransaction,
    EndTransaction,
    GetTransaction,
    GetTransactionStats,
    ResumeCheckHalfMessage,
)
from halfmoon.wire.ids import parse_offset_msg_id
from tests.broker.half import (
    CHECKS,
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    checks,
    end,
    half_properties,
    prepare,
    produce,
    stored,
)
from tests.broker.talk import send_header

ONCE = {**CHECKS, "transaction_check_max": 1}


@pytest.fixture
def talk(make_talk):
    return make_talk(**ONCE)


def expire(talk, key="u1"):
    """Store a half message that nobody decides until it expires."""
    produce(talk, GROUP)
    sent = prepare(talk, key)
    before = len(stored(talk, EXPIRED_TOPIC))
    talk.wait(12_000)
    checks(talk)
    assert len(stored(talk, EXPIRED_TOPIC)) == before + 1
    return sent


def kill(talk):
    """End the process where it is, and start it again."""
    talk.broker.store._lock.release()
    talk.open()
    produce(talk, GROUP)


def resume(talk, copy=-1):
    return talk.ask(ResumeCheckHalfMessage(msg_id=stored(talk, EXPIRED_TOPIC)[copy].offset_msg_id))


def header(sent, key, decision=COMMIT):
    return EndTransaction(
        producer_group=GROUP, tran_state_table_offset=sent.queue_offset, commit_or_rollback=decision, msg_id=key,
        commit_log_offset=parse_offset_msg_id(sent.msg_id).physical_offset,
    )  # fmt: skip


def bodies(talk, queue_id=3):
    return [message.body for message in stored(talk, TOPIC, queue_id)]


def counters(talk):
    return from_json(TransactionStats, talk.ask(GetTransactionStats()).body).counters


def test_what_was_resumed_is_not_resumed_again_by_a_broker_whose_clock_was_set_back(talk):
    expire(talk)
    assert resume(talk).code == 0
    talk.now -= 60_000
    talk.restart()

    again = resume(talk)

    assert (again.code, "was resumed already" in (again.remark or "")) == (1, True)


@pytest.mark.parametrize("between", [None, kill], ids=["alive", "killed"])
def test_a_commit_that_comes_after_expiry_is_delivered_once_and_operators_see_it(talk, between, caplog):
    sent = expire(talk)
    if between:
        between(talk)
    assert end(talk, sent, COMMIT).code == 0
    assert "had expired and is now committed" in caplog.text
    assert counters(talk)["late_commits"] == 1
    for _ in range(2):
        if between:
            between(talk)
        assert end(talk, sent, COMMIT).code == 0
        assert end(talk, sent, COMMIT, check=True).code == 0
        assert end(talk, sent, ROLLBACK).remark == "the transaction was committed already"
        assert resume(talk).remark == "message u1 was committed"
    talk.wait(60_000)

    [message] = stored(talk, TOPIC, 3)
    assert (message.body, message.tag, message.msg_id) == (b"order", "X", "u1")
    assert not [name for name in message.properties if name.startswith("TRANSACTION_")]
    assert len(stored(talk, OP_TOPIC)) == len(stored(talk, EXPIRED_TOPIC)) == len(stored(talk, HALF_TOPIC)) == 1


def test_a_late_commit_is_the_same_message_as_one_in_time(talk):
    late, soon = expire(talk), prepare(talk, "u2")
    assert end(talk, soon, COMMIT, key="u2").code == end(talk, late, COMMIT).code == 0
    first, second = stored(talk, TOPIC, 3)

    assert {**first.properties, "UNIQ_KEY": ""} == {**second.properties, "UNIQ_KEY": ""}
    for name in ("body", "flag", "sys_flag", "born_host", "reconsume_times"):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize("between", [None, kill], ids=["alive", "killed"])
def test_a_rollback_that_comes_after_expiry_is_final(talk, between):
    sent = expire(talk)
    assert end(talk, sent, ROLLBACK).code == 0
    for _ in range(2):
        if between:
            between(talk)
        assert end(talk, sent, ROLLBACK).code == 0
        assert end(talk, sent, COMMIT).remark == "the transaction was rolled back already"
        assert resume(talk).remark == "message u1 was rolled back"

    assert bodies(talk) == []


@pytest.mark.parametrize("between", [None, kill], ids=["alive", "killed"])
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_decision_that_comes_after_a_resume_is_about_what_was_resumed(talk, between, decision):
    sent = expire(talk)
    assert resume(talk).code == 0
    if between:
        between(talk)
    assert end(talk, sent, decision).code == 0
    if between:
        between(talk)
    assert end(talk, sent, decision).code == 0
    assert end(talk, sent, COMMIT + ROLLBACK - decision).code == 1
    assert talk.broker.transactions.index.pending_count == 0
    talk.wait(12_000)

    assert checks(talk) == []
    assert bodies(talk) == [b"order"] * (decision == COMMIT)
    assert sorted(op.body for op in stored(talk, OP_TOPIC)) == [b"0", b"1"]


def test_a_commit_that_comes_after_what_was_resumed_expired_too_is_delivered_once(talk):
    sent = expire(talk)
    assert resume(talk).code == 0
    talk.wait(12_000)
    checks(talk)
    assert len(stored(talk, EXPIRED_TOPIC)) == 2
    kill(talk)
    for _ in range(3):
        assert end(talk, sent, COMMIT).code == 0
        assert resume(talk).remark == "message u1 was committed"

    assert bodies(talk) == [b"order"]


def test_a_commit_is_honoured_while_nothing_of_it_is_on_the_device(make_talk):
    """With sync flush what is not durable is found by nobody: neither the copy, nor the visible record, nor what was resumed."""
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"}, **ONCE)
    produce(talk, GROUP)
    sent = [prepare(talk, key) for key in ("u1", "u2")]
    talk.wait(5500)
    assert len(checks(talk)) == 2
    talk.held_back = []
    talk.wait(6000)
    assert stored(talk, EXPIRED_TOPIC) == []  # nobody sees the copies yet
    asked = [talk.post(header(each, key)) for _ in range(3) for each, key in zip(sent, ("u1", "u2"))]
    talk.turn()
    assert [talk.answer(each) for each in asked] == [None] * 6
    talk.release()

    assert [talk.answer(each).code for each in asked] == [0] * 6
    assert bodies(talk) == [b"order", b"order"]
    assert resume(talk).code == 1


def test_a_commit_is_about_what_is_being_resumed_while_that_is_not_on_the_device(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"}, **ONCE)
    sent = expire(talk)
    copy = stored(talk, EXPIRED_TOPIC)[0].offset_msg_id
    talk.held_back = []
    asked = []
    for request in (ResumeCheckHalfMessage(msg_id=copy), header(sent, "u1")):
        asked.append(talk.post(request))
        talk.turn()
    talk.release()

    assert [talk.answer(each).remark for each in asked] == [None] * 2
    assert talk.broker.transactions.index.pending_count == 0
    assert bodies(talk) == [b"order"]


def test_a_commit_is_honoured_though_the_log_file_of_its_half_message_is_gone(make_talk):
    talk = make_talk(**CHECKS)
    sent = prepare(talk)
    while talk.broker.store.end_offset < 3 * 256 * 1024:
        talk.send(TOPIC, bytes(30_000))
        talk.wait(100)
    talk.wait(60_000)
    talk.disk.usage = lambda: DiskUsage(100, 12)
    talk.wait(40_000)
    assert talk.broker.store.min_offset > 0
    talk.disk.usage = lambda: DiskUsage(100, 90)
    talk.wait(20_000)
    for _ in range(2):
        assert end(talk, sent, COMMIT).code == 0
        kill(talk)
    assert end(talk, sent, ROLLBACK).code == 1
    assert resume(talk).remark == "message u1 was committed"

    assert bodies(talk) == [b"order"]


@pytest.mark.parametrize("wrong", [{"group": "others"}, {"place": 7}, {"place": -1}, {"index": 5, "place": 900_000}])
def test_who_names_it_wrongly_commits_nothing_that_expired(talk, wrong):
    sent = expire(talk)
    assert end(talk, sent, COMMIT, **wrong).code == 1

    assert bodies(talk) == []


def test_what_its_producer_rolled_back_in_time_is_not_committed_later(talk):
    produce(talk, GROUP)
    sent = prepare(talk)
    assert end(talk, sent, ROLLBACK).code == 0
    assert end(talk, sent, COMMIT).remark == "the transaction was rolled back already"

    assert bodies(talk) == []


def test_without_an_id_a_message_that_expired_is_not_found_and_its_commit_is_refused(talk):
    produce(talk, GROUP)
    properties = half_properties().replace("UNIQ_KEY\x01u1\x02", "")
    reply = talk.ask(send_header(TOPIC, queue_id=3, properties=properties), b"order")
    sent = reply.header(SendMessageReply)
    talk.wait(12_000)
    assert end(talk, sent, COMMIT).code == 1
    assert bodies(talk) == []


def test_the_repeat_of_a_send_whose_message_was_committed_late_is_answered_as_the_first(talk):
    sent = expire(talk)
    again = send_header(TOPIC, queue_id=3, properties=half_properties(more="INNER_REPEAT\x012\x02"))
    assert "expired: resume it" in talk.ask(again, b"order").remark
    assert end(talk, sent, COMMIT).code == 0
    assert talk.ask(again, b"order").code == 0

    assert len(stored(talk, HALF_TOPIC)) == 1


def test_a_decision_by_hand_says_that_it_expired(talk):
    sent = expire(talk)
    by_hand = DecideTransaction(id="u1", commit=True, operator="ann")
    assert talk.ask(by_hand).remark == "the transaction is decided: expired: resume it"
    assert end(talk, sent, COMMIT).code == 0
    assert talk.ask(by_hand).remark == "the transaction is decided: expired, and committed later"
    assert from_json(Transaction, talk.ask(GetTransaction(id="u1")).body).checks_sent == 1


def test_a_rollback_by_hand_of_what_expired_is_not_agreed_to_while_a_commit_may_come_or_came(talk):
    sent = expire(talk)
    by_hand = DecideTransaction(offset=sent.queue_offset, commit=False, operator="ann")
    assert talk.ask(by_hand).remark == "the transaction is decided: expired: resume it"
    assert end(talk, sent, COMMIT).code == 0
    assert talk.ask(by_hand).remark == "the transaction is decided: expired, and committed later"
    assert bodies(talk) == [b"order"]


def test_a_rollback_by_hand_of_what_was_resumed_names_what_it_is_now(talk):
    sent = expire(talk)
    by_hand = DecideTransaction(offset=sent.queue_offset, commit=False, operator="ann")
    assert resume(talk).code == 0
    assert talk.ask(by_hand).remark == "the transaction is decided: expired, and resumed as half message 1"


def test_a_rollback_by_hand_repeats_one_that_came_after_expiry(talk):
    sent = expire(talk)
    assert end(talk, sent, ROLLBACK).code == 0
    assert talk.ask(DecideTransaction(offset=sent.queue_offset, commit=False, operator="ann")).code == 0


def test_an_answer_that_it_is_open_changes_nothing_about_what_expired(talk):
    sent = expire(talk)
    assert end(talk, sent, UNKNOWN, check=True, open=True).code == 0
    assert bodies(talk) == []
    assert end(talk, sent, COMMIT).code == 0
    assert bodies(talk) == [b"order"]
