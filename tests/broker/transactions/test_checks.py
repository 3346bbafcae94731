"""Check-back: who is asked when, expiry, resuming, and how far the half and op queues are settled."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.wire.headers.transaction import EndTransaction, ResumeCheckHalfMessage
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


@pytest.fixture
def talk(make_talk):
    """A broker that asks soon, and a producer that it may ask."""
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    return talk


@pytest.mark.mission("001-17", "004-30", "004-32", "004-33")
def test_an_undecided_message_is_asked_about_once_it_is_old_enough(talk):
    talk.wait(4500)
    sent = prepare(talk)
    talk.wait(600)  # the first round: it is not a second old
    assert checks(talk) == []
    talk.wait(5000)

    [(header, message)] = checks(talk)
    assert (header.tran_state_table_offset, header.offset_msg_id) == (sent.queue_offset, sent.msg_id)
    assert header.commit_log_offset == parse_offset_msg_id(sent.msg_id).physical_offset
    assert header.msg_id == header.transaction_id == "u1"
    assert (message.topic, message.queue_id, message.body, message.tag) == (TOPIC, 3, b"order", "X")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert len(stored(talk, HALF_TOPIC)) == 1  # no copy was written to ask


@pytest.mark.mission("001-21", "001-31", "000-69", "003-24", "004-34")
def test_the_answer_to_a_check_decides_and_a_repeat_of_it_does_nothing(talk):
    sent = prepare(talk)
    for _ in range(2):
        talk.wait(5000)
        assert len(checks(talk)) == 1
        end(talk, sent, UNKNOWN, oneway=True, check=True)
    talk.wait(5000)
    assert len(checks(talk)) == 1
    end(talk, sent, COMMIT, oneway=True, check=True)
    end(talk, sent, COMMIT, oneway=True, check=True)
    talk.wait(20_000)

    assert checks(talk) == []
    assert [m.body for m in stored(talk, TOPIC, 3)] == [b"order"]
    assert talk.broker.transactions.decisions.answers.counters.answered == 3


@pytest.mark.mission("004-28")
def test_decided_messages_are_not_asked_about(talk):
    for k, decision in enumerate((COMMIT, ROLLBACK, UNKNOWN)):
        end(talk, prepare(talk, f"u{k}"), decision, oneway=True)
    talk.wait(6000)

    assert [header.msg_id for header, _ in checks(talk)] == ["u2"]


@pytest.mark.mission("001-18", "004-31")
def test_any_live_producer_of_the_group_is_asked_and_no_other(make_talk):
    talk = make_talk(**CHECKS)
    for peer in (1, 2, 3):
        produce(talk, GROUP, peer=peer)
    produce(talk, "others", peer=4)
    prepare(talk, peer=1)
    talk.lose(1)  # who sent it is gone
    asked = set()
    for _ in range(12):
        talk.wait(5000)
        found = {peer for peer in (2, 3, 4) if checks(talk, peer)}
        assert len(found) == 1
        asked |= found

    assert asked == {2, 3}


@pytest.mark.mission("000-73", "001-22")
def test_after_fifteen_checks_it_expires_kept_listed_and_resumable(talk):
    prepare(talk)
    for _ in range(15):
        talk.wait(5000)
        assert len(checks(talk)) == 1
    talk.wait(5000)
    assert checks(talk) == []

    assert stored(talk, TOPIC, 3) == []
    [copy] = stored(talk, EXPIRED_TOPIC)
    assert copy.body == b"order"
    assert copy.properties["TRANSACTION_EXPIRED_REASON"] == "15 checks brought no decision"
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert len(copy.properties["TRANSACTION_CHECK_HISTORY"].split()) == 15
    assert [op.body for op in stored(talk, OP_TOPIC)] == [b"0"]

    resume = ResumeCheckHalfMessage(msg_id=copy.offset_msg_id)
    assert talk.ask(resume).code == 0
    assert talk.ask(resume).remark == "message u1 was resumed already"
    talk.wait(6000)
    [(header, message)] = checks(talk)
    assert (header.tran_state_table_offset, message.properties["TRANSACTION_CHECK_TIMES"]) == (1, "1")
    talk.ask(
        EndTransaction(
            producer_group=GROUP, tran_state_table_offset=1, commit_log_offset=header.commit_log_offset, commit_or_rollback=COMMIT,
            msg_id="u1",
        ),
        oneway=True,
    )  # fmt: skip
    [message] = stored(talk, TOPIC, 3)
    assert message.body == b"order"
    assert not [name for name in message.properties if name.startswith("TRANSACTION_") and name != "TRANSACTION_CHECK_TIMES"]


@pytest.mark.mission("000-73")
def test_checks_that_nobody_could_be_sent_do_not_count(make_talk):
    talk = make_talk(**CHECKS)
    sent = prepare(talk)
    talk.wait(5000 * 40)
    assert talk.broker.transactions.index.checks(0)[0] == 0
    produce(talk, GROUP, peer=2)
    talk.wait(5000)

    assert len(checks(talk, 2)) == 1
    end(talk, sent, COMMIT, oneway=True, check=True, peer=2)
    assert len(stored(talk, TOPIC, 3)) == 1


def test_the_count_of_checks_survives_a_restart(talk):
    prepare(talk)
    for round_number in range(15):
        talk.wait(5000)
        assert len(checks(talk)) == 1, round_number
        if round_number % 4 == 3:
            talk.restart()
            produce(talk, GROUP)
    talk.wait(10_000)

    assert checks(talk) == []
    assert len(stored(talk, EXPIRED_TOPIC)) == 1


@pytest.mark.parametrize(("asked_s", "first_ms"), [("0", 5000), ("12", 15_000), ("x", 5000), ("-1", 5000)])
def test_a_half_message_may_ask_for_a_minimum_age_of_its_own(make_talk, asked_s, first_ms):
    talk = make_talk(transaction_timeout_ms=4000, transaction_check_interval_ms=5000)
    produce(talk, GROUP)
    prepare(talk, more=f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{asked_s}\x02")
    talk.wait(first_ms - 10)
    assert checks(talk) == []
    talk.wait(20)
    assert len(checks(talk)) == 1


def test_an_immunity_shorter_than_the_minimum_age_is_honoured_behind_younger_messages(make_talk):
    talk = make_talk(transaction_timeout_ms=60_000, transaction_check_interval_ms=5000)
    produce(talk, GROUP)
    prepare(talk, "u1")
    prepare(talk, "u2", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x012\x02")
    talk.wait(5500)

    assert [header.msg_id for header, _ in checks(talk)] == ["u2"]


def test_no_clock_of_a_producer_decides_anything(talk):
    for key, born_ms in (("past", 1), ("future", talk.now + 10**10)):
        header = send_header(TOPIC, properties=half_properties(key), born_timestamp=born_ms)
        assert talk.ask(header, b"x").code == 0
    talk.wait(4000)
    assert checks(talk) == []
    talk.wait(1500)

    assert {header.msg_id for header, _ in checks(talk)} == {"past", "future"}
    assert talk.broker.transactions.index.pending_count == 2


def test_checks_have_a_rate_per_group_and_a_fast_group_delays_no_other(make_talk):
    talk = make_talk(transaction_checks_per_second=20, **CHECKS)
    produce(talk, "many", peer=1)
    produce(talk, "few", peer=2)
    for k in range(100):
        prepare(talk, f"m{k}", group="many")
    prepare(talk, "f1", group="few")
    talk.wait(5100)

    assert len(checks(talk, 1)) <= 5
    assert [header.msg_id for header, _ in checks(talk, 2)] == ["f1"]
    talk.wait(2000)
    assert 35 <= len(checks(talk, 1)) <= 45
    talk.wait(3500)
    total = talk.broker.transactions.checks.counters.sent
    assert 100 <= total <= 125


def test_many_groups_at_their_pace_are_all_asked_and_no_turn_is_long(make_talk):
    talk = make_talk(transaction_checks_per_second=10, **CHECKS)
    produce(talk, *(f"g{k}" for k in range(40)))
    for k in range(120):
        prepare(talk, f"m{k}", group=f"g{k % 40}")
    talk.wait(5050)
    assert len(checks(talk)) == 40
    talk.wait(500)

    asked = [header.msg_id for header, _ in checks(talk)]
    assert len(asked) == len(set(asked)) == 80


def test_while_the_store_takes_nothing_nobody_is_asked_and_the_broker_does_not_spin(talk):
    prepare(talk)
    talk.broker.store.health.fail("a sync failed")
    ticks = []
    tick, own = talk.broker.tick, talk.broker.transactions
    talk.broker.tick = lambda now: (ticks.append(now) if own.due(now) <= now.steady else None, tick(now))
    talk.wait(20_000)
    assert checks(talk) == []
    assert 0 < len(ticks) < 200


def test_a_damaged_half_message_blocks_no_other(talk):
    sent = [prepare(talk, f"u{k}") for k in range(3)]
    place = parse_offset_msg_id(sent[1].msg_id).physical_offset
    talk.broker.store.log.segments.write(place + 90, b"\xff\xff")
    talk.wait(6000)

    assert [header.msg_id for header, _ in checks(talk)] == ["u0", "u2"]
    assert end(talk, sent[1], COMMIT).code == 1
    assert stored(talk, TOPIC, 3) == []


def test_undecided_for_longer_than_messages_are_kept_expires_with_that_reason(make_talk):
    talk = make_talk(store={"file_reserved_hours": 1}, transaction_check_interval_ms=600_000)
    prepare(talk)
    talk.wait(3_000_000)
    assert stored(talk, EXPIRED_TOPIC) == []
    talk.wait(1_300_000)

    [copy] = stored(talk, EXPIRED_TOPIC)
    assert "longer than messages are kept" in copy.properties["TRANSACTION_EXPIRED_REASON"]
    assert talk.broker.transactions.index.pending_count == 0


@pytest.mark.mission("001-30")
def test_the_checkpoint_of_half_and_op_queues_advances_as_the_original_keeps_it(make_talk):
    talk = make_talk(**CHECKS)
    sent = [prepare(talk, f"u{k}") for k in range(6)]
    for k in (0, 1, 3):
        end(talk, sent[k], COMMIT, oneway=True)
    talk.wait(6000)
    offsets = talk.broker.offsets
    assert offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 2
    assert offsets.get("CID_RMQ_SYS_TRANS", OP_TOPIC, 0) == 0
    for k in (2, 4, 5):
        end(talk, sent[k], ROLLBACK, oneway=True)
    talk.wait(6000)

    assert offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 6
    assert offsets.get("CID_RMQ_SYS_TRANS", OP_TOPIC, 0) == 6


# ---------------------------------------------------------------- a transaction that is open


def answer_open(talk, sent, **kw):
    """Answer the check that came as a producer does whose transaction is not over."""
    assert len(checks(talk)) == 1
    end(talk, sent, UNKNOWN, oneway=True, check=True, open=True, **kw)


def test_a_transaction_that_is_open_for_longer_than_fifteen_checks_is_committed_and_delivered(make_talk):
    talk = make_talk()  # asked after 6 s, each 60 s, 15 times
    produce(talk, GROUP)
    sent = prepare(talk)
    for _ in range(60):  # an hour
        produce(talk, GROUP)
        talk.wait(60_000)
        answer_open(talk, sent)
    assert end(talk, sent, COMMIT).code == 0

    assert [message.body for message in stored(talk, TOPIC, 3)] == [b"order"]
    assert stored(talk, EXPIRED_TOPIC) == []


def test_plain_clients_keep_the_rule_of_fifteen_and_checks_before_an_open_answer_do_not_count(talk):
    sent = prepare(talk)
    for number in range(14):
        talk.wait(5000)
        assert len(checks(talk)) == 1
        if number % 2:  # and every other check is answered by nobody
            end(talk, sent, UNKNOWN, oneway=True, check=True)
    talk.wait(5000)
    answer_open(talk, sent)
    talk.restart()
    produce(talk, GROUP)
    asked = 0
    for _ in range(20):
        talk.wait(5000)
        asked += len(checks(talk))

    assert asked == 15
    [copy] = stored(talk, EXPIRED_TOPIC)
    assert copy.properties["TRANSACTION_EXPIRED_REASON"] == "15 checks brought no decision"
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "30"


@pytest.mark.slow
def test_a_transaction_that_is_open_for_longer_than_messages_are_kept_expires(make_talk):
    talk = make_talk(transaction_check_interval_ms=1_800_000, transaction_timeout_ms=1000, client_expiry_ms=10_000_000)
    produce(talk, GROUP)
    sent = prepare(talk)
    hours = 0
    while not stored(talk, EXPIRED_TOPIC):
        for _ in range(12):
            talk.wait(300_000)
            produce(talk, GROUP)
        hours += 1
        for _ in checks(talk):
            end(talk, sent, UNKNOWN, oneway=True, check=True, open=True)
        assert hours < 80

    assert 72 <= hours <= 74
    [copy] = stored(talk, EXPIRED_TOPIC)
    assert copy.properties["TRANSACTION_EXPIRED_REASON"] == "undecided for longer than messages are kept (72 h)"


def test_how_long_a_transaction_may_stay_open_is_a_setting(make_talk):
    talk = make_talk(**CHECKS, transaction_undecided_max_ms=100_000)
    produce(talk, GROUP)
    sent = prepare(talk)
    for _ in range(20):
        talk.wait(5000)
        answer_open(talk, sent)
    talk.wait(10_000)

    [copy] = stored(talk, EXPIRED_TOPIC)
    assert copy.properties["TRANSACTION_EXPIRED_REASON"] == "undecided for longer than 100 s"


@pytest.mark.parametrize("wrong", [{"group": "others"}, {"place": 7}, {"index": 3}, {"check": False}])
def test_only_a_producer_that_was_asked_can_say_that_a_transaction_is_open(make_talk, wrong):
    talk = make_talk(**CHECKS, transaction_check_max=2)
    produce(talk, GROUP)
    sent = prepare(talk)
    for _ in range(2):
        talk.wait(5000)
        assert len(checks(talk)) == 1
        end(talk, sent, UNKNOWN, **{"oneway": True, "check": True, "open": True, **wrong})
    talk.wait(6000)

    assert len(stored(talk, EXPIRED_TOPIC)) == 1
