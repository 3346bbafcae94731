"""Transactions at the broker: half messages, second phase, check-back, giving up, resuming; what is stored, what is answered."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.model import java_hash
from halfmoon.wire.bodies import HeartbeatData, PendingTransactions, ProducerData, Transaction, TransactionStats, from_json, to_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.send import SendMessage, SendMessageReply
from halfmoon.wire.headers.transaction import (
    CheckTransaction,
    CheckTransactionState,
    DecideTransaction,
    EndTransaction,
    GetTransaction,
    GetTransactionStats,
    ListPendingTransactions,
    ResumeCheckHalfMessage,
)
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records
from tests.broker.talk import send_header

TOPIC, GROUP = "BenchmarkTest", "orders"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
CHECKS = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 5000}


def half_properties(key="u1", group=GROUP, more=""):
    return f"KEYS\x01k\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01X\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02{more}"


def prepare(talk, key="u1", *, body=b"order", group=GROUP, queue_id=3, more="", topic=TOPIC, **kw):
    """Send a half message and return the header of its answer."""
    reply = talk.send(topic, body, queue_id=queue_id, properties=half_properties(key, group, more), **kw)
    assert reply.code == 0, reply.remark
    return reply.header(SendMessageReply)


def end(talk, sent, decision, *, group=GROUP, oneway=False, check=False, index=None, place=None, **kw):
    """Send the second phase of a half message; return the answer, None for a one-way."""
    header = EndTransaction(
        producer_group=group, tran_state_table_offset=sent.queue_offset if index is None else index,
        commit_log_offset=parse_offset_msg_id(sent.msg_id).physical_offset if place is None else place,
        commit_or_rollback=decision, msg_id="u1", from_transaction_check=check,
    )  # fmt: skip
    return talk.ask(header, oneway=oneway, **kw)


def stored(talk, topic, queue_id=0):
    """Return every message of a queue, read from the store itself."""
    found = []
    while pieces := talk.broker.store.read(topic, queue_id, len(found), 100).pieces:
        for piece in pieces:
            found += decode_records(bytes(piece))
    return found


def produce(talk, *groups, peer=1):
    """Send the heartbeat of a producer."""
    data = HeartbeatData(client_id=f"producer-{peer}", producer_data_set=[ProducerData(group) for group in groups])
    assert talk.ask(HeartBeat(), to_json(data), peer=peer).code == 0


def checks(talk, peer=1):
    """Take out the checks that a connection received: header and message of each."""
    found = [c for c in talk.received[peer] if not c.is_response and c.code == 39]
    for command in found:
        talk.received[peer].remove(command)
    return [(command.header(CheckTransactionState), decode_records(bytes(command.body))[0]) for command in found]


# ---------------------------------------------------------------- first phase


@pytest.mark.mission("003-13", "003-17", "003-18", "003-19", "003-20", "003-21", "003-22", "001-16", "001-23")
@pytest.mark.parametrize("road", [JSON, ROCKETMQ, "plain"])
def test_a_half_message_is_stored_apart_with_where_it_belongs(talk, road):
    header = send_header(TOPIC, queue_id=3, properties=half_properties(), sys_flag=4, flag=7)
    if road == "plain":
        header = SendMessage(**{name: getattr(header, name) for name in SendMessage.__struct_fields__})
    reply = talk.ask(header, b"order", serialization=JSON if road == "plain" else road)
    sent = reply.header(SendMessageReply)

    [half] = stored(talk, HALF_TOPIC)
    assert (half.topic, half.queue_id, half.queue_offset, half.body, half.flag) == (HALF_TOPIC, 0, 0, b"order", 7)
    assert half.sys_flag & 0xC == 0
    assert half.properties == {
        "KEYS": "k", "UNIQ_KEY": "u1", "TAGS": "X", "TRAN_MSG": "true", "PGROUP": GROUP, "WAIT": "true",
        "CLUSTER": "DefaultCluster", "REAL_TOPIC": TOPIC, "REAL_QID": "3",
    }  # fmt: skip
    assert (sent.queue_id, sent.queue_offset, sent.msg_id) == (3, 0, half.offset_msg_id)
    assert stored(talk, TOPIC, 3) == []
    assert stored(talk, OP_TOPIC) == []


@pytest.mark.mission("003-16", "003-15")
def test_half_messages_of_a_turn_go_through_the_same_store_together_each_answered_for_its_own_queue(talk):
    opaques = [
        talk.post(send_header(TOPIC, queue_id=k % 3, properties=half_properties(f"u{k}")), b"%d" % k, peer=1 + k % 2)
        for k in range(30)
    ]
    talk.turn()

    halves = stored(talk, HALF_TOPIC)
    for k, opaque in enumerate(opaques):
        sent = talk.answer(opaque, peer=1 + k % 2).header(SendMessageReply)
        assert sent.queue_id == k % 3
        assert halves[sent.queue_offset].body == b"%d" % k
        assert halves[sent.queue_offset].offset_msg_id == sent.msg_id
    assert [half.queue_offset for half in halves] == list(range(30))


@pytest.mark.mission("003-14")
def test_a_broker_that_rejects_transactions_says_so(make_talk):
    talk = make_talk(reject_transactions=True)

    for serialization in (JSON, ROCKETMQ):
        reply = talk.send(TOPIC, properties=half_properties(), serialization=serialization)
        assert (reply.code, reply.remark) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")
    assert stored(talk, HALF_TOPIC) == []


@pytest.mark.parametrize("name", ["DELAY\x013", "TIMER_DELAY_SEC\x015", "TIMER_DELIVER_MS\x0199999"])
def test_a_delay_on_a_half_message_is_cleared(talk, name):
    prepare(talk, more=name + "\x02")

    [half] = stored(talk, HALF_TOPIC)
    assert name.partition("\x01")[0] not in half.properties
    assert half.properties["UNIQ_KEY"] == "u1"


def test_where_it_belongs_is_what_the_send_says_not_its_properties(talk):
    prepare(talk, more="REAL_TOPIC\x01Elsewhere\x02REAL_QID\x0177\x02TRANSACTION_CHECK_TIMES\x0115\x02")

    [half] = stored(talk, HALF_TOPIC)
    assert (half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == (TOPIC, "3")
    assert "TRANSACTION_CHECK_TIMES" not in half.properties


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (send_header(TOPIC, properties="TRAN_MSG\x01true\x02UNIQ_KEY\x01u\x02"), 13),  # no group
        (send_header(HALF_TOPIC, properties=half_properties()), 16),
        (send_header(OP_TOPIC, properties=half_properties()), 16),
        (send_header(TOPIC, queue_id=5000, properties=half_properties()), 1),
        (send_header("Unknown", default_topic="Nothing", properties=half_properties()), 17),
        (send_header(TOPIC, sys_flag=4), 16),  # prepared, but not a half message
    ],
)
def test_a_half_message_that_cannot_be_is_refused_and_nothing_is_stored(talk, header, code):
    assert talk.ask(header, b"x").code == code
    assert stored(talk, HALF_TOPIC) == stored(talk, TOPIC) == []
    assert talk.broker.transactions.index.pending_count == 0


@pytest.mark.mission("003-23", "000-70")
def test_nobody_consumes_half_messages(talk):
    prepare(talk)

    for topic in (HALF_TOPIC, OP_TOPIC):
        talk.consume(topic)
        assert talk.pull(topic).code == 16


# ---------------------------------------------------------------- second phase


@pytest.mark.mission("001-20", "001-24", "001-25", "001-26", "001-28", "001-29", "004-19")
@pytest.mark.parametrize("oneway", [True, False])
def test_a_commit_makes_the_message_visible_and_then_writes_its_op(talk, oneway):
    sent = prepare(talk)
    reply = end(talk, sent, COMMIT, oneway=oneway)

    [half], [message], [op] = stored(talk, HALF_TOPIC), stored(talk, TOPIC, 3), stored(talk, OP_TOPIC)
    assert (message.body, message.sys_flag & 0xC, message.queue_offset, message.tag) == (b"order", 8, 0, "X")
    assert message.prepared_transaction_offset == half.physical_offset
    assert message.properties == half.properties
    assert (message.born_ms, message.born_host, message.flag) == (half.born_ms, half.born_host, half.flag)
    assert (op.body, op.tag, op.queue_id, op.properties) == (b"0", "d", 0, {"WAIT": "true", "TAGS": "d"})
    assert half.physical_offset < message.physical_offset < op.physical_offset
    assert (reply is None) if oneway else (reply.code == 0)
    [pulled] = decode_records(talk.pull(TOPIC, queue_id=3).body)
    assert pulled.body == b"order"


@pytest.mark.mission("001-20", "001-24", "001-25")
def test_a_rollback_writes_only_an_op(talk):
    end(talk, prepare(talk), ROLLBACK, oneway=True)

    assert stored(talk, TOPIC, 3) == []
    assert [op.body for op in stored(talk, OP_TOPIC)] == [b"0"]
    assert talk.broker.transactions.index.pending_count == 0


def test_an_unknown_state_decides_nothing_and_is_answered_when_asked(talk):
    sent = prepare(talk)

    assert end(talk, sent, UNKNOWN, oneway=True) is None
    assert end(talk, sent, UNKNOWN).code == 0
    assert end(talk, sent, 3).code == 0
    assert stored(talk, TOPIC, 3) == stored(talk, OP_TOPIC) == []
    assert talk.broker.transactions.index.pending_count == 1


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_decision_is_remembered_over_repeats_contradictions_and_restarts(talk, serialization):
    committed, rolled_back = prepare(talk, "u1"), prepare(talk, "u2")
    assert end(talk, committed, COMMIT, serialization=serialization).code == 0
    assert end(talk, rolled_back, ROLLBACK, serialization=serialization).code == 0

    for _ in range(2):
        assert end(talk, committed, COMMIT).code == 0
        assert end(talk, rolled_back, ROLLBACK).code == 0
        refused = end(talk, committed, ROLLBACK)
        assert (refused.code, refused.remark) == (1, "the transaction was committed already")
        refused = end(talk, rolled_back, COMMIT)
        assert (refused.code, refused.remark) == (1, "the transaction was rolled back already")
        assert len(stored(talk, TOPIC, 3)) == 1
        assert len(stored(talk, OP_TOPIC)) == 2
        counters = talk.broker.transactions.decisions.counters
        assert (counters.repeats, counters.contradictions) == (2, 2)
        talk.restart()


def test_the_same_decision_twice_in_a_turn_is_carried_out_once_and_the_first_of_two_wins(talk):
    first, second = prepare(talk, "u1"), prepare(talk, "u2")
    place = [parse_offset_msg_id(sent.msg_id).physical_offset for sent in (first, second)]

    def post(number, decision):
        header = EndTransaction(
            producer_group=GROUP, tran_state_table_offset=number, commit_log_offset=place[number], commit_or_rollback=decision,
            msg_id="u",
        )  # fmt: skip
        return talk.post(header)

    opaques = [post(0, COMMIT), post(0, COMMIT), post(1, ROLLBACK), post(1, COMMIT), post(0, ROLLBACK)]
    talk.turn()

    assert [talk.answer(opaque).code for opaque in opaques] == [0, 0, 0, 1, 1]
    assert len(stored(talk, TOPIC, 3)) == 1
    assert len(stored(talk, OP_TOPIC)) == 2


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ({"place": 10**12}, "Find prepared transaction message failed"),
        ({"place": -1}, "Find prepared transaction message failed"),
        ({"place": 17}, "Find prepared transaction message failed"),
        ({"group": "others"}, "The producer group wrong"),
        ({"index": 5}, "The transaction state table offset wrong"),
        ({"index": -1}, "The transaction state table offset wrong"),
    ],
)
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_second_phase_that_fits_no_half_message_changes_nothing(talk, changed, remark, decision):
    sent = prepare(talk)

    reply = end(talk, sent, decision, **changed)

    assert (reply.code, reply.remark) == (1, remark)
    assert end(talk, sent, decision, oneway=True, **changed) is None
    assert stored(talk, TOPIC, 3) == stored(talk, OP_TOPIC) == []
    assert talk.broker.transactions.index.pending_count == 1
    assert talk.broker.transactions.decisions.counters.refused == 2


def test_an_ordinary_message_cannot_be_ended_whatever_its_properties_say(talk):
    sent = talk.send(TOPIC, properties=f"PGROUP\x01{GROUP}\x02REAL_TOPIC\x01Other\x02REAL_QID\x010\x02").header(SendMessageReply)

    assert end(talk, sent, COMMIT).remark == "Find prepared transaction message failed"
    assert len(stored(talk, TOPIC)) == 1


def test_commits_of_a_turn_that_go_to_many_queues_each_land_in_their_own(talk):
    sent = [prepare(talk, f"u{k}", body=b"%d" % k, queue_id=k % 4) for k in range(20)]
    for each in sent:
        talk.post(
            EndTransaction(
                producer_group=GROUP, tran_state_table_offset=each.queue_offset,
                commit_log_offset=parse_offset_msg_id(each.msg_id).physical_offset, commit_or_rollback=COMMIT, msg_id="u",
            ),
            oneway=True,
        )  # fmt: skip
    talk.turn()

    for queue_id in range(4):
        assert [m.body for m in stored(talk, TOPIC, queue_id)] == [b"%d" % k for k in range(queue_id, 20, 4)]
    assert sorted(int(op.body) for op in stored(talk, OP_TOPIC)) == list(range(20))


# ---------------------------------------------------------------- check-back


@pytest.mark.mission("001-17", "004-27", "004-29", "004-30", "004-32", "004-33")
def test_an_undecided_message_is_asked_about_once_it_is_old_enough(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
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
def test_the_answer_to_a_check_decides_and_a_repeat_of_it_does_nothing(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
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
    assert talk.broker.transactions.decisions.counters.checks_answered == 3


@pytest.mark.mission("004-28")
def test_decided_messages_are_not_asked_about(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
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
def test_after_fifteen_checks_it_is_given_up_kept_listed_and_resumable(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    prepare(talk)
    for _ in range(15):
        talk.wait(5000)
        assert len(checks(talk)) == 1
    talk.wait(5000)
    assert checks(talk) == []

    assert stored(talk, TOPIC, 3) == []
    [copy] = stored(talk, GIVEN_UP_TOPIC)
    assert copy.body == b"order"
    assert copy.properties["TRANSACTION_GIVEN_UP_REASON"] == "15 checks brought no decision"
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


def test_the_count_of_checks_survives_a_restart(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    prepare(talk)
    for round_number in range(15):
        talk.wait(5000)
        assert len(checks(talk)) == 1, round_number
        if round_number % 4 == 3:
            talk.restart()
            produce(talk, GROUP)
    talk.wait(10_000)

    assert checks(talk) == []
    assert len(stored(talk, GIVEN_UP_TOPIC)) == 1


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


def test_no_clock_of_a_producer_decides_anything(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    for key, born_ms in (("past", 1), ("future", talk.now + 10**10)):
        header = send_header(TOPIC, properties=half_properties(key), born_timestamp=born_ms)
        assert talk.ask(header, b"x").code == 0
    talk.wait(4000)
    assert checks(talk) == []
    talk.wait(1500)

    assert {header.msg_id for header, _ in checks(talk)} == {"past", "future"}
    assert talk.broker.transactions.index.pending_count == 2


def test_checks_are_paced_per_group_and_a_fast_group_delays_no_other(make_talk):
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


def test_while_the_store_takes_nothing_nobody_is_asked_and_the_broker_does_not_spin(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    prepare(talk)
    talk.broker.store._fail("a sync failed")
    ticks = []
    tick = talk.broker.transactions.tick
    talk.broker.transactions.tick = lambda now: (ticks.append(now), tick(now))
    talk.wait(20_000)
    assert checks(talk) == []
    assert len(ticks) < 200


def test_a_damaged_half_message_blocks_no_other(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    sent = [prepare(talk, f"u{k}") for k in range(3)]
    place = parse_offset_msg_id(sent[1].msg_id).physical_offset
    talk.broker.store._log.segments.write(place + 90, b"\xff\xff")
    talk.wait(6000)

    assert [header.msg_id for header, _ in checks(talk)] == ["u0", "u2"]
    assert end(talk, sent[1], COMMIT).code == 1
    assert stored(talk, TOPIC, 3) == []


def test_undecided_for_longer_than_messages_are_kept_is_given_up_with_that_reason(make_talk):
    talk = make_talk(store={"file_reserved_hours": 1}, transaction_check_interval_ms=600_000)
    prepare(talk)
    talk.wait(3_000_000)
    assert stored(talk, GIVEN_UP_TOPIC) == []
    talk.wait(1_300_000)

    [copy] = stored(talk, GIVEN_UP_TOPIC)
    assert "longer than messages are kept" in copy.properties["TRANSACTION_GIVEN_UP_REASON"]
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


# ---------------------------------------------------------------- what operators ask


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
    for name in ("0A0000010000000000000000000000AB", sent.msg_id, "0"):
        found = from_json(Transaction, talk.ask(GetTransaction(id=name)).body)
        assert (found.index, found.state, found.group, found.offset_msg_id) == (0, "PREPARED", GROUP, sent.msg_id)
    end(talk, sent, ROLLBACK, oneway=True)
    assert from_json(Transaction, talk.ask(GetTransaction(id=sent.msg_id)).body).state == "ROLLED_BACK"
    for name in ("nonsense", "7", "F" * 32, ""):
        assert talk.ask(GetTransaction(id=name)).code == 22


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


# ---------------------------------------------------------------- flush


def test_with_sync_flush_a_commit_is_acknowledged_and_visible_once_it_is_durable(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    sent = prepare(talk)
    talk.held_back = []
    opaque = talk.post(
        EndTransaction(
            producer_group=GROUP, tran_state_table_offset=0, commit_log_offset=parse_offset_msg_id(sent.msg_id).physical_offset,
            commit_or_rollback=COMMIT, msg_id="u1",
        )
    )  # fmt: skip
    talk.turn()
    assert talk.answer(opaque) is None
    assert stored(talk, TOPIC, 3) == []
    talk.release()
    talk.wait(100)

    assert talk.answer(opaque).code == 0
    assert len(stored(talk, TOPIC, 3)) == 1
