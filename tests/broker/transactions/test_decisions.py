"""The second phase: what commits and rollbacks store and answer, what they may not do, and that they are remembered."""

from __future__ import annotations

from errno import EIO

import pytest

from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC
from halfmoon.errors import ServiceNotAvailable
from halfmoon.runtime.files.disk import RealFile
from halfmoon.store.layout import STATE_TABLE
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.transaction import (
    EndTransaction,
)
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_records
from tests.broker.half import COMMIT, GROUP, ROLLBACK, TOPIC, UNKNOWN, end, end_header, prepare, stored


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


def test_a_commit_in_the_log_whose_queue_cannot_be_written_is_a_commit_from_the_next_start_on(talk, monkeypatch):
    sent = prepare(talk)
    write = RealFile.write

    def refuse(file, at, data):
        if f"{TOPIC}/3" in file.path:
            raise OSError(EIO, "it is broken", file.path)
        write(file, at, data)

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "write", refuse)
        assert end(talk, sent, COMMIT).code == 0  # the log has it, and its entry waits
        talk.wait(20_000)
        with pytest.raises(AssertionError, match="a queue cannot be written"):  # and the store takes no more
            prepare(talk)
    talk.restart()

    assert len(stored(talk, TOPIC, 3)) == 1
    assert end(talk, sent, ROLLBACK).code == 1
    assert end(talk, sent, COMMIT).code == 0
    assert len(stored(talk, TOPIC, 3)) == 1


def test_decisions_that_the_log_has_and_the_index_cannot_take_are_each_refused_once(talk, monkeypatch):
    first, second = prepare(talk, "u1"), prepare(talk, "u2")
    sends, write = talk.broker.sends, RealFile.write
    append_all = sends.append_all

    def refuse(file, at, data):
        if file.path.startswith(STATE_TABLE):
            raise OSError(EIO, "it is broken", file.path)
        write(file, at, data)

    def without_ops(groups, now, *, in_order=False):
        return [*append_all(groups[:-1], now), ServiceNotAvailable("the disk is full")]

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "write", refuse)
        patch.setattr(sends, "append_all", without_ops)
        talk.post(end_header(first, COMMIT))
        talk.post(end_header(second, ROLLBACK))
        talk.turn()
    assert [reply.code for reply in talk.received[1]] == [14, 14]
    talk.restart()

    assert len(stored(talk, TOPIC, 3)) == 1
    assert end(talk, first, ROLLBACK).code == 1
    assert end(talk, second, ROLLBACK).code == 0
