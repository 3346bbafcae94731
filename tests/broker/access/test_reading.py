"""Tests of the fast path behind access control: what passes is stored by the reader, and nothing that was not checked."""

from __future__ import annotations

import pytest

from halfmoon.columns.signing import Signer
from halfmoon.errors import ACCESS_REFUSED
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.record import decode_records
from halfmoon.wire.signature import Credentials
from tests.broker.access.rule_files import ADMIN, RULES, USER, write
from tests.broker.talk import Talk, pull_header, send_header

WRONG = USER._replace(secret_key="123456789")
WHITE = ADMIN._replace(secret_key="whatever")


@pytest.fixture
def talk(tmp_path):
    write(tmp_path)
    talk = Talk(tmp_path, acl_enable=True)
    for topic, who in (("topicC", ADMIN), ("topicB", USER)) * 2:  # the first one creates the topic, the second opens its queue
        assert talk.ask(send_header(topic), b"first", who=who).code == 0
    return talk


def frame(header, body=b"x", who=USER, serialization=JSON, opaque=0):
    command = request_command(header, body, opaque=opaque, serialization=serialization)
    command.fields = {**command.fields, **(Signer(*who).sign(command.fields, body) if who is not None else {})}
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
        command.fields = {**command.fields, **Signer(*USER).sign(command.fields, b"twice")}
        data = encode(command).replace(b'"extFields":{', b'"extFields":{"b":"%s",' % first.encode(), 1)
        added = len(b'"b":"%s",' % first.encode())
        header_size = int.from_bytes(data[5:8], "big") + added
        data = (int.from_bytes(data[:4], "big") + added).to_bytes(4, "big") + header_size.to_bytes(4, "big") + data[8:]
        talk.feed(1, data)
        talk.turn()

    assert stored(talk).count(b"twice") == 1
    assert talk.broker.store.queue_max("topicC", 0) == 2


def test_the_first_request_of_a_connection_is_checked_and_the_next_ones_are_read_at_once(talk, general):
    for number in range(3):
        talk.feed(2, frame(send_header("topicB"), b"%d" % number, opaque=number))
        talk.turn()

    assert len(general) == 1
    assert [talk.answer(number, peer=2).code for number in range(3)] == [0] * 3


@pytest.mark.parametrize(("rules", "remark"), [
    (RULES.replace("accessKey: RocketMQ", "accessKey: somebody"), "No acl config for RocketMQ"),
    (RULES.replace("12345678", "another1"), "Check signature failed for accessKey=RocketMQ"),
    (RULES.replace("topicB=PUB|SUB", "topicB=DENY"), "No default permission for topic:topicB"),
])  # fmt: skip
def test_changed_rules_count_for_the_very_next_send_of_an_open_connection(talk, tmp_path, rules, remark):
    talk.feed(1, frame(send_header("topicB"), b"before", opaque=1))
    talk.turn()
    write(tmp_path, rules)
    talk.wait(5_001)
    talk.feed(1, frame(send_header("topicB"), b"late", opaque=2) * 2)
    talk.turn()

    assert talk.answer(1).code == 0
    refused = [reply for reply in talk.received[1] if reply.opaque == 2]
    assert [(reply.code, reply.remark) for reply in refused] == [(1, ACCESS_REFUSED + remark)] * 2
    assert talk.broker.store.queue_max("topicB", 0) == 3


def test_a_wrong_signature_on_a_proved_connection_is_refused_and_counted_as_everywhere(talk):
    told = []
    for peer in (1, 2):  # the first one has sent what was signed, the second nothing
        talk.feed(peer, frame(send_header("topicB"), b"wrong", WRONG, opaque=8))
        talk.turn()
        answer = talk.answer(8, peer=peer)
        told.append((answer.code, answer.remark))

    assert told == [(1, ACCESS_REFUSED + "Check signature failed for accessKey=RocketMQ")] * 2
    assert talk.broker.access.refusals["signature"] == 2
    assert b"wrong" not in stored(talk)


def test_who_guesses_too_often_is_not_heard_and_a_proved_connection_is(talk, general):
    talk.connect(3, "10.0.0.1:7")  # the same address as that of connection 1
    talk.feed(3, frame(send_header("topicB"), b"guess", WRONG) * 30)
    talk.turn()
    general.clear()
    for peer in (3, 1):
        talk.feed(peer, frame(send_header("topicB"), b"right", opaque=9))
        talk.turn()

    assert "Too many wrong signatures" in talk.answer(9, peer=3).remark
    assert talk.answer(9, peer=1).code == 0
    assert len(general) == 1


def test_accounts_may_take_turns_on_one_connection(talk):
    for number in range(6):
        talk.feed(1, frame(send_header("topicB"), b"turn", (USER, ADMIN)[number % 2], opaque=900) * 2)
        talk.turn()

    assert [reply.code for reply in talk.received[1] if reply.opaque == 900] == [0] * 12
    assert stored(talk).count(b"turn") == 12


def test_an_account_at_its_white_address_need_not_sign_and_others_must(talk, general):
    talk.connect(5, "192.168.1.7:1")
    for number, who in enumerate((WHITE, WHITE, WRONG, WHITE)):
        talk.feed(5, frame(send_header("topicB"), b"white", who, opaque=number))
        talk.turn()

    assert [talk.answer(number, peer=5).code for number in range(4)] == [0, 0, 1, 0]
    assert len(general) == 2  # the first one, and the wrong one


def test_a_global_white_address_reads_at_once_without_an_account(talk, general):
    talk.connect(6, "10.10.103.9:1")
    talk.feed(6, frame(send_header("topicB"), b"white", None) * 2)
    talk.turn()

    assert general == []
    assert stored(talk).count(b"white") == 2


def test_what_is_remembered_as_allowed_is_bounded_and_is_checked_again_once_it_is_forgotten(talk, general):
    talk.broker.access.allowed_max = 4
    for number in range(9):
        assert talk.ask(send_header(f"topic{number}"), who=ADMIN).code == 0
    general.clear()
    assert talk.ask(send_header("topic0"), who=ADMIN).code == 0
    assert len(general) == 1, "it was forgotten"
    general.clear()
    for number in range(4):
        talk.feed(1, frame(send_header("topicB"), b"again", opaque=number + 500))
        talk.turn()

    assert [talk.answer(number + 500).code for number in range(4)] == [0] * 4
    assert len(general) < 4


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
