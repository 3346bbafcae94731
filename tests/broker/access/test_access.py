"""Tests of the check of requests: each refusal in Apache's words, white addresses, guesses, and rules that are read again."""

from __future__ import annotations

import pytest

from halfmoon.broker.access.access import GUESSES_A_MINUTE
from halfmoon.broker.settings import AclMode
from halfmoon.errors import SettingError
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.access import GetBrokerClusterAclInfo
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.batch import ApplyBatch, CoordinateBatches, DecideBatch
from halfmoon.wire.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerListByGroup,
    HeartBeat,
    LockBatchMq,
    UnlockBatchMq,
    UnregisterClient,
)
from halfmoon.wire.headers.offset import GetMaxOffset, InvokeBrokerToResetOffset, UpdateConsumerOffset
from halfmoon.wire.headers.pull import QueryMessage, ViewMessageById
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendBatchMessage, SendMessage
from halfmoon.wire.headers.topic import GetAllTopicConfig, UpdateAndCreateTopic
from halfmoon.wire.headers.transaction import EndTransaction, ResumeCheckHalfMessage
from halfmoon.wire.signature import Credentials
from halfmoon.wire.table import REQUESTS
from tests.broker.access.rule_files import ADMIN, RULES, USER, write
from tests.broker.talk import Talk, pull_header, send_header

EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
WRONG = USER._replace(secret_key="123456789")
NEW_TOPIC = UpdateAndCreateTopic(topic="new", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG")


@pytest.fixture
def talk(tmp_path):
    write(tmp_path)
    return Talk(tmp_path, acl_enable=True)


def refusal(talk, *request, **kw):
    """Ask; return what it was refused with, or None if it was let pass."""
    reply = talk.ask(*request, **kw)
    if reply.code != 1 or not (reply.remark or "").startswith(EXCEPTION):
        return None
    return reply.remark.removeprefix(EXCEPTION)


# ---------------------------------------------------------------- who


def test_a_request_without_an_access_key_is_refused(talk):
    assert refusal(talk, send_header("topicB")) == "No accessKey is configured"


def test_an_unknown_access_key_is_refused(talk):
    assert refusal(talk, send_header("topicB"), who=Credentials("nobody1", "12345678")) == "No acl config for nobody1"


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_wrong_secret_is_refused_and_the_right_one_taken(talk, serialization):
    kw = {"serialization": serialization}
    assert refusal(talk, send_header("topicB"), who=WRONG, **kw) == "Check signature failed for accessKey=RocketMQ"
    assert talk.ask(send_header("topicB"), b"x", who=USER, **kw).code == 0


def test_a_body_that_was_changed_on_its_way_is_refused(talk):
    opaque = talk.post(send_header("topicB"), b"body", who=USER)
    chunk = talk.broker.peers.get(1).chunks[0]
    talk.broker.peers.get(1).chunks[0] = chunk.replace(b"body", b"BODY")
    talk.turn()

    assert "Check signature failed" in talk.answer(opaque).remark


@pytest.mark.parametrize("line", REQUESTS.values(), ids=lambda line: line.name)
def test_no_request_of_the_table_is_answered_to_strangers(talk, line):
    assert refusal(talk, GetAllTopicConfig(), code=line.code) == "No accessKey is configured"


def test_an_unknown_code_needs_an_account_before_it_is_said_to_be_unknown(talk):
    assert refusal(talk, GetAllTopicConfig(), code=9999) == "No accessKey is configured"
    assert talk.ask(GetAllTopicConfig(), code=9999, who=USER).code == 3


def test_a_refused_one_way_request_gets_no_answer_and_does_nothing(talk):
    offset = UpdateConsumerOffset(consumer_group="groupA", topic="topicB", queue_id=0, commit_offset=5)
    assert talk.ask(offset, oneway=True, who=USER) is None
    assert talk.broker.offsets.get("groupA", "topicB", 0) is None


def test_the_global_white_addresses_need_no_account(talk):
    talk.connect(5, "10.10.103.7:4000")
    talk.connect(6, "10.10.104.7:4000")

    assert talk.ask(send_header("topicA"), b"x", peer=5).code == 0
    assert talk.ask(NEW_TOPIC, peer=5).code == 0
    assert refusal(talk, send_header("topicA"), peer=6) == "No accessKey is configured"


def test_an_accounts_white_addresses_need_no_signature(talk):
    talk.connect(5, "192.168.1.7:4000")
    unsigned = ADMIN._replace(secret_key="wrong secret")

    assert talk.ask(NEW_TOPIC, peer=5, who=unsigned).code == 0
    assert "Check signature failed" in refusal(talk, NEW_TOPIC, who=unsigned)


# ---------------------------------------------------------------- what


def back(group):
    return ConsumerSendMsgBack(offset=0, group=group, delay_level=0)


def to_everybody(cls, topic, group="P"):
    fields = {name: getattr(send_header(topic), name) for name in cls.__struct_fields__}
    return cls(**{**fields, "producer_group": group})


@pytest.mark.parametrize(("header", "what"), [
    (send_header("topicA"), "topic:topicA"),
    (send_header("topicC"), "topic:topicC"),
    (send_header("topicX"), "topic:topicX"),
    (to_everybody(SendMessage, "topicX"), "topic:topicX"),
    (to_everybody(SendBatchMessage, "topicX"), "topic:topicX"),
    (send_header("%RETRY%groupA", producer_group="groupB"), "group:groupA"),
    (pull_header("topicA", group="groupB"), "topic:topicA"),
    (pull_header("topicB", group="groupA"), "group:groupA"),
    (back("groupA"), "group:groupA"),
    (UnregisterClient(client_id="c", consumer_group="groupA"), "group:groupA"),
    (GetConsumerListByGroup(consumer_group="groupA"), "group:groupA"),
    (UpdateConsumerOffset(consumer_group="groupA", topic="topicB", queue_id=0, commit_offset=0), "group:groupA"),
    (UpdateConsumerOffset(consumer_group="groupB", topic="topicA", queue_id=0, commit_offset=0), "topic:topicA"),
    (QueryMessage(topic="topicA", key="k", max_num=1, begin_timestamp=0, end_timestamp=1), "topic:topicA"),
])  # fmt: skip
def test_what_an_account_lacks_is_named(talk, header, what):
    assert refusal(talk, header, b"x", who=USER) == f"No default permission for {what}"


@pytest.mark.parametrize("header", [
    send_header("topicB"), to_everybody(SendMessage, "topicB"), pull_header("topicB", group="groupB"),
    pull_header("topicB", group="other"), back("groupB"), GetConsumerListByGroup(consumer_group="groupB"),
    UnregisterClient(client_id="c", producer_group="P"), GetMaxOffset(topic="topicC", queue_id=0),
    QueryMessage(topic="topicB", key="k", max_num=1, begin_timestamp=0, end_timestamp=1, unique_key_query=True),
])  # fmt: skip
def test_what_an_account_may_do_is_done(talk, header):
    assert refusal(talk, header, b"x", who=USER) is None


def test_a_heartbeat_may_name_only_groups_and_topics_that_may_be_consumed(talk):
    def beat(group, topic):
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"%s","subscriptionDataSet":[{"topic":"%s"}]}]}'
        return refusal(talk, HeartBeat(), body % (group, topic), who=USER)

    assert beat(b"groupB", b"topicB") is None
    assert beat(b"groupA", b"topicB") == "No default permission for group:groupA"
    assert beat(b"groupB", b"topicA") == "No default permission for topic:topicA"
    assert beat(b"groupB", b'"') is not None


def test_administration_needs_an_administrator(talk):
    assert refusal(talk, NEW_TOPIC, who=USER) == "Need admin permission for request code=17, but accessKey=RocketMQ is not"
    assert talk.ask(NEW_TOPIC, who=ADMIN).code == 0
    assert talk.ask(send_header("topicX"), b"x", who=ADMIN).code == 0


@pytest.fixture
def as_in_4_9(tmp_path):
    write(tmp_path)
    return Talk(tmp_path, acl_enable=True, acl_mode=AclMode.ROCKETMQ)


@pytest.mark.parametrize(("header", "body"), [
    (ViewMessageById(offset=0), b""), (InvokeBrokerToResetOffset(topic="topicA", group="groupA"), b""),
    (ConsumeMessageDirectly(consumer_group="groupA", client_id="c", msg_id="0" * 32), b""),
    (ResumeCheckHalfMessage(msg_id="0" * 32), b""),
    (EndTransaction(
        producer_group="P", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8, msg_id="0" * 32), b""),
    (LockBatchMq(), b'{"consumerGroup":"groupA","clientId":"c","mqSet":[]}'),
    (UnlockBatchMq(), b'{"consumerGroup":"groupA","clientId":"c","mqSet":[]}'),
    (HeartBeat(), b'{"clientID":"c","producerDataSet":[{"groupName":"P"}],"consumerDataSet":[]}'),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_what_any_account_may_do_under_the_rules_of_4_9_needs_an_account_and_no_permission(as_in_4_9, header, body):
    assert refusal(as_in_4_9, header, body) == "No accessKey is configured"
    assert refusal(as_in_4_9, header, body, who=USER) is None


def test_from_its_white_address_an_ordinary_account_may_do_everything_without_the_secret(tmp_path):
    write(tmp_path, RULES.replace("whiteRemoteAddress:\n", "whiteRemoteAddress: 10.0.0.3\n"))
    talk = Talk(tmp_path, acl_enable=True)

    assert refusal(talk, NEW_TOPIC, who=USER) == "Need admin permission for request code=17, but accessKey=RocketMQ is not"
    assert talk.ask(NEW_TOPIC, who=WRONG, peer=3).code == 0
    assert talk.ask(send_header("topicA"), b"x", who=WRONG, peer=3).code == 0


def test_sends_of_one_turn_are_let_pass_each_for_itself(talk):
    talk.ask(send_header("topicB"), b"x", who=USER)
    opaques = [talk.post(send_header("topicB"), b"x", who=who) for who in (USER, None, WRONG, USER)]
    talk.turn()

    assert [talk.answer(opaque).code for opaque in opaques] == [0, 1, 1, 0]
    assert talk.broker.store.queue_max("topicB", 0) == 3


def test_without_access_control_nobody_needs_an_account(tmp_path):
    assert Talk(tmp_path).ask(send_header("topicB"), b"x").code == 0


# ---------------------------------------------------------------- guesses


def test_a_secret_can_be_guessed_only_so_often_from_one_address(talk):
    talk.connect(1, "1.2.3.4:1")
    talk.connect(2, "1.2.3.4:2")
    talk.connect(3, "1.2.3.5:3")
    assert refusal(talk, send_header("topicB"), who=USER) is None
    for _ in range(GUESSES_A_MINUTE):
        assert "Check signature failed" in refusal(talk, send_header("topicB"), who=WRONG, peer=2)

    assert "Too many wrong signatures" in refusal(talk, send_header("topicB"), who=USER, peer=2)
    assert refusal(talk, send_header("topicB"), who=USER, peer=1) is None  # it had proved the secret before
    assert refusal(talk, send_header("topicB"), who=USER, peer=3) is None
    assert refusal(talk, send_header("topicB"), who=ADMIN, peer=2) is None

    talk.wait(60_000)
    assert refusal(talk, send_header("topicB"), who=USER, peer=2) is None


def test_guesses_from_one_network_of_ipv6_are_counted_together(talk):
    last = GUESSES_A_MINUTE + 1
    for number in range(1, last + 1):
        talk.connect(number, f"[2001:db8:0:1::{number:x}]:1")
        remark = refusal(talk, send_header("topicB"), who=WRONG, peer=number)
        assert ("Too many wrong signatures" if number == last else "Check signature failed") in remark

    talk.connect(99, "[2001:db8:0:2::1]:1")
    assert refusal(talk, send_header("topicB"), who=USER, peer=99) is None


def test_what_is_remembered_of_addresses_is_bounded(talk, caplog):
    talk.broker.access.addresses_max = 5
    for _ in range(GUESSES_A_MINUTE):
        assert refusal(talk, send_header("topicB"), who=WRONG) is not None
    assert "Too many wrong signatures" in refusal(talk, send_header("topicB"), who=WRONG)
    for number in range(10, 30):
        talk.connect(number, f"1.2.3.{number}:1")
        assert refusal(talk, send_header("topicB"), who=WRONG, peer=number) is not None

    assert "Check signature failed" in refusal(talk, send_header("topicB"), who=WRONG), "it came first and is forgotten"
    assert caplog.text.count("access refused") == 5


def test_long_names_are_neither_kept_nor_told_whole(talk):
    long = "x" * 900_000
    for number in range(3):
        told = refusal(talk, send_header(f"{number}{long}"), who=USER)
        assert len(told) < 400
        talk.ask(send_header(f"{number}{long}"), who=ADMIN)
        talk.ask(send_header(f"{number}{long}"), who=USER, code=37)
    checked = talk.broker.access
    assert sum(len(topic) for _, _, topic in checked._allowed) < 1000
    assert sum(len(reason) for _, reason in checked._told) < 2000


def test_a_batch_is_decided_only_by_who_may_use_its_id(talk):
    for header in (
        CoordinateBatches(transactional_id="groupA", coordinator="broker-a"),
        DecideBatch(transactional_id="groupA", batch_id=7),
        ApplyBatch(transactional_id="groupA", batch_id=7, coordinator="broker-a"),
    ):
        assert refusal(talk, header, b'{"participants":{}}', who=USER) == "No default permission for group:groupA"
        assert refusal(talk, header, b'{"participants":{}}', who=ADMIN) is None


def test_a_lost_connection_leaves_nothing_behind(talk):
    refusal(talk, send_header("topicB"), who=USER)
    talk.lose(1)
    talk.connect(1)
    for _ in range(GUESSES_A_MINUTE):
        refusal(talk, send_header("topicB"), who=WRONG)
    assert "Too many wrong signatures" in refusal(talk, send_header("topicB"), who=USER), "it has proved nothing"


def test_refusals_are_counted_and_logged_once_a_minute_without_secrets(talk, caplog):
    for _ in range(3):
        talk.ask(send_header("topicB"), who=WRONG)
    talk.ask(send_header("topicX"), who=USER)

    texts = talk.ask(GetBrokerRuntimeInfo(), who=ADMIN).body.decode()
    assert '"aclRefusals":"signature=3 permission=1 guesses=0"' in texts
    assert '"aclAccounts":"2"' in texts
    lines = [record.getMessage() for record in caplog.records if record.name == "halfmoon.broker.access"]
    assert lines == [
        "access refused: reason=Check signature failed for accessKey=RocketMQ request=SEND_MESSAGE_V2 (310) from=10.0.0.1:5000",
        "access refused: reason=No default permission for topic:topicX request=SEND_MESSAGE_V2 (310) from=10.0.0.1:5000",
    ]
    talk.wait(60_000)
    talk.ask(send_header("topicB"), who=WRONG)
    assert "Check signature failed" in caplog.records[-1].getMessage()
    assert "12345678" not in caplog.text


# ---------------------------------------------------------------- files


def test_changed_rules_count_within_five_seconds_for_connections_that_are_open(talk, tmp_path):
    assert refusal(talk, send_header("topicB"), who=USER) is None
    write(tmp_path, RULES.replace("topicB=PUB|SUB", "topicB=DENY").replace("12345678", "another secret"))
    talk.wait(5_001)

    assert "Check signature failed" in refusal(talk, send_header("topicB"), who=USER)
    changed = USER._replace(secret_key="another secret")
    assert refusal(talk, send_header("topicB"), who=changed) == "No default permission for topic:topicB"


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("topicB=PUB|SUB", "topicB=PUB", "No default permission for topic:topicB"),
    ("groupB=PUB|SUB", "groupB=DENY", "No default permission for group:groupB"),
    ("secretKey: 12345678", "secretKey: another secret", "Check signature failed for accessKey=RocketMQ"),
    ("accessKey: RocketMQ", "accessKey: RocketMQ9", "No acl config for RocketMQ"),
    ("10.10.103.*", "10.10.104.*", "No white address covers 10.10.103.7 any more"),
])  # fmt: skip
def test_a_held_pull_that_may_not_be_sent_any_more_is_refused_when_the_rules_change(talk, tmp_path, old, new, reason):
    talk.ask(send_header("topicB"), b"x", who=USER, peer=3)
    pull = pull_header("topicB", group="groupB", offset=1, wait_ms=15_000)
    if "10.10" in old:
        talk.connect(1, "10.10.103.7:1")
    held = talk.post(pull, who=None if "10.10" in old else USER)
    others = talk.post(pull, who=ADMIN, peer=2)
    talk.turn()
    assert talk.broker.holds.count == 2
    write(tmp_path, RULES.replace(old, new))
    talk.wait(5_001)

    answer = talk.answer(held)
    assert (answer.code, answer.remark) == (1, EXCEPTION + reason)
    assert sum(talk.broker.access.refusals.values()) == 1
    assert talk.broker.holds.count == 1
    talk.ask(send_header("topicB"), b"late", who=ADMIN, peer=3)
    assert b"late" in talk.answer(others, peer=2).body


def test_a_held_pull_that_may_still_be_sent_brings_what_arrives_after_the_rules_changed(talk, tmp_path):
    talk.ask(send_header("topicB"), b"x", who=USER)
    held = talk.post(pull_header("topicB", group="groupB", offset=1, wait_ms=15_000), who=USER)
    talk.turn()
    write(tmp_path, RULES.replace("topicB=PUB|SUB", "topicB=SUB").replace("topicC=SUB", "topicC=DENY"))
    talk.wait(5_001)
    assert talk.answer(held) is None

    talk.ask(send_header("topicB"), b"late", who=ADMIN)

    assert b"late" in talk.answer(held).body


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("topicC=SUB", "topicC=DENY", None),
    ("secretKey: 87654321", "secretKey: another secret", None),
    ("192.168.1.*", "192.168.2.*", "Check signature failed for accessKey=rocketmq2"),
    ("accessKey: rocketmq2", "accessKey: rocketmq3", "No acl config for rocketmq2"),
])  # fmt: skip
def test_a_held_pull_from_an_accounts_white_address_is_refused_once_it_must_be_signed(talk, tmp_path, old, new, reason):
    talk.ask(send_header("topicB"), b"x", who=USER)
    talk.connect(2, "192.168.1.7:1")
    unsigned = ADMIN._replace(secret_key="not checked")
    held = talk.post(pull_header("topicB", group="groupB", offset=1, wait_ms=15_000), who=unsigned, peer=2)
    talk.turn()
    write(tmp_path, RULES.replace(old, new))
    talk.wait(5_001)

    answer = talk.answer(held, peer=2)
    assert (answer and answer.remark) == (reason and EXCEPTION + reason)
    assert talk.broker.holds.count == (1 if reason is None else 0)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_a_rule_file_that_others_may_use_is_refused_at_the_start_unless_a_setting_takes_it(tmp_path, mode):
    write(tmp_path).chmod(mode)
    with pytest.raises(SettingError, match=r"plain_acl\.yml: other users .* chmod 600, or set acl_readable_by_others=true"):
        Talk(tmp_path, acl_enable=True)
    assert refusal(Talk(tmp_path, acl_enable=True, acl_readable_by_others=True), send_header("topicB"), who=USER) is None


def test_a_rule_file_that_is_opened_to_others_while_it_is_in_use_leaves_the_last_rules_in_force_until_it_is_closed(
    talk, tmp_path, caplog
):
    path = write(tmp_path)
    path.chmod(0o644)
    talk.wait(15_001)

    assert talk.broker.access.fault.startswith("/conf/plain_acl.yml: other users may read")
    assert caplog.text.count("other users may read") == 1
    path.write_text(RULES.replace("12345678", "another secret"))
    talk.wait(5_001)
    assert refusal(talk, send_header("topicB"), who=USER) is None
    path.chmod(0o600)
    talk.wait(5_001)
    assert talk.broker.access.fault is None
    assert "Check signature failed" in refusal(talk, send_header("topicB"), who=USER)


def test_rules_that_make_no_sense_leave_the_last_ones_in_force_and_say_so(talk, tmp_path, caplog):
    path = write(tmp_path, "accounts:\n- accessKey: short\n")
    talk.wait(15_001)

    assert refusal(talk, send_header("topicB"), who=USER) is None
    fault = "plain_acl.yml:2: accessKey 'short' must have 7 to 256 characters"
    assert fault in talk.ask(GetBrokerRuntimeInfo(), who=ADMIN).body.decode()
    assert caplog.text.count(fault) == 1

    path.unlink()
    talk.wait(5_001)
    assert "there is no such file" in talk.broker.access.fault
    write(tmp_path)
    talk.wait(5_001)
    assert talk.broker.access.fault is None


def test_files_of_the_directory_count_too_and_come_before_the_main_one(tmp_path):
    write(tmp_path)
    more = "accounts:\n- {accessKey: RocketMQ, secretKey: from the directory}\n- {accessKey: account3, secretKey: secret-3}\n"
    write(tmp_path, more, "acl/more.yaml")
    write(tmp_path, "no rules", "acl/README")
    talk = Talk(tmp_path, acl_enable=True)

    assert refusal(talk, GetBrokerRuntimeInfo(), who=Credentials("account3", "secret-3")) is None
    assert "Check signature" in refusal(talk, GetBrokerRuntimeInfo(), who=USER)
    (tmp_path / "conf" / "acl" / "more.yaml").unlink()
    talk.wait(5_001)
    assert refusal(talk, GetBrokerRuntimeInfo(), who=USER) is None


@pytest.mark.parametrize("text", [None, "accounts: 7"])
def test_a_broker_does_not_start_without_rules_that_make_sense(tmp_path, text):
    if text is not None:
        write(tmp_path, text)
    with pytest.raises(SettingError, match=r"plain_acl\.yml"):
        Talk(tmp_path, acl_enable=True)
    assert not (tmp_path / "commitlog").exists()


def test_a_step_of_the_clock_neither_reads_files_early_nor_late(talk):
    due = talk.broker.access.due(talk.instant)
    talk.set_clock(-3_600_000)
    assert talk.broker.access.due(talk.instant) == due


def test_versions_are_told_to_administrators_alone(talk):
    assert refusal(talk, GetBrokerClusterAclInfo(), who=USER) is not None
    assert talk.ask(GetBrokerClusterAclInfo(), who=ADMIN).code == 0
