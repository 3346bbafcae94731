"""A slave looks at its master before it copies, and never adds to a log that is not a part of the master's."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from halfmoon.effects import Call, Sleep, SteadyTime
from halfmoon.errors import ConnectFailed
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import BrokerData, ClusterInfo, to_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.broker.copies.slave import log_of
from tests.broker.copies.test_feeding import fill
from tests.broker.copies.test_following import FILE_BYTES, Slave
from tests.broker.talk import Talk

NAME_SERVER, MASTER = "10.0.0.5:9876", "10.0.0.1:10911"


class Standing(Slave):
    """A slave whose questions are answered by a master, which has a name server. ``away``: addresses that do not answer."""

    def __init__(self, talk: Any, **settings: Any) -> None:
        self.talk, self.away, self.changed = talk, set[str](), dict[type, Any]()
        super().__init__(SimDisk(Random(1)), **settings)

    def open(self) -> None:
        """Start on its directory."""
        super().open()
        object.__setattr__(self.core.settings, "nameserver", NAME_SERVER)
        self.core.following.wants_whole_log = False
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


def test_it_finds_the_port_of_its_master_and_copies_the_tables(talk: Talk) -> None:
    fill(talk)
    standing = Standing(talk)
    assert standing.core.problem == "the master was not asked yet"
    assert standing.look() is None
    assert standing.core.following.master == "10.0.0.1:10912"
    assert standing.core.following.wants_whole_log
    assert standing.core.end_offset == talk.broker.store.end_offset
    assert "T" in json.loads(standing.disk.read("config/topics.json") or b"")["topicConfigTable"]
    for name in ("subscriptionGroup", "consumerOffset", "delayOffset"):
        assert standing.disk.exists(f"config/{name}.json")


def test_a_table_is_saved_again_only_when_it_changed(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    standing, saved = Standing(talk), list[str]()
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


@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        (GetBrokerConfig, b"brokerName=broker-b\n", "is broker broker-b, not broker-a"),
        (GetBrokerConfig, b"brokerName=broker-a\nhaListenPort=x\n", "does not describe itself"),
        (GetBrokerRuntimeInfo, b'{"table":{"commitLogMinOffset":"x","commitLogMaxOffset":"1"}}', "does not describe itself"),
        (GetBrokerRuntimeInfo, b'{"table":{}}', "does not describe itself"),
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
    assert f"but the oldest file of the master begins at {2 * FILE_BYTES}: empty the directory" in str(standing.look())


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
