"""Tests of what permissions are for: the record, the queue, the half message or the group itself, whatever a header says of it."""

from __future__ import annotations

import pytest

from halfmoon.broker.settings import AclMode
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import HeartbeatData, LockBatchRequest, ProducerConnection, ProducerData, from_json, to_json
from halfmoon.wire.headers.client import (
    ConsumeMessageDirectly,
    GetProducerConnectionList,
    HeartBeat,
    LockBatchMq,
    UnlockBatchMq,
)
from halfmoon.wire.headers.offset import GetMaxOffset, InvokeBrokerToResetOffset, QueryConsumerOffset
from halfmoon.wire.headers.pull import QueryMessage, ViewMessageById
from halfmoon.wire.headers.ranges import ReadRange
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendMessageV2Reply, SendReplyMessageV2
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from halfmoon.wire.headers.transaction import ResumeCheckHalfMessage
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.signature import Credentials
from tests.broker.access.rule_files import write
from tests.broker.half import CHECKS, COMMIT, ROLLBACK, end_header, half_properties
from tests.broker.talk import Talk, pull_header, send_header

OURS, THEIRS = Credentials("account-of-ours", "the secret 1"), Credentials("account-of-theirs", "the secret 2")
READER, OPERATOR = Credentials("reader-of-all", "the secret 3"), Credentials("operator", "the secret 4")
RULES = """
accounts:
- {accessKey: account-of-ours, secretKey: the secret 1, topicPerms: [ours=PUB|SUB], groupPerms: [G_ours=SUB, P_ours=PUB]}
- {accessKey: account-of-theirs, secretKey: the secret 2, topicPerms: [theirs=PUB|SUB], groupPerms: [G_theirs=SUB, P_theirs=PUB]}
- {accessKey: reader-of-all, secretKey: the secret 3, defaultTopicPerm: SUB, defaultGroupPerm: SUB,
   topicPerms: [theirs=DENY], groupPerms: [G_theirs=DENY]}
- {accessKey: operator, secretKey: the secret 4, admin: true}
"""
REFUSED = "org.apache.rocketmq.acl.common.AclException: No default permission for "


@pytest.fixture(params=["OBJECTS", "ROCKETMQ"])
def talk(tmp_path, request):
    return begun(tmp_path, request.param)


@pytest.fixture
def strict(tmp_path):
    return begun(tmp_path, "OBJECTS")


def begun(path, mode):
    write(path, RULES)
    talk = Talk(path, acl_enable=True, acl_mode=AclMode[mode], **CHECKS)
    talk.strict = mode == "OBJECTS"
    return talk


def refused(reply):
    """Return the object for which a permission is lacking; None: the request was let pass."""
    remark = "" if reply is None else reply.remark or ""
    return remark.removeprefix(REFUSED) if remark.startswith(REFUSED) else None


def sent(talk, topic="theirs", who=THEIRS, properties=""):
    """Send a message; return the header of its answer."""
    reply = talk.ask(send_header(topic, properties=properties), b"for them alone", who=who)
    assert reply.code == 0, reply.remark
    return reply.header(SendMessageV2Reply)


def place_of(answer):
    return parse_offset_msg_id(answer.msg_id).physical_offset


def half(talk, key="u1"):
    return sent(talk, properties=half_properties(key, "P_theirs"))


def beat(talk, client_id, *groups, who, peer):
    data = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group) for group in groups])
    return talk.ask(HeartBeat(), to_json(data), who=who, peer=peer)


# ---------------------------------------------------------------- a message by its place


def test_a_message_is_viewed_by_its_id_only_with_sub_of_its_topic(talk):
    view = ViewMessageById(offset=place_of(sent(talk)), topic="ours")

    assert refused(talk.ask(view, who=OURS)) == ("topic:theirs" if talk.strict else None)
    assert refused(talk.ask(view, who=READER)) == ("topic:theirs" if talk.strict else None)
    assert b"for them alone" in bytes(talk.ask(view, who=THEIRS).body)
    assert b"for them alone" in bytes(talk.ask(view, who=OPERATOR).body)


def test_a_message_is_given_back_into_a_group_only_with_sub_of_its_topic(talk):
    back = ConsumerSendMsgBack(offset=place_of(sent(talk)), group="G_ours", delay_level=-1, origin_topic="ours")

    assert refused(talk.ask(back, who=OURS)) == ("topic:theirs" if talk.strict else None)


def test_a_message_is_pushed_to_a_consumer_only_with_sub_of_its_topic(talk):
    push = ConsumeMessageDirectly(consumer_group="G_ours", client_id="mine", msg_id=sent(talk).msg_id, topic="ours")

    assert refused(talk.ask(push, who=OURS)) == ("topic:theirs" if talk.strict else None)
    assert refused(talk.ask(push, who=THEIRS)) == ("group:G_ours" if talk.strict else None)


def test_a_message_that_waits_is_one_of_the_topic_where_it_belongs(strict):
    place = place_of(half(strict))

    assert refused(strict.ask(ViewMessageById(offset=place), who=OURS)) == "topic:theirs"
    assert refused(strict.ask(ViewMessageById(offset=place), who=THEIRS)) is None


def test_an_expired_half_message_is_resumed_only_with_pub_of_its_topic(talk):
    resume = ResumeCheckHalfMessage(msg_id=half(talk).msg_id)

    assert refused(talk.ask(resume, who=OURS)) == ("topic:theirs" if talk.strict else None)
    assert refused(talk.ask(resume, who=THEIRS)) is None


# ---------------------------------------------------------------- half messages


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("warm", [False, True], ids=["first request", "fast path"])
def test_a_half_message_is_decided_only_with_pub_of_its_topic_and_a_permission_of_its_group(talk, decision, warm):
    if warm:  # decisions of this connection are let pass by the reader of the fast path from now on
        own = talk.ask(send_header("ours", properties=half_properties("o1", "P_ours")), b"ours", who=OURS).header(
            SendMessageV2Reply
        )
        assert talk.ask(end_header(own, COMMIT, group="P_ours", key="o1"), who=OURS).code == 0
    theirs = half(talk)
    stranger = talk.ask(end_header(theirs, decision, group="P_theirs"), who=OURS)
    again = talk.ask(end_header(theirs, decision, group="P_theirs"), who=THEIRS, peer=2)

    if talk.strict:
        assert refused(stranger) is not None
        assert talk.broker.transactions.decisions.counters.refused == int(warm)
    else:
        assert stranger.code == 0
    assert again.code == 0
    assert talk.broker.transactions.index.pending_count == 0
    assert talk.broker.transactions.decisions.counters.repeats == int(not talk.strict)


@pytest.mark.parametrize("warm", [False, True], ids=["first request", "fast path"])
def test_a_half_message_is_taken_only_with_a_permission_of_its_group(talk, warm):
    if warm:  # half messages for the topic are read by the reader of the fast path from now on
        half(talk)
    opaques = [
        talk.post(send_header("theirs", properties=half_properties(f"k{number}", group)), b"x", who=THEIRS)
        for number, group in enumerate(["P_theirs", "P_ours", "P_theirs"])
    ]
    talk.turn()

    lacking = [refused(talk.answer(opaque)) for opaque in opaques]
    assert lacking == [None, "group:P_ours" if talk.strict else None, None]
    assert talk.broker.transactions.index.pending_count == (2 if talk.strict else 3) + warm


def test_a_decision_of_another_account_in_the_same_turn_neither_counts_nor_hinders(strict):
    for who, peer, topic, group in ((OURS, 1, "ours", "P_ours"), (THEIRS, 2, "theirs", "P_theirs")):
        own = strict.ask(send_header(topic, properties=half_properties(f"own-{peer}", group)), b"x", who=who, peer=peer)
        own = own.header(SendMessageV2Reply)
        assert strict.ask(end_header(own, COMMIT, group=group, key=f"own-{peer}"), who=who, peer=peer).code == 0
    theirs, others = half(strict, "u7"), half(strict, "u8")
    rolled_back = strict.post(end_header(theirs, ROLLBACK, group="P_theirs", key="u7"), who=OURS)
    committed = strict.post(end_header(theirs, COMMIT, group="P_theirs", key="u7"), who=THEIRS, peer=2)
    alone = strict.post(end_header(others, ROLLBACK, group="P_theirs", key="u8"), who=THEIRS, peer=2)
    strict.turn()

    assert refused(strict.answer(rolled_back)) is not None
    assert strict.answer(committed, peer=2).code == strict.answer(alone, peer=2).code == 0
    assert strict.broker.store.queue_max("theirs", 0) == 2  # its own first one, and this


def test_a_decision_counts_whose_connection_is_lost_right_behind_it(strict):
    own = strict.ask(send_header("theirs", properties=half_properties("u1", "P_theirs")), b"x", who=THEIRS).header(
        SendMessageV2Reply
    )
    assert strict.ask(end_header(own, COMMIT, group="P_theirs"), who=THEIRS).code == 0
    late = half(strict, "u2")
    strict.ask(send_header("theirs"), b"x", who=THEIRS, peer=2)
    strict.post(send_header("theirs"), b"x", who=THEIRS, peer=2)  # a send is answered before the decisions of its turn
    strict.post(end_header(late, COMMIT, group="P_theirs", key="u2"), who=THEIRS, oneway=True)
    strict.broker.commit(strict.instant)
    strict.lose(1)
    strict.turn()

    assert strict.broker.transactions.index.pending_count == 0


def test_only_who_may_decide_about_a_half_message_joins_its_group_and_is_asked(talk):
    half(talk)
    beat(talk, "of-ours", "P_theirs", "P_ours", who=OURS, peer=5)
    talk.wait(20_000)
    asked = [command for command in talk.received[5] if command.code == 39]

    assert bool(asked) is not talk.strict
    members = talk.ask(GetProducerConnectionList(producer_group="P_theirs"), who=OPERATOR)
    assert (members.code == 0) is not talk.strict
    beat(talk, "of-theirs", "P_theirs", who=THEIRS, peer=6)
    talk.wait(20_000)
    assert any(command.code == 39 for command in talk.received[6]) or not talk.strict
    kept = from_json(ProducerConnection, talk.ask(GetProducerConnectionList(producer_group="P_ours"), who=OPERATOR).body)
    assert [each.client_id for each in kept.connection_set] == ["of-ours"]


# ---------------------------------------------------------------- queues and groups


@pytest.mark.parametrize("header", [LockBatchMq(), UnlockBatchMq()], ids=["lock", "unlock"])
def test_a_queue_is_locked_only_for_a_group_and_a_topic_that_may_be_consumed(talk, header):
    def ask(group, topic, who):
        body = LockBatchRequest(client_id="c", consumer_group=group, mq_set=[MessageQueue(topic, "broker-a", 0)])
        return refused(talk.ask(header, to_json(body), who=who))

    assert ask("G_theirs", "theirs", OURS) == ("group:G_theirs" if talk.strict else None)
    assert ask("G_ours", "theirs", OURS) == ("topic:theirs" if talk.strict else None)
    assert ask("G_theirs", "theirs", THEIRS) is None


@pytest.mark.parametrize(("header", "what"), [
    (InvokeBrokerToResetOffset(topic="theirs", group="G_ours", timestamp=0), "topic:theirs"),
    (InvokeBrokerToResetOffset(topic="ours", group="G_theirs", timestamp=0), "group:G_theirs"),
    (QueryConsumerOffset(consumer_group="G_theirs", topic="ours", queue_id=0), "group:G_theirs"),
    (GetMaxOffset(topic="theirs", queue_id=0), "topic:theirs"),
    (GetTopicStatsInfo(topic="theirs"), "topic:theirs"),
])  # fmt: skip
def test_offsets_and_figures_of_a_topic_or_group_need_a_permission_of_it(talk, header, what):
    assert refused(talk.ask(header, who=OURS)) == (what if talk.strict else None)


# ---------------------------------------------------------------- topics of the protocol


def read_range(topic):
    return ReadRange(topic=topic, queue_id=0, begin=0, end=1, max_bytes=1000, half_messages=True)


@pytest.mark.parametrize("topic", [
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_HALFMOON_BATCHES", "DefaultCluster_REPLY_TOPIC",
])  # fmt: skip
@pytest.mark.parametrize("ask", [
    read_range, lambda topic: pull_header(topic, group="G"),
    lambda topic: QueryMessage(topic=topic, key="k", max_num=1, begin_timestamp=0, end_timestamp=1),
], ids=["range", "pull", "query"])  # fmt: skip
def test_a_default_permission_is_none_for_topics_that_hold_messages_of_others(talk, ask, topic):
    assert refused(talk.ask(ask(topic), who=READER)) == (f"topic:{topic}" if talk.strict else None)
    assert refused(talk.ask(ask(topic), who=OPERATOR)) is None


def test_a_denied_topics_delayed_and_undecided_messages_are_not_read_through_topics_of_the_protocol(strict):
    sent(strict, properties="DELAY\x011\x02")
    half(strict)

    for header in (read_range("SCHEDULE_TOPIC_XXXX"), read_range("RMQ_SYS_TRANS_HALF_TOPIC")):
        assert b"for them alone" in bytes(strict.ask(header, who=OPERATOR).body)
        reply = strict.ask(header, who=READER)
        assert (reply.code, b"for them alone" in bytes(reply.body)) == (1, False)


def test_a_permission_by_name_is_one_for_a_topic_of_the_protocol_too(tmp_path):
    write(tmp_path, RULES.replace("topicPerms: [theirs=DENY]", "topicPerms: [theirs=DENY, SCHEDULE_TOPIC_XXXX=SUB]"))
    talk = Talk(tmp_path, acl_enable=True)

    assert refused(talk.ask(read_range("SCHEDULE_TOPIC_XXXX"), who=READER)) is None


def test_dead_letters_are_their_groups(talk):
    assert refused(talk.ask(pull_header("%DLQ%G_theirs", group="G"), who=READER)) == (
        "topic:%DLQ%G_theirs" if talk.strict else None
    )
    assert refused(talk.ask(pull_header("%DLQ%G_other", group="G"), who=READER)) is None
    assert refused(talk.ask(pull_header("%DLQ%G_ours", group="G_ours"), who=OURS)) == (None if talk.strict else "topic:%DLQ%G_ours")


# ---------------------------------------------------------------- who a client says it is


def test_a_client_id_belongs_to_its_account_while_it_is_connected(talk):
    assert beat(talk, "asker", "P_ours", who=OURS, peer=5).code == 0
    taken = beat(talk, "asker", "P_theirs", who=THEIRS, peer=6)
    assert (taken.code, taken.remark) == (1, "the client id asker belongs to a connected client of another account")
    assert beat(talk, "asker", "P_ours", who=OURS, peer=7).code == 0  # it has connected anew

    talk.lose(5)
    assert beat(talk, "asker", "P_theirs", who=THEIRS, peer=6).code == 1
    talk.lose(7)
    assert beat(talk, "asker", "P_theirs", who=THEIRS, peer=6).code == 0


def test_a_reply_goes_to_the_account_that_asked(strict):
    beat(strict, "asker", "P_ours", who=OURS, peer=5)
    beat(strict, "asker", "P_theirs", who=THEIRS, peer=6)
    fields = {name: getattr(send_header("DefaultCluster_REPLY_TOPIC"), name) for name in send_header().__struct_fields__}
    properties = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x011\x02"
    strict.post(SendReplyMessageV2(**{**fields, "properties": properties}), b"the answer", who=THEIRS, peer=7)
    strict.turn()

    assert [bytes(command.body) for command in strict.received[5] if command.code == 326] == [b"the answer"]
    assert [command for command in strict.received[6] if command.code == 326] == []


def test_a_producer_that_may_join_no_group_gets_the_replies_to_its_requests_all_the_same(strict):
    assert beat(strict, "asker", "P_of_nobody", who=OURS, peer=5).code == 0
    assert strict.broker.clients.producer_by_id("asker").peer.number == 5
    strict.lose(5)
    assert strict.broker.clients.producer_by_id("asker") is None


def test_a_queue_is_not_locked_in_the_name_of_another_accounts_client(tmp_path):
    write(tmp_path, RULES.replace("groupPerms: [G_theirs=SUB", "groupPerms: [G_ours=SUB, G_theirs=SUB").replace(
        "[theirs=PUB|SUB]", "[theirs=PUB|SUB, ours=SUB]"))  # fmt: skip
    talk = Talk(tmp_path, acl_enable=True)
    beat(talk, "worker", "P_ours", who=OURS, peer=5)
    body = to_json(LockBatchRequest(client_id="worker", consumer_group="G_ours", mq_set=[MessageQueue("ours", "broker-a", 0)]))

    assert "belongs to a connected client" in talk.ask(LockBatchMq(), body, who=THEIRS, peer=6).remark
    assert talk.ask(LockBatchMq(), body, who=OURS, peer=5).code == 0


@pytest.mark.parametrize("first", ["half message", "decision"])
def test_requests_are_judged_by_the_account_that_signed_them_whoever_signs_the_next_one(strict, first):
    request = send_header("theirs", properties=half_properties(group="P_theirs"))
    stored = strict.ask(request, b"half", who=THEIRS).header(SendMessageV2Reply)
    if first == "decision":
        request = end_header(stored, COMMIT, group="P_theirs")
    opaque = strict.post(request, b"" if first == "decision" else b"half", who=THEIRS)
    strict.post(send_header("ours"), b"plain", who=OURS)
    strict.turn()

    assert strict.answer(opaque).code == 0
