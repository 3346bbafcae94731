"""What operators ask about transactions, and what they decide by hand."""

from __future__ import annotations

from functools import partial

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.model import java_hash
from halfmoon.store.transactions.index import State
from halfmoon.wire.bodies import PendingTransactions, Transaction, TransactionStats, from_json
from halfmoon.wire.headers.transaction import (
    CheckTransaction,
    DecideTransaction,
    GetTransaction,
    GetTransactionStats,
    ListPendingTransactions,
    ResumeCheckHalfMessage,
)
from tests.broker.half import CHECKS, COMMIT, GROUP, ROLLBACK, TOPIC, checks, end, half_properties, prepare, produce, stored
from tests.broker.talk import OF_THE_BROKER, send_header


def test_pending_transactions_are_listed_the_oldest_first_with_their_checks(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    sent = [prepare(talk, f"u{k}", group=GROUP if k % 2 else "others") for k in range(5)]
    end(talk, sent[1], COMMIT, oneway=True)
    talk.wait(6000)

    page = from_json(PendingTransactions, talk.ask(ListPendingTransactions(count=3)).body)
    rest = from_json(PendingTransactions, talk.ask(ListPendingTransactions(start=page.next)).body)
    assert [t.msg_id for t in page.transactions + rest.transactions] == ["u0", "u2", "u3", "u4"]
    assert (page.pending_count, rest.next) == (4, -1)
    [mine] = from_json(PendingTransactions, talk.ask(ListPendingTransactions(group=GROUP)).body).transactions
    assert (mine.msg_id, mine.topic, mine.queue_id, mine.keys, mine.producers) == ("u3", TOPIC, 3, "k", 1)
    assert (mine.checks_sent, mine.checks_left, [c.answer for c in mine.checks]) == (1, 14, ["NONE"])
    assert talk.now < mine.next_check_ms <= talk.now + 5000
    old = talk.ask(ListPendingTransactions(older_than_ms=10_000)).body
    assert from_json(PendingTransactions, old).transactions == []


def test_one_transaction_is_found_by_each_of_its_ids_decided_or_not(talk):
    sent = prepare(talk, "0A0000010000000000000000000000AB")
    for wanted in ({"id": "0A0000010000000000000000000000AB"}, {"id": "k"}, {"id": sent.msg_id}, {"offset": 0}):
        found = from_json(Transaction, talk.ask(GetTransaction(**wanted)).body)
        assert (found.index, found.state, found.group, found.offset_msg_id) == (0, "PREPARED", GROUP, sent.msg_id)
    end(talk, sent, ROLLBACK, oneway=True)
    assert from_json(Transaction, talk.ask(GetTransaction(id=sent.msg_id)).body).state == "ROLLED_BACK"
    for name in ("nonsense", "0", "7", "F" * 32, ""):
        assert talk.ask(GetTransaction(id=name)).code == 22
    for offset in (1, -1, 2**62):
        assert talk.ask(GetTransaction(offset=offset)).code == 22


@pytest.mark.parametrize("request_of", [GetTransaction, CheckTransaction, partial(DecideTransaction, commit=True, operator="ann")])
def test_a_decision_by_hand_never_takes_a_key_for_an_offset(talk, request_of):
    for k in range(3):
        prepare(talk, str(k + 1))
    assert talk.ask(request_of(id="0")).code == 22
    found = talk.ask(request_of(id="1"))
    if request_of is CheckTransaction:
        assert found.remark == "no producer of its group is connected"
    else:
        assert from_json(Transaction, found.body).index == 0
    assert all(half.state == State.PREPARED for half in (talk.broker.transactions.index.half(k) for k in (1, 2)))


@pytest.mark.parametrize("request_of", [GetTransaction, CheckTransaction, partial(DecideTransaction, commit=True, operator="ann")])
def test_a_key_that_several_transactions_share_is_refused_with_their_ids(talk, request_of):
    sent = [prepare(talk, f"u{k}") for k in range(10)]  # each with the key k
    refused = talk.ask(request_of(id="k"))
    assert refused.code == 1
    assert refused.remark.startswith("the key 'k' names 10 transactions, give one of: ")
    assert refused.remark.endswith(" and more")
    named = refused.remark.partition("give one of: ")[2].removesuffix(" and more").split(", ")
    assert len(named) == 8
    assert set(named) <= {each.msg_id for each in sent}
    assert talk.broker.transactions.index.pending_count == 10


def test_a_transaction_that_was_resumed_is_one_and_its_newest_half_message_counts(make_talk):
    talk = make_talk(transaction_check_max=1, **CHECKS)
    produce(talk, GROUP)
    prepare(talk)
    talk.wait(12_000)
    [copy] = stored(talk, EXPIRED_TOPIC)
    assert copy.properties["TRANSACTION_EXPIRED_REASON"] == "1 check brought no decision"
    assert talk.ask(ResumeCheckHalfMessage(msg_id=copy.offset_msg_id)).code == 0
    assert OF_THE_BROKER.items() <= stored(talk, HALF_TOPIC)[1].properties.items()
    for name in ("u1", "k"):
        assert from_json(Transaction, talk.ask(GetTransaction(id=name)).body).index == 1


def test_a_decision_by_hand_is_carried_out_and_its_op_says_who(talk):
    prepare(talk, "u1")
    prepare(talk, "u2")

    assert talk.ask(DecideTransaction(id="u1", commit=True, operator="ann")).code == 0
    assert talk.ask(DecideTransaction(id="u2", commit=False, operator="bob")).code == 0
    assert talk.ask(DecideTransaction(id="u1", commit=False, operator="ann")).remark == "the transaction is decided: COMMITTED"
    assert talk.ask(DecideTransaction(id="u2", commit=False, operator=" ")).code == 1

    assert [m.msg_id for m in stored(talk, TOPIC, 3)] == ["u1"]
    assert [op.properties["DECIDED_BY"] for op in stored(talk, OP_TOPIC)] == ["ann", "bob"]


def test_a_check_by_hand_is_sent_at_once_or_refused(talk):
    sent = prepare(talk)
    assert talk.ask(CheckTransaction(id="u1")).remark == "no producer of its group is connected"
    produce(talk, GROUP)
    assert talk.ask(CheckTransaction(id="u1")).code == 0
    assert len(checks(talk)) == 1
    end(talk, sent, COMMIT, oneway=True)
    assert talk.ask(CheckTransaction(id="u1")).remark == "the transaction is decided: COMMITTED"


def test_figures_say_what_is_pending_by_group_and_what_happened(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    end(talk, prepare(talk, "u1"), COMMIT, oneway=True)
    talk.wait(1000)
    prepare(talk, "u2")
    prepare(talk, "u3", group="others")
    talk.wait(7000)

    stats = from_json(TransactionStats, talk.ask(GetTransactionStats()).body)
    assert stats.pending_count == 2
    assert {g.group: (g.pending, g.producers) for g in stats.groups} == {GROUP: (1, 1), "others": (1, 0)}
    assert (stats.counters["commits"], stats.counters["checks_sent"], stats.counters["halves"]) == (1, 1, 3)
    assert java_hash(GROUP) in talk.broker.transactions.index.pending_by_group


def test_decisions_are_counted_by_the_age_of_their_half_messages_and_expiring_is_none(make_talk):
    talk = make_talk(transaction_check_max=2, **CHECKS)
    produce(talk, GROUP)
    for age_ms, decision in ((0, COMMIT), (1000, ROLLBACK), (2500, COMMIT), (9000, COMMIT)):
        sent = prepare(talk, f"u{age_ms}")
        talk.wait(age_ms)
        end(talk, sent, decision, oneway=True)
    prepare(talk, "never")
    talk.wait(20_000)
    prepare(talk, "by hand")
    talk.wait(4000)
    assert talk.ask(DecideTransaction(id="by hand", commit=True, operator="ann")).code == 0

    stats = from_json(TransactionStats, talk.ask(GetTransactionStats()).body)
    assert (stats.counters["expired"], stats.counters["rollbacks"]) == (1, 2)
    assert (stats.decided_after[:5], sum(stats.decided_after), len(stats.decided_after)) == ([2, 1, 1, 1, 0], 5, 19)


@pytest.mark.parametrize(("bound", "value"), [("records_max", 4), ("bytes_max", 1000), ("rows_max", 6)])
def test_a_listing_ends_early_when_it_read_enough_and_all_pages_together_are_whole(make_talk, bound, value):
    talk = make_talk(**CHECKS)
    setattr(talk.broker.transactions.pending, bound, value)
    for k in range(20):
        prepare(talk, f"u{k}", group=GROUP if k % 2 else "others")
    for group in (None, GROUP):
        found, sizes, start = [], [], 0
        while start >= 0:
            page = from_json(PendingTransactions, talk.ask(ListPendingTransactions(group=group, start=start, count=1000)).body)
            found += [one.msg_id for one in page.transactions]
            sizes.append(len(page.transactions))
            start = page.next
        assert found == [f"u{k}" for k in range(20) if group is None or k % 2]
        assert max(sizes) <= 6
        assert len(sizes) > 1


def test_a_name_that_is_no_number_to_python_is_answered_too(talk):
    prepare(talk)
    assert talk.ask(GetTransaction(id="²")).code == 22


@pytest.fixture
def slow(make_talk):
    """A broker with sync flush whose device hangs, and one half message that is durable and one that is not."""
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    prepare(talk, "durable")
    talk.held_back = []
    talk.post(send_header(TOPIC, queue_id=3, properties=half_properties("waiting")))
    talk.turn()
    return talk


def test_a_half_message_that_is_not_durable_is_told_to_nobody(slow):
    page = from_json(PendingTransactions, slow.ask(ListPendingTransactions()).body)
    assert [one.msg_id for one in page.transactions] == ["durable"]
    assert slow.ask(GetTransaction(offset=1)).code == slow.ask(DecideTransaction(offset=1, commit=True, operator="ann")).code == 22
    slow.release()

    page = from_json(PendingTransactions, slow.ask(ListPendingTransactions()).body)
    assert [one.msg_id for one in page.transactions] == ["durable", "waiting"]


def test_groups_whose_names_cannot_be_read_are_counted_together(slow):
    for group in ("a", "b", "b"):
        slow.post(send_header(TOPIC, queue_id=3, properties=half_properties("more", group)))
    slow.turn()
    found = from_json(TransactionStats, slow.ask(GetTransactionStats()).body)
    assert (found.pending_count, {one.group: one.pending for one in found.groups}) == (5, {GROUP: 2, "?": 3})


def test_a_decision_by_hand_is_answered_once_it_is_durable(slow):
    asked = [slow.post(DecideTransaction(id="durable", commit=True, operator="ann")) for _ in range(2)]
    slow.turn()
    assert [slow.answer(each) for each in asked] == [None, None]
    slow.release()

    assert [from_json(Transaction, slow.answer(each).body).state for each in asked] == ["COMMITTED", "COMMITTED"]
    assert [op.body for op in stored(slow, OP_TOPIC)] == [b"0"]


def test_a_resume_is_answered_once_it_is_durable(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"}, transaction_check_max=1, **CHECKS)
    produce(talk, GROUP)
    prepare(talk)
    talk.wait(12_000)
    [copy] = stored(talk, EXPIRED_TOPIC)
    talk.held_back = []
    asked, again = (talk.post(ResumeCheckHalfMessage(msg_id=copy.offset_msg_id)) for _ in range(2))
    talk.turn()
    assert (talk.answer(asked), talk.answer(again).remark) == (None, "message u1 was resumed already")
    talk.release()
    assert talk.answer(asked).code == 0
    assert talk.ask(ResumeCheckHalfMessage(msg_id=copy.offset_msg_id)).remark == "message u1 was resumed already"
    assert len(stored(talk, HALF_TOPIC)) == 2


def test_when_the_device_fails_who_decided_is_told_so(slow):
    asked = slow.post(DecideTransaction(id="durable", commit=False, operator="ann"))
    slow.turn()
    for work in slow.held_back:
        work.done(OSError(5, "input/output error"), slow.instant)
    slow.held_back = None
    slow.turn()
    slow.run_effects()

    answer = slow.answer(asked)
    assert (answer.code, "service not available" in answer.remark) == (14, True)


def test_answers_that_wait_for_the_device_are_bounded(slow):
    slow.broker.pending_replies.waiting_max = 3  # one of them is the half message
    asked = [slow.post(DecideTransaction(id="durable", commit=True, operator="ann")) for _ in range(3)]
    slow.turn()
    assert [found and found.code for found in map(slow.answer, asked)] == [None, None, 2]
