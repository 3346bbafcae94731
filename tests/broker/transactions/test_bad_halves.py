"""Half messages and answers that are not as they should be: none blocks another, none is lost in silence."""

from __future__ import annotations

import logging

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.hot import Messages
from halfmoon.wire.headers.topic import DeleteTopicInBroker, UpdateAndCreateTopic
from halfmoon.wire.headers.transaction import ResumeCheckHalfMessage
from halfmoon.wire.record import decode_records
from tests.broker.half import (
    CHECKS,
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    checks,
    end,
    end_header,
    half_properties,
    prepare,
    produce,
    stored,
)
from tests.broker.talk import full_for, send_header


@pytest.mark.parametrize("length", [32_061, 32_461, 32_551, 32_576, 32_591])
def test_properties_of_any_length_are_asked_about_expired_and_resumed_and_block_no_other(make_talk, length):
    talk = make_talk(transaction_check_max=2, **CHECKS)
    produce(talk, GROUP)
    prepare(talk, "long", more="K\x01" + "v" * length + "\x02")
    prepare(talk, "other")
    asked = [[header.msg_id for header, _ in checks(talk)] for _ in range(3) if talk.wait(5000) is None]
    assert asked == [["long", "other"], ["long", "other"], []]

    copies = stored(talk, EXPIRED_TOPIC)
    assert [copy.properties["UNIQ_KEY"] for copy in copies] == ["long", "other"]
    assert copies[0].properties["K"] == "v" * length
    assert talk.ask(ResumeCheckHalfMessage(msg_id=copies[0].offset_msg_id)).code == 0
    talk.wait(6000)
    [(header, message)] = checks(talk)
    assert (header.msg_id, message.properties["K"]) == ("long", "v" * length)


@pytest.mark.parametrize("flag", [0, 4])
@pytest.mark.parametrize(
    "properties",
    [
        half_properties(group="x" * 256),
        half_properties(group="p" * 30_000),
        half_properties(group="a b"),
        half_properties(group="../a"),
        half_properties(group="é"),
        half_properties(more="K\x01a\x01b\x02"),
    ],
)
def test_a_group_that_no_producer_can_have_and_a_pair_of_three_are_refused_on_both_roads(talk, properties, flag):
    prepare(talk)
    reply = talk.ask(send_header(TOPIC, queue_id=3, properties=properties, sys_flag=flag), b"x")

    assert reply.code == 13
    assert talk.broker.transactions.index.pending_count == len(stored(talk, HALF_TOPIC)) == 1


def test_a_mistake_of_ours_with_one_half_message_blocks_no_other(make_talk, monkeypatch):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    for key in ("u0", "u1", "u2"):
        prepare(talk, key)
    service, send = talk.broker.transactions.checks, talk.broker.transactions.checks._send

    def fails_for_one(half, *others):
        if half.index == 1:
            raise ZeroDivisionError
        send(half, *others)

    monkeypatch.setattr(service, "_send", fails_for_one)
    talk.wait(6000)
    assert [header.msg_id for header, _ in checks(talk)] == ["u0", "u2"]


def test_while_no_op_record_can_be_written_a_half_message_is_copied_once_and_expired_later(make_talk, monkeypatch):
    talk = make_talk(transaction_check_max=1, **CHECKS)
    produce(talk, GROUP)
    prepare(talk)
    go_on = full_for(talk, OP_TOPIC)
    talk.wait(30_000)
    expiry = talk.broker.transactions.expiry
    assert (len(stored(talk, EXPIRED_TOPIC)), expiry.expired, talk.broker.transactions.index.pending_count) == (1, 0, 1)
    go_on()
    talk.wait(5000)
    assert (len(stored(talk, EXPIRED_TOPIC)), expiry.expired, talk.broker.transactions.index.pending_count) == (1, 1, 0)


def test_what_was_committed_after_its_copy_was_stored_cannot_be_resumed(make_talk, monkeypatch):
    talk = make_talk(transaction_check_max=1, **CHECKS)
    produce(talk, GROUP)
    sent = prepare(talk)
    go_on = full_for(talk, OP_TOPIC)
    talk.wait(12_000)
    go_on()
    assert end(talk, sent, COMMIT).code == 0

    [copy] = stored(talk, EXPIRED_TOPIC)
    assert talk.ask(ResumeCheckHalfMessage(msg_id=copy.offset_msg_id)).remark == "message u1 was committed"
    assert len(stored(talk, HALF_TOPIC)) == len(stored(talk, TOPIC, 3)) == 1


def test_an_answer_counts_once_and_only_to_a_check_and_from_its_group(make_talk):
    talk = make_talk(**CHECKS)
    produce(talk, GROUP)
    sent = prepare(talk)
    index, counters = talk.broker.transactions.index, talk.broker.transactions.decisions.answers.counters
    end(talk, sent, 0, check=True)  # nothing was asked
    assert counters.answered == 0
    talk.wait(6000)
    assert end(talk, sent, COMMIT, check=True, group="others").code == 1
    assert (index.checks(0).history[-1].answer, counters.answered) == (0, 0)
    for _ in range(3):
        end(talk, sent, 0, check=True)
    assert (index.checks(0).history[-1].answer, counters.answered) == (1, 1)


def test_successes_that_wait_for_the_device_are_bounded(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.broker.pending_replies.waiting_max = 4  # one of them is the send below
    sent = prepare(talk)
    assert end(talk, sent, ROLLBACK).code == 0
    talk.held_back = []
    talk.post(send_header(TOPIC, queue_id=3))
    talk.turn()
    replies = [end(talk, sent, ROLLBACK) for _ in range(5)]  # repeats, while the device hangs

    assert [reply and reply.code for reply in replies] == [None, None, None, 2, 2]


def test_op_records_that_are_owed_are_paid_some_at_a_time(make_talk, monkeypatch):
    talk = make_talk(**CHECKS)
    talk.broker.transactions.decisions.ops_at_once = 4
    sent = [prepare(talk, f"u{k}") for k in range(10)]
    go_on = full_for(talk, OP_TOPIC)
    for each in sent:
        assert end(talk, each, COMMIT).code == 0
    talk.wait(3000)
    assert stored(talk, OP_TOPIC) == []
    go_on()
    sizes = []
    sends, append = talk.broker.sends, talk.broker.sends.append

    def recorded(topic, queue_id, drafts, *others, **kw):
        sizes.append(len(drafts))
        return append(topic, queue_id, drafts, *others, **kw)

    monkeypatch.setattr(sends, "append", recorded)
    talk.wait(2000)

    assert sizes == [4, 4, 2]
    assert sorted(int(op.body) for op in stored(talk, OP_TOPIC)) == list(range(10))
    assert talk.broker.transactions.decisions.owed_ops == {}


def test_after_the_clock_was_set_back_over_a_restart_messages_are_asked_about(make_talk):
    talk = make_talk(**CHECKS)
    prepare(talk, "old")
    talk.now -= 86_400_000
    talk.restart()
    produce(talk, GROUP)
    prepare(talk, "new")
    talk.wait(6000)

    assert {header.msg_id for header, _ in checks(talk)} == {"old", "new"}


def test_what_a_refused_end_is_logged_with_cannot_pretend_to_be_other_lines(talk, caplog):
    sent = prepare(talk)
    with caplog.at_level(logging.WARNING):
        end(talk, sent, COMMIT, group="a\nhalf message 7 expires")

    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_a_commit_to_a_topic_that_was_deleted_or_made_smaller_can_be_read(talk):
    assert talk.ask(UpdateAndCreateTopic(**topic_fields("Small", 8))).code == 0
    deleted, small = prepare(talk, "u1", topic="Gone", queue_id=2), prepare(talk, "u2", topic="Small", queue_id=6)
    assert talk.ask(DeleteTopicInBroker(topic="Gone")).code == 0
    assert talk.ask(UpdateAndCreateTopic(**topic_fields("Small", 4))).code == 0
    assert talk.pull("Gone", queue_id=2).code == 17

    assert end(talk, deleted, COMMIT).code == end(talk, small, COMMIT).code == 0

    for topic, queue_id, key in (("Gone", 2, "u1"), ("Small", 6, "u2")):
        [message] = decode_records(talk.pull(topic, queue_id=queue_id).body)
        assert message.msg_id == key
    assert talk.broker.topics.get("Small").write_queue_nums == 4


def topic_fields(topic, count):
    return {
        "topic": topic, "default_topic": "TBW102", "read_queue_nums": count, "write_queue_nums": count, "perm": 6,
        "topic_filter_type": "SINGLE_TAG", "topic_sys_flag": 0, "order": False,
    }  # fmt: skip


@pytest.mark.parametrize("full", [TOPIC, OP_TOPIC, None])
@pytest.mark.parametrize("large", [None, 1, 3])
def test_decisions_of_one_turn_share_its_fate_only_where_they_must(make_talk, monkeypatch, full, large):
    """Commits to three queues and a rollback: what can be stored is, with its op record, and the rest is refused and stays open."""
    talk = make_talk(**CHECKS)
    sent = [prepare(talk, f"u{k}", body=b"large" if k == large else b"small", queue_id=k % 3) for k in range(6)]
    go_on = full_for(talk, full)
    append_all = talk.broker.sends.append_all

    def swollen(groups, now, *, in_order=False):
        """What is committed, with a record that the log does not take though it took the half message."""
        groups = [(*group[:3], Messages(map(larger, group[3].drafts))) if group[0] == TOPIC else group for group in groups]
        return append_all(groups, now, in_order=in_order)

    def larger(draft):
        return (bytes(5_000_000), *draft[1:]) if draft[0] == b"large" else draft

    monkeypatch.setattr(talk.broker.sends, "append_all", swollen)
    kinds = [COMMIT] * 5 + [ROLLBACK]
    posts = [talk.post(end_header(one, kind, key=f"u{k}")) for k, (one, kind) in enumerate(zip(sent, kinds))]
    talk.turn()
    go_on()
    codes = [talk.answer(opaque).code for opaque in posts]

    refused = {k for k in range(6) if (full == TOPIC and k < 5) or (full == OP_TOPIC and k == 5) or k == large}
    assert {k for k, code in enumerate(codes) if code} == refused
    assert sum(len(stored(talk, TOPIC, queue_id)) for queue_id in range(3)) == len(set(range(5)) - refused)
    talk.wait(3000)
    assert sorted(int(op.body) for op in stored(talk, OP_TOPIC)) == sorted(sent[k].queue_offset for k in set(range(6)) - refused)
    assert talk.broker.transactions.index.pending_count == len(refused)
