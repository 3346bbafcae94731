"""A slave looks at its master before it copies, and never adds to a log that is not a part of the master's."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies.copies import EPOCHS
from halfmoon.broker.copies.feeding import GATHER_MS
from halfmoon.broker.copies.standby import COPIED_TABLES
from halfmoon.effects import Call, Sleep, SteadyTime
from halfmoon.errors import ACCESS_REFUSED, ConnectFailed
from halfmoon.store.journal import Kind
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import BrokerData, ClusterInfo, KVTable, from_json, to_json
from halfmoon.wire.command import Command
from halfmoon.wire.copying import FILE, NOBODY, WHOLE_LOG, State
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.headers.topic import DeleteTopicInBroker, GetAllTopicConfig, GetTopicStatsInfo
from tests.broker.copies.slave import Port, log_of
from tests.broker.copies.test_feeding import fill
from tests.broker.copies.test_following import FILE_BYTES, Slave
from tests.broker.half import half_properties
from tests.broker.talk import Talk

NAME_SERVER, MASTER = "10.0.0.5:9876", "10.0.0.1:10911"


class Standing(Slave):
    """A slave whose questions are answered by a master, which has a name server. ``away``: addresses that do not answer."""

    def __init__(self, talk: Any, **settings: Any) -> None:
        self.talk, self.away, self.changed, self.asked = talk, set[str](), dict[type, Any](), list[type]()
        super().__init__(SimDisk(Random(1)), **settings)

    def open(self) -> None:
        """Start on its directory."""
        super().open()
        object.__setattr__(self.core.settings, "nameserver", NAME_SERVER)
        self._operation, self._answer = self.core.keep(), None

    def look(self) -> str | None:
        """Let it look at the master once; return the problem that it has."""
        effect = self._operation.send(None)
        while not isinstance(effect, Sleep):
            try:
                effect = self._operation.send(self._carried_out(effect))
            except ConnectFailed as exc:
                effect = self._operation.throw(exc)
        self.run_effects()
        return self.core.problem

    def _carried_out(self, effect: Any) -> Any:
        if isinstance(effect, SteadyTime):
            return self.instant.steady
        assert isinstance(effect, Call)
        self.asked.append(type(effect.request))
        if effect.address in self.away:
            raise ConnectFailed(f"connect to {effect.address} failed")
        if type(effect.request) in self.changed:
            return self.changed[type(effect.request)]
        if isinstance(effect.request, GetBrokerClusterInfo):
            data = BrokerData(broker_name="broker-a", broker_addrs={0: MASTER})
            return Command(code=0, flag=1, body=to_json(ClusterInfo(broker_addr_table={"broker-a": data})))
        return self.talk.ask(effect.request)


@pytest.fixture
def talk() -> Talk:
    return Talk("store", disk=SimDisk(Random(3)), store={"commit_log_file_bytes": FILE_BYTES})


def of_apache(standing: Standing) -> Standing:
    """Let the master of a slave describe itself as one of RocketMQ does."""
    table = from_json(KVTable, standing.talk.ask(GetBrokerRuntimeInfo()).body)
    del table.table[EPOCHS]
    standing.changed[GetBrokerRuntimeInfo] = Command(code=0, flag=1, body=to_json(table))
    return standing


def test_it_finds_the_port_of_its_master_and_saves_no_table_of_one_of_ours(talk: Talk) -> None:
    fill(talk)
    standing = Standing(talk)
    assert standing.core.problem == "the master was not asked yet"
    assert standing.look() is None
    assert standing.core.following.master == "10.0.0.1:10912"
    assert standing.core.end_offset == talk.broker.store.end_offset
    assert standing.asked[:3] == [GetBrokerClusterInfo, GetBrokerRuntimeInfo, GetBrokerConfig]
    assert set(standing.asked[3:]) == {GetAllTopicConfig, GetTopicStatsInfo}, "where queues end, as its log is empty"
    assert not standing.disk.exists("config/topics.json")


def test_it_says_who_it_is_to_a_master_of_ours_and_not_to_others(talk: Talk) -> None:
    standing = Standing(talk)
    standing.look()
    hello = standing.core.following.hello
    assert hello is not None
    assert (hello.member, hello.epoch, hello.offset) == (NOBODY, 1, WHOLE_LOG), "it never takes a lease"
    of_apache(standing).look()
    assert standing.core.following.hello is None


def test_a_member_of_a_pair_says_its_id(talk: Talk) -> None:
    standing = Standing(talk)
    standing.core.pair_master = MASTER
    standing.look()
    hello = standing.core.following.hello
    assert hello is not None
    assert hello.member.hex() == standing.core.epochs.member


def test_it_copies_the_tables_of_a_master_of_rocketmq(talk: Talk) -> None:
    fill(talk)
    standing = of_apache(Standing(talk))
    assert standing.look() is None
    assert standing.core.following.master == "10.0.0.1:10912"
    assert "T" in json.loads(standing.disk.read("config/topics.json") or b"")["topicConfigTable"]
    for name in ("subscriptionGroup", "consumerOffset", "delayOffset"):
        assert standing.disk.exists(f"config/{name}.json")


def test_a_table_is_saved_again_only_when_it_changed(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    standing, saved = of_apache(Standing(talk)), list[str]()
    assert standing.look() is None
    real = standing.disk.save
    monkeypatch.setattr(standing.disk, "save", lambda path, *args, **kw: (saved.append(path), real(path, *args, **kw)))
    standing.look()
    assert saved == []
    talk.send("Another")
    standing.look()
    assert saved == ["config/topics.json"]


@pytest.mark.parametrize(
    ("away", "why"), [({NAME_SERVER}, f"connect to {NAME_SERVER} failed"), ({MASTER}, f"connect to {MASTER} failed")]
)
def test_who_does_not_answer_is_named_and_asked_again(
    talk: Talk, caplog: pytest.LogCaptureFixture, away: set[str], why: str
) -> None:
    standing = Standing(talk)
    standing.away = away
    assert why in str(standing.look())
    standing.look()
    assert [why in record.message for record in caplog.records] == [True], "it is logged once"
    standing.away = set()
    assert standing.look() is None


def test_a_master_with_other_file_sizes_is_refused_with_the_remedy(talk: Talk) -> None:
    standing = Standing(talk, file_bytes=2 * FILE_BYTES)
    assert f"set mappedFileSizeCommitLog={FILE_BYTES}" in str(standing.look())
    assert standing.core.following.master is None


def described(**texts: str) -> bytes:
    """Return the runtime information of a master with an empty log."""
    return to_json(KVTable(table={"commitLogMinOffset": "0", "commitLogMaxOffset": "0", **texts}))


@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        (GetBrokerConfig, b"brokerName=broker-b\n", "is broker broker-b, not broker-a"),
        (GetBrokerConfig, b"brokerName=broker-a\nbrokerId=1\n", "10911 is not the master"),
        (GetBrokerConfig, b"brokerName=broker-a\nhaListenPort=x\n", "does not describe itself"),
        (GetBrokerRuntimeInfo, b'{"table":{"commitLogMinOffset":"x","commitLogMaxOffset":"1"}}', "does not describe itself"),
        (GetBrokerRuntimeInfo, b'{"table":{}}', "does not describe itself"),
        (GetBrokerRuntimeInfo, described(copiesEpochs="1:0:x"), "does not describe itself as Halfmoon's brokers do"),
        (GetBrokerRuntimeInfo, described(copiesEpochs=f"1:0:{'a' * 32},1:0:{'b' * 32}"), "does not describe itself as Halfmoon's"),
        (GetBrokerRuntimeInfo, b"nonsense", "KVTable"),
        (GetBrokerClusterInfo, b"{}", "knows no master called broker-a"),
    ],
)
def test_a_master_that_is_none_is_refused(talk: Talk, header: type, body: bytes, why: str) -> None:
    standing = Standing(talk)
    standing.changed[header] = Command(code=0, flag=1, body=body)
    assert why in str(standing.look())
    assert standing.core.following.master is None


def copied(talk: Talk) -> Standing:
    """Return a slave that has all that its master has."""
    standing = Standing(talk)
    standing.core.store.copying().take(log_of(talk))
    return standing


def test_a_copy_goes_on(talk: Talk) -> None:
    fill(talk, 30)
    standing = copied(talk)
    assert standing.look() is None
    fill(talk)
    standing.restart(kill=True)
    assert standing.look() is None


def test_a_log_ahead_of_its_master_is_not_added_to(talk: Talk) -> None:
    fill(talk)
    standing = copied(talk)
    standing.talk = Talk("store", disk=SimDisk(Random(4)), store={"commit_log_file_bytes": FILE_BYTES})
    fill(standing.talk, 1)
    ends = standing.core.store.end_offset, standing.talk.broker.store.end_offset
    assert f"this log ends at {ends[0]}, behind the end of the master's at {ends[1]}" in str(standing.look())


def test_the_log_of_another_broker_is_not_added_to(talk: Talk) -> None:
    fill(talk)
    standing = copied(talk)
    standing.talk = Talk("store", disk=SimDisk(Random(4)), store={"commit_log_file_bytes": FILE_BYTES})
    for _ in range(6):
        standing.talk.send("T", b"another")
    fill(standing.talk, 3)
    assert "differ" in str(standing.look()) or "offset" in str(standing.look())
    assert standing.core.following.master is None


def test_a_log_behind_the_oldest_file_of_its_master_is_not_added_to(talk: Talk) -> None:
    fill(talk)
    standing = copied(talk)
    fill(talk, 40)
    talk.broker.store.log.segments.drop_before(2 * FILE_BYTES)
    assert f"but the oldest file of the master begins at {2 * FILE_BYTES}: start it with --resync" in str(standing.look())


def test_an_empty_log_begins_at_the_oldest_file_of_its_master(talk: Talk) -> None:
    fill(talk, 40)
    talk.broker.store.log.segments.drop_before(2 * FILE_BYTES)
    standing = Standing(talk)
    assert standing.look() is None
    assert standing.core.store.end_offset == 2 * FILE_BYTES


def test_an_empty_log_begins_later_when_the_master_has_deleted_files_meanwhile(talk: Talk) -> None:
    fill(talk, 60)
    talk.broker.store.log.segments.drop_before(FILE_BYTES)
    standing = Standing(talk)
    assert standing.look() is None
    talk.broker.store.log.segments.drop_before(2 * FILE_BYTES)
    assert standing.look() is None
    assert standing.core.store.end_offset == 2 * FILE_BYTES


def test_what_keeps_it_from_copying_is_told_until_it_copies(talk: Talk) -> None:
    standing = Standing(talk)
    assert standing.core.unready() == "the master was not asked yet"
    standing.look()
    assert standing.core.unready() == "not connected to the master"
    standing.connect(1)
    assert standing.core.unready() is None
    standing.core.store.health.fail("a sync failed")
    assert standing.core.unready() == "a sync failed"
    assert standing.core.lost_at_stop() == "the last messages: a sync failed"


def test_it_looks_at_its_master_again_once_the_connection_is_lost(talk: Talk) -> None:
    standing = copied(talk)
    standing.look()
    standing.connect(1)
    standing.core.lost(1, standing.instant)
    assert standing.core.following.master is None
    standing.look()
    assert standing.core.following.master == "10.0.0.1:10912"


# ---------------------------------------------------------------- epochs


A, B = "a" * 32, "b" * 32


def of_epochs(talk: Talk, epochs: str) -> Standing:
    """Return a slave that has all of its master's log, which says that it has these epochs."""
    standing = copied(talk)
    end = talk.broker.store.end_offset
    standing.changed[GetBrokerRuntimeInfo] = Command(
        code=0, flag=1, body=described(copiesEpochs=epochs, commitLogMaxOffset=str(end))
    )  # fmt: skip
    return standing


def test_epochs_are_adopted_before_anything_is_copied(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = Standing(talk)
    saved = list[str]()
    real = standing.disk.save
    monkeypatch.setattr(standing.disk, "save", lambda path, *args, **kw: (saved.append(path), real(path, *args, **kw)))
    assert standing.look() is None
    assert saved == ["config/epochs.json"]
    assert standing.core.epochs.rows == talk.broker.copies.epochs.rows
    assert standing.core.store.end_offset == 0


def test_epochs_that_cannot_be_saved_keep_it_from_copying(talk: Talk) -> None:
    standing = Standing(talk)
    standing.disk.full = True
    assert "the epochs of the master cannot be saved" in str(standing.look())
    assert standing.core.following.master is None


@pytest.mark.parametrize(
    ("mine", "theirs", "cut_at"),
    [
        ([(1, 0, A)], f"1:0:{A}", None),
        ([(1, 0, A)], f"1:0:{A},2:100:{B}", 100),  # another master went on
        ([(1, 0, A), (2, 500, A)], f"1:0:{A},3:100:{B}", 100),
        ([(1, 0, A), (2, 100, B)], f"1:0:{A},3:300:{A}", 100),  # what it has of epoch 2 was never promised
        ([(1, 0, A)], f"1:0:{A},2:99999:{B}", None),  # it went on behind the end of this log
    ],
)
def test_a_log_is_cut_where_another_master_went_on(
    talk: Talk, mine: list[tuple[int, int, str]], theirs: str, cut_at: int | None
) -> None:
    fill(talk)
    standing = of_epochs(talk, theirs)
    standing.core.epochs.adopt(mine)
    standing.core.pair_master = MASTER
    problem = standing.look()
    assert standing.core.cut_at == cut_at
    if cut_at is None:
        assert problem is None
    else:
        assert f"has in common with the master's only what lies before {cut_at}" in str(problem)
        assert standing.core.following.master is None
        assert standing.core.epochs.rows == tuple(mine), "a log that must be cut does not take the epochs"


def test_a_log_goes_on_whose_last_message_the_master_shows_nobody(talk: Talk) -> None:
    """That is not kept yet, or its topic was deleted."""
    fill(talk)
    standing = of_epochs(talk, f"1:0:{A}")
    talk.ask(DeleteTopicInBroker(topic="T"))
    assert "its topic T was deleted" in str(standing.look())
    standing.core.epochs.adopt([(1, 0, A)])
    assert standing.look() is None
    assert standing.core.following.master is not None


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_log_is_refused_and_not_cut_where_it_has_a_later_epoch_than_its_master(talk: Talk, epoch: int) -> None:
    fill(talk)
    standing = of_epochs(talk, f"1:0:{A},2:100:{B}")
    standing.core.epochs.adopt([(1, 0, A), (epoch, 200, A)])
    standing.core.pair_master = MASTER
    mine, theirs = f"epoch {epoch} of member {A[:8]}, from offset 200 on", f"epoch 2 of member {B[:8]}, from offset 100 on"
    assert f"this log has {mine}, and the master is that of {theirs}: the lease had an older record" in str(standing.look())
    assert (standing.core.cut_at, standing.core.following.master) == (None, None)


def test_a_log_is_refused_and_not_cut_where_the_same_master_lost_its_end(talk: Talk) -> None:
    fill(talk)
    end = talk.broker.store.end_offset
    standing = of_epochs(talk, f"1:0:{A},2:100:{A}")
    standing.core.epochs.adopt([(1, 0, A)])
    standing.changed[GetBrokerRuntimeInfo] = Command(
        code=0, flag=1, body=described(copiesEpochs=f"1:0:{A},2:100:{A}", commitLogMaxOffset=str(end - 1))
    )  # fmt: skip
    assert f"this log ends at {end}, behind the end of the master's at {end - 1}" in str(standing.look())
    assert standing.core.cut_at is None


def test_a_log_without_an_epoch_in_common_is_refused_and_not_cut(talk: Talk) -> None:
    fill(talk)
    standing = of_epochs(talk, f"1:0:{B}")
    standing.core.epochs.adopt([(1, 0, A)])
    standing.talk = Talk("store", disk=SimDisk(Random(4)), store={"commit_log_file_bytes": FILE_BYTES})
    assert standing.look() is not None
    assert standing.core.cut_at is None


# ---------------------------------------------------------------- states


def follow(talk: Talk) -> tuple[Port, Standing]:
    """Return a slave that is connected to its master, and the port that it is connected to."""
    standing, port = Standing(talk), Port(talk)
    assert standing.look() is None
    standing.connect(1)
    port.connect(1)
    copy_all(port, standing)
    return port, standing


def copy_all(port: Port, standing: Standing) -> None:
    """Let everything be copied."""
    port.turn()
    port.wait(GATHER_MS)
    while (sent := standing.take_sent()) or port.sent[1]:
        port.say(1, sent)
        standing.receive(port.take(1))


def state_of(standing: Standing, state: State) -> list[Exception | None]:
    """Give a state to a slave; return what it says of it."""
    said = list[Exception | None]()
    standing.core._save_state(state, lambda _, error: said.append(error))
    standing.run_effects()
    return said


def test_every_table_of_a_broker_is_copied_and_nothing_else(talk: Talk) -> None:
    assert set(talk.broker.tables.paths()) == COPIED_TABLES


def test_a_state_that_is_no_table_of_a_broker_is_not_saved(talk: Talk) -> None:
    standing = Standing(talk)
    before = standing.disk.paths()
    names = [
        b"config/epochs.json",
        b"config/other.json",
        b"/config/topics.json",
        b"../topics.json",
        b"commitlog/00000000000000000000",
    ]
    for name in [*names, b"config/../config/topics.json", b"", b"config/topics.json\0", b"\xff" * 300]:
        assert state_of(standing, State(1, FILE, name, b"{}")) == [None]
    for kind in set(Kind) - {Kind.DELAYS}:
        assert state_of(standing, State(1, kind, b"key", b"value")) == [None]
        assert standing.core.store.journal.value(kind, b"key") is None
    assert standing.disk.paths() == before


def test_a_table_that_makes_no_sense_is_not_saved(talk: Talk) -> None:
    standing = Standing(talk)
    [error] = state_of(standing, State(1, FILE, b"config/topics.json", b"[]"))
    assert error is not None
    assert not standing.disk.exists("config/topics.json")


def test_topics_that_the_master_deleted_lose_their_queues_here(talk: Talk) -> None:
    fill(talk)
    talk.send("Kept")
    port, standing = follow(talk)
    assert standing.core.store.topics() == talk.broker.store.topics()
    talk.ask(DeleteTopicInBroker(topic="T"))
    copy_all(port, standing)
    assert "T" not in standing.core.store.topics()
    assert standing.core.store.queue_max("Kept", 0) == 1


def test_a_topic_that_was_made_again_keeps_what_came_since(talk: Talk) -> None:
    fill(talk)
    port, standing = follow(talk)
    standing.held = []
    talk.ask(DeleteTopicInBroker(topic="T"))
    port.turn()
    fill(talk, 2)
    copy_all(port, standing)
    held, standing.held = standing.held, None
    for work in held:
        standing.finish(work)
    standing.run_effects()
    copy_all(port, standing)
    assert standing.core.store.queue_max("T", 0) == talk.broker.store.queue_max("T", 0)
    assert standing.core.store.queue_min("T", 0) == talk.broker.store.queue_min("T", 0)


def test_no_topic_of_a_busy_master_loses_its_queues(talk: Talk) -> None:
    port, standing = follow(talk)
    talk.send("T")
    talk.send("T", properties="DELAY\x011\x02")
    talk.send("T", properties="TIMER_DELAY_MS\x01500\x02")
    talk.send("T", properties=half_properties())
    talk.wait(5_000)
    copy_all(port, standing)
    master, topics = talk.broker.store, standing.core.store.topics()
    assert topics == [topic for topic in master.topics() if any(master.queue_max(topic, number) for number in range(4))]
    assert len(topics) == 4


@pytest.mark.parametrize("kind", ["ours", "RocketMQ's"])
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_the_offsets_of_messages_that_expired_are_not_given_out_again_by_a_slave_that_takes_over(
    kind: str, kill: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"commit_log_file_bytes": FILE_BYTES, "file_reserved_hours": 1, "delete_when": ";".join(map(str, range(24)))}
    talk = Talk("store", disk=SimDisk(Random(3)), store=settings)
    talk.disk.now_ms = talk.now - 2 * 3_600_000
    for _ in range(5):
        talk.send("Old")
    fill(talk, 30, 10_000)
    talk.wait(30_000)
    assert talk.broker.store.queue_min("Old", 0) == talk.broker.store.queue_max("Old", 0) == 5
    standing = Standing(talk) if kind == "ours" else of_apache(Standing(talk))
    assert standing.look() is None
    standing.restart(kill=kill)
    assert standing.look() is None
    port = Port(talk)
    standing.connect(1)
    port.connect(1)
    copy_all(port, standing)
    standing.restart(kill=kill)
    standing.core.close(standing.instant)

    master = Talk("store", disk=standing.disk, store={"commit_log_file_bytes": FILE_BYTES})
    assert master.broker.store.queue_max("Old", 0) == 5
    assert master.send("Old").fields["queueOffset"] == "5"
    assert "somebody removed files" not in caplog.text


def test_a_master_that_does_not_show_where_queues_end_is_copied_and_it_is_said(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    standing = Standing(talk)
    standing.changed[GetTopicStatsInfo] = Command(code=1, flag=1, remark=f"{ACCESS_REFUSED}: no permission")
    assert standing.look() is None
    assert "where queues without messages end at the master is not known" in caplog.text
