"""Tests of the fast path behind access control: what passes is stored by the reader, and nothing that was not checked."""

from __future__ import annotations

import pytest

from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.record import decode_records
from halfmoon.wire.signature import Credentials
from tests.broker.access.rule_files import ADMIN, RULES, USER, write
from tests.broker.talk import Talk, pull_header, send_header

WRONG = USER._replace(secret_key="123456789")


@pytest.fixture
def talk(tmp_path):
    write(tmp_path)
    talk = Talk(tmp_path, acl_enable=True)
    for topic, who in (("topicC", ADMIN), ("topicB", USER)) * 2:  # the first one creates the topic, the second opens its queue
        assert talk.ask(send_header(topic), b"first", who=who).code == 0
    return talk


@pytest.fixture
def general(talk, monkeypatch):
    """Codes of the requests that came to the general path."""
    codes = []
    handle = talk.broker._handle_frame

    def noted(peer, data, frame, now):
        codes.append(data[frame[1] : frame[1] + 12])
        handle(peer, data, frame, now)

    monkeypatch.setattr(talk.broker, "_handle_frame", noted)
    return codes


def frame(header, body=b"x", who=USER, serialization=JSON, opaque=0):
    command = request_command(header, body, opaque=opaque, serialization=serialization)
    command.fields = {**command.fields, **(who.sign(command.fields, body) if who is not None else {})}
    return encode(command)


def stored(talk):
    """Bodies of the messages in queue 0 of topicB."""
    return [message.body for message in decode_records(bytes(talk.pull("topicB", group="groupB", who=USER).body))]


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_signed_sends_to_an_open_queue_are_read_at_once(talk, general, serialization):
    talk.feed(1, b"".join(frame(send_header("topicB"), b"%d" % n, serialization=serialization, opaque=n) for n in range(5)))
    talk.turn()

    assert general == []
    assert [talk.answer(n).code for n in range(5)] == [0] * 5
    assert stored(talk) == [b"first", b"first", *[b"%d" % n for n in range(5)]]


def test_frames_that_pass_and_frames_that_do_not_are_told_apart_wherever_they_lie(talk):
    kinds = {
        "ok": frame(send_header("topicB"), b"ok"),
        "wrong": frame(send_header("topicB"), b"wrong", WRONG),
        "bare": frame(send_header("topicB"), b"bare", None),
        "denied": frame(send_header("topicA"), b"denied"),
        "new": frame(send_header("topicB", queue_id=3), b"new"),
        "pull": frame(pull_header("topicB", group="groupB"), b""),
    }
    order = ["wrong", "ok", "ok", "pull", "bare", "ok", "new", "denied", "ok", "pull", "wrong"]
    talk.feed(1, b"".join(kinds[kind] for kind in order))
    talk.turn()
    talk.wait(1000)

    assert stored(talk) == [b"first", b"first", b"ok", b"ok", b"ok", b"ok"]
    codes = sorted(reply.code for reply in talk.received[1])
    assert codes.count(1) == 4
    assert codes.count(0) == len(order) - 4


def test_what_is_split_over_reads_is_put_together(talk):
    data = frame(send_header("topicB"), b"split") * 3
    for at in range(0, len(data), 100):
        talk.feed(1, data[at : at + 100])
        talk.turn()

    assert stored(talk).count(b"split") == 3


def test_a_header_that_names_two_codes_is_not_checked_as_one_and_stored_as_the_other(talk):
    forged = frame(send_header("topicC"), b"forged")
    header_end = 8 + int.from_bytes(forged[5:8], "big")
    header = forged[8:header_end]
    twice = header.replace(b'"version"', b'"code":37,"version"')
    data = (4 + len(twice) + 6).to_bytes(4, "big") + len(twice).to_bytes(4, "big") + twice + b"forged"
    talk.feed(1, data)
    talk.turn()

    assert talk.broker.store.queue_max("topicC", 0) == 2
    assert talk.broker.access.refusals["permission"] == 0  # as a decision, which it says to be last, it may pass


def test_a_header_that_names_two_topics_is_checked_for_the_one_that_it_is_stored_in(talk):
    for first, second in (("topicB", "topicC"), ("topicC", "topicB")):
        command = request_command(send_header(second), b"twice")
        command.fields = {**command.fields, **USER.sign(command.fields, b"twice")}
        data = encode(command).replace(b'"extFields":{', b'"extFields":{"b":"%s",' % first.encode(), 1)
        added = len(b'"b":"%s",' % first.encode())
        header_size = int.from_bytes(data[5:8], "big") + added
        data = (int.from_bytes(data[:4], "big") + added).to_bytes(4, "big") + header_size.to_bytes(4, "big") + data[8:]
        talk.feed(1, data)
        talk.turn()

    assert stored(talk).count(b"twice") == 1
    assert talk.broker.store.queue_max("topicC", 0) == 2


def test_changed_rules_close_the_fast_path_for_what_they_forbid(talk, tmp_path):
    write(tmp_path, RULES.replace("topicB=PUB|SUB", "topicB=SUB"))
    talk.wait(5_001)
    talk.feed(1, frame(send_header("topicB"), b"late", opaque=7))
    talk.turn()

    assert "topic:topicB" in talk.answer(7).remark
    assert b"late" not in stored(talk)


def test_an_unsigned_decision_decides_nothing(talk):
    half = send_header("topicB", sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01k\x02")
    talk.ask(half, b"half", who=USER)
    reply = talk.ask(half, b"half 2", who=USER)
    place = int(reply.fields["msgId"][16:], 16)
    end = EndTransaction(
        producer_group="P", tran_state_table_offset=int(reply.fields["queueOffset"]), commit_log_offset=place,
        commit_or_rollback=8, msg_id="k",
    )  # fmt: skip
    for who, visible in ((None, 0), (Credentials("nobody1", "12345678"), 0), (USER, 1)):
        talk.feed(1, frame(end, b"", who))
        talk.turn()
        talk.wait(100)
        assert stored(talk).count(b"half 2") == visible
