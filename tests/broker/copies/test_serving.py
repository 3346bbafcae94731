"""A slave answers reads as its master does, from what it has copied, and refuses what changes a broker."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies.serving import Serving
from halfmoon.broker.pull.pulls import Pulls
from halfmoon.errors import AccessRefused, QueryNotFound, ServiceNotAvailable, SystemBusy
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import ConsumerIdList, KVTable, SubscriptionGroupConfig, from_json, to_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.client import GetConsumerListByGroup, GetConsumerRunningInfo
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig, GetSubscriptiongroupConfig, UpdateAndCreateSubscriptiongroup
from halfmoon.wire.headers.offset import (
    GetAllConsumerOffset,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from halfmoon.wire.headers.pull import PullMessageReply, QueryMessage, ViewMessageById
from halfmoon.wire.headers.ranges import ReadRange
from halfmoon.wire.headers.topic import DeleteTopicInBroker, GetAllTopicConfig, GetTopicStatsInfo
from halfmoon.wire.record import decode_records
from halfmoon.wire.table import REQUESTS
from tests.broker.copies.serving_slave import SlaveTalk
from tests.broker.talk import START_MS, Talk, pull_header


@pytest.fixture
def master() -> Talk:
    talk = Talk("master", disk=SimDisk(Random(3)))
    for k in range(10):
        talk.send("T", b"%d" % k, properties=f"KEYS\x01k{k}\x02")
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=4))
    return talk


@pytest.fixture
def slave(master: Talk) -> SlaveTalk:
    made = SlaveTalk(master)
    made.copy()
    return made


def bodies(reply: Any) -> list[bytes]:
    return [message.body for message in decode_records(reply.body)]


READS = [
    pull_header("T", offset=3),
    ViewMessageById(offset=0),
    ViewMessageById(offset=7),
    QueryMessage(topic="T", key="k3", max_num=4, begin_timestamp=0, end_timestamp=2**62),
    GetMaxOffset(topic="T", queue_id=0),
    GetMinOffset(topic="T", queue_id=0),
    SearchOffsetByTimestamp(topic="T", queue_id=0, timestamp=START_MS),
    QueryConsumerOffset(consumer_group="G", topic="T", queue_id=0),
    QueryConsumerOffset(consumer_group="G", topic="T", queue_id=3),
    ReadRange(topic="T", queue_id=0, begin=2, end=9, max_bytes=10_000),
    GetAllTopicConfig(),
    GetAllSubscriptiongroupConfig(),
    GetAllConsumerOffset(),
    GetSubscriptiongroupConfig(group="G"),
]


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("header", READS, ids=lambda header: type(header).__name__)
def test_a_slave_answers_reads_as_its_master_does(master: Talk, slave: SlaveTalk, header: Any, serialization: int) -> None:
    mine, theirs = (talk.ask(header, serialization=serialization) for talk in (slave, master))
    assert (mine.code, mine.remark, mine.fields, bytes(mine.body)) == (
        theirs.code,
        theirs.remark,
        theirs.fields,
        bytes(theirs.body),
    )


CHANGES = sorted(code for code, row in REQUESTS.items() if row.changes)


@pytest.mark.parametrize("code", CHANGES)
def test_what_changes_a_broker_is_refused_by_a_slave_and_named(slave: SlaveTalk, code: int) -> None:
    refused = slave.ask(GetMaxOffset(topic="T", queue_id=0), b"x", code=code)
    assert refused.code == ServiceNotAvailable.code
    assert f"broker-a/1 is a slave, ask its master for {REQUESTS[code].name} ({code})" in refused.remark


@pytest.mark.parametrize("code", sorted(code for code, row in REQUESTS.items() if row.is_of_messages and not row.changes))
def test_a_member_of_a_pair_shows_no_message_before_it_has_compared_its_log_with_the_masters(slave: SlaveTalk, code: int) -> None:
    def remark() -> str:
        return str(slave.ask(GetMaxOffset(topic="T", queue_id=0), code=code).remark)

    refusal = "this log may have to be cut, its master was not asked yet"
    slave.standby.pair_master = ""
    assert refusal in remark() or code not in slave.broker.codes()
    slave.standby.end_offset = 0
    assert refusal not in remark()
    slave.standby.pair_master, slave.standby.end_offset = None, -1
    assert refusal not in remark(), "a slave beside a pair never was the master"


def test_every_request_that_saves_a_table_counts_as_a_change(master: Talk) -> None:
    saving = {code for code, handler in master.broker.services.handlers() if hasattr(handler, "saves")}
    assert saving <= set(CHANGES)
    assert {10, 310, 320, 325, 36, 37} <= set(CHANGES), "so do sends and decisions"


def test_an_unknown_request_is_refused_as_by_a_master(master: Talk, slave: SlaveTalk) -> None:
    answers = [talk.ask(GetMaxOffset(topic="T", queue_id=0), code=9999) for talk in (slave, master)]
    assert [(answer.code, answer.remark) for answer in answers] == [(3, " request type 9999 not supported")] * 2


# ---------------------------------------------------------------- what is copied meanwhile


def test_a_held_pull_is_answered_in_the_turn_in_which_its_message_is_copied(master: Talk, slave: SlaveTalk) -> None:
    opaque = slave.post(pull_header("T", offset=10, wait_ms=20_000))
    slave.turn()
    master.send("T", b"new")
    assert slave.answer(opaque) is None
    slave.copy_log()
    assert bodies(slave.answer(opaque)) == [b"new"]


def test_a_group_that_is_ahead_of_the_copy_waits_and_is_not_sent_back(master: Talk) -> None:
    slave = SlaveTalk(master)
    slave.copy_tables()
    reply = slave.pull("T", offset=9)
    assert (reply.code, reply.header(PullMessageReply).next_begin_offset) == (19, 9)
    opaque = slave.post(pull_header("T", offset=9, wait_ms=20_000))
    slave.turn()
    slave.copy_log()
    assert bodies(slave.answer(opaque)) == [b"9"]
    assert slave.pull("T", offset=30).header(PullMessageReply).next_begin_offset == 30
    assert master.pull("T", offset=30).header(PullMessageReply).next_begin_offset == 10


def test_a_deleted_topic_is_gone_with_the_masters_next_table_and_held_pulls_hear_of_it(master: Talk, slave: SlaveTalk) -> None:
    opaque = slave.post(pull_header("T", offset=10, wait_ms=20_000))
    slave.turn()
    master.ask(DeleteTopicInBroker(topic="T"))
    slave.copy_tables()
    assert slave.answer(opaque) is not None
    assert slave.pull("T").code == 17


def test_a_retry_topic_of_a_member_that_the_master_does_not_know_yet_stays(master: Talk, slave: SlaveTalk) -> None:
    slave.consume("T", group="New", peer=2)
    opaque = slave.post(pull_header("%RETRY%New", group="New", wait_ms=20_000))
    slave.turn()
    slave.copy_tables()
    assert "%RETRY%New" not in master.broker.topics.names()
    assert slave.answer(opaque) is None, "it is held"
    assert slave.pull("%RETRY%New", group="New").code == 19


def test_groups_and_progress_are_the_masters_as_soon_as_they_come(master: Talk, slave: SlaveTalk) -> None:
    config = SubscriptionGroupConfig(group_name="New", consume_enable=False)
    master.ask(UpdateAndCreateSubscriptiongroup(), to_json(config))
    master.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=8))
    assert slave.pull("T", group="New").code == 0, "it is not known yet, and made"
    slave.copy_tables()
    assert slave.pull("T", group="New").code == 16
    assert progress(slave) == 8


def test_progress_that_is_reported_to_a_slave_counts_until_the_masters_comes_and_is_not_saved(
    master: Talk, slave: SlaveTalk
) -> None:
    slave.ask(pull_header("T", offset=9, commit=9))
    assert progress(slave) == 4, "not what a pull carries, as in RocketMQ"
    assert slave.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=6)).code == 0
    assert progress(slave) == 6
    slave.wait(60_000)
    assert not slave.disk.exists("config/consumerOffset.json")
    slave.copy_tables()
    assert progress(slave) == 4


def progress(talk: Talk) -> int:
    reply = talk.ask(QueryConsumerOffset(consumer_group="G", topic="T", queue_id=0))
    assert reply.code != QueryNotFound.code
    return reply.header(OffsetReply).offset


def test_what_a_slave_saved_is_there_after_its_restart(master: Talk, slave: SlaveTalk) -> None:
    for path in ("topics", "subscriptionGroup", "consumerOffset"):
        slave.disk.save(f"config/{path}.json", master.disk.read(f"config/{path}.json") or b"{}")
    slave.standby.stop(slave.instant)
    slave.standby.close(slave.instant)
    slave.open()
    assert len(bodies(slave.pull("T"))) == 10


# ---------------------------------------------------------------- clients


def test_consumers_are_members_at_a_slave_and_can_be_asked_through_it(slave: SlaveTalk) -> None:
    assert slave.consume("T", group="G", peer=2, client_id="c").code == 0
    members = slave.ask(GetConsumerListByGroup(consumer_group="G")).body
    assert from_json(ConsumerIdList, members).consumer_id_list == ["c"]
    opaque = slave.post(GetConsumerRunningInfo(consumer_group="G", client_id="c"))
    slave.turn()
    relayed = [command for command in slave.received[2] if command.code == 307]
    assert len(relayed) == 1
    assert slave.answer(opaque) is None
    slave.lose(2)
    assert slave.answer(opaque).remark == "the client's connection was lost"
    assert slave.ask(GetConsumerListByGroup(consumer_group="G")).code == 1


def test_many_requests_of_one_connection_are_all_answered_in_order(slave: SlaveTalk) -> None:
    opaques = [slave.post(GetMaxOffset(topic="T", queue_id=0)) for _ in range(100)]
    slave.turn()
    assert [command.opaque for command in slave.received[1]] == opaques


def test_what_is_too_much_to_wait_is_refused(slave: SlaveTalk) -> None:
    slave.broker._backlog.waiting_max = 3
    opaques = [slave.post(GetMaxOffset(topic="T", queue_id=0)) for _ in range(40)]
    slave.turn()
    codes = [slave.answer(opaque).code for opaque in opaques]
    assert (codes.count(0), codes.count(SystemBusy.code)) == (35, 5)


def test_a_connection_that_does_not_read_gets_its_answers_once_it_does(slave: SlaveTalk) -> None:
    slave.connect(1)
    slave.core.slow(1, is_slow=True)
    opaque = slave.post(GetMaxOffset(topic="T", queue_id=0))
    slave.turn()
    assert (slave.answer(opaque), slave.core.unanswered(1)) == (None, True)
    slave.core.slow(1, is_slow=False)
    slave.turn()
    assert slave.answer(opaque).code == 0
    assert not slave.core.unanswered(1)


def test_a_header_that_does_not_decode_ends_its_connection_after_the_answers(slave: SlaveTalk) -> None:
    opaque = slave.post(GetMaxOffset(topic="T", queue_id=0))
    slave.feed(1, b"\0\0\0\x06\0\0\0\x02{]")
    slave.turn()
    assert slave.answer(opaque).code == 0
    assert list(slave.closed) == [1]


def test_a_request_that_fails_is_answered_and_the_others_do_not_feel_it(slave: SlaveTalk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave.standby.store, "reported_max", lambda *_: 1 // 0)
    opaques = [slave.post(GetMaxOffset(topic="T", queue_id=0)), slave.post(GetMinOffset(topic="T", queue_id=0))]
    slave.turn()
    assert [slave.answer(opaque).code for opaque in opaques] == [1, 0]


def test_a_stopping_slave_answers_held_pulls(slave: SlaveTalk) -> None:
    opaque = slave.post(pull_header("T", offset=10, wait_ms=20_000))
    slave.turn()
    slave.stop()
    assert slave.answer(opaque).code == 19


def test_a_slave_that_does_not_copy_reports_a_fault(slave: SlaveTalk) -> None:
    texts = from_json(KVTable, slave.ask(GetBrokerRuntimeInfo()).body).table
    assert texts["brokerFaults"] == "the master's log is not copied: the master was not asked yet"
    slave.standby.problem = None
    slave.standby.following.connected(1, "10.0.0.1:10912", slave.instant)
    assert "brokerFaults" not in from_json(KVTable, slave.ask(GetBrokerRuntimeInfo()).body).table


def test_a_slave_with_accounts_refuses_strangers(master: Talk) -> None:
    disk = SimDisk(Random(8))
    disk.save("conf/plain_acl.yml", b"accounts:\n- {accessKey: account1, secretKey: secret-1, defaultTopicPerm: SUB}\n")
    slave = SlaveTalk(master, disk, acl_enable=True)
    slave.copy_log()
    assert slave.ask(GetTopicStatsInfo(topic="T")).code == AccessRefused.code
    opaque = slave.post(GetMaxOffset(topic="T", queue_id=0), who=("account1", "secret-1", ""))
    slave.turn()
    assert slave.answer(opaque).header(OffsetReply).offset == 10
    held = slave.post(pull_header("T", offset=10, wait_ms=60_000), who=("account1", "secret-1", ""))
    slave.turn()
    disk.save("conf/plain_acl.yml", b"accounts:\n- {accessKey: account1, secretKey: secret-2, defaultTopicPerm: SUB}\n")
    slave.wait(15_000)
    assert slave.answer(held).code == AccessRefused.code


# ---------------------------------------------------------------- histories


def history(seed: int) -> None:
    """Let a consumer read from a slave that copies; raise AssertionError unless it gets every message once, in order."""
    random = Random(seed)
    master = Talk("master", disk=SimDisk(Random(seed)))
    master.send("T", b"0")
    slave, sent, got, offset, opaque = SlaveTalk(master), 1, 0, 0, 0
    slave.copy_tables()
    if random.random() < 0.5:
        offset = got = 1  # it has read it from the master, and is ahead of the copy
    for step in [*random.choices(["send", "copy", "copy", "pull", "tables", "commit", "wait"], k=60), "end"]:
        if step == "send":
            master.send("T", b"%d" % sent)
            sent += 1
        elif step == "copy":
            slave.copy_log(random.randint(0, 700))
        elif step == "tables":
            slave.copy_tables()
        elif step == "commit":
            master.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=offset))
        elif step == "wait":
            slave.wait(random.randint(0, 5_000))
        for _ in range(5 if step == "end" else 1):
            if not opaque:
                opaque = slave.post(pull_header("T", offset=offset, wait_ms=random.choice([0, 3_000])))
                slave.turn()
            if step == "end":
                slave.copy_log()
            if (reply := slave.answer(opaque)) is not None:
                for body in bodies(reply) if reply.code == 0 else []:
                    assert body == b"%d" % got
                    got += 1
                offset, opaque = reply.header(PullMessageReply).next_begin_offset, 0
                assert offset == got
    assert got == sent, "without any wait"


def histories(count: int) -> None:
    for seed in range(count):
        history(seed)


def test_a_consumer_gets_every_message_once_from_a_slave_that_copies() -> None:
    histories(40)


def _forgets_held_pulls(self: Any) -> None:
    self.store.drop_arrivals()


def _is_a_master(self: Any, *arguments: Any) -> None:
    PULLS_BEGIN(self, *arguments)
    self._is_master = True


PULLS_BEGIN = Pulls.__init__


@pytest.mark.parametrize(("where", "name", "fault"), [(Serving, "_stored", _forgets_held_pulls), (Pulls, "__init__", _is_a_master)])
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, fault: Any) -> None:
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError):
        histories(40)
